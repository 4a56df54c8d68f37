"""Damaged copies of a partition lose nothing that was acknowledged while one in-sync copy is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from appliance.log.file_names import LOG
from appliance.protocol.records.batch import batches
from tests.checker.campaign import compare_replicas
from tests.support.broker import Appliance
from tests.system.acked_load import bootstrap, create, in_sync, leaders
from tests.system.raw import wait_until

TOPIC = "kept"
RECORDS = 600
TORN_BATCHES = 20
SLOTS = (0, 1, 2)

Damage = Callable[[Path], None]


def newest_segment(copy: Path) -> Path:
    return max(path for path in copy.glob(f"*{LOG}") if path.stat().st_size)


def batch_positions(segment: Path) -> list[int]:
    """Where the batches of a segment begin, and where the last one ends."""
    found = [(position, header) for position, header in batches(segment.read_bytes())]
    position, header = found[-1]
    return [*(at for at, _ in found), position + header.size_bytes]


def tear(copy: Path, count: int = TORN_BATCHES) -> None:
    """Cuts the newest segment by its last batches."""
    segment = newest_segment(copy)
    with segment.open("r+b") as file:
        file.truncate(batch_positions(segment)[-1 - count])


def flip_a_bit(copy: Path, at: float = 0.1) -> None:
    """Flips one bit in the newest segment, inside of a batch."""
    segment = newest_segment(copy)
    data = bytearray(segment.read_bytes())
    data[int(batch_positions(segment)[-1] * at)] ^= 1
    segment.write_bytes(data)


def zero_the_end(copy: Path) -> None:
    """Leaves zeros where the last batches were, as a page that was never written back."""
    segment = newest_segment(copy)
    start = batch_positions(segment)[-1 - TORN_BATCHES]
    data = segment.read_bytes()
    segment.write_bytes(data[:start] + bytes(len(data) - start))


def started(path: Path, **settings: object) -> Appliance:
    broker = Appliance(path / "data", slots=len(SLOTS), settings={**settings})
    broker.start()
    return broker


def write(broker: Appliance, topic: str = TOPIC, count: int = RECORDS) -> list[bytes]:
    """Has records acknowledged by all in-sync replicas, each in a batch of its own."""
    producer = Producer(
        {"bootstrap.servers": bootstrap(broker), "acks": "all", "batch.num.messages": 1, "linger.ms": 0}
    )
    failures: list[object] = []
    records = [b"%06d" % number * 10 for number in range(count)]
    for record in records:
        producer.produce(
            topic, record, partition=0, on_delivery=lambda error, _: error and failures.append(error)
        )
    assert producer.flush(60) == 0
    assert not failures
    return records


def read(broker: Appliance, count: int, topic: str = TOPIC) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap(broker), "group.id": "g", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []
    try:
        while len(found) < count and (messages := consumer.consume(count - len(found), timeout=10)):
            assert not any(message.error() for message in messages), messages[0].error()
            found += [message.value() for message in messages]
    finally:
        consumer.close()
    return found


def damage_all(
    broker: Appliance, slots: Iterable[int], damage: Damage, partition: str = f"{TOPIC}-0"
) -> None:
    for slot in slots:
        damage(broker.data_dir / f"slot-{slot}" / partition)


def check_whole(broker: Appliance, records: list[bytes]) -> None:
    wait_until(lambda: in_sync(broker, TOPIC)[0] == set(SLOTS), "all in sync", timeout_s=30)
    assert read(broker, len(records)) == records
    assert not compare_replicas(broker, TOPIC)


@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
@pytest.mark.parametrize("damage", [tear, flip_a_bit, zero_the_end])
def test_a_damaged_leader_follows_the_copy_that_has_more(
    tmp_path: Path, damage: Damage, durability: str
) -> None:
    broker = started(tmp_path, durability=durability)
    create(broker, TOPIC, 1, replicas=3, min_insync_replicas="2")
    records = write(broker)
    wait_until(lambda: in_sync(broker, TOPIC)[0] == set(SLOTS), "all in sync")
    leader = leaders(broker, TOPIC)[0]
    broker.kill()
    damage_all(broker, [leader], damage)

    broker.start()
    check_whole(broker, records)
    assert f"partition {TOPIC}-0: slot {leader} does not lead" in broker.output()
    broker.stop()


@pytest.mark.parametrize("whole", SLOTS)
def test_the_one_whole_copy_of_three_leads(tmp_path: Path, whole: int) -> None:
    broker = started(tmp_path)
    create(broker, TOPIC, 1, replicas=3, min_insync_replicas="2")
    records = write(broker)
    broker.kill()
    others = [slot for slot in SLOTS if slot != whole]
    damage_all(broker, others[:1], flip_a_bit)
    damage_all(broker, others[1:], tear)

    broker.start()
    check_whole(broker, records)
    broker.stop()


def test_the_longest_valid_copy_leads_where_all_are_damaged_and_the_loss_is_said(tmp_path: Path) -> None:
    broker = started(tmp_path)
    create(broker, TOPIC, 1, replicas=3, min_insync_replicas="2")
    records = write(broker)
    broker.kill()
    for slot, at in zip(SLOTS, (0.2, 0.5, 0.4), strict=True):
        flip_a_bit(broker.data_dir / f"slot-{slot}" / f"{TOPIC}-0", at)

    broker.start()
    wait_until(lambda: in_sync(broker, TOPIC)[0] == set(SLOTS), "all in sync", timeout_s=30)
    found = read(broker, RECORDS)
    assert found == records[: len(found)]
    assert RECORDS * 0.45 < len(found) < RECORDS * 0.55
    assert leaders(broker, TOPIC)[0] == 1
    assert f"partition {TOPIC}-0: records are lost" in broker.output()
    assert not compare_replicas(broker, TOPIC)
    broker.stop()
