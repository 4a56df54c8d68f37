"""An encrypted connection: what `intake` and `outlet` call in place of a socket.

Received: OpenSSL decrypts a record straight into the connection's block. It decrypts whole records only, so bytes of a
record may be left inside OpenSSL when the block is full. epoll knows nothing of them: `has_more` says so, and the
processor comes back.

Sent: answers and records are gathered in one buffer of the process and encrypted from it. `preadv` copies records once,
out of the page cache into memory that stays in the processor's cache. They are not encrypted from a mapping: a segment
that is cut off under it would kill the process with SIGBUS, and the page faults cost nearly what the copy does
(decision 0110). What the socket does not take stays in `out` and is gathered again, so a slow reader holds no more than
OpenSSL's one unfinished record.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from appliance.errors import StorageFault
from appliance.netproc.connection import Connection
from appliance.netproc.outlet import TURN_BYTES, leave
from appliance.requests.answer import FilePiece, Piece

GATHERED_BYTES: Final = 128 * 1024
"""Eight records of TLS: enough that the system calls of a read do not count, little enough to gather again."""

# One for the process: it holds bytes only between a read and the encryption that follows.
_gathered: Final = memoryview(bytearray(GATHERED_BYTES))


class TlsStream:
    """A socket whose handshake is done; non-blocking."""

    __slots__ = ("_read", "_sock", "_write")

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._read = cast(Callable[[int, memoryview], int], sock.read)
        self._write = sock.send

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._sock.fileno()

    def local_host(self) -> str:
        """Return the address that the client came by."""
        return str(self._sock.getsockname()[0])

    @property
    def has_more(self) -> bool:
        """Whether decrypted bytes wait that epoll does not know of."""
        return self._sock.pending() > 0

    def recv_into(self, view: memoryview) -> int:
        """Read as a socket does: whole records, until the view is full or no further record is there.

        Raises:
            BlockingIOError: there is nothing to read now.
            OSError: the peer is gone, or what it sent is no TLS.
        """
        done, size_bytes = 0, len(view)
        try:
            while done < size_bytes:
                count = self._read(size_bytes - done, view[done:])
                if not count:
                    break
                done += count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not done:
                raise BlockingIOError from None
        except OSError:
            if not done:
                raise
        return done

    def flush(self, connection: Connection) -> int:
        """Send what the socket takes of the connection's answers, at most a turn; return how many bytes left.

        Raises:
            OSError: the peer is gone.
            StorageFault: a segment ended before the bytes that were promised; the connection must be closed.
        """
        out = connection.out or []
        sent_bytes = 0
        try:
            while out and sent_bytes < TURN_BYTES:
                filled, done = _gather(out), 0
                try:
                    while done < filled:
                        done += self._write(_gathered[done:filled])
                finally:
                    leave(out, done)
                    sent_bytes += done
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            # OpenSSL keeps the record that it has started; the same bytes come first when they are gathered again.
            pass
        if not out:
            connection.out = None
        return sent_bytes

    def close(self) -> None:
        """Tell the peer that nothing more comes, as far as the socket takes it, and close."""
        with suppress(OSError, ValueError):
            self._sock.unwrap()
        self._sock.close()


def _gather(out: list[Piece]) -> int:
    """Copy the next pieces of `out`, as much as fits; return how many bytes.

    Raises:
        StorageFault: the first piece's segment ends too early. Of a later one, what is before it is copied.
    """
    filled = 0
    for piece in reversed(out):
        room = GATHERED_BYTES - filled
        if isinstance(piece, FilePiece):
            wanted = min(piece.remaining, room)
            got = (
                os.preadv(piece.file.fd, [_gathered[filled : filled + wanted]], piece.position)
                if wanted
                else 0
            )
            if got < wanted and not filled:
                raise StorageFault(f"a segment ended {piece.remaining - got} bytes before its promised end")
            if got < wanted:
                break
            filled += wanted
            if wanted < piece.remaining:
                break
        else:
            wanted = min(len(piece), room)
            _gathered[filled : filled + wanted] = piece[:wanted]
            filled += wanted
            if wanted < len(piece):
                break
    return filled
