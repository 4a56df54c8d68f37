"""Where clients are told to connect to, and what an operator is told about who may."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from appliance.netproc.connection import arrival_host
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_cluster import DescribeClusterRequest
from appliance.protocol.apis.find_coordinator import FindCoordinatorRequest
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.acked_load import create, leaders
from tests.system.raw import ask

SLOTS = 3
ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.1")
"""The first one again, so that an answer that was kept for another address would show."""

WARNING = "listening without authentication on 0.0.0.0:{}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    broker = Appliance(
        tmp_path_factory.mktemp("told") / "data",
        slots=SLOTS,
        settings={"insecure": True},
        arguments=("--host", "0.0.0.0"),
    )
    broker.start()
    yield broker
    broker.stop()


def test_clients_are_told_the_address_that_they_came_by(broker: Appliance) -> None:
    create(broker, "t", 3, replicas=SLOTS)
    for address in ADDRESSES:
        wanted = {(address, broker.port + slot) for slot in range(SLOTS)}
        with WireSocket(broker.port, host=address) as connection:
            metadata = ask(connection, ApiKey.METADATA, MetadataRequest(None))
            assert {(each.host, each.port) for each in metadata.brokers} == wanted
            cluster = ask(connection, ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(False))
            assert {(each.host, each.port) for each in cluster.brokers} == wanted
            found = ask(connection, ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(coordinator_keys=("g",)))
            [coordinator] = found.coordinators
            assert (coordinator.host, coordinator.port) in wanted


@pytest.mark.parametrize("address", ADDRESSES[:2])
def test_a_hint_at_the_leader_has_the_address_that_the_client_came_by(
    broker: Appliance, address: str
) -> None:
    topic = f"led-{address}"
    create(broker, topic, 1, replicas=SLOTS)
    (leader,) = leaders(broker, topic).values()
    data = ProduceRequest.TopicProduceData
    partition = data.PartitionProduceData(index=0, records=bytes(encode_batch([Record(b"x")])))
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[data(name=topic, partition_data=[partition])],
    )
    request.with_header(correlation_id=5, client_id="told")
    with WireSocket(broker.port + (leader + 1) % SLOTS, host=address) as connection:
        connection.send(request.encode(version=12, header=True, framed=True))
        body = connection.read_frame()
    answer = ProduceResponse.decode(struct.pack(">i", len(body)) + body, version=12, header=True, framed=True)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    [at] = answer.node_endpoints
    assert (at.node_id, at.host, at.port) == (leader, address, broker.port + leader)


def test_a_client_that_comes_by_another_address_can_produce(broker: Appliance) -> None:
    servers = f"127.0.0.2:{broker.port}"
    told = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=30).brokers.values()
    assert {each.host for each in told} == {"127.0.0.2"}
    producer = Producer({"bootstrap.servers": servers})
    failures: list[object] = []
    producer.produce("by-another", b"x", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(30) == 0
    assert failures == [None]


def test_an_operator_is_warned_of_ports_that_other_hosts_reach(broker: Appliance) -> None:
    assert WARNING.format(broker.port) in broker.output()
    assert f"appliance ready on 0.0.0.0:{broker.port} " in broker.output()


def test_loopback_is_no_reason_for_a_warning_and_an_advertised_host_wins(broker: Appliance) -> None:
    data_dir = broker.data_dir.with_name("other")
    settings = {"host": "0.0.0.0", "advertised.host": "broker.example", "insecure": True}
    other = Appliance(data_dir, settings=settings)
    other.start()
    try:
        with WireSocket(other.port, host="127.0.0.2") as connection:
            metadata = ask(connection, ApiKey.METADATA, MetadataRequest(None))
        assert [each.host for each in metadata.brokers] == ["broker.example"]
    finally:
        other.stop()
    loopback = Appliance(data_dir.with_name("loopback"))
    loopback.start()
    assert "without authentication" not in loopback.output()
    loopback.stop()


@pytest.mark.parametrize(
    ("local", "told"),
    [("10.1.2.3", "10.1.2.3"), ("::ffff:10.1.2.3", "10.1.2.3"), ("fe80::1%eth0", "fe80::1"), ("::1", "::1")],
)
def test_the_address_is_told_as_the_client_writes_it(local: str, told: str) -> None:
    assert arrival_host(local) == told
