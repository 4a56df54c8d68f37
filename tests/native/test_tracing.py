"""The interceptors for message traces, without a broker."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance_client.interceptors import Records
from appliance_client.tracing import WAITING_MAX, TraceConsumer, TraceProducer
from appliance_client.values import OffsetAndMetadata, TopicPartition
from tests.system.raw import wait_until

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = f"00-{TRACE}-b7ad6b7169203331-01".encode()
PLACE = TopicPartition("t", 0)


class Reports:
    """Takes what is sent; raises or hangs if it is to."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.fails = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def send(self, topic: str, value: bytes, key: bytes) -> None:
        self.may_go_on.wait(10)
        if self.fails:
            raise RuntimeError("no broker")
        assert key == TRACE.encode()
        self.sent.append((topic, json.loads(value)))


def got(*offsets: int, header: bytes | None = SAMPLED) -> Records:
    some = [SimpleNamespace(offset=offset, headers=(("traceparent", header),)) for offset in offsets]
    return {PLACE: cast(Any, some)}


def commit(consumer: TraceConsumer, offset: int) -> None:
    consumer.on_commit({PLACE: OffsetAndMetadata(offset)})


@pytest.fixture
def reports() -> Reports:
    return Reports()


def test_one_in_n_records_gets_a_trace_and_a_given_one_is_kept() -> None:
    tracing = TraceProducer(one_in=3)
    records = [SimpleNamespace(headers={"a": b"1"}) for _ in range(9)]
    given = SimpleNamespace(headers=[("traceparent", SAMPLED)])
    for record in (*records, given):
        tracing.on_send(record)
    traced = [dict(record.headers) for record in records if "traceparent" in dict(record.headers)]
    assert len(traced) == tracing.added == 3
    assert len({each["traceparent"] for each in traced}) == 3
    assert all(each["a"] == b"1" for each in traced)
    assert given.headers == [("traceparent", SAMPLED)]
    TraceProducer(one_in=0).on_send(given)
    with pytest.raises(ValueError, match="one_in"):
        TraceProducer(one_in=-1)


def test_a_processed_record_is_reported_when_its_offset_is_committed(reports: Reports) -> None:
    now_ms = iter([100, 250])
    consumer = TraceConsumer(reports, group="g", client="c", now_ms=lambda: next(now_ms))
    consumer.on_consume(got(4, 5) | {TopicPartition("u", 0): got(1, header=b"bad")[PLACE]})
    commit(consumer, 5)
    wait_until(lambda: bool(reports.sent), "it is sent")
    ((topic, report),) = reports.sent
    assert topic == "trace-reports"
    assert (report["trace"], report["step"], report["offset"]) == (TRACE, "processed", 4)
    assert (report["since_ms"], report["at_ms"], report["group"], report["client"]) == (100, 250, "g", "c")
    consumer.close()


def test_reports_that_cannot_be_sent_harm_nothing(reports: Reports) -> None:
    consumer = TraceConsumer(reports, group="g")
    reports.fails = True
    consumer.on_consume(got(1))
    commit(consumer, 2)
    wait_until(lambda: consumer.dropped == 1, "it is counted")
    reports.fails = False
    reports.may_go_on.clear()
    consumer.on_consume(got(*range(2, WAITING_MAX + 20)))
    assert consumer.dropped == 1 + 18
    commit(consumer, 1 << 40)
    consumer.on_consume(got(*range(50, 100)))
    commit(consumer, 1 << 40)
    assert consumer.dropped >= 1 + 18 + 49
    reports.may_go_on.set()
    consumer.close()


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "trace-reports"]


def test_close_hands_over_what_waits_and_leaves_no_thread(reports: Reports) -> None:
    before = threads()
    consumer = TraceConsumer(reports, group="g")
    reports.may_go_on.clear()
    consumer.on_consume(got(1, 2))
    commit(consumer, 3)
    threading.Timer(0.2, reports.may_go_on.set).start()
    consumer.close()
    assert len(reports.sent) == 2
    assert threads() == before
    consumer.on_consume(got(4))
    commit(consumer, 5)
    assert (consumer.dropped, threads()) == (1, before), "a closed one begins nothing"
    consumer.close()


def test_close_does_not_wait_for_a_producer_that_hangs(reports: Reports) -> None:
    consumer = TraceConsumer(reports, group="g")
    reports.may_go_on.clear()
    consumer.on_consume(got(1))
    commit(consumer, 2)
    consumer.close(timeout_s=0.05)
    assert threads()
    reports.may_go_on.set()
    wait_until(lambda: bool(reports.sent), "what waited is sent")
