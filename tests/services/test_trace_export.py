"""Spans go to a collector, and what a collector does harms nobody."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from appliance.collector import CLOSE_S
from appliance.message_trace.event import Event
from appliance.services.trace_export import SENT_MAX, WAITING_MAX, TraceExport
from tests.message_trace.test_rules import TRACE, parsed
from tests.support.otlp_collector import OtlpCollector
from tests.system.raw import wait_until


def events(count: int) -> list[Event]:
    return [
        Event(trace=TRACE, step="appended", topic="t", partition=0, offset=offset, at_ms=5, since_ms=4)
        for offset in range(count)
    ]


def spans(collector: OtlpCollector) -> int:
    requests = [parsed(body) for _, body in collector.requests]
    return sum(len(each.resource_spans[0].scope_spans[0].spans) for each in requests)


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    made = OtlpCollector()
    yield made
    made.close()


def test_steps_arrive_as_spans(collector: OtlpCollector) -> None:
    lines: list[str] = []
    export = TraceExport(collector.url + "/base/", lines.append)
    export.offer(events(1_200))
    wait_until(lambda: export.sent == 1_200, "all are sent")
    assert {path for path, _ in collector.requests} == {"/base/v1/traces"}
    assert spans(collector) == 1_200
    assert (export.dropped, lines) == (0, [])
    assert export.close()


def test_what_waits_at_the_end_is_sent_and_the_thread_ends(collector: OtlpCollector) -> None:
    export = TraceExport(collector.url, lambda _: None)
    export.offer(events(1_200))
    assert export.close()
    assert (export.sent, export.dropped, spans(collector)) == (1_200, 0, 1_200)
    assert "trace-export" not in {thread.name for thread in threading.enumerate()}


def test_a_collector_that_refuses_costs_these_steps_and_a_line(collector: OtlpCollector) -> None:
    collector.status = 503
    lines: list[str] = []
    export = TraceExport(collector.url, lines.append)
    export.offer(events(3))
    wait_until(lambda: export.dropped == 3, "they are dropped")
    wait_until(lambda: bool(lines), "there is a line")
    assert "HTTP status 503" in lines[0]
    export.offer(events(2))
    assert export.close(), "it does not wait for the pause after a failure"
    assert (export.sent, export.dropped) == (0, 5)


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
        begun = time.monotonic()
        export.close()
        assert time.monotonic() - begun < CLOSE_S + 1
        assert export.dropped >= 30_000 - SENT_MAX, "all but what is under way"


def test_close_leaves_no_thread_and_counts_what_it_did_not_send(collector: OtlpCollector) -> None:
    def threads() -> int:
        return sum(each.name == "trace-export" for each in threading.enumerate())

    before = threads()
    collector.status = 503
    export = TraceExport(collector.url, lambda _: None)
    export.offer(events(700))
    wait_until(lambda: export.dropped == 500, "the first request was refused; now it pauses")
    export.close()
    assert (export.sent, export.dropped, threads()) == (0, 700, before)
