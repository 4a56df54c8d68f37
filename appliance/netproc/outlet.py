"""Sending: answers in request order, small ones joined, records from the segment.

To another host records go by sendfile: the network card reads the page cache, no processor does. To a client of this
host somebody must copy them, and sendfile leaves that to the client, page by page and out of memory; reading a megabyte
into a buffer that stays in the cache and sending that is quicker for the two together (decision 0025). A copy that
waits in the kernel is memory, so only a client that has taken all it was sent before gets one.

A client that does not read holds its own answers only: they stay in `out`, its socket is watched for EPOLLOUT, and
the processor stops cutting its frames when too many of its requests are unanswered, or too large answers unread.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
from collections import deque
from collections.abc import Iterable
from termios import TIOCOUTQ as SIOCOUTQ  # the same number, as tcp(7) says
from typing import Final

from appliance.errors import StorageFault
from appliance.netproc.connection import Connection, FilePiece, Piece

# One connection's turn; then the others are looked at. Level-triggered epoll brings it back.
TURN_BYTES: Final = 1 << 20
JOIN_BYTES: Final = 64 * 1024
# Records up to this are read and leave with their header: a copy is cheaper than a second system call. It is little,
# since what a client does not take of it stays in memory.
READ_BYTES_MAX: Final = 4 * 1024
_MSG_MORE: Final[int] = socket.MSG_MORE
# Who leaves no more than this in the kernel has taken what it was sent: a header waits there for its records.
TAKEN_ALL_BYTES: Final = 64 * 1024

# One for the process: it holds bytes only between a read and the send that follows.
_copied: Final = memoryview(bytearray(TURN_BYTES))
_left: Final = array.array("i", [0])


def collect(connection: Connection) -> bool:
    """Moves the answers at the head of the queue into `out`; whether there were any."""
    queue, out = connection.queue, connection.out
    moved = False
    while queue and (answer := queue[0].answer) is not None:
        out.extend(answer)
        queue.popleft()
        moved = True
    return moved


def flush(connection: Connection) -> int:
    """Sends what the socket takes, at most a turn; how many bytes left.

    Raises:
        OSError: the peer is gone.
        StorageFault: a segment ended before the bytes that were promised; the connection must be closed.
    """
    out, sock = connection.out, connection.sock
    sent_bytes = 0
    try:
        while out and sent_bytes < TURN_BYTES:
            piece = out[0]
            if isinstance(piece, FilePiece):
                if connection.is_local and connection.was_sent_records and _has_taken_all(sock):
                    sent_bytes += _copy_file(sock, piece)
                else:
                    sent_bytes += _send_file(connection.fd, piece)
                if piece.remaining:
                    continue
                connection.was_sent_records = True
                piece.file.release()
                out.popleft()
            else:
                if len(out) > 1:
                    piece = _join(out)
                more = _MSG_MORE if len(out) > 1 else 0
                count = sock.send(piece, more)
                sent_bytes += count
                if count == len(piece):
                    out.popleft()
                else:
                    out[0] = piece[count:]
    except BlockingIOError:
        pass
    return sent_bytes


def abandon(connection: Connection) -> None:
    """The connection is closed: releases the segments it would have sent from."""
    for piece in connection.out:
        if isinstance(piece, FilePiece):
            piece.file.release()
    connection.out.clear()
    for pending in connection.queue:
        for piece in pending.answer or ():
            if isinstance(piece, FilePiece):
                piece.file.release()


def deafest(connections: Iterable[Connection], before_ns: int) -> list[Connection]:
    """Who has read nothing of its answers since `before_ns`, the one that owes the most memory first."""
    late = [
        connection
        for connection in connections
        if connection.out and connection.owed_bytes and connection.last_active_ns < before_ns
    ]
    return sorted(late, key=lambda connection: -connection.owed_bytes)


def _send_file(fd: int, piece: FilePiece) -> int:
    count = os.sendfile(fd, piece.file.fd, piece.position, min(piece.remaining, TURN_BYTES))
    if not count:
        raise _ended(piece.remaining)
    piece.position += count
    piece.remaining -= count
    return count


def _has_taken_all(sock: socket.socket) -> bool:
    fcntl.ioctl(sock, SIOCOUTQ, _left)
    return _left[0] <= TAKEN_ALL_BYTES


def _copy_file(sock: socket.socket, piece: FilePiece) -> int:
    wanted = min(piece.remaining, TURN_BYTES)
    got = os.preadv(piece.file.fd, [_copied[:wanted]], piece.position)
    if got < wanted:
        raise _ended(piece.remaining - got)
    count = sock.send(_copied[:wanted])
    piece.position += count
    piece.remaining -= count
    return count


def _ended(missing_bytes: int) -> StorageFault:
    return StorageFault(f"a segment ended {missing_bytes} bytes before its promised end")


def _read_file(piece: FilePiece) -> bytes:
    records = os.pread(piece.file.fd, piece.remaining, piece.position)
    if len(records) < piece.remaining:
        raise _ended(piece.remaining - len(records))
    piece.file.release()
    return records


def _join(out: deque[Piece]) -> bytes:
    """Joins the small answers at the head of `out`, and few records after them, so that they leave in one system call.

    Raises:
        OSError, StorageFault: the records cannot be read.
    """
    joined: list[bytes] = []
    size_bytes = 0
    while out and size_bytes < JOIN_BYTES and not isinstance(piece := out[0], FilePiece):
        joined.append(piece)
        size_bytes += len(piece)
        out.popleft()
    if (
        out
        and size_bytes <= READ_BYTES_MAX
        and isinstance(piece := out[0], FilePiece)
        and piece.remaining <= READ_BYTES_MAX
    ):
        joined.append(_read_file(piece))
        out.popleft()
    whole = joined[0] if len(joined) == 1 else b"".join(joined)
    out.appendleft(whole)
    return whole
