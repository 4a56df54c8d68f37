"""Pushes of clients: what is read of them, and that no push costs more than its bounds."""

from __future__ import annotations

import gzip
import resource
import struct
import time
from typing import Final

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from appliance.channels.telemetry_channel import Pushed
from appliance.clock import ManualClock
from appliance.metrics import client_metrics
from appliance.metrics.client_metrics import (
    CHARACTERS_MAX,
    PAUSE_FACTOR,
    PLAIN_BYTES_MAX,
    POINTS_MAX,
    ClientMetrics,
    plain,
    read_points,
)
from appliance.protocol.records.compression import Codec, compress

INTERVAL_MS: Final = 30_000
GZIP: Final = int(Codec.GZIP)


def otlp(points: int = 2, *, name: str = "org.apache.kafka.producer.latency") -> bytes:
    data = MetricsData()
    metrics = data.resource_metrics.add().scope_metrics.add().metrics
    for number in range(points):
        metric = metrics.add(name=f"{name}.{number}")
        point = metric.gauge.data_points.add(as_double=number + 0.5)
        point.attributes.add(key="topic").value.string_value = "orders"
        point.attributes.add(key="partition").value.int_value = number
    return bytes(data.SerializeToString())


def push(metrics: bytes, *, codec: int = 0, instance: str = "one", interval_ms: int = INTERVAL_MS) -> Pushed:
    return Pushed(instance, "orders", "apache-kafka-java 4.3.1", codec, interval_ms, metrics)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def clients(clock: ManualClock) -> ClientMetrics:
    return ClientMetrics(clock, series_max=5000)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_push_is_read_whatever_its_codec(clients: ClientMetrics, codec: Codec) -> None:
    clients.take(push(otlp(1) if codec is Codec.NONE else compress(codec, otlp(1)), codec=int(codec)))
    labels = (
        "org.apache.kafka.producer.latency.0",
        "orders",
        "one",
        "apache-kafka-java 4.3.1",
        "partition=0,topic=orders",
    )
    assert list(clients.samples()) == [(0.5, labels)]


def test_sums_and_histograms_are_read_and_other_kinds_are_counted() -> None:
    data = MetricsData()
    metrics = data.resource_metrics.add().scope_metrics.add().metrics
    metrics.add(name="total").sum.data_points.add(as_int=7)
    metrics.add(name="time").histogram.data_points.add(count=3, sum=1.5)
    metrics.add(name="odd").gauge.data_points.add(as_double=float("nan"))
    found, left_out = read_points(data.SerializeToString())
    assert found == {("total", ""): 7.0, ("time.count", ""): 3.0, ("time.sum", ""): 1.5}
    assert left_out == 1


def test_the_next_push_replaces_the_series_and_a_silent_client_is_forgotten(
    clients: ClientMetrics, clock: ManualClock
) -> None:
    clients.take(push(otlp(5)))
    clients.take(push(otlp(3)))
    clients.take(push(otlp(2), instance="two", interval_ms=100))
    assert len(list(clients.samples())) == 5
    clock.advance(59_000)
    clients.expire()
    assert len(clients) == 2
    clock.advance(1_000)
    clients.expire()
    assert len(clients) == 1
    clock.advance(2 * INTERVAL_MS)
    clients.expire()
    assert list(clients.samples()) == []


def test_bytes_that_are_no_metrics_change_nothing(clients: ClientMetrics) -> None:
    clients.take(push(otlp(2)))
    for metrics, codec in ((b"\xff" * 100, 0), (b"junk", GZIP), (otlp()[:-1], 0), (b"", 4), (b"x", 77)):
        clients.take(push(metrics, codec=codec))
    assert clients.unreadable == 5
    assert len(list(clients.samples())) == 2


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_bomb_takes_neither_memory_nor_time(clients: ClientMetrics, codec: Codec) -> None:
    bomb = compress(codec, bytes(200 << 20))
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    clients.take(push(bomb, codec=int(codec)))
    assert time.process_time() - began < 1
    assert clients.unreadable == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100 << 10


def test_a_push_without_compression_has_the_same_bound() -> None:
    with pytest.raises(ValueError, match="bytes"):
        plain(push(bytes(PLAIN_BYTES_MAX + 1)))
    with pytest.raises(Exception, match=r"."):
        plain(push(gzip.compress(bytes(PLAIN_BYTES_MAX + 1)), codec=GZIP))


def test_series_and_names_are_bounded(clients: ClientMetrics) -> None:
    clients.take(push(otlp(POINTS_MAX + 50, name="x" * 300)))
    samples = list(clients.samples())
    assert len(samples) == POINTS_MAX
    assert clients.dropped_series == 50
    assert all(len(label) <= CHARACTERS_MAX for _, labels in samples for label in labels)
    for number in range(10):
        clients.take(push(otlp(POINTS_MAX), instance=f"client-{number}"))
    assert len(list(clients.samples())) == 5000
    assert clients.dropped_series >= 5 * POINTS_MAX
    clients.take(push(otlp(10), instance="client-0"))
    clients.take(push(otlp(10), instance="late"))
    assert sum(labels[2] == "late" for _, labels in clients.samples()) == 10, "there is room again"


def test_deep_and_wide_protobuf_ends_soon(clients: ClientMetrics) -> None:
    wide = b"\x0a\x00" * (PLAIN_BYTES_MAX // 2)  # two million empty resources
    deep = b""
    for _ in range(200):
        deep = b"\x0a" + _varint(len(deep)) + deep
    for metrics in (wide, deep):
        began = time.process_time()
        clients.take(push(metrics))
        assert time.process_time() - began < 5


def _varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found += struct.pack("B", value & 0x7F | 0x80)
        value >>= 7
    return found + struct.pack("B", value)


def test_pushes_take_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    clients = ClientMetrics(clock, series_max=10)

    def slow(_: bytes) -> tuple[dict[tuple[str, str], float], int]:
        clock.advance(20)
        return {}, 0

    monkeypatch.setattr(client_metrics, "read_points", slow)
    assert clients.pause_ms == 0
    clients.take(push(b"m"))
    assert clients.pause_ms == 20 * PAUSE_FACTOR
    clock.advance(20 * PAUSE_FACTOR)
    assert clients.pause_ms == 0


def test_the_clients_are_bounded(monkeypatch: pytest.MonkeyPatch, clients: ClientMetrics) -> None:
    monkeypatch.setattr(client_metrics, "CLIENTS_MAX", 3)
    for number in range(5):
        clients.take(push(otlp(1), instance=f"client-{number}"))
    assert {labels[2] for _, labels in clients.samples()} == {"client-2", "client-3", "client-4"}
