"""An old `metadata.db` is restored beside newer logs: nothing acknowledged is lost, and no number is given twice."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from appliance.control.store.embedded_store import DATABASE_NAME, SESSIONS_NAME
from appliance.log.leader_epochs import read_epochs
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.offset_for_leader_epoch import (
    CONSUMER,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from appliance.protocol.records.record import Record, encode_batch
from tests.checker.campaign import compare_replicas
from tests.cli.command import appliance
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.acked_load import bootstrap, create, in_sync, leaders
from tests.system.raw import ask, create_topic, new_producer_id, produce, wait_until

TOPIC = "kept"
GROUP = "g"
ALL = {0, 1, 2}
OLDER = "the metadata store is older than the logs"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    started = Appliance(
        tmp_path / "data", slots=len(ALL), settings={"metadata.store": "embedded"}, output_to=tmp_path / "log"
    )
    started.start()
    yield started
    started.stop()


def backup(broker: Appliance) -> Path:
    """Stops the appliance and copies its database, as docs/metadata.md says."""
    broker.stop()
    kept = broker.data_dir.with_name("metadata.backup")
    shutil.copy2(broker.data_dir / DATABASE_NAME, kept)
    return kept


def restore(broker: Appliance, kept: Path) -> None:
    """Puts the backup back, as docs/metadata.md says; the appliance does not run."""
    for suffix in ("-wal", "-shm"):
        (broker.data_dir / f"{DATABASE_NAME}{suffix}").unlink(missing_ok=True)
    shutil.copy2(kept, broker.data_dir / DATABASE_NAME)
    (broker.data_dir / SESSIONS_NAME).rename(broker.data_dir.with_name("sessions.aside"))


class Written:
    """Records that were acknowledged by all in-sync replicas of partition 0."""

    def __init__(self, broker: Appliance) -> None:
        self._broker = broker
        self.records: list[bytes] = []

    def write(self, count: int = 20) -> None:
        failures: list[object] = []

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failures.append(error)

        producer = Producer({"bootstrap.servers": bootstrap(self._broker), "acks": "all", "linger.ms": 0})
        for _ in range(count):
            self.records.append(b"%06d" % len(self.records))
            producer.produce(TOPIC, self.records[-1], partition=0, on_delivery=delivered)
        assert producer.flush(60) == 0
        assert not failures

    def check(self) -> None:
        """A consumer reads each of them once, in order, and nothing else."""
        consumer = Consumer({"bootstrap.servers": bootstrap(self._broker), "group.id": "reader"})
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found: list[bytes | None] = []
        try:
            while len(found) < len(self.records) and (
                messages := consumer.consume(len(self.records) - len(found), timeout=20)
            ):
                assert not any(message.error() for message in messages), messages[0].error()
                found += [message.value() for message in messages]
            assert found == self.records
            assert not consumer.consume(1, timeout=0.2)
        finally:
            consumer.close()


def lead_elsewhere(broker: Appliance) -> None:
    """Kills the leader's worker until another slot leads, and waits until all are in sync again."""
    before = leaders(broker, TOPIC)[0]
    broker.kill_role(f"ioproc {before}.0")
    wait_until(lambda: leaders(broker, TOPIC)[0] not in (before, -1), "another leader")
    wait_until(lambda: in_sync(broker, TOPIC)[0] == ALL, "all in sync")


def commit(broker: Appliance, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap(broker), "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    consumer.close()


def committed(broker: Appliance) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap(broker), "group.id": GROUP})
    (found,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=30)
    consumer.close()
    assert found.error is None
    return found.offset


def epoch_end(broker: Appliance, epoch: int) -> tuple[int, int]:
    """(epoch, end offset) as the leader answers OffsetForLeaderEpoch."""
    wanted = OffsetForLeaderTopic(TOPIC, (OffsetForLeaderPartition(0, epoch),))
    with WireSocket(broker.port + leaders(broker, TOPIC)[0]) as connection:
        answer = ask(
            connection, ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest((wanted,), CONSUMER)
        )
    found = answer.topics[0].partitions[0]
    assert found.error_code == 0
    return found.leader_epoch, found.end_offset


def leader_epoch(broker: Appliance) -> int:
    told = appliance("partitions", "list", TOPIC, "--json", "--bootstrap", bootstrap(broker)).succeeded()
    (partition,) = json.loads(told.output)
    epoch: int = partition["leader_epoch"]
    return epoch


def test_leader_epochs_go_on_above_those_of_the_logs(broker: Appliance) -> None:
    create(broker, TOPIC, 1, replicas=3, min_insync_replicas="2")
    written = Written(broker)
    written.write()
    commit(broker, 5)
    kept = backup(broker)
    broker.start()
    for _ in range(3):
        written.write()
        lead_elsewhere(broker)
    written.write()
    commit(broker, 70)
    before = leader_epoch(broker)
    broker.stop()
    restore(broker, kept)

    broker.start()
    written.check()
    assert committed(broker) == 70
    assert leader_epoch(broker) > before
    assert OLDER in broker.output()
    assert "leads in epoch" not in broker.output()
    written.write()
    wait_until(lambda: in_sync(broker, TOPIC)[0] == ALL, "all in sync")
    known = read_epochs(broker.data_dir / f"slot-{leaders(broker, TOPIC)[0]}" / f"{TOPIC}-0")
    assert len(known) >= 5, known
    for (epoch, _), (_, end) in pairwise(known):
        assert epoch_end(broker, epoch) == (epoch, end)
    assert epoch_end(broker, leader_epoch(broker)) == (leader_epoch(broker), len(written.records))
    assert compare_replicas(broker, TOPIC) == []

    lead_elsewhere(broker)
    written.write()
    broker.stop()
    broker.start()
    written.check()
    assert OLDER not in broker.output(), "the store has them now"
    assert compare_replicas(broker, TOPIC) == []


def test_a_slot_that_left_the_isr_after_the_backup_cuts_nobodys_records(broker: Appliance) -> None:
    create(broker, TOPIC, 1, replicas=3, min_insync_replicas="2")
    written = Written(broker)
    written.write()
    kept = backup(broker)
    broker.start()
    lagging = leaders(broker, TOPIC)[0]
    appliance("slots", "stop", lagging, "--bootstrap", bootstrap(broker)).succeeded()
    wait_until(lambda: leaders(broker, TOPIC)[0] not in (lagging, -1), "another leader")
    written.write()
    broker.stop()
    restore(broker, kept)

    broker.start()
    written.check()
    written.write()
    wait_until(lambda: in_sync(broker, TOPIC)[0] == ALL, "all in sync")
    assert compare_replicas(broker, TOPIC) == []
    written.check()


def test_a_partition_that_was_moved_after_the_backup_is_led_where_its_records_are(broker: Appliance) -> None:
    create(broker, TOPIC, 1, replicas=1)
    written = Written(broker)
    written.write()
    kept = backup(broker)
    broker.start()
    source = leaders(broker, TOPIC)[0]
    target = (source + 1) % len(ALL)
    appliance("reassign", "move", TOPIC, "--to", target, "--bootstrap", bootstrap(broker)).succeeded()
    wait_until(lambda: leaders(broker, TOPIC)[0] == target, "the move")
    wait_until(
        lambda: not (broker.data_dir / f"slot-{source}" / f"{TOPIC}-0").exists(), "the files to be gone"
    )
    written.write()
    broker.stop()
    restore(broker, kept)

    broker.start()
    written.check()
    assert leaders(broker, TOPIC)[0] == target
    written.write()
    written.check()
    assert compare_replicas(broker, TOPIC) == []


def test_a_partition_that_was_added_after_the_backup_has_its_records_when_it_is_added_again(
    broker: Appliance,
) -> None:
    create(broker, TOPIC, 1, replicas=3)
    kept = backup(broker)
    broker.start()
    grow = ("topics", "add-partitions", TOPIC, 2, "--bootstrap", bootstrap(broker))
    appliance(*grow).succeeded()
    producer = Producer({"bootstrap.servers": bootstrap(broker), "acks": "all"})
    producer.produce(TOPIC, b"kept", partition=1)
    assert producer.flush(60) == 0
    broker.stop()
    restore(broker, kept)

    broker.start()
    appliance(*grow)
    consumer = Consumer({"bootstrap.servers": bootstrap(broker), "group.id": "reader"})
    consumer.assign([TopicPartition(TOPIC, 1, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.value() == b"kept"


def test_no_producer_id_is_given_twice_so_no_record_passes_for_a_duplicate(tmp_path: Path) -> None:
    broker = Appliance(tmp_path / "data", settings={"metadata.store": "embedded"})
    broker.start()
    assert create_topic(broker.port, TOPIC) == 0
    new_producer_id(broker.port)
    kept = backup(broker)
    identities = set()

    def write(value: bytes) -> int:
        """One record of a new idempotent producer; its offset."""
        identity, epoch = new_producer_id(broker.port)
        identities.add(identity)
        record = Record(
            value, timestamp_ms=time.time_ns() // 1_000_000
        )  # an old one would be forgotten at a start
        batch = encode_batch([record], producer_id=identity, producer_epoch=epoch, base_sequence=0)
        with WireSocket(broker.port) as connection:
            answer = produce(connection, TOPIC, batch)
        assert answer.error == 0
        return answer.base_offset

    broker.start()
    assert write(b"since the backup") == 0
    broker.stop()
    restore(broker, kept)
    broker.start()
    assert write(b"after the restore") == 1
    assert len(identities) == 2
    broker.stop()
