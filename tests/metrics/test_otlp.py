"""The request to a collector says what the page says, and what a collector does harms nobody."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from appliance.collector import CLOSE_S
from appliance.metrics.exposition import Family, Kind
from appliance.metrics.otlp_export import MetricsExport
from appliance.metrics.otlp_page import OtlpPage
from tests.support.otlp_collector import OtlpCollector
from tests.system.raw import wait_until

BYTES = Family("appliance_in_bytes_total", Kind.COUNTER, "Bytes.", ("topic",), "bytes")
AGE = Family("appliance_age_seconds", Kind.GAUGE, "An age.", (), "seconds")
TIMES = Family("appliance_time_seconds", Kind.HISTOGRAM, "Times.", ("api",), "seconds")
EMPTY = Family("appliance_nothing", Kind.GAUGE, "Nothing.", ("x",))


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    made = OtlpCollector()
    yield made
    made.close()


def page() -> OtlpPage:
    made = OtlpPage(started_ns=5, now_ns=2**60)
    made.gauge(BYTES, [(2**62, ('a "quoted" ü',)), (1, ("b",))])
    made.begin(AGE)
    made.add(0.5)
    made.gauge(EMPTY, [])
    made.begin(TIMES)
    made.histogram(("Fetch",), bounds=("0.1", "1.0"), counts=(3, 0, 4), total=9.25)
    return made


def test_the_reference_parser_reads_every_kind() -> None:
    text = page().request(instance="cluster", version="1")
    request = json_format.Parse(text, ExportMetricsServiceRequest())
    (resource,) = request.resource_metrics
    said = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert said == {"service.name": "appliance", "service.instance.id": "cluster", "service.version": "1"}
    counter, gauge, histogram = resource.scope_metrics[0].metrics
    assert (counter.name, counter.unit, counter.description) == ("appliance_in_bytes", "By", "Bytes.")
    assert counter.sum.is_monotonic
    assert counter.sum.aggregation_temporality == 2
    first, _ = counter.sum.data_points
    assert (first.as_int, first.start_time_unix_nano, first.time_unix_nano) == (2**62, 5, 2**60)
    assert [(each.key, each.value.string_value) for each in first.attributes] == [("topic", 'a "quoted" ü')]
    assert (gauge.name, gauge.unit, gauge.gauge.data_points[0].as_double) == (
        "appliance_age_seconds",
        "s",
        0.5,
    )
    (point,) = histogram.histogram.data_points
    assert (point.count, point.sum, list(point.bucket_counts)) == (7, 9.25, [3, 0, 4])
    assert list(point.explicit_bounds) == [0.1, 1.0]


def test_a_refusal_is_told_and_the_newest_values_follow(collector: OtlpCollector) -> None:
    lines: list[str] = []
    export = MetricsExport(collector.url + "/base/", lines.append)
    collector.status = 503
    export.offer(b'{"a": 1}')
    wait_until(lambda: export.failed == 1, "it is refused")
    wait_until(lambda: bool(lines), "there is a line")
    assert "HTTP status 503" in lines[0]
    collector.status = 200
    export.offer(b'{"a": 2}')
    wait_until(lambda: export.sent == 1, "the next one is taken")
    assert collector.requests[-1] == ("/base/v1/metrics", json.loads('{"a": 2}'))
    assert export.close()


def test_the_last_values_leave_before_the_thread_ends(collector: OtlpCollector) -> None:
    export = MetricsExport(collector.url, lambda _: None)
    assert export.close(), "no thread has begun"
    export = MetricsExport(collector.url, lambda _: None)
    export.offer(b'{"a": 3}')
    assert export.close()
    assert collector.requests[-1] == ("/v1/metrics", {"a": 3})
    assert export.sent == 1
    assert "metrics-export" not in {thread.name for thread in threading.enumerate()}


def test_a_collector_that_is_silent_keeps_one_request() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        export = MetricsExport(f"http://127.0.0.1:{listener.getsockname()[1]}", lambda _: None)
        begun = time.monotonic()
        for _ in range(1_000):
            export.offer(bytes(100_000))
        assert time.monotonic() - begun < 2
        assert export.sent == export.failed == 0
        begun = time.monotonic()
        assert not export.close(), "the thread waits for an answer"
        assert time.monotonic() - begun < CLOSE_S + 1
