"""A collector of OpenTelemetry (OTLP over HTTP, JSON): one request at a time, bounded in time.

It loads an HTTP client and TLS, so import it only where an option names a collector. A host that does not answer holds
its caller for TIMEOUT_S, so call it from a thread of its own.

A process that stops waits for this thread for at most CLOSE_S (`joined`): what is under way, or waits, can still leave.
"""

from __future__ import annotations

import threading
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

TIMEOUT_S: Final = 5.0
CLOSE_S: Final = 1.0
_ANSWER_BYTES: Final = 4096


class Collector:
    """Args:
    url: the collector's URL, without the path of OTLP.
    path: of what is sent, `/v1/traces` or `/v1/metrics`.
    """

    def __init__(self, url: str, path: str) -> None:
        parts = urlsplit(url)
        self.url = url
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host = parts.hostname or ""
        self._port = parts.port
        self._path = parts.path.rstrip("/") + path

    def post(self, body: bytes) -> str | None:
        """Send one request; return what went wrong."""
        try:
            connection = self._kind(self._host, self._port, timeout=TIMEOUT_S)
            try:
                connection.request("POST", self._path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read(_ANSWER_BYTES)
            finally:
                connection.close()
        except (OSError, HTTPException, ValueError) as fault:
            return str(fault) or type(fault).__name__
        return None if answer.status // 100 == 2 else f"HTTP status {answer.status}"


def joined(thread: threading.Thread | None) -> bool:
    """Wait for the end of a thread that sends, at most CLOSE_S; return whether it has ended.

    One that has not, because the collector does not answer, ends with the process: it is a daemon.
    """
    if thread is None:
        return True
    thread.join(CLOSE_S)
    return not thread.is_alive()
