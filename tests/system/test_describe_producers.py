"""DescribeProducers over real connections: who wrote to a partition, what is refused, and a worker that dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)
from appliance.protocol.errors import ErrorCode
from tests.support.apache_kafka import tool
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.raw import ask, create_topic, wait_until

COMMAND = "org.apache.kafka.tools.TransactionsCommand"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    started = Appliance(tmp_path_factory.mktemp("producers") / "data")
    started.start()
    yield started
    started.stop()


def write(broker: Appliance, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    for _ in range(records):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(30) == 0


def described(broker: Appliance, topic: str, *partitions: int) -> tuple[PartitionResponse, ...]:
    request = DescribeProducersRequest((TopicRequest(topic, partitions),))
    with WireSocket(broker.port) as connection:
        response = ask(connection, ApiKey.DESCRIBE_PRODUCERS, request)
    assert isinstance(response, DescribeProducersResponse)
    return response.topics[0].partitions


def test_each_producer_of_a_partition_is_told_and_kafkas_command_prints_it(broker: Appliance) -> None:
    create_topic(broker.port, "t", partitions=2)
    for records in (1, 2, 3):
        write(broker, "t", records)
    first, second = described(broker, "t", 0, 1)
    assert second == PartitionResponse(1)
    assert sorted(each.last_sequence for each in first.active_producers) == [0, 1, 2]
    assert {
        (each.producer_epoch, each.coordinator_epoch, each.current_txn_start_offset)
        for each in first.active_producers
    } == {(0, -1, -1)}
    printed = tool(
        COMMAND,
        "--bootstrap-server",
        broker.address,
        "describe-producers",
        "--topic",
        "t",
        "--partition",
        "0",
    )
    assert [line.split() for line in printed.splitlines()[1:]] == [
        [str(each.producer_id), "0", "-1", str(each.last_sequence), str(each.last_timestamp), "None"]
        for each in first.active_producers
    ]


def test_a_partition_that_is_asked_for_over_and_over_is_told_once(broker: Appliance) -> None:
    create_topic(broker.port, "over", partitions=2)
    write(broker, "over", 1)
    told = described(broker, "over", *(0, 1) * 1_000)
    assert [(each.partition_index, len(each.active_producers)) for each in told] == [(0, 1), (1, 0)]


def test_what_is_not_there_is_refused_each_by_its_own_error(broker: Appliance) -> None:
    create_topic(broker.port, "one")
    served, unknown = described(broker, "one", 0, 7)
    assert (served.error_code, unknown.error_code) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    (nowhere,) = described(broker, "nowhere", 0)
    assert nowhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (illegal,) = described(broker, "a b", 0)
    assert illegal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_producers_are_told_again_after_their_worker_was_killed(broker: Appliance) -> None:
    create_topic(broker.port, "killed")
    write(broker, "killed", 5)
    (before,) = described(broker, "killed", 0)
    assert len(before.active_producers) == 1
    broker.kill_role("ioproc")
    wait_until(lambda: described(broker, "killed", 0) == (before,), "the producer", timeout_s=30)
