"""A collector of OpenTelemetry for tests: takes OTLP over HTTP, in JSON, and keeps what it got."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class OtlpCollector:
    """Answers `status`. `requests`: the path and the JSON of each request, in order."""

    def __init__(self) -> None:
        self.status = 200
        self.requests: list[tuple[str, dict[str, Any]]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.headers["Content-Type"] == "application/json"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests.append((self.path, json.loads(body)))
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Be quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
