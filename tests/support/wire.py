"""A Kafka connection without a Kafka client: bytes out, frames in, nothing checked on the way.

For tests that must send what no library would.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import Final, Self

INT32: Final = struct.Struct(">i")
REQUEST_HEADER: Final = struct.Struct(">hhi")
API_VERSIONS: Final = 18

LARGEST_FRAME_BYTES: Final = 128 * 1024 * 1024

PATIENCE_S: Final = 30.0  # for what takes milliseconds where nobody takes the processors away

PORTS: Final = range(16_000, 32_000)  # below 32768, where the kernel's own choice begins
BLOCK_PORTS: Final = 200


class ConnectionEnded(Exception):
    """The broker closed the connection; `bytes_before` is what of a frame had come."""

    def __init__(self, bytes_before: bytes) -> None:
        super().__init__(f"closed by the broker after {len(bytes_before)} bytes")
        self.bytes_before = bytes_before


class WireSocket:
    """One TCP connection to a broker on the loopback. Every wait ends after `timeout_s` with TimeoutError.

    `source`: another address of the loopback to come from.
    """

    def __init__(
        self, port: int, *, host: str = "127.0.0.1", source: str = "", timeout_s: float = PATIENCE_S
    ) -> None:
        self._socket = socket.create_connection((host, port), timeout_s, (source, 0) if source else None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes both directions."""
        self._socket.close()

    def reset(self) -> None:
        """Closes with a RST instead of a FIN, as a client that dies in the middle does."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def shutdown_writing(self) -> None:
        """Sends a FIN; answers can still be read."""
        self._socket.shutdown(socket.SHUT_WR)

    def send(self, raw: bytes) -> None:
        """Sends bytes as they are."""
        self._socket.sendall(raw)

    def send_frame(self, body: bytes) -> None:
        """Sends `body` behind its true length."""
        self._socket.sendall(INT32.pack(len(body)) + body)

    def send_request(
        self, api_key: int, version: int, body: bytes, *, flexible: bool, client_id: str | None = "wire"
    ) -> int:
        """Sends a request with header v1, or v2 where `flexible`; returns its correlation id."""
        self._correlation_id += 1
        header = REQUEST_HEADER.pack(api_key, version, self._correlation_id) + nullable_string(client_id)
        self.send_frame(header + (b"\x00" if flexible else b"") + body)
        return self._correlation_id

    def read_frame(self) -> bytes:
        """The next frame without its length.

        Raises:
            ConnectionEnded: closed by the broker before a whole frame.
            TimeoutError: nothing came in time.
        """
        length = INT32.unpack(self.read_exactly(4))[0]
        assert 0 <= length <= LARGEST_FRAME_BYTES, f"a frame of {length} bytes"
        return self.read_exactly(length)

    def read_exactly(self, length_bytes: int) -> bytes:
        """Exactly that many bytes; errors as `read_frame`."""
        arrived = bytearray()
        while len(arrived) < length_bytes:
            try:
                part = self._socket.recv(min(length_bytes - len(arrived), 1 << 20))
            except ConnectionResetError:
                part = b""
            if not part:
                raise ConnectionEnded(bytes(arrived))
            arrived += part
        return bytes(arrived)

    def ends_without_an_answer(self) -> bool:
        """True when the broker closes without a byte; False when it answers. Silence is a TimeoutError."""
        try:
            self.read_exactly(1)
        except ConnectionEnded:
            return True
        return False


def nullable_string(text: str | None) -> bytes:
    """A NULLABLE_STRING: int16 length, then the bytes; -1 for null."""
    if text is None:
        return b"\xff\xff"
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def answers_api_versions(
    port: int, timeout_s: float, *, is_running: Callable[[], bool] = lambda: True
) -> bool:
    """True as soon as the port answers ApiVersions v0, False when it has not within `timeout_s`, or nobody will."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and is_running():
        try:
            with WireSocket(port, timeout_s=1.0) as connection:
                correlation_id = connection.send_request(API_VERSIONS, 0, b"", flexible=False)
                answered: int = INT32.unpack_from(connection.read_frame())[0]
                return answered == correlation_id
        except (OSError, ConnectionEnded):
            time.sleep(0.02)  # nobody can say when another process will listen
    return False


def free_ports(count: int = 1) -> int:
    """The first of `count` neighbouring ports that nobody listens on.

    They lie below those that the kernel gives out by itself, in a block that no other test run has: nobody takes one
    before the appliance listens, nor between its stop and its next start. A client that tries one of the kernel's
    again and again may even come to be connected to itself.
    """
    return _own_ports().next(count)


class _Ports:
    """A block of ports that are this process's for its life, given out in turn.

    Whoever holds the name of a block, in the same namespace as the ports themselves, has its ports.
    """

    def __init__(self) -> None:
        self._name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        starts = range(PORTS.start, PORTS.stop, BLOCK_PORTS)
        for number in range(len(starts)):
            start = starts[(os.getpid() + number) % len(starts)]
            try:
                self._name.bind(f"\0appliance-test-ports-{start}")
            except OSError:
                continue
            self._block = range(start, start + BLOCK_PORTS)
            self._next = start
            return
        raise AssertionError(f"all ports in {PORTS} are in the hands of test runs")

    def next(self, count: int) -> int:
        for _ in self._block:
            first = self._next if self._next + count <= self._block.stop else self._block.start
            self._next = first + count
            if all(map(_is_free, range(first, first + count))):
                return first
        raise AssertionError(f"no {count} neighbours in {self._block} are free")


_own_ports = cache(_Ports)


def _is_free(port: int) -> bool:
    with socket.socket() as asked:
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            asked.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
