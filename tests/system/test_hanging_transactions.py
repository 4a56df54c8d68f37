"""Transactions that no coordinator knows any more are found and ended, by Kafka's kafka-transactions and by ours.

They hang because their ids are missing from `__transaction_state`: a tombstone lies behind each, as if somebody had
forgotten the id while its transaction was open. Each has a record in a topic and the offsets of a group. With
APPLIANCE_JUDGE=kafka Apache Kafka's hanging ones are ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.control.coordinator.transaction.transaction_record import tombstone
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition
from appliance.protocol.records.record import Record
from tests.cli.command import appliance
from tests.clients.transactional.confluent import ConfluentTransactions
from tests.spark.consumers import consumed_to_the_end
from tests.support.apache_kafka import ApacheKafka, tool
from tests.support.broker import Appliance, Broker
from tests.support.judge import make_broker
from tests.support.log_edits import append_batch, last_segment
from tests.system.raw import create_topic, wait_until
from tests.system.test_transactional_offsets import fetched

COMMAND: Final = "org.apache.kafka.tools.TransactionsCommand"
PARTITIONS: Final = 4
"""Of both internal topics."""
SETTINGS: Final = {
    "offsets.topic.num.partitions": PARTITIONS,
    "transaction.state.log.num.partitions": PARTITIONS,
}
TOPIC: Final = "in"  # `fetched` asks for its offsets
LOST: Final = ("kafka", "appliance")
"""Which tool finds and ends it: the id, its group, and the number of its partition in this order."""
UNSTABLE: Final = int(ErrorCode.UNSTABLE_OFFSET_COMMIT)


@dataclass(frozen=True, slots=True)
class Place:
    topic: str
    partition: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class Scene:
    broker: Appliance | ApacheKafka
    reader: ConfluentTransactions

    def hanging_by_kafkas_tool(self) -> set[Place]:
        number = "1" if isinstance(self.broker, ApacheKafka) else "0"
        printed = tool(
            *(COMMAND, "--bootstrap-server", self.broker.address, "find-hanging"),
            *("--broker-id", number, "--max-transaction-timeout", "0"),
        )
        names, *rows = [line.split() for line in printed.splitlines() if line.strip()]
        told = [dict(zip(names, row, strict=False)) for row in rows]
        return {Place(each["Topic"], int(each["Partition"]), int(each["StartOffset"])) for each in told}

    def hanging_by_ours(self) -> set[Place]:
        outcome = appliance(
            *("transactions", "find-hanging", "--max-transaction-timeout", 0),
            *("--json", "-b", self.broker.address),
        )
        rows: list[dict[str, Any]] = json.loads(outcome.succeeded().output)
        return {Place(each["topic"], each["partition"], each["start_offset"]) for each in rows}


def write_and_leave_open(reader: ConfluentTransactions, name: str, partition: int) -> None:
    producer = reader.producer(name, timeout_ms=600_000)
    producer.init()
    producer.begin()
    producer.send(TOPIC, [b"never decided"], partition)
    producer.send_offsets(name, {(TOPIC, 0): 7})


def forget(data_dir: Path, name: str) -> None:
    """A tombstone in the log of the id's coordinator, which does not run."""
    (partition,) = data_dir.rglob(f"__transaction_state-{group_partition(name, PARTITIONS)}")
    record = tombstone(name)
    append_batch(last_segment(partition), [Record(record.value, key=record.key)])


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    data_dir = tmp_path_factory.mktemp("hanging") / "data"
    broker: Broker = make_broker(data_dir, SETTINGS)
    assert isinstance(broker, Appliance | ApacheKafka)
    broker.start()
    try:
        create_topic(broker.port, TOPIC, partitions=len(LOST))
        reader = ConfluentTransactions(broker.address)
        for partition, name in enumerate(LOST):
            reader.send(TOPIC, [b"before"], partition)
            write_and_leave_open(reader, name, partition)
        broker.kill()
        for name in LOST:
            forget(data_dir, name)
        broker.start()
        for partition in range(len(LOST)):
            reader.send(TOPIC, [b"after"], partition)
        yield Scene(broker, reader)
    finally:
        broker.stop()


def the_place_of(scene: Scene, name: str, among: set[Place]) -> set[Place]:
    """Where the transaction of `name` hangs: one place in the topic, and one among the group's offsets."""
    of_the_group = group_partition(name, PARTITIONS)
    places = {
        each
        for each in among
        if (each.topic, each.partition) in {(TOPIC, LOST.index(name)), ("__consumer_offsets", of_the_group)}
    }
    assert {each.topic for each in places} == {TOPIC, "__consumer_offsets"}, among
    return places


def test_a_transaction_hangs_when_its_coordinator_has_forgotten_it(scene: Scene) -> None:
    listed = tool(COMMAND, "--bootstrap-server", scene.broker.address, "list")
    assert not any(name in listed.split() for name in LOST)
    records = consumed_to_the_end(scene.broker.address, TOPIC, len(LOST), isolation="read_committed")
    assert [(each.partition, each.value) for each in records] == [(0, b"before"), (1, b"before")]
    for name in LOST:
        assert fetched(scene.broker, name, stable=True)[1] == UNSTABLE


def test_kafkas_tool_finds_and_ends_what_hangs(scene: Scene) -> None:
    places = the_place_of(scene, "kafka", scene.hanging_by_kafkas_tool())
    for place in places:
        tool(
            *(COMMAND, "--bootstrap-server", scene.broker.address, "abort"),
            *("--topic", place.topic, "--partition", str(place.partition)),
            *("--start-offset", str(place.start_offset)),
        )
    assert_ended(scene, "kafka")
    assert not places & scene.hanging_by_kafkas_tool()


def test_our_tool_finds_and_ends_what_hangs(scene: Scene) -> None:
    places = the_place_of(scene, "appliance", scene.hanging_by_ours())
    for place in places:
        outcome = appliance(
            *("transactions", "abort", f"{place.topic}:{place.partition}"),
            *("--start-offset", place.start_offset, "-b", scene.broker.address),
        )
        outcome.succeeded()
    assert_ended(scene, "appliance")
    assert not places & scene.hanging_by_ours()


def assert_ended(scene: Scene, name: str) -> None:
    assert scene.reader.read(TOPIC, LOST.index(name), until=b"after") == [b"before", b"after"]
    wait_until(
        lambda: fetched(scene.broker, name, stable=True) == (-1, 0),
        "the group's offsets are decided, and there are none",
        timeout_s=30,
    )
