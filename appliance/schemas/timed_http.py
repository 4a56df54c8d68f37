"""GET of an address that has a certain time for its whole answer, however slowly the bytes of it come.

Timeouts of the standard library count from one byte to the next. A server that sends a byte every two seconds would
hold a thread for hours. No redirect is followed, and no proxy of the environment is used.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit


class NoAnswer(Exception):
    """Nobody answers, not in time, or with something that is no HTTP."""


def get(url: str, *, headers: Mapping[str, str], until_s: float, bytes_max: int) -> tuple[int, bytes]:
    """Return status and body.

    Args:
        url: with http or https.
        until_s: by when the answer must be whole, of `time.monotonic`.
        bytes_max: the body is cut behind so many bytes.

    Raises:
        NoAnswer: there is none.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=max(0.001, until_s - time.monotonic()))
    try:
        connection.request(
            "GET", parts.path + (f"?{parts.query}" if parts.query else ""), headers=dict(headers)
        )
        # An HTTPResponse only calls `makefile`.
        with http.client.HTTPResponse(cast("socket.socket", _Timed(connection.sock, until_s))) as response:
            response.begin()
            return response.status, response.read(bytes_max)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswer(str(error) or type(error).__name__) from None
    finally:
        connection.close()


class _Timed:
    """A connection of which an HTTPResponse makes a file."""

    def __init__(self, sock: socket.socket, until_s: float) -> None:
        self._bytes = _TimedBytes(sock, until_s)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return what is received, until the time is over."""
        return io.BufferedReader(self._bytes)


class _TimedBytes(io.RawIOBase):
    def __init__(self, sock: socket.socket, until_s: float) -> None:
        self._sock = sock
        self._until_s = until_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)
        return self._sock.recv_into(buffer)
