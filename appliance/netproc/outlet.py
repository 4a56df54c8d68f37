"""Sending: answers in request order, small ones joined, records from the segment.

To another host records go by sendfile: the network card reads the page cache, no processor does. To a client of this
host a process must copy them, and sendfile leaves that to the client, page by page and out of memory; reading a
megabyte into a buffer that stays in the cache and sending that is quicker for the two together (decision 0025). A copy
that waits in the kernel is memory, so only a client that has taken all it was sent before gets one. And if several
clients read backlogs at a time, none gets one: then all wait for the processors, and sendfile needs less of them.

An encrypted connection sends through `tls_stream`, and never through a function of this module that sees its socket.

A client that does not read holds its own answers only: they stay in `out`, its socket is watched for EPOLLOUT, and
the processor stops cutting its frames when too many of its requests are unanswered, or too large answers unread.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from socket import SocketType
from termios import TIOCOUTQ as SIOCOUTQ  # the same number, as tcp(7) says
from typing import Final

from appliance.errors import StorageFault
from appliance.netproc.connection import Connection
from appliance.netproc.read_ahead import ReadAhead
from appliance.requests.answer import FilePiece, Piece

# One connection's turn; then the others are looked at. Level-triggered epoll brings it back.
TURN_BYTES: Final = 1 << 20
JOIN_BYTES: Final = 64 * 1024
# Records up to this are read and leave with their header: a copy is cheaper than a second system call. It is little,
# since what a client does not take of it stays in memory.
READ_BYTES_MAX: Final = 4 * 1024
# Of one sendmsg, which takes 1024 at most; behind records there is rarely more than one.
GATHERED_MAX: Final = 64
_MSG_MORE: Final[int] = socket.MSG_MORE
# A client that leaves no more than this in the kernel has taken what it was sent. A header waits there for its records.
TAKEN_ALL_BYTES: Final = 64 * 1024

# A client that is sent this much in one turn reads a backlog. One that follows the end of a log is sent less.
READER_BYTES: Final = 64 * 1024
# Two readers' turns come in no order; one that is alone for as many is alone.
ALONE_TURNS: Final = 8

# One for the process: it holds bytes only between a read and the send that follows.
_copied: Final = memoryview(bytearray(TURN_BYTES + JOIN_BYTES))
_ahead: Final = ReadAhead(TURN_BYTES)
_left: Final = array.array("i", [0])
# The descriptor of the client that was last sent as much as a backlog's reader is, and for how many turns no other was.
_reader: Final = array.array("q", [-1, 0])


def unpace(sock: SocketType) -> None:
    """A client of this host gets its bytes as fast as it takes them: there is no network to be measured.

    Where BBR is the system's way to avoid congestion, it holds back what goes through the loopback device, too, by a
    timer for each 64 KiB. Reno, which every kernel has, and lets everybody choose, sends what the window allows.
    """
    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def collect(connection: Connection) -> bool:
    """Moves the answers at the head of the queue into `out`; whether there were any."""
    queue = connection.queue
    if queue is None or (pieces := queue[0].answer) is None:
        return False
    count = 1
    while count < len(queue) and (answer := queue[count].answer) is not None:
        pieces += answer
        count += 1
    if count == len(queue):
        connection.queue = None
    else:
        del queue[:count]
    pieces.reverse()
    connection.out = pieces + connection.out if connection.out else pieces
    return True


def flush(connection: Connection) -> int:
    """Sends what the socket takes, at most a turn; how many bytes left.

    A turn ends before records, not before the few bytes behind them: those would cost a turn, and the client a wake-up.

    Raises:
        OSError: the peer is gone.
        StorageFault: a segment ended before the bytes that were promised; the connection must be closed.
    """
    tls = connection.tls
    return _flush_plain(connection) if tls is None else tls.flush(connection)


def _flush_plain(connection: Connection) -> int:
    out, sock = connection.out or [], connection.sock
    takes_copies = connection.is_local and connection.was_sent_records
    sent_bytes = 0
    last: FilePiece | None = None
    try:
        while out:
            piece = out[-1]
            if sent_bytes >= TURN_BYTES and (
                isinstance(piece, FilePiece) or sent_bytes >= TURN_BYTES + JOIN_BYTES
            ):
                break
            if takes_copies and (records := _copied_next(connection, out)) is not None:
                last = records
                count, wanted = _send_copies(sock, out, records)
                sent_bytes += count
                if count < wanted:
                    break
            elif isinstance(piece, FilePiece):
                sent_bytes += _send_file(connection.fd, piece)
                if not piece.remaining:
                    connection.was_sent_records = True
                    piece.file.release()
                    out.pop()
            else:
                if len(out) > 1:
                    piece = _join(out)
                more = _MSG_MORE if len(out) > 1 else 0
                count = sock.send(piece, more)
                sent_bytes += count
                if count == len(piece):
                    out.pop()
                else:
                    out[-1] = piece[count:]
    except BlockingIOError:
        pass
    _note_turn(connection, sent_bytes)
    if not out:
        connection.out = None
        _read_on(last)
    return sent_bytes


def abandon(connection: Connection) -> None:
    """The connection is closed: releases the segments it would have sent from."""
    for piece in connection.out or ():
        if isinstance(piece, FilePiece):
            piece.file.release()
    connection.out = None
    for pending in connection.queue or ():
        for piece in pending.answer or ():
            if isinstance(piece, FilePiece):
                piece.file.release()


def slowest_readers(connections: Iterable[Connection], before_ns: int) -> list[Connection]:
    """Return the connections that have read no answer since `before_ns`, the one with the most unread bytes first."""
    late = [
        connection
        for connection in connections
        if connection.out and connection.owed_bytes and connection.last_active_ns < before_ns
    ]
    return sorted(late, key=lambda connection: -connection.owed_bytes)


def _is_alone(connection: Connection) -> bool:
    """Whether no other client of this process reads a backlog at the same time."""
    return _reader[1] >= ALONE_TURNS and _reader[0] == connection.fd


def _note_turn(connection: Connection, sent_bytes: int) -> None:
    if sent_bytes < READER_BYTES:
        return
    if _reader[0] == connection.fd:
        _reader[1] += 1
    else:
        _reader[0], _reader[1] = connection.fd, 0


def _send_file(fd: int, piece: FilePiece) -> int:
    count = os.sendfile(fd, piece.file.fd, piece.position, min(piece.remaining, TURN_BYTES))
    if not count:
        raise _ended(piece.remaining)
    piece.position += count
    piece.remaining -= count
    return count


def _has_taken_all(sock: SocketType) -> bool:
    fcntl.ioctl(sock, SIOCOUTQ, _left)
    return _left[0] <= TAKEN_ALL_BYTES


def _copied_next(connection: Connection, out: list[Piece]) -> FilePiece | None:
    """The records that leave next, where the client gets a copy of them."""
    records = _next_records(out)
    if records is None or (records.remaining >= READER_BYTES and not _is_alone(connection)):
        return None
    return records if _has_taken_all(connection.sock) else None


def _next_records(out: list[Piece]) -> FilePiece | None:
    """The records that leave next, alone or behind their header; few of them are left to `_join`."""
    piece = out[-1]
    if isinstance(piece, FilePiece):
        return piece
    if len(out) == 1 or len(piece) > JOIN_BYTES:
        return None
    behind = out[-2]
    return behind if isinstance(behind, FilePiece) and behind.remaining > READ_BYTES_MAX else None


def _send_copies(sock: SocketType, out: list[Piece], records: FilePiece) -> tuple[int, int]:
    """Sends the next records, and what stands around them, in one system call: how many bytes, of how many."""
    read = _ahead.take(records.file, records.position, records.remaining)
    if read is None:
        wanted = _copy(out)
        count = sock.send(_copied[:wanted])
    else:
        gathered = _gather(out, read)
        wanted = sum(map(len, gathered))
        count = sock.sendmsg(gathered)
    leave(out, count)
    return count, wanted


def _read_on(sent: FilePiece | None) -> None:
    """After all was sent: what will most likely be asked for next is read while the client reads this."""
    if sent is not None and sent.following_bytes:
        _ahead.expect(sent.file, sent.position, sent.following_bytes)


def _copy(out: list[Piece]) -> int:
    """Copies a turn's records, and what stands before, between and behind them; how many bytes.

    Raises:
        StorageFault: the first piece's segment ends too early. Of a later one, what is before it is copied.
    """
    filled, records_left, others_left = 0, TURN_BYTES, JOIN_BYTES
    for piece in reversed(out):
        if isinstance(piece, FilePiece):
            wanted = min(piece.remaining, records_left)
            end = filled + wanted
            got = os.preadv(piece.file.fd, [_copied[filled:end]], piece.position) if wanted else 0
            if got < wanted and not filled:
                raise _ended(piece.remaining - got)
            if got < wanted or not wanted:
                break
            filled = end
            records_left -= wanted
            if wanted < piece.remaining:
                break
        else:
            others_left -= len(piece)
            if others_left < 0:
                break
            end = filled + len(piece)
            _copied[filled:end] = piece
            filled = end
    return filled


def _gather(out: list[Piece], records: memoryview) -> list[bytes | memoryview]:
    """What leaves in one system call: the next records, which were read before, and what stands around them."""
    gathered: list[bytes | memoryview] = []
    has_records, others_left = False, JOIN_BYTES
    for piece in reversed(out):
        if len(gathered) == GATHERED_MAX:
            break
        if not isinstance(piece, FilePiece):
            others_left -= len(piece)
            if others_left < 0:
                break
            gathered.append(piece)
        elif has_records:
            break
        else:
            gathered.append(records)
            has_records = True
    return gathered


def leave(out: list[Piece], count: int) -> None:
    """Take off `count` bytes of the next pieces of `out`, because they have left."""
    while count:
        piece = out[-1]
        if isinstance(piece, FilePiece):
            taken = min(count, piece.remaining)
            piece.position += taken
            piece.remaining -= taken
            if piece.remaining:
                break
            piece.file.release()
        else:
            taken = len(piece)
            if count < taken:
                out[-1] = piece[count:]
                break
        out.pop()
        count -= taken


def _ended(missing_bytes: int) -> StorageFault:
    return StorageFault(f"a segment ended {missing_bytes} bytes before its promised end")


def _read_file(piece: FilePiece) -> bytes:
    records = os.pread(piece.file.fd, piece.remaining, piece.position)
    if len(records) < piece.remaining:
        raise _ended(piece.remaining - len(records))
    piece.file.release()
    return records


def _join(out: list[Piece]) -> bytes:
    """Joins the next small answers of `out`, and few records among them, so that they leave in one system call.

    Raises:
        OSError, StorageFault: the records cannot be read.
    """
    joined: list[bytes] = []
    size_bytes, records_left = 0, READ_BYTES_MAX
    while out and size_bytes < JOIN_BYTES:
        piece = out[-1]
        if isinstance(piece, FilePiece):
            if piece.remaining > records_left or size_bytes > READ_BYTES_MAX:
                break
            records_left -= piece.remaining
            piece = _read_file(piece)
        joined.append(piece)
        size_bytes += len(piece)
        out.pop()
    whole = joined[0] if len(joined) == 1 else b"".join(joined)
    out.append(whole)
    return whole
