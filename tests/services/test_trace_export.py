"""Spans go to a collector, and what a collector does harms nobody."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from appliance.message_trace.event import Event
from appliance.services.trace_export import WAITING_MAX, TraceExport
from tests.message_trace.test_rules import TRACE, parsed
from tests.system.raw import wait_until


def events(count: int) -> list[Event]:
    return [
        Event(trace=TRACE, step="appended", topic="t", partition=0, offset=offset, at_ms=5, since_ms=4)
        for offset in range(count)
    ]


class Collector:
    """Takes OTLP over HTTP."""

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

    def spans(self) -> int:
        requests = [parsed(body) for _, body in self.requests]
        return sum(len(each.resource_spans[0].scope_spans[0].spans) for each in requests)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def test_steps_arrive_as_spans(collector: Collector) -> None:
    lines: list[str] = []
    export = TraceExport(collector.url + "/base/", lines.append)
    export.offer(events(1_200))
    wait_until(lambda: export.sent == 1_200, "all are sent")
    assert {path for path, _ in collector.requests} == {"/base/v1/traces"}
    assert collector.spans() == 1_200
    assert (export.dropped, lines) == (0, [])
    export.close()


def test_a_collector_that_refuses_costs_these_steps_and_a_line(collector: Collector) -> None:
    collector.status = 503
    lines: list[str] = []
    export = TraceExport(collector.url, lines.append)
    export.offer(events(3))
    wait_until(lambda: export.dropped == 3, "they are dropped")
    wait_until(lambda: bool(lines), "there is a line")
    assert "HTTP status 503" in lines[0]
    export.close()


@pytest.mark.parametrize("kind", ["nobody", "silent", "noise"])
def test_an_endpoint_that_is_no_collector_holds_up_nothing(kind: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        if kind != "nobody":
            listener.listen()
        if kind == "noise":

            def answer() -> None:
                connection, _ = listener.accept()
                connection.sendall(b"\0\xff" * 10_000)
                connection.close()

            threading.Thread(target=answer, daemon=True).start()
        export = TraceExport(f"http://127.0.0.1:{port}", lambda _: None)
        begun = time.monotonic()
        for _ in range(30):
            export.offer(events(1_000))
        assert time.monotonic() - begun < 2
        assert export.dropped >= 30_000 - WAITING_MAX - 1_000
        export.close()
