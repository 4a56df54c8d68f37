"""Clients push their metrics to the broker (KIP-714): real librdkafka and Java clients, and hostile ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from appliance.cli.request import request
from appliance.protocol.api_versions import TELEMETRY, ApiKey
from appliance.protocol.apis.api_versions import ApiVersionsRequest
from appliance.protocol.apis.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from appliance.protocol.apis.push_telemetry import PushTelemetryRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.framing import SIZE
from appliance.protocol.messages import decode_response, encode_request
from appliance.protocol.records.compression import Codec, compress
from tests.support.apache_kafka import tool
from tests.support.broker import Appliance
from tests.support.scrape import scrape
from tests.support.wire import WireSocket, free_ports
from tests.system.raw import create_topic, wait_until

TOPIC: Final = "orders"
PATIENCE_S: Final = 60
CONFIGS: Final = "org.apache.kafka.tools.ClientMetricsCommand"
PUSHES: Final = "appliance_client_telemetry_pushes_total"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    started = Appliance(
        tmp_path_factory.mktemp("telemetry") / "data",
        settings={
            "metrics.listener": f"127.0.0.1:{free_ports(1)}",
            "metrics.client.telemetry": True,
            "metrics.client.telemetry.series.max": 500,
        },
    )
    started.start()
    try:
        create_topic(started.port, TOPIC, partitions=2)
        # Kafka's own command makes and lists the subscription.
        alter = ("--bootstrap-server", started.address, "--alter", "--name", "all", "--metrics", "*")
        tool(CONFIGS, *alter, "--interval", "500", "--match", "client_id=.*")
        listed = tool(CONFIGS, "--bootstrap-server", started.address, "--list")
        assert "all" in listed.split()
        yield started
        started.stop()
    finally:
        started.kill()


def port_of(broker: Appliance) -> int:
    return int(str(broker._settings["metrics.listener"]).rpartition(":")[2])


def series(broker: Appliance, client_id: str) -> dict[str, float]:
    """Metric → value of one client."""
    page = scrape(port_of(broker))
    found = {}
    for (name, labels), value in page.samples.items():
        said = dict(labels)
        if name == "appliance_client_metric" and said["client_id"] == client_id:
            found[str(said["metric"])] = value
    return found


def advertised(broker: Appliance) -> set[int]:
    body = ApiVersionsRequest("test", "1")
    return {row.api_key for row in request(broker.address, ApiKey.API_VERSIONS, 3, body).api_keys}


def test_the_apis_are_advertised_where_the_option_is_set(broker: Appliance) -> None:
    assert advertised(broker) >= TELEMETRY


def unadvertised(broker: Appliance, api: ApiKey, body: Any) -> Any:
    """Return the answer to a request of version 0, whether the broker says that it knows it or not."""
    with WireSocket(broker.port) as wire:
        wire.send(encode_request(api, 0, body, 1, client_id="wire"))
        answer = wire.read_frame()
    return decode_response(api, 0, memoryview(SIZE.pack(len(answer)) + answer))[1]


def test_a_client_that_asks_without_the_option_gets_unsupported_version(tmp_path: Path) -> None:
    """So it does not ask again. Kafka 4.3 without a receiver answers with a subscription to nothing."""
    without = Appliance(tmp_path / "data", settings={"metrics.listener": f"127.0.0.1:{free_ports(1)}"})
    without.start()
    try:
        assert not advertised(without) & TELEMETRY
        asked = unadvertised(
            without, ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, GetTelemetrySubscriptionsRequest(uuid4())
        )
        assert asked.error_code == ErrorCode.UNSUPPORTED_VERSION
        body = PushTelemetryRequest(uuid4(), 1, False, 0, b"m")
        pushed = unadvertised(without, ApiKey.PUSH_TELEMETRY, body)
        assert pushed.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert advertised(without), "the broker serves on"
        without.stop()
    finally:
        without.kill()


def test_what_librdkafka_pushes_is_on_the_page(broker: Appliance) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "client.id": "by-librdkafka", "log_level": 0})
    until_s = time.monotonic() + PATIENCE_S
    while not (found := series(broker, "by-librdkafka")) and time.monotonic() < until_s:
        producer.produce(TOPIC, b"v")
        producer.flush(5)
        time.sleep(0.3)
    assert found["org.apache.kafka.producer.connection.creation.total"] >= 1


def test_what_a_java_client_pushes_is_on_the_page(broker: Appliance) -> None:
    arguments = ("--topic", TOPIC, "--num-records", "40", "--record-size", "100", "--throughput", "20")
    properties = (f"bootstrap.servers={broker.address}", "client.id=by-java", "enable.metrics.push=true")
    tool("org.apache.kafka.tools.ProducerPerformance", *arguments, "--producer-props", *properties)
    found = series(broker, "by-java")
    assert found["org.apache.kafka.producer.connection.creation.total"] >= 1
    assert len(found) >= 5


def push(broker: Appliance, metrics: bytes, codec: int) -> int:
    """The push of a new client."""
    asked = request(
        broker.address, ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, GetTelemetrySubscriptionsRequest(uuid4())
    )
    assert asked.error_code == 0
    body = PushTelemetryRequest(asked.client_instance_id, asked.subscription_id, False, codec, metrics)
    return int(request(broker.address, ApiKey.PUSH_TELEMETRY, 0, body).error_code)


def test_a_bomb_and_junk_are_counted_and_harm_nobody(broker: Appliance) -> None:
    before = scrape(port_of(broker)).value(PUSHES, outcome="unreadable")
    bomb = compress(Codec.ZSTD, bytes(500 << 20))
    assert push(broker, bomb, int(Codec.ZSTD)) == 0
    wait_until(
        lambda: scrape(port_of(broker)).value(PUSHES, outcome="unreadable") >= before + 1,
        "the bomb is refused",
        timeout_s=PATIENCE_S,
    )
    assert push(broker, b"\xff" * 1000, 0) == 0
    assert push(broker, bytes((1 << 20) + 1), 0) == ErrorCode.TELEMETRY_TOO_LARGE
    wait_until(
        lambda: scrape(port_of(broker)).value(PUSHES, outcome="unreadable") >= before + 2,
        "the junk is refused",
        timeout_s=PATIENCE_S,
    )
    (metrics,) = [row for row in broker.processes() if row.role == "metrics"]
    assert metrics.generation == 1, "the metrics process has lived through it"


def test_pushes_go_on_when_the_metrics_process_was_killed(broker: Appliance) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "client.id": "goes-on", "log_level": 0})

    def is_there() -> bool:
        producer.poll(0.1)
        try:
            return bool(series(broker, "goes-on"))
        except OSError:
            return False  # between two lives

    wait_until(is_there, "the client's series", timeout_s=PATIENCE_S)
    broker.kill_role("metrics")
    wait_until(broker.is_whole, "the metrics process runs again", timeout_s=PATIENCE_S)
    wait_until(is_there, "the client's series are there again", timeout_s=PATIENCE_S)
    assert request(broker.address, ApiKey.API_VERSIONS, 3, ApiVersionsRequest("test", "1")).error_code == 0
