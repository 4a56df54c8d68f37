"""Records and offsets of one transaction become visible together, and a killed coordinator tears nothing apart."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic
from appliance.protocol.errors import ErrorCode
from tests.cli.command import appliance
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.raw import ask, create_topic, wait_until

TIMEOUT_S = 60
KILLS = 4
WIDE = 400
UNSTABLE = int(ErrorCode.UNSTABLE_OFFSET_COMMIT)


@pytest.fixture(scope="module", params=[1, 2], ids=["one coordinator", "two coordinators"])
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Appliance]:
    settings = {"coordinator.processes": request.param, "offsets.topic.num.partitions": 4}
    appliance = Appliance(tmp_path_factory.mktemp("transactional"), settings=settings)
    appliance.start()
    for topic in ("in", "out", "killed", "lagging"):
        create_topic(appliance.port, topic)
    yield appliance
    appliance.stop()


def fetched(broker: Appliance | ApacheKafka, group: str, *, stable: bool) -> tuple[int, int]:
    """Offset and error of the group in in-0, asked until the coordinator has loaded."""
    request = OffsetFetchRequest(
        groups=(OffsetFetchGroup(group, (OffsetFetchTopic("in", partition_indexes=(0,)),)),),
        require_stable=stable,
    )
    told: list[tuple[int, int]] = []

    def is_told() -> bool:
        with WireSocket(broker.port, timeout_s=TIMEOUT_S) as connection:
            (answer,) = ask(connection, ApiKey.OFFSET_FETCH, request, version=9).groups
        if answer.error_code:
            return False
        (partition,) = answer.topics[0].partitions
        told.append((partition.committed_offset, partition.error_code))
        return True

    wait_until(is_told, "the group's coordinator answers", timeout_s=TIMEOUT_S)
    return told[-1]


class Copier:
    """One transaction after the other: a record to `topic`, and how far `group` has come."""

    def __init__(self, broker: Appliance, name: str, topic: str) -> None:
        bootstrap = {"bootstrap.servers": f"127.0.0.1:{broker.port}"}
        self.group = f"group-{name}"
        self.topic = topic
        self.producer = Producer({**bootstrap, "transactional.id": name})
        self.consumer = Consumer({**bootstrap, "group.id": self.group})
        self.reader = Consumer(
            {
                **bootstrap,
                "group.id": "nobody",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self.reader.assign([TopicPartition(topic, 0, 0)])
        self.read: list[bytes | None] = []
        self.producer.init_transactions(TIMEOUT_S)

    def write(self, value: bytes, offset: int) -> None:
        self.producer.begin_transaction()
        self.producer.produce(self.topic, value)
        self.producer.send_offsets_to_transaction(
            [TopicPartition("in", 0, offset)], self.consumer.consumer_group_metadata(), TIMEOUT_S
        )
        self.producer.flush(TIMEOUT_S)

    def look(self) -> list[bytes | None]:
        """What a reader of committed records has seen so far."""
        for message in self.reader.consume(100, timeout=0.3):
            assert not message.error(), message.error()
            self.read.append(message.value())
        return self.read

    def close(self) -> None:
        self.reader.close()
        self.consumer.close()


@pytest.mark.timeout(240)
def test_record_and_offset_are_hidden_until_the_commit_and_then_both_there(broker: Appliance) -> None:
    copier = Copier(broker, "shown", "out")
    copier.write(b"committed", 5)
    assert fetched(broker, copier.group, stable=False) == (-1, 0)
    assert fetched(broker, copier.group, stable=True) == (-1, UNSTABLE)
    assert copier.look() == []
    copier.producer.commit_transaction(TIMEOUT_S)
    wait_until(
        lambda: fetched(broker, copier.group, stable=True) == (5, 0), "the offset is there", timeout_s=20
    )
    wait_until(lambda: copier.look() == [b"committed"], "the record is there", timeout_s=20)
    copier.write(b"aborted", 6)
    copier.producer.abort_transaction(TIMEOUT_S)
    wait_until(
        lambda: fetched(broker, copier.group, stable=True) == (5, 0), "the old one counts", timeout_s=20
    )
    assert copier.look() == [b"committed"]
    copier.close()


@pytest.mark.timeout(240)
def test_offsets_of_many_partitions_are_one_transaction(broker: Appliance) -> None:
    """The request is long enough to be worked on in pieces; its offsets are told all or none."""
    create_topic(broker.port, "wide", partitions=WIDE)
    bootstrap = {"bootstrap.servers": broker.address}
    reader = Consumer({**bootstrap, "group.id": "wide", "isolation.level": "read_committed"})
    producer = Producer({**bootstrap, "transactional.id": "wide"})
    producer.init_transactions(TIMEOUT_S)
    partitions = [TopicPartition("wide", number) for number in range(WIDE)]
    for offset, ends in ((1, producer.commit_transaction), (2, producer.abort_transaction)):
        producer.begin_transaction()
        producer.send_offsets_to_transaction(
            [TopicPartition("wide", number, offset) for number in range(WIDE)],
            reader.consumer_group_metadata(),
            TIMEOUT_S,
        )
        ends(TIMEOUT_S)
        assert {each.offset for each in reader.committed(partitions, timeout=TIMEOUT_S)} == {1}
    reader.close()


def lag(broker: Appliance, group: str, *options: str) -> tuple[int, int]:
    """Committed offset and lag in lagging-0, as a user sees them."""
    outcome = appliance("groups", "lag", group, "--json", *options, "-b", broker.address).succeeded()
    ((partition,),) = [each["partitions"] for each in json.loads(outcome.output)]
    return partition["committed"], partition["lag"]


@pytest.mark.timeout(240)
def test_lag_of_a_group_counts_an_open_transaction_unless_its_readers_wait_for_it(broker: Appliance) -> None:
    bootstrap = {"bootstrap.servers": broker.address}
    plain = Producer(bootstrap)
    for _ in range(2):
        plain.produce("lagging", b"plain")
    assert plain.flush(TIMEOUT_S) == 0
    consumer = Consumer({**bootstrap, "group.id": "lagging"})
    consumer.commit(offsets=[TopicPartition("lagging", 0, 1)], asynchronous=False)
    producer = Producer({**bootstrap, "transactional.id": "lagging"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("lagging", b"open")
    producer.send_offsets_to_transaction(
        [TopicPartition("lagging", 0, 2)], consumer.consumer_group_metadata(), TIMEOUT_S
    )
    assert producer.flush(TIMEOUT_S) == 0
    assert lag(broker, "lagging") == (1, 2)
    assert lag(broker, "lagging", "--read-committed") == (1, 1)
    producer.commit_transaction(TIMEOUT_S)
    wait_until(
        lambda: lag(broker, "lagging") == (2, 2), "the marker counts as an offset", timeout_s=TIMEOUT_S
    )
    wait_until(
        lambda: lag(broker, "lagging", "--read-committed") == (2, 2),
        "nothing is open any more",
        timeout_s=TIMEOUT_S,
    )
    consumer.close()


def await_whole(broker: Appliance, copier: Copier, number: int) -> None:
    """The transaction of that number is there, its offset and its record."""
    wait_until(
        lambda: fetched(broker, copier.group, stable=True) == (number, 0),
        f"offset {number} is there",
        timeout_s=TIMEOUT_S,
    )
    wait_until(
        lambda: copier.look()[-1:] == [b"%d" % number], f"record {number} is there", timeout_s=TIMEOUT_S
    )


@pytest.mark.timeout(600)
def test_a_decided_transaction_is_whole_although_the_coordinators_die_before_its_markers(
    broker: Appliance,
) -> None:
    """EndTxn is answered when the decision is in the log, before any marker; then the coordinator dies at once."""
    copier = Copier(broker, "killed", "killed")
    processes = len(broker.pids("coordinator"))
    for number in range(1, KILLS + 1):
        value = b"%d" % number
        copier.write(value, number)
        copier.producer.commit_transaction(TIMEOUT_S)
        broker.kill_role("coordinator", number % processes)
        await_whole(broker, copier, number)
    assert copier.look() == [b"%d" % number for number in range(1, KILLS + 1)]
    copier.close()
