"""The metrics process sends to a collector, from its confinement, and goes on after it was killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.support.broker import Appliance
from tests.support.otlp_collector import OtlpCollector
from tests.support.wire import free_ports
from tests.system.raw import wait_until

RECORDS: Final = 100


def produced_records(collector: OtlpCollector) -> list[tuple[int, int]]:
    """The counter of records in each request, with the time at which its counting began."""
    found = []
    for path, body in list(collector.requests):
        assert path == "/v1/metrics"
        request = json_format.Parse(json.dumps(body), ExportMetricsServiceRequest())
        (metrics,) = [each.metrics for each in request.resource_metrics[0].scope_metrics]
        (counter,) = [each for each in metrics if each.name == "appliance_produced_records"]
        (point,) = counter.sum.data_points
        found.append((point.as_int, point.start_time_unix_nano))
    return found


def test_counters_arrive_and_none_falls_when_the_process_is_killed(tmp_path: Path) -> None:
    collector = OtlpCollector()
    settings = {
        "metrics.listener": f"127.0.0.1:{free_ports(1)}",
        "metrics.otlp.endpoint": collector.url,
        "metrics.otlp.interval.ms": 1000,
    }
    broker = Appliance(tmp_path / "data", settings=settings)
    broker.start()
    try:
        producer = Producer({"bootstrap.servers": broker.address})
        for number in range(RECORDS):
            producer.produce("t", str(number).encode())
        assert producer.flush(30) == 0
        wait_until(lambda: (produced_records(collector) or [(0, 0)])[-1][0] == RECORDS, "all are counted")
        broker.kill_role("metrics")
        before = len(collector.requests)
        wait_until(lambda: len(collector.requests) >= before + 2, "the next life sends")
        counts = [count for count, _ in produced_records(collector)]
        assert counts == sorted(counts)
        assert counts[-1] == RECORDS
        starts = [start / 1e9 for _, start in produced_records(collector)]
        assert max(starts) - min(starts) < 0.1
        broker.stop()
    finally:
        broker.kill()
        collector.close()
