"""Damaged copies of a partition lose nothing that was acknowledged while one in-sync copy is whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from appliance.cli.status import processes_of
from appliance.log.file_names import LOG
from appliance.protocol.records.batch import batches
from tests.checker.campaign import compare_replicas
from tests.support.broker import Appliance
from tests.system.acked_load import bootstrap, create, in_sync, leaders
from tests.system.raw import wait_until

TOPIC = "kept"
OFFSETS = "__consumer_offsets"
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
    end = batch_positions(segment)[-1]
    start = max(position for position in batch_positions(segment) if position <= end * at)
    data[start + 100] ^= 1
    segment.write_bytes(data)


def zero_the_end(copy: Path) -> None:
    """Leaves zeros where the last batches were, as a page that was never written back."""
    segment = newest_segment(copy)
    start = batch_positions(segment)[-1 - TORN_BATCHES]
    data = segment.read_bytes()
    segment.write_bytes(data[:start] + bytes(len(data) - start))


def started(path: Path, **settings: object) -> Appliance:
    broker = Appliance(
        path / "data", slots=len(SLOTS), settings={**settings}, output_to=path / "appliance.log"
    )
    broker.start()
    return broker


def write(broker: Appliance, topic: str = TOPIC, count: int = RECORDS, *, keyed: bool = False) -> list[bytes]:
    """Has records acknowledged by all in-sync replicas, each in a batch of its own."""
    producer = Producer(
        {"bootstrap.servers": bootstrap(broker), "acks": "all", "batch.num.messages": 1, "linger.ms": 0}
    )
    failures: list[object] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(error)

    records = [b"%06d" % number * 10 for number in range(count)]
    for record in records:
        producer.produce(
            topic,
            record,
            key=record if keyed else None,
            partition=0,
            on_delivery=delivered,
        )
    assert producer.flush(60) == 0
    assert not failures
    return records


def read(broker: Appliance) -> list[bytes | None]:
    """All records from the first offset to the high watermark."""
    consumer = Consumer({"bootstrap.servers": bootstrap(broker), "group.id": "g", "check.crcs": True})
    place = TopicPartition(TOPIC, 0, 0)
    _, end = consumer.get_watermark_offsets(place, timeout=30)
    consumer.assign([place])
    found: list[bytes | None] = []
    at = 0
    try:
        while at < end:
            message = consumer.poll(30)
            assert message is not None, f"nothing after offset {at} of {end}"
            assert not message.error(), message.error()
            found.append(message.value())
            offset = message.offset()
            assert offset is not None
            at = offset + 1
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
    assert read(broker) == records
    assert not compare_replicas(broker, TOPIC)


@pytest.mark.parametrize(
    ("damage", "durability"),
    [
        (tear, "page-cache"),
        (flip_a_bit, "fsync"),
        pytest.param(tear, "fsync", marks=pytest.mark.slow),
        pytest.param(flip_a_bit, "page-cache", marks=pytest.mark.slow),
        pytest.param(zero_the_end, "page-cache", marks=pytest.mark.slow),
        pytest.param(zero_the_end, "fsync", marks=pytest.mark.slow),
    ],
)
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


@pytest.mark.parametrize(
    "whole", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(2, marks=pytest.mark.slow)]
)
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
    found = read(broker)
    assert found == records[: len(found)]
    assert RECORDS * 0.45 < len(found) < RECORDS * 0.55
    assert leaders(broker, TOPIC)[0] == 1
    assert f"partition {TOPIC}-0: records are lost" in broker.output()
    assert status(broker, "lost_partitions") == 1
    assert not compare_replicas(broker, TOPIC)
    broker.stop()


def start_a_copy_anew(broker: Appliance, slot: int) -> None:
    """Leaves a slot's copy without files, so that it has to be copied from the first record on."""
    shutil.rmtree(broker.data_dir / f"slot-{slot}" / f"{TOPIC}-0")


def garble_a_header(copy: Path) -> None:
    """Makes the length of a batch a lie, in the middle of the log."""
    segment = newest_segment(copy)
    data = bytearray(segment.read_bytes())
    positions = batch_positions(segment)
    data[positions[len(positions) // 2] + 8] ^= 0x40
    segment.write_bytes(data)


def move_a_batch(copy: Path) -> None:
    """Changes the base offset of a batch, which the checksum does not cover."""
    segment = newest_segment(copy)
    data = bytearray(segment.read_bytes())
    positions = batch_positions(segment)
    data[positions[len(positions) // 2] + 7] ^= 0x80
    segment.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "cleanup"),
    [
        (flip_a_bit, "delete"),
        *(
            pytest.param(damage, cleanup, marks=pytest.mark.slow)
            for damage, cleanup in (
                (garble_a_header, "delete"),
                (move_a_batch, "delete"),
                (flip_a_bit, "compact"),
                (garble_a_header, "compact"),
                (move_a_batch, "compact"),
            )
        ),
    ],
)
def test_a_leader_is_repaired_where_a_follower_finds_it_damaged_below_its_recovery_point(
    tmp_path: Path, damage: Damage, cleanup: str
) -> None:
    """A clean stop says that all is on the disk, so the start looks at none of it."""
    broker = started(tmp_path, **{"replica.lag.time.max.ms": 2000})
    create(broker, TOPIC, 1, replicas=3, min_insync_replicas="2", cleanup_policy=cleanup)
    records = write(broker, keyed=cleanup == "compact")
    wait_until(lambda: in_sync(broker, TOPIC)[0] == set(SLOTS), "all in sync")
    leader = leaders(broker, TOPIC)[0]
    broker.stop()
    damage(broker.data_dir / f"slot-{leader}" / f"{TOPIC}-0")
    start_a_copy_anew(broker, (leader + 1) % len(SLOTS))

    broker.start()
    check_whole(broker, records)
    said = broker.output()
    assert (
        f"was damaged in slot {leader} and is repaired from the copy of slot {(leader + 2) % len(SLOTS)}"
        in said
    )
    assert status(broker, "repaired_batches") == 1
    broker.stop()


def test_a_leader_is_repaired_where_a_reader_cannot_pass_a_damaged_header(tmp_path: Path) -> None:
    broker = started(tmp_path)
    create(broker, TOPIC, 1, replicas=3, min_insync_replicas="2")
    records = write(broker)
    wait_until(lambda: in_sync(broker, TOPIC)[0] == set(SLOTS), "all in sync")
    leader = leaders(broker, TOPIC)[0]
    broker.stop()
    garble_a_header(broker.data_dir / f"slot-{leader}" / f"{TOPIC}-0")

    broker.start()
    check_whole(broker, records)
    broker.stop()


def test_a_damaged_leader_whose_batches_lie_elsewhere_in_the_others_gives_way(tmp_path: Path) -> None:
    """Compaction is each slot's own, so its segments cannot be repaired in place: the copy is made anew."""
    broker = started(tmp_path, **{"replica.lag.time.max.ms": 2000})
    create(broker, TOPIC, 1, replicas=3, min_insync_replicas="2", cleanup_policy="compact")
    records = write(broker, keyed=True)
    wait_until(lambda: in_sync(broker, TOPIC)[0] == set(SLOTS), "all in sync")
    leader, emptied, whole = [(leaders(broker, TOPIC)[0] + number) % 3 for number in range(3)]
    broker.stop()
    flip_a_bit(broker.data_dir / f"slot-{leader}" / f"{TOPIC}-0")
    drop_first_batch(broker.data_dir / f"slot-{whole}" / f"{TOPIC}-0")
    start_a_copy_anew(broker, emptied)

    broker.start()
    wait_until(lambda: leaders(broker, TOPIC)[0] == whole, "the whole copy leads", timeout_s=30)
    wait_until(lambda: in_sync(broker, TOPIC)[0] == set(SLOTS), "all in sync", timeout_s=30)
    assert read(broker)[-500:] == records[-500:]
    assert "another slot leads" in broker.output()
    broker.stop()


def drop_first_batch(copy: Path) -> None:
    """As compaction does; what it was has a later record of its key."""
    segment = newest_segment(copy)
    second = batch_positions(segment)[1]
    segment.write_bytes(segment.read_bytes()[second:])
    for suffix in (".index", ".timeindex"):
        segment.with_suffix(suffix).unlink()


def status(broker: Appliance, counter: str) -> int:
    """What all workers count together, as `appliance status` tells it."""
    rows = processes_of(broker.data_dir.resolve())
    assert rows is not None
    return sum(row.get(counter, 0) for row in rows)


def test_committed_offsets_outlive_the_damage_of_two_of_three_copies(tmp_path: Path) -> None:
    """`__consumer_offsets` is a replicated partition as any other."""
    broker = started(tmp_path, **{"offsets.topic.num.partitions": 1})
    create(broker, TOPIC, 1, replicas=3, min_insync_replicas="2")
    write(broker, count=300)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap(broker), "group.id": "g", "enable.auto.commit": False}
    )
    for offset in range(1, 301):
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    wait_until(lambda: in_sync(broker, OFFSETS)[0] == set(SLOTS), "all in sync")
    leader = leaders(broker, OFFSETS)[0]
    broker.kill()
    damage_all(broker, [leader], flip_a_bit, f"{OFFSETS}-0")
    damage_all(broker, [(leader + 1) % len(SLOTS)], tear, f"{OFFSETS}-0")

    broker.start()
    (committed,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=30)
    assert committed.offset == 300
    consumer.close()
    wait_until(lambda: in_sync(broker, OFFSETS)[0] == set(SLOTS), "all in sync", timeout_s=30)
    assert not compare_replicas(broker, OFFSETS)
    broker.stop()
