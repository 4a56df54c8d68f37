"""A copy whose files have gone behind its slot's back leads nothing: others would cut theirs to the little it has."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from appliance.channels.control_channel import Assign, AssignedPartition
from appliance.channels.partition_table import (
    HIGH_WATERMARK,
    LOG_START,
    NOT_FOLLOWING,
    SLOT_FOLLOWED_EPOCH,
    SLOT_FOLLOWED_INCARNATION,
    SLOT_LOG_END,
    PartitionTable,
    table_size_bytes,
)
from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.errors import StorageFault
from appliance.ioproc.partition import Partition
from appliance.ioproc.partitions import Partitions
from appliance.log.file_names import LEADER_EPOCHS
from appliance.log.log_directories import LogDirectories
from appliance.log.shares import FOLLOWERS, LEADERS, Share
from appliance.log.state_publisher import StatePublisher
from appliance.protocol.errors import ErrorCode
from appliance.replicas.followers import Followers
from tests.log.batches import NOW_MS, batch_of
from tests.partition_host.test_old_controllers import replica, worker

NAME = TopicPartition("t", 0)
TOPIC_ID = UUID(int=7)
INCARNATION = 9
ASSIGNED = AssignedPartition("t", TOPIC_ID, 0, 0, INCARNATION, 0, 3, (0, 1), (0, 1), {})
"""Led by slot 0, whose disk this is, in its fourth epoch."""
STARTED = msgspec.structs.replace(ASSIGNED, leader_epoch=4)
"""The same after a restart of everything, which begins a leader epoch."""
FOLLOWED = msgspec.structs.replace(ASSIGNED, leader=1)


class Disk:
    """Slot 0's log directory, by turns with its worker and its replica process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.new_memory()
        self.directories: list[LogDirectories] = []

    def new_memory(self) -> None:
        """As after a restart of everything."""
        self.table = PartitionTable(memoryview(bytearray(table_size_bytes(4, 2))), slots=2)

    def path_of(self, slot: int) -> Path:
        return self.path if slot == 0 else self.path.with_name("another-slot")

    def life(self, half: Share) -> LogDirectories:
        opened = LogDirectories.open(
            [self.path], node_id=0, cluster_id="c", clock=ManualClock(NOW_MS), share=half
        )
        self.directories.append(opened)
        return opened

    def worker(self) -> Partitions:
        return worker(
            self.life(LEADERS),
            self.table,
            self.publisher(),
            [],
            directories_of=lambda slot: [self.path_of(slot)],
        )

    def replica(self) -> Followers:
        return replica(self.life(FOLLOWERS), self.table, self.publisher(), [])

    def publisher(self) -> StatePublisher:
        return StatePublisher(
            lambda _ms, _action: None, ManualClock(NOW_MS), interval_ms=20, warn=lambda _: True
        )

    @property
    def copy(self) -> Path:
        return self.path / "t-0"

    def followed_epoch(self) -> int:
        return self.table.cells[self.table.slot_at(0, 0) + SLOT_FOLLOWED_EPOCH]

    def say_followed(self) -> None:
        """As the replica does once it has begun to follow."""
        own = self.table.slot_at(0, 0)
        self.table.cells[own + SLOT_FOLLOWED_INCARNATION] = INCARNATION
        self.table.cells[own + SLOT_FOLLOWED_EPOCH] = ASSIGNED.leader_epoch


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "slot")
    yield disk
    for each in disk.directories:
        each.abandon()


def refusal(holder: Partitions | Followers, assigned: AssignedPartition, *, full: bool = False) -> int:
    """The error code that is told the controller of it, 0 for none."""
    answer = holder.obey(Assign(1, "c", full, (assigned,)))
    assert answer is not None
    code, _ = answer.failures.get("t-0", (0, ""))
    return code


@pytest.mark.parametrize("full", [False, True])
def test_a_copy_that_was_followed_with_and_has_gone_does_not_lead(disk: Disk, *, full: bool) -> None:
    followers = disk.replica()
    assert refusal(followers, FOLLOWED, full=True) == 0
    followers.obey(Assign(1, "c", False, released=(("t", TOPIC_ID, 0),)))
    shutil.rmtree(disk.copy)
    partitions = disk.worker()
    assert refusal(partitions, ASSIGNED, full=full) == ErrorCode.KAFKA_STORAGE_ERROR
    assert NAME in partitions.offline, "the controller is told that another one shall lead"
    assert not disk.copy.exists()


def test_a_copy_that_its_replica_had_open_as_it_died_does_not_lead_either(disk: Disk) -> None:
    assert refusal(disk.replica(), FOLLOWED, full=True) == 0
    disk.say_followed()
    shutil.rmtree(disk.copy)
    assert refusal(disk.worker(), ASSIGNED) == ErrorCode.KAFKA_STORAGE_ERROR
    assert not disk.copy.exists()


@pytest.mark.parametrize("isr", [(0, 1), (1,)])
def test_a_copy_that_has_gone_is_begun_anew_where_it_is_not_in_sync(disk: Disk, isr: tuple[int, ...]) -> None:
    assert refusal(disk.replica(), FOLLOWED, full=True) == 0
    disk.say_followed()
    disk.directories.pop().abandon()
    shutil.rmtree(disk.copy)
    followers = disk.replica()
    told = refusal(followers, msgspec.structs.replace(FOLLOWED, isr=isr), full=True)
    if 0 in isr:
        assert told == ErrorCode.KAFKA_STORAGE_ERROR
        assert NAME in followers.offline
        assert disk.followed_epoch() == NOT_FOLLOWING, "no leader counts on what a life before has said"
    else:
        assert told == 0
    assert disk.copy.exists() is (0 not in isr)


def test_a_copy_that_never_was_is_made_in_any_epoch(disk: Disk) -> None:
    # Who was to lead first has died before anybody had opened anything.
    assert refusal(disk.worker(), ASSIGNED) == 0
    assert disk.copy.exists()


def lead(disk: Disk, records: int) -> Partition:
    """The worker leads with so many records, all of them committed, a segment each."""
    partitions = disk.worker()
    assert refusal(partitions, ASSIGNED, full=True) == 0
    partition = partitions.by_name[NAME]
    for number in range(records):
        partition.log.append(batch_of([b"%d" % number]), leader_epoch=ASSIGNED.leader_epoch)
        partition.log.roll()
    partition.publish()
    disk.table.cells[disk.table.at(0) + HIGH_WATERMARK] = records
    return partition


@pytest.mark.parametrize("gone", [slice(None, 2), slice(-2, None), slice(None)])
@pytest.mark.parametrize("closed", [False, True])
def test_a_copy_of_which_files_have_gone_does_not_lead(disk: Disk, gone: slice, *, closed: bool) -> None:
    """Nor whoever leads next cuts its log to what was left of this one."""
    partition = lead(disk, 5)
    life = disk.directories.pop()
    if closed:
        life.hand_over(NAME)
        partition.closed()
    life.abandon()
    segments = sorted(disk.copy.glob("*.log"))
    for path in segments[gone] if gone != slice(None) else [disk.copy]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    partitions = disk.worker()
    assert refusal(partitions, ASSIGNED, full=True) == ErrorCode.KAFKA_STORAGE_ERROR
    assert NAME in partitions.offline
    assert disk.table.cells[disk.table.at(0) + LOG_START] == 0
    assert disk.table.cells[disk.table.at(0) + HIGH_WATERMARK] == 5


def shorten(disk: Disk) -> None:
    """The replica has died; the newest files of its copy go, and its next life opens what is left."""
    disk.directories.pop().abandon()
    for path in sorted(disk.copy.glob("*.log"))[-3:]:
        path.unlink()
    followers = disk.replica()
    assert refusal(followers, FOLLOWED, full=True) == 0
    disk.say_followed()
    assert disk.table.cells[disk.table.slot_at(0, 0) + SLOT_LOG_END] == 3
    followers.obey(Assign(1, "c", False, released=(("t", TOPIC_ID, 0),)))


def test_who_is_in_sync_with_others_leads_with_all_that_is_committed_or_not_at_all(disk: Disk) -> None:
    """Its replica has told what was left of the copy since, and is on its way to have all of it again."""
    lead(disk, 5)
    shorten(disk)
    partitions = disk.worker()
    assert refusal(partitions, ASSIGNED) == ErrorCode.KAFKA_STORAGE_ERROR
    assert disk.table.cells[disk.table.at(0) + HIGH_WATERMARK] == 5


def test_who_is_chosen_in_spite_of_what_it_lacks_leads(disk: Disk) -> None:
    """Nobody else is in sync by now: an unclean election, also after it was refused."""
    lead(disk, 5)
    shorten(disk)
    partitions = disk.worker()
    assert refusal(partitions, ASSIGNED) == ErrorCode.KAFKA_STORAGE_ERROR
    chosen = msgspec.structs.replace(ASSIGNED, leader_epoch=9, isr=(0,))
    assert refusal(partitions, chosen) == 0
    assert partitions.by_name[NAME].log.log_end_offset == 3


def test_a_copy_that_lacked_files_leads_when_it_is_chosen_again_and_whole(disk: Disk) -> None:
    partition = lead(disk, 5)
    disk.directories.pop().abandon()
    aside = disk.path.with_name("aside")
    aside.mkdir()
    first, *_ = segments = sorted(disk.copy.glob("*.log"))
    first.rename(aside / first.name)
    partitions = disk.worker()
    assert refusal(partitions, ASSIGNED, full=True) == ErrorCode.KAFKA_STORAGE_ERROR
    assert partitions.partial == {NAME: ASSIGNED.leader_epoch}
    (aside / first.name).rename(first)
    assert refusal(partitions, ASSIGNED) == ErrorCode.KAFKA_STORAGE_ERROR
    later = msgspec.structs.replace(ASSIGNED, leader_epoch=ASSIGNED.leader_epoch + 2)
    assert refusal(partitions, later) == 0
    assert (partitions.partial, partitions.offline) == ({}, {})
    log = partitions.by_name[NAME].log
    assert (log.log_start_offset, log.log_end_offset) == (0, partition.log.log_end_offset)
    assert len(segments) == 6


@pytest.mark.parametrize("half", [LEADERS, FOLLOWERS])
def test_a_copy_that_has_failed_keeps_no_topic_of_the_same_name_from_being_opened(
    disk: Disk, half: Share
) -> None:
    """The slot's other process, which had it by then, was told to delete the files."""
    holder: Partitions | Followers
    if half is LEADERS:
        holder, assigned = disk.worker(), ASSIGNED
        assert refusal(holder, assigned, full=True) == 0
        holder.take_offline(holder.by_name[NAME], StorageFault("a bad sector"))
    else:
        holder, assigned = disk.replica(), FOLLOWED
        assert refusal(holder, assigned, full=True) == 0
        holder.take_offline(holder.by_name[NAME], StorageFault("a bad sector"))
    assert refusal(holder, assigned) == ErrorCode.KAFKA_STORAGE_ERROR
    shutil.rmtree(disk.copy)
    successor = msgspec.structs.replace(assigned, topic_id=UUID(int=8), incarnation=INCARNATION + 1)
    assert refusal(holder, successor) == 0
    assert holder.offline == {}


@pytest.mark.parametrize("half", [LEADERS, FOLLOWERS])
@pytest.mark.parametrize("epoch", [0, 3])
def test_a_copy_that_may_be_on_a_disk_that_has_failed_is_made_anew_for_a_new_partition_alone(
    disk: Disk, half: Share, epoch: int
) -> None:
    """Else it would be in two places when the disk is back."""
    holder: Partitions | Followers = disk.worker() if half is LEADERS else disk.replica()
    disk.directories[-1].failed[1] = StorageFault("not mounted")
    assigned = ASSIGNED if half is LEADERS else FOLLOWED
    told = refusal(holder, msgspec.structs.replace(assigned, leader_epoch=epoch))
    assert told == (ErrorCode.KAFKA_STORAGE_ERROR if epoch else 0)
    assert disk.copy.exists() is (epoch == 0)


def another(disk: Disk, *, records: bool, base: int = 0) -> None:
    """Slot 1's copy, and nothing is left of what shared memory said."""
    copy = disk.path_of(1) / "t-0"
    copy.mkdir(parents=True)
    (copy / f"{base:020}.log").write_bytes(b"any" if records else b"")
    disk.new_memory()


@pytest.mark.parametrize("left", ["nothing", "no segment"])
@pytest.mark.parametrize("records", [False, True])
def test_an_empty_copy_leads_nothing_of_which_others_in_sync_have_records(
    disk: Disk, left: str, *, records: bool
) -> None:
    """All had stopped; nobody remembers what this one had, and its epoch is the newest."""
    lead(disk, 5)
    disk.directories.pop().abandon()
    if left == "nothing":
        shutil.rmtree(disk.copy)
    else:
        for path in disk.copy.glob("0*"):
            path.unlink()
    another(disk, records=records)
    partitions = disk.worker()
    told = refusal(partitions, STARTED, full=True)
    assert told == (ErrorCode.KAFKA_STORAGE_ERROR if records else 0)
    assert refusal(partitions, msgspec.structs.replace(ASSIGNED, leader_epoch=9, isr=(0,))) == 0


@pytest.mark.parametrize("epochs", ["as they were", "gone"])
@pytest.mark.parametrize("base", [0, 2])
def test_a_copy_without_its_oldest_files_leads_nothing_of_which_others_in_sync_have_them(
    disk: Disk, base: int, epochs: str
) -> None:
    lead(disk, 5)
    disk.directories.pop().close({})
    for path in sorted(disk.copy.glob("*.log"))[:2]:
        path.unlink()
    if epochs == "gone":
        (disk.copy / LEADER_EPOCHS).unlink()
    another(disk, records=True, base=base)
    partitions = disk.worker()
    assert refusal(partitions, STARTED, full=True) == (ErrorCode.KAFKA_STORAGE_ERROR if base == 0 else 0)


@pytest.mark.parametrize("isr", [(0, 1), (0,)])
def test_a_copy_without_its_newest_files_leads_only_where_nobody_else_is_in_sync(
    disk: Disk, isr: tuple[int, ...]
) -> None:
    lead(disk, 5)
    disk.directories.pop().close({NAME: 5})
    for path in sorted(disk.copy.glob("*.log"))[-2:]:
        path.unlink()
    disk.new_memory()
    assigned = msgspec.structs.replace(STARTED, isr=isr)
    assert refusal(disk.worker(), assigned, full=True) == (ErrorCode.KAFKA_STORAGE_ERROR if 1 in isr else 0)


@pytest.mark.parametrize("retired", [False, True])
def test_a_copy_whose_oldest_records_were_deleted_leads_though_another_has_their_files_still(
    disk: Disk, *, retired: bool
) -> None:
    """Deleted by their age, or at a client's word; everything is killed before the others have heard of it."""
    partition = lead(disk, 5)
    partition.log.advance_start(2)
    if retired:
        partition.log.retire_oldest(2)
    disk.directories[-1].log_starts_task()()
    disk.directories.pop().abandon()
    another(disk, records=True)
    partitions = disk.worker()
    assert refusal(partitions, STARTED, full=True) == 0
    assert partitions.by_name[NAME].log.log_start_offset == 2


@pytest.mark.parametrize("replicas", [(0,), (0, 1)])
def test_what_is_left_of_the_only_copy_is_served(disk: Disk, replicas: tuple[int, ...]) -> None:
    """There is nobody else to ask; and a whole copy is served whoever else there is."""
    partition = lead(disk, 5)
    disk.directories.pop().abandon()
    if replicas == (0,):
        min(disk.copy.glob("*.log")).unlink()
    partitions = disk.worker()
    assigned = msgspec.structs.replace(ASSIGNED, replicas=replicas, isr=replicas)
    assert refusal(partitions, assigned, full=True) == 0
    log = partitions.by_name[NAME].log
    assert (log.log_start_offset, log.log_end_offset) == (int(replicas == (0,)), partition.log.log_end_offset)
