"""Several listeners: a client is told the addresses of the one that it came by, for every slot."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_cluster import DescribeClusterRequest
from appliance.protocol.apis.find_coordinator import FindCoordinatorRequest
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.judge import QUICK_GROUPS
from tests.support.wire import WireSocket, free_ports
from tests.system.acked_load import create, leaders
from tests.system.raw import ask

SLOTS = 3
MAP = ["INTERNAL:PLAINTEXT", "EXTERNAL:PLAINTEXT", "SIX:PLAINTEXT"]


class Scene:
    """An appliance with three listeners, of which one is advertised as another name of this host."""

    def __init__(self, directory: Path) -> None:
        port = free_ports(3 * SLOTS)
        self.ports = {"INTERNAL": port, "EXTERNAL": port + SLOTS, "SIX": port + 2 * SLOTS}
        self.hosts = {"INTERNAL": "127.0.0.1", "EXTERNAL": "127.0.0.1", "SIX": "::1"}
        self.told = {**self.hosts, "EXTERNAL": "localhost"}
        self.broker = Appliance(
            directory / "data",
            slots=SLOTS,
            port=port,
            settings={
                **QUICK_GROUPS,
                "listeners": [
                    f"INTERNAL://127.0.0.1:{port}",
                    f"EXTERNAL://127.0.0.1:{port + SLOTS}",
                    f"SIX://[::1]:{port + 2 * SLOTS}",
                ],
                "listener.security.protocol.map": MAP,
                "advertised.listeners": [f"EXTERNAL://localhost:{port + SLOTS}"],
            },
        )

    def connect(self, name: str, slot: int = 0) -> WireSocket:
        return WireSocket(self.ports[name] + slot, host=self.hosts[name])

    def addresses(self, name: str) -> set[tuple[str, int]]:
        return {(self.told[name], self.ports[name] + slot) for slot in range(SLOTS)}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("listeners"))
    scene.broker.start()
    create(scene.broker, "t", 3, replicas=SLOTS)
    yield scene
    scene.broker.stop()


@pytest.mark.parametrize("name", ["INTERNAL", "EXTERNAL", "SIX"])
def test_a_client_is_told_the_addresses_of_its_listener(scene: Scene, name: str) -> None:
    with scene.connect(name, 1) as connection:
        metadata = ask(connection, ApiKey.METADATA, MetadataRequest(None))
        assert {(each.host, each.port) for each in metadata.brokers} == scene.addresses(name)
        cluster = ask(connection, ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(False))
        assert {(each.host, each.port) for each in cluster.brokers} == scene.addresses(name)
        found = ask(connection, ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(coordinator_keys=("g",)))
        [coordinator] = found.coordinators
        assert (coordinator.host, coordinator.port) in scene.addresses(name)


@pytest.mark.parametrize("name", ["INTERNAL", "EXTERNAL", "SIX"])
def test_a_hint_at_the_leader_has_the_address_of_the_clients_listener(scene: Scene, name: str) -> None:
    topic = f"led-{name}"
    create(scene.broker, topic, 1, replicas=SLOTS)
    (leader,) = leaders(scene.broker, topic).values()
    data = ProduceRequest.TopicProduceData
    partition = data.PartitionProduceData(index=0, records=bytes(encode_batch([Record(b"x")])))
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[data(name=topic, partition_data=[partition])],
    )
    request.with_header(correlation_id=5, client_id="told")
    with scene.connect(name, (leader + 1) % SLOTS) as connection:
        connection.send(request.encode(version=12, header=True, framed=True))
        body = connection.read_frame()
    answer = ProduceResponse.decode(struct.pack(">i", len(body)) + body, version=12, header=True, framed=True)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    [at] = answer.node_endpoints
    assert (at.node_id, at.host, at.port) == (leader, scene.told[name], scene.ports[name] + leader)


@pytest.mark.parametrize(
    "bootstrap", [("INTERNAL", "127.0.0.1:{}"), ("EXTERNAL", "127.0.0.1:{}"), ("SIX", "[::1]:{}")]
)
def test_a_client_produces_and_consumes_through_any_listener(
    scene: Scene, bootstrap: tuple[str, str]
) -> None:
    name, servers = bootstrap
    options: dict[str, str | int | float | bool] = {"bootstrap.servers": servers.format(scene.ports[name])}
    told = AdminClient(options).list_topics(timeout=30).brokers.values()
    assert {(str(each.host), each.port) for each in told} == scene.addresses(name)
    failures: list[object] = []
    producer = Producer(options)
    for number in range(30):
        producer.produce(f"by-{name}", b"%d" % number, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(30) == 0
    assert failures == [None] * 30
    consumer = Consumer({**options, "group.id": f"g-{name}", "auto.offset.reset": "earliest"})
    consumer.subscribe([f"by-{name}"])
    values: set[bytes | None] = set()
    while len(values) < 30:
        (message,) = consumer.consume(1, 30)
        values.add(message.value())
    consumer.close()
    assert values == {b"%d" % number for number in range(30)}


def test_the_ready_line_names_every_listener(scene: Scene) -> None:
    internal, external, six = (scene.ports[name] for name in ("INTERNAL", "EXTERNAL", "SIX"))
    assert (
        f"appliance ready on INTERNAL://127.0.0.1:{internal}, EXTERNAL://127.0.0.1:{external}, SIX://[::1]:{six} "
        in scene.broker.output()
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("host=0.0.0.0",), "listener PLAINTEXT on 0.0.0.0:"),
        (("host=::",), "listener PLAINTEXT on [::]:"),
        (
            (
                "listeners=PLAINTEXT://127.0.0.1:{},EXTERNAL://:{}",
                "listener.security.protocol.map=EXTERNAL:PLAINTEXT",
            ),
            "listener EXTERNAL on 0.0.0.0:",
        ),
    ],
)
def test_a_listener_that_other_hosts_reach_without_authentication_is_refused_by_name(
    tmp_path: Path, options: tuple[str, ...], named: str
) -> None:
    port = free_ports(2)
    given = [f"--set={each.format(port, port + 1)}" for each in options]
    if not options[0].startswith("listeners"):
        given += ["--port", str(port)]
    ended = subprocess.run(
        [sys.executable, "-m", "appliance", "serve", "--data-dir", str(tmp_path / "data"), *given],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert f"{named}{port}" in ended.stderr or f"{named}{port + 1}" in ended.stderr
    assert "insecure = true" in ended.stderr
    with socket.create_server(("127.0.0.1", port)):
        pass  # nothing is left of it
