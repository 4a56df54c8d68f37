"""Retention in a worker: its rounds and slices, the clock it trusts, and the queue of files to remove."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn
from uuid import UUID

import pytest

from appliance.channels.control_channel import Assign, AssignedPartition
from appliance.channels.partition_table import LOG_START, PartitionTable, table_size_bytes
from appliance.channels.request_channel import ERROR, LOW_WATERMARK
from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.errors import ApplianceError, StorageFault
from appliance.ioproc import retention
from appliance.ioproc.group_commit import GroupCommit
from appliance.ioproc.handlers.delete_records import delete_records
from appliance.ioproc.partition import Partition
from appliance.ioproc.partitions import Partitions
from appliance.ioproc.pokes import Pokes
from appliance.ioproc.retention import Retention
from appliance.ipc.agent import Timers
from appliance.log.log_directories import LogDirectories
from appliance.log.state_publisher import StatePublisher
from appliance.partition_host.listener import PartitionListener
from appliance.partition_host.sweeper import Sweeper
from appliance.protocol.errors import ErrorCode
from tests.log.batches import NOW_MS, batch_of
from tests.partition_host.test_old_controllers import NoFlushes

ROWS = 8
INTERVAL_MS = 10_000
HOUR_MS = 3_600_000
CONFIGS = {"retention.ms": str(HOUR_MS), "segment.bytes": str(1 << 20), "file.delete.delay.ms": "500"}


def unexpected(*_: object) -> NoReturn:
    raise AssertionError("nothing here waits for a flush")


class Worker(PartitionListener[Partition]):
    """What of a worker retention needs; the test is its duty cycle."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock(NOW_MS)
        self.timers = Timers(self.clock.monotonic_ns)
        self.said: list[str] = []
        self.slices_with_retired = 0
        self.failed: list[TopicPartition] = []
        self.directories = LogDirectories.open([path], node_id=0, cluster_id="c", clock=self.clock)
        self.table = PartitionTable(memoryview(bytearray(table_size_bytes(ROWS, 1))), slots=1)
        self.partitions = Partitions(
            self.directories,
            self.table,
            slot=0,
            log_defaults={},
            warn=self.said.append,
            commits=GroupCommit(Pokes(self.table), reply=unexpected, flusher=NoFlushes(), listener=self),
            clock=self.clock,
            listener=self,
            directories_of=lambda _: [],
            publisher=StatePublisher(
                lambda _ms, _action: None, self.clock, interval_ms=20, warn=self.said.append
            ),
        )
        self.retention = Retention(
            self.partitions,
            self.timers,
            self.clock,
            interval_ms=INTERVAL_MS,
            listener=self,
            warn=self.warn,
        )

    def warn(self, text: str) -> bool:
        self.said.append(text)
        return True

    def segments_retired(self) -> None:
        self.slices_with_retired += 1

    def refused(self, partition: Partition, fault: ApplianceError) -> None:
        self.failed.append(partition.topic_partition)

    def lead(self, count: int = 1, *, configs: dict[str, str] | None = None) -> list[Partition]:
        assigned = tuple(
            AssignedPartition("t", UUID(int=1), n, n, n + 1, 0, 0, (0,), (0,), CONFIGS | (configs or {}))
            for n in range(count)
        )
        self.partitions.obey(Assign(1, "c", True, assigned))
        return [self.partitions.by_name[TopicPartition("t", n)] for n in range(count)]

    def run(self, duration_ms: int) -> None:
        """Lets time pass and does what is due, slice after slice."""
        self.clock.advance(duration_ms)
        while (due_ns := self.timers.next_due_ns()) is not None and due_ns <= self.clock.monotonic_ns():
            self.timers.run_due(self.clock.monotonic_ns())


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tmp_path / "slot-0")
    yield made
    made.directories.abandon()


def fill(partition: Partition, segments: int = 3, *, timestamp_ms: int = NOW_MS) -> None:
    for _ in range(segments):
        partition.log.append(batch_of(timestamp_ms=timestamp_ms), leader_epoch=0)
        partition.log.roll()
    partition.publish()


def begins_at(worker: Worker, partition: Partition) -> int:
    """As everybody else sees it."""
    return worker.table.cells[worker.table.at(partition.row) + LOG_START]


def test_each_round_deletes_what_has_expired_and_publishes_the_log_start(worker: Worker) -> None:
    (partition,) = worker.lead()
    fill(partition)
    worker.run(INTERVAL_MS)
    assert begins_at(worker, partition) == 0
    worker.run(HOUR_MS)
    assert begins_at(worker, partition) == 3
    assert [removal.delay_ms for removal in worker.directories.take_removals()] == [500] * 3


def test_the_log_start_is_published_before_a_file_loses_its_name(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partition,) = worker.lead()
    fill(partition)
    rename, seen = os.rename, set()

    def watched(old: Path, new: Path) -> None:
        if str(new).endswith(".deleted"):
            seen.add(begins_at(worker, partition))
        rename(old, new)

    monkeypatch.setattr(os, "rename", watched)
    worker.run(2 * HOUR_MS)
    assert seen == {3}


def test_a_round_is_cut_into_slices_that_requests_pass_between(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SLICE_NS", 0)  # one partition a slice
    partitions = worker.lead(4)
    for partition in partitions:
        fill(partition)
    worker.clock.advance(2 * HOUR_MS)
    slices = 0
    while any(begins_at(worker, partition) == 0 for partition in partitions):
        assert worker.timers.run_due(worker.clock.monotonic_ns()) == 1
        slices += 1
    assert slices == worker.slices_with_retired == 4


def test_a_partition_with_very_many_segments_loses_them_a_few_at_a_time(worker: Worker) -> None:
    (partition,) = worker.lead()
    fill(partition, 3 * retention.RETIRED_AT_ONCE + 1)
    worker.run(2 * HOUR_MS)
    assert partition.log.statistics().segments == 1
    assert len(worker.directories.take_removals()) == 3 * retention.RETIRED_AT_ONCE + 1
    partition.log.check()


def test_a_partition_that_is_withdrawn_during_a_round_is_left_alone(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SLICE_NS", 0)
    partitions = worker.lead(2)
    for partition in partitions:
        fill(partition)
    worker.clock.advance(2 * HOUR_MS)
    worker.timers.run_due(worker.clock.monotonic_ns())
    worker.lead(1)
    worker.run(0)
    assert partitions[1].log.log_start_offset == 0


def test_a_clock_that_jumps_ahead_and_back_deletes_nothing(worker: Worker) -> None:
    (partition,) = worker.lead()
    fill(partition)
    worker.run(INTERVAL_MS)
    worker.clock.set_wall(NOW_MS + 1000 * HOUR_MS)
    worker.run(INTERVAL_MS)
    assert "the clock jumped" in worker.said[-1]
    worker.clock.set_wall(NOW_MS + 2 * INTERVAL_MS)
    worker.run(INTERVAL_MS)
    assert begins_at(worker, partition) == 0


def test_a_clock_that_stays_ahead_is_believed_a_round_later(worker: Worker) -> None:
    (partition,) = worker.lead()
    fill(partition)
    worker.clock.set_wall(NOW_MS + 1000 * HOUR_MS)
    worker.run(INTERVAL_MS)
    assert begins_at(worker, partition) == 0
    worker.run(INTERVAL_MS)
    assert begins_at(worker, partition) == 3


def test_size_and_log_start_count_while_the_clock_does_not(worker: Worker) -> None:
    (partition,) = worker.lead(configs={"retention.bytes": "0"})
    fill(partition)
    worker.clock.set_wall(NOW_MS + 1000 * HOUR_MS)
    worker.run(INTERVAL_MS)
    assert begins_at(worker, partition) == 3


def test_a_record_of_the_future_that_keeps_old_ones_is_told_once(worker: Worker) -> None:
    (partition,) = worker.lead()
    fill(partition, 1, timestamp_ms=NOW_MS + HOUR_MS)
    fill(partition, 1, timestamp_ms=NOW_MS - 10 * HOUR_MS)
    for _ in range(3):
        worker.run(INTERVAL_MS)
    assert begins_at(worker, partition) == 0
    (said,) = worker.said
    assert "t-0" in said
    assert "future" in said
    worker.run(3 * HOUR_MS)
    assert begins_at(worker, partition) == 2


def test_a_partition_that_the_host_fails_does_not_keep_the_others_waiting(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = worker.lead(2)
    for partition in partitions:
        fill(partition)
    rename = os.rename

    def fails_for_the_first(old: Path, new: Path) -> None:
        if new.parent.name == "t-0":
            raise OSError(errno.EIO, "Input/output error")
        rename(old, new)

    monkeypatch.setattr(os, "rename", fails_for_the_first)
    worker.run(2 * HOUR_MS)
    assert begins_at(worker, partitions[1]) == 3
    assert worker.failed == [partitions[0].topic_partition]


# DeleteRecords


def asked(partition: Partition, offset: int) -> tuple[int, int]:
    """(error, low watermark)"""
    message = (4, 0, 0, 7, 0, partition.row, partition.incarnation, -1, 0, 0, 2, offset, 0, 0)
    answer = delete_records(partition, message)
    return answer[ERROR], answer[LOW_WATERMARK]


def test_delete_records_moves_the_published_log_start_up_and_never_down(worker: Worker) -> None:
    (partition,) = worker.lead()
    fill(partition)
    assert asked(partition, 2) == (0, 2)
    assert asked(partition, 1) == (0, 2)
    assert begins_at(worker, partition) == 2
    assert asked(partition, -1) == (0, 3)
    assert begins_at(worker, partition) == partition.high_watermark == 3


@pytest.mark.parametrize("offset", [-2, 4, 2**63 - 1, -(2**63)])
def test_delete_records_outside_of_the_log_is_refused_and_changes_nothing(
    worker: Worker, offset: int
) -> None:
    (partition,) = worker.lead()
    fill(partition)
    assert asked(partition, offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert begins_at(worker, partition) == 0


@pytest.mark.parametrize(
    ("policy", "error"), [("compact", ErrorCode.POLICY_VIOLATION), ("compact,delete", 0)]
)
def test_records_of_a_topic_that_is_only_compacted_may_not_be_deleted(
    worker: Worker, policy: str, error: int
) -> None:
    (partition,) = worker.lead(configs={"cleanup.policy": policy})
    assert asked(partition, -1)[0] == error


# Files that go


class Swept:
    """A sweeper and the doorbell it rings."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = Timers(self.clock.monotonic_ns)
        self.said: list[str] = []
        self.eventfd = os.eventfd(0)
        self.sweeper = Sweeper(self.timers, self.clock, eventfd=self.eventfd, warn=self.said.append)

    def pass_ms(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.timers.run_due(self.clock.monotonic_ns())


def test_files_are_removed_in_the_order_of_their_time_and_by_one_thread() -> None:
    swept = Swept()
    ran: list[tuple[str, str]] = []

    def action(name: str) -> Callable[[], None]:
        return lambda: ran.append((name, threading.current_thread().name))

    swept.sweeper.add(action("late"), delay_ms=1000)
    swept.sweeper.add(action("soon"), delay_ms=10)
    swept.sweeper.add(action("now"))
    assert swept.sweeper.statistics() == {"waiting": 3}
    swept.pass_ms(0)
    os.eventfd_read(swept.eventfd)
    assert [name for name, _ in ran] == ["now"]
    assert swept.sweeper.take_removed()
    assert not swept.sweeper.take_removed()
    swept.pass_ms(1000)
    os.eventfd_read(swept.eventfd)
    assert ran == [("now", "sweep"), ("soon", "sweep"), ("late", "sweep")]


def test_what_cannot_be_removed_is_told_and_the_rest_goes() -> None:
    swept = Swept()
    ran = []

    def fails() -> None:
        raise StorageFault("no such luck")

    swept.sweeper.add(fails)
    swept.sweeper.add(lambda: ran.append("after"))
    swept.pass_ms(0)
    os.eventfd_read(swept.eventfd)
    assert ran == ["after"]
    assert "no such luck" in swept.said[0]
