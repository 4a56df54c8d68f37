"""What generators in Python share: Produce and Fetch requests, a connection, the broker's processor time in turns."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any, Final

from crc32c import crc32c

from benchmarks import proc
from benchmarks.load.hostile import array, text
from benchmarks.load.transactions import RECORD_BYTES, records

SMALL_BYTES: Final = 16 << 10
"""Read at first, so that what is left of the next answer is little to move."""

Pieces = list[Any]


def plain_batch(count: int, record_bytes: int = RECORD_BYTES) -> bytes:
    """`count` records without keys and without a producer id."""
    now_ms = time.time_ns() // 1_000_000
    head = struct.pack(">hiqqqhii", 0, count - 1, now_ms, now_ms, -1, -1, -1, count)
    checked = head + records(count, record_bytes)
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c(checked)) + checked


def produce(topic: str, raw: bytes, *, acks: int = 1) -> bytes:
    """A Produce request, version 8, without its size."""
    place = array([text(topic) + array([struct.pack(">ii", 0, len(raw)) + raw])])
    return struct.pack(">hhi", 0, 8, 1) + text("bench") + struct.pack(">hhi", -1, acks, 30_000) + place


def fetch(topic: str, offset: int, max_bytes: int) -> bytes:
    """A Fetch request, version 4, without its size."""
    head = struct.pack(">hhi", 1, 4, 1) + text("bench") + struct.pack(">iiiib", -1, 0, 1, max_bytes, 0)
    return head + array([text(topic) + array([struct.pack(">iqi", 0, offset, max_bytes)])])


def produced(answer: bytes, topic: str) -> int:
    """The base offset that a Produce response tells, which begins with its correlation id. Raises SystemExit."""
    error, base_offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(topic) + 8)
    if error:
        raise SystemExit(f"a record was refused: error {error}")
    return int(base_offset)


class Way:
    """Requests go in, answers come out, in order; a context is closed by `close`."""

    def send(self, request: bytes) -> None:
        """Send one."""
        raise NotImplementedError

    def receive(self) -> Pieces:
        """The buffers of the next answer, which begins with its correlation id; wait for it."""
        raise NotImplementedError


class Tcp(Way):
    """A blocking socket, connected, and encrypted where somebody did that."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._buffer = bytearray(4 << 20)
        self._view = memoryview(self._buffer)
        self._held = 0
        self._last = 0

    def send(self, request: bytes) -> None:
        self._socket.sendall(struct.pack(">i", len(request)) + request)

    def receive(self) -> Pieces:
        view = self._view
        if self._last:  # what came behind the last answer
            self._held -= self._last
            view[: self._held] = view[self._last : self._last + self._held]
        while self._held < 4:
            self._more(SMALL_BYTES)
        needed = 4 + int.from_bytes(view[:4])
        while self._held < needed:
            self._more(needed - self._held)
        self._last = needed
        return [view[4:needed]]

    def _more(self, limit: int) -> None:
        got = self._socket.recv_into(self._view[self._held :], limit)
        if not got:
            raise SystemExit("the broker closed the connection")
        self._held += got


class Meter:
    """Processor time of the broker during turns."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._before = proc.sample(pids)
        self.seconds = 0.0

    def start(self) -> None:
        """A turn begins."""
        self._before = proc.sample(self._pids)

    def stop(self) -> None:
        """It ends."""
        self.seconds += proc.used(self._before, proc.sample(self._pids)).cpu_seconds
