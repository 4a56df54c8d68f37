"""What lies in the log directories of several slots, and that nothing is lost with those of one."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from appliance.protocol.apis.describe_log_dirs import DescribeLogDirsRequest
from tests.checker.campaign import compare_replicas
from tests.support.broker import Appliance
from tests.support.raw_fetch import parse_batches
from tests.support.wire import WireSocket
from tests.system.acked_load import AckedLoad, bootstrap, create, in_sync, leaders
from tests.system.raw import ask, wait_until

TOPIC = "kept"
PARTITIONS = 6


@pytest.mark.slow
def test_nothing_acked_goes_with_a_slot_s_log_directory(tmp_path: Path) -> None:
    settings = {"replica.lag.time.max.ms": 2000}
    broker = Appliance(tmp_path / "data", slots=3, settings=settings)
    broker.start()
    create(broker, TOPIC, PARTITIONS, replicas=3, min_insync_replicas="2")
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(500)
        (broker.data_dir / "slot-1").rename(broker.data_dir / "gone")
        wait_until(lambda: 1 not in leaders(broker, TOPIC).values(), "others lead", timeout_s=30)
        wait_until(
            lambda: all(1 not in isr for isr in in_sync(broker, TOPIC).values()), "out of sync", timeout_s=30
        )
        load.until(500)
    assert not load.failed
    load.check(broker)
    broker.stop()


def leave_newest_segment(copy: Path) -> None:
    """What a directory's removal leaves where the copy has just begun a segment, behind the removal's back."""
    *older, newest = sorted(copy.glob("*.log"))
    assert len(older) > 1
    kept = newest.read_bytes()
    shutil.rmtree(copy.parent)
    newest.parent.mkdir(parents=True)
    newest.write_bytes(kept)


def leave_no_segment(copy: Path) -> None:
    """The same, where it has just written down its epochs; the slot's directory has all the rest."""
    for path in copy.iterdir():
        if path.name != "leader-epoch-checkpoint":
            path.unlink()


def take_oldest_segments(copy: Path) -> None:
    """Somebody has, or a removal did not come to its end."""
    for path in sorted(copy.glob("*.log"))[:-1]:
        path.unlink()


def take_newest_segment(copy: Path) -> None:
    max(copy.glob("*.log")).unlink()


@pytest.mark.parametrize(
    "damage",
    [take_newest_segment, leave_newest_segment, leave_no_segment, take_oldest_segments, shutil.rmtree],
)
def test_a_copy_of_which_files_have_gone_is_whole_before_it_leads(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    broker = Appliance(tmp_path / "data", slots=3, settings={"log.segment.bytes": 1 << 20})
    broker.start()
    create(broker, TOPIC, 1, replicas=3)
    producer = Producer({"bootstrap.servers": bootstrap(broker), "acks": "all"})
    records = [random.randbytes(10_000) for _ in range(500)]
    for record in records:
        producer.produce(TOPIC, record, partition=0)
    assert producer.flush(30) == 0
    slot = leaders(broker, TOPIC)[0]
    broker.stop()

    damage(broker.data_dir / f"slot-{slot}" / f"{TOPIC}-0")

    broker.start()
    wait_until(lambda: in_sync(broker, TOPIC)[0] == {0, 1, 2}, "all in sync", timeout_s=30)
    admin = AdminClient({"bootstrap.servers": bootstrap(broker)})
    admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(TOPIC, 0)]).result(30)
    wait_until(lambda: leaders(broker, TOPIC)[0] == slot, "it leads", timeout_s=30)
    consumer = Consumer({"bootstrap.servers": bootstrap(broker), "group.id": "g"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    assert [message.value() for message in consumer.consume(len(records), timeout=30)] == records
    consumer.close()
    assert not compare_replicas(broker, TOPIC)
    broker.stop()


def test_a_follower_of_which_files_have_gone_keeps_nobody_waiting(tmp_path: Path) -> None:
    """It leaves the ISR at once, not when `replica.lag.time.max.ms` is over, and is made whole."""
    settings = {"log.segment.bytes": 1 << 20, "replica.lag.time.max.ms": 120_000}
    broker = Appliance(tmp_path / "data", slots=3, settings=settings)
    broker.start()
    create(broker, TOPIC, 1, replicas=3)
    producer = Producer({"bootstrap.servers": bootstrap(broker), "acks": "all"})
    for _ in range(500):
        producer.produce(TOPIC, random.randbytes(10_000), partition=0)
    assert producer.flush(30) == 0
    early, late = (slot for slot in range(3) if slot != leaders(broker, TOPIC)[0])
    broker.stop()

    segments = {
        slot: sorted((broker.data_dir / f"slot-{slot}" / f"{TOPIC}-0").glob("*.log"))
        for slot in (early, late)
    }
    for path in (*segments[late][:2], *segments[early][-2:]):
        path.unlink()

    broker.start()
    producer = Producer({"bootstrap.servers": bootstrap(broker), "acks": "all"})
    producer.produce(TOPIC, b"after", partition=0)
    assert producer.flush(30) == 0
    wait_until(lambda: in_sync(broker, TOPIC)[0] == {0, 1, 2}, "all in sync", timeout_s=60)
    assert not compare_replicas(broker, TOPIC)
    broker.stop()


def test_a_slot_puts_nothing_where_one_of_its_disks_is_not_mounted(tmp_path: Path) -> None:
    """Its replica process, too, takes the mount point for a disk that has failed, not for a new one."""
    dirs = [tmp_path / "disk-{slot}-a", tmp_path / "disk-{slot}-b"]
    broker = Appliance(
        tmp_path / "data", slots=2, settings={"log.dirs": ",".join(map(str, dirs)), "min.insync.replicas": 1}
    )
    broker.start()
    create(broker, TOPIC, PARTITIONS, replicas=2)
    broker.stop()
    disk, away = tmp_path / "disk-1-a", tmp_path / "away"
    held = {path.name for path in disk.glob(f"{TOPIC}-*")}
    assert held
    disk.rename(away)
    disk.mkdir()

    broker.start()
    wait_until(lambda: set(leaders(broker, TOPIC).values()) == {0, 1}, "all are led", timeout_s=30)
    other = tmp_path / "disk-1-b"
    wait_until(
        lambda: all(
            (1 in isr) is ((other / f"{TOPIC}-{number}").is_dir())
            for number, isr in in_sync(broker, TOPIC).items()
        ),
        "what it has not is not in sync",
        timeout_s=30,
    )
    assert not list(disk.glob(f"{TOPIC}-*"))
    broker.stop()

    shutil.rmtree(disk)
    away.rename(disk)
    broker.start()
    wait_until(
        lambda: all(isr == {0, 1} for isr in in_sync(broker, TOPIC).values()), "all in sync", timeout_s=30
    )
    assert not compare_replicas(broker, TOPIC)
    broker.stop()


def batches_bytes(partition: Path) -> int:
    """Of a partition of one segment, without the room taken ahead."""
    (segment,) = partition.glob("*.log")
    stored = segment.read_bytes()
    return sum(batch.length_bytes for batch in parse_batches(stored.rstrip(b"\0") + b"\0"))


def test_each_slot_tells_where_its_copies_lie_and_how_large_they_are_led_or_followed(tmp_path: Path) -> None:
    log_dirs = ",".join(str(tmp_path / f"{side}-{{slot}}") for side in "ab")
    broker = Appliance(tmp_path / "data", slots=3, settings={"log.dirs": log_dirs})
    broker.start()
    create(broker, TOPIC, PARTITIONS, replicas=3)
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(500)

    def told(slot: int) -> set[tuple[str, int, int, int]]:
        with WireSocket(broker.port + slot) as connection:
            answer = ask(connection, ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(None))
        return {
            (result.log_dir, each.partition_index, each.partition_size, each.offset_lag)
            for result in answer.results
            for topic in result.topics
            for each in topic.partitions
        }

    def moved(slot: int, path: str, number: int) -> int:
        wanted = (AlterReplicaLogDir(path, (AlterReplicaLogDirTopic(TOPIC, (number,)),)),)
        with WireSocket(broker.port + slot) as connection:
            answer = ask(connection, ApiKey.ALTER_REPLICA_LOG_DIRS, AlterReplicaLogDirsRequest(wanted))
        return int(answer.results[0].partitions[0].error_code)

    def lies(slot: int) -> set[tuple[str, int, int, int]]:
        copies = [tmp_path / f"{side}-{slot}" / f"{TOPIC}-{n}" for side in "ab" for n in range(PARTITIONS)]
        return {
            (str(copy.parent), int(copy.name.rpartition("-")[2]), batches_bytes(copy), 0)
            for copy in copies
            if copy.is_dir()
        }

    places: dict[tuple[int, int], str] = {}
    """(slot, partition) → the directory that a followed copy shall lie in."""

    def settled(slot: int) -> bool:
        """A copy that changes places lies in both for a moment."""
        before = lies(slot)
        if len(before) != PARTITIONS or not told(slot) == before == lies(slot):
            return False
        return all(places.get((slot, number), path) == path for path, number, _, _ in before)

    for slot in range(3):
        wait_until(lambda slot=slot: settled(slot), f"slot {slot} tells all", timeout_s=30)  # type: ignore[misc]
        for path, number, _, _ in lies(slot):
            assert moved(slot, path, number) == 0
            if leaders(broker, TOPIC)[number] != slot:
                other = next(
                    str(tmp_path / f"{side}-{slot}") for side in "ab" if not path.endswith(f"{side}-{slot}")
                )
                assert moved(slot, other, number) == 0
                places[slot, number] = other
    for slot in range(3):
        wait_until(lambda slot=slot: settled(slot), f"slot {slot} tells all again", timeout_s=30)  # type: ignore[misc]
    broker.stop()
