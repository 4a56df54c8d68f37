"""A partition that moves between log directories goes from one of its slot's processes to the other, at any step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.errors import StorageFault
from appliance.log import file_names as names
from appliance.log.checkpoint import read_offsets
from appliance.log.config import LogSettings
from appliance.log.flusher import Flusher
from appliance.log.future_log import CopySlice, FutureLog
from appliance.log.log_directories import LogDirectories
from appliance.log.partition_log import PartitionLog
from appliance.log.settlement import Settlement, settling
from appliance.log.shares import FOLLOWERS, LEADERS, Share
from appliance.partition_host.listener import PartitionListener
from appliance.partition_host.log_moves import LogMoves
from tests.log.batches import NOW_MS, batch_of, read_all

ORDERS = TopicPartition("orders", 0)
TOPIC_ID = UUID(int=0x1234)
SETTINGS = LogSettings(segment_bytes=1000, index_interval_bytes=100)
SOURCE, TARGET = 0, 1


class Slot:
    """Two log directories and both processes of the slot; `orders-0` is open in one of them, first in the replica."""

    def __init__(self, root: Path) -> None:
        self.paths = (root / "a", root / "b")
        self.count = 0
        self.halves = {half: self._open(half) for half in (LEADERS, FOLLOWERS)}
        self.holder = FOLLOWERS
        self.log = self._log(is_new=True)
        self.left: list[CopySlice | Settlement] = []
        self.append(40)

    def _open(self, half: Share) -> LogDirectories:
        return LogDirectories.open(
            self.paths, node_id=0, cluster_id="c", clock=ManualClock(NOW_MS), share=half
        )

    @property
    def held(self) -> LogDirectories:
        return self.halves[self.holder]

    def _log(self, *, is_new: bool = False, closed: bool | None = None) -> PartitionLog:
        return self.held.open_partition(ORDERS, TOPIC_ID, SETTINGS, is_new=is_new, closed=closed)

    def append(self, count: int) -> None:
        for _ in range(count):
            self.log.append(batch_of(), leader_epoch=0)
            self.count += 1

    def hand_over(self) -> None:
        """In good order. What the thread of the old holder has still to do comes whenever it comes."""
        self.held.hand_over(ORDERS)
        self._other()
        self.log = self._log(closed=True)

    def die(self) -> None:
        """The holder's process is killed, its next life comes later; the other process gets the partition."""
        self.held.abandon()
        dead = self.holder
        self._other()
        self.log = self._log(closed=False)
        self.halves[dead] = self._open(dead)

    def _other(self) -> None:
        self.holder = LEADERS if self.holder is FOLLOWERS else FOLLOWERS

    def steps(self) -> Iterator[str]:
        """The steps of a move by whoever holds the partition; work of the thread is left undone at an odd one."""
        if ORDERS not in self.held.futures:
            self.held.begin_move(ORDERS, TARGET)
            yield "begun"
        future = FutureLog(self.log, self.held.futures[ORDERS][1])
        while (piece := future.next_slice()) is not None:
            self.append(3)
            self.left = [piece]
            yield "slice not run"
            piece.run()
            future.copied(piece)
            self.left = []
            yield "slice"
        expected = self.held.expect(ORDERS, recovery_point=future.forced_to)
        expected()
        yield "expected"
        while (piece := future.next_slice()) is not None:
            piece.run()
            future.copied(piece)
        future.copy_rest()
        yield "rest"
        settlement = self.held.swap_in(ORDERS, recovery_point=future.forced_to)
        self.append(3)
        self.left = [settlement]
        yield "swapped"
        settlement.run()
        self.held.settled(settlement)
        self.left = []
        yield "settled"

    def late(self) -> None:
        """What the thread of a former holder had to do, it does now."""
        for work in self.left:
            try:
                work.run()
            except StorageFault:
                assert isinstance(work, CopySlice)
        self.left = []

    def check(self) -> None:
        self.log.check()
        assert len(read_all(self.log)) == self.log.log_end_offset == self.count

    def check_moved(self) -> None:
        self.check()
        self.held.remove_deleted()
        assert self.log.directory == self.paths[TARGET] / "orders-0"
        assert list(self.paths[SOURCE].glob("orders-0*")) == []
        assert list(self.paths[TARGET].glob("orders-0.*")) == []
        assert not (self.log.directory / names.MOVED_HERE).exists()


@pytest.mark.parametrize("how", ["hand_over", "die"])
def test_at_every_step_the_other_process_gets_all_of_it_and_ends_the_move(tmp_path: Path, how: str) -> None:
    taken: set[str] = set()
    for number in range(100):
        slot = Slot(tmp_path / str(number))
        reached = [step for step, _ in zip(slot.steps(), range(number + 1), strict=False)]
        taken.add(reached[-1])
        if how == "die":
            slot.left = []  # it died with the process
        getattr(slot, how)()
        slot.check()
        slot.append(5)
        slot.late()
        slot.check()
        if slot.log.directory.parent == slot.paths[SOURCE]:
            assert ORDERS in slot.held.futures, "the move is not forgotten"
            list(slot.steps())
        slot.check_moved()
        getattr(slot, how)()
        slot.check_moved()
        if reached[-1] == "settled":
            break
    assert {"begun", "slice not run", "slice", "expected", "rest", "swapped", "settled"} == taken


def test_what_a_former_holder_s_thread_still_writes_does_not_reach_the_new_copy(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    steps = slot.steps()
    assert [next(steps), next(steps)] == ["begun", "slice not run"]
    (before,) = slot.paths[TARGET].glob("orders-0.*-future")
    slot.hand_over()
    (after,) = slot.paths[TARGET].glob("orders-0.*-future")
    assert after != before
    with pytest.raises(StorageFault):
        slot.left[0].run()
    assert [path.name for path in after.iterdir()] == [names.PARTITION_METADATA]


@pytest.mark.parametrize("how", ["hand_over", "die"])
def test_finished_segments_are_not_copied_again_by_the_other_process(tmp_path: Path, how: str) -> None:
    slot = Slot(tmp_path)
    for step in slot.steps():
        if step == "slice":
            break
    (copy,) = slot.paths[TARGET].glob("orders-0.*-future")
    # A recovery writes the indexes anew.
    suffixes = (names.LOG,) if how == "die" else (names.LOG, names.OFFSET_INDEX, names.TIME_INDEX)
    finished = {
        path.name: path.stat().st_ino
        for path in copy.iterdir()
        if path.suffix in suffixes
        and path.stat().st_mtime_ns == (slot.log.directory / path.name).stat().st_mtime_ns
    }
    assert len(finished) >= 2 * len(suffixes)
    getattr(slot, how)()
    list(slot.steps())
    slot.check_moved()
    assert {name: (slot.log.directory / name).stat().st_ino for name in finished} == finished


def test_a_file_that_a_former_holder_s_thread_has_open_is_none_of_the_new_copy(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    steps = slot.steps()
    assert [next(steps), next(steps)] == ["begun", "slice not run"]
    (copy,) = slot.paths[TARGET].glob("orders-0.*-future")
    segments = slot.log.segments_since(0)
    late = {}
    for segment in segments:
        source = segment.path(names.LOG)
        half = source.read_bytes()[: segment.size_bytes // 2]
        late[source.name] = (copy / source.name).open("wb", buffering=0)
        late[source.name].write(half)
    slot.hand_over()
    list(slot.steps())
    for name, file in late.items():
        file.seek(0)
        file.write(bytes(2000))
        file.close()
        assert (slot.log.directory / name).stat().st_nlink == 1
    slot.check_moved()


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_segment_whose_copy_is_not_surely_the_same_is_copied_anew(tmp_path: Path, change: str) -> None:
    slot = Slot(tmp_path)
    for step in slot.steps():
        if step == "slice":
            break
    (copy,) = slot.paths[TARGET].glob("orders-0.*-future")
    first = copy / slot.log.segments_since(0)[0].path(names.LOG).name
    known = first.stat()
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content[:-1] if change == "size" else content)
    if change == "size":
        os.utime(first, ns=(known.st_atime_ns, known.st_mtime_ns))
    slot.hand_over()
    list(slot.steps())
    slot.check_moved()


def test_while_a_move_is_being_settled_the_other_process_waits_and_then_finds_one(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    for step in slot.steps():
        if step == "swapped":
            break
    (settlement,) = slot.left
    assert isinstance(settlement, Settlement)
    with (
        settling(settlement.target, waits=True),
        pytest.raises(StorageFault, match="is being flushed to disk"),
    ):
        slot.hand_over()
    settlement.called_off = False  # it had begun
    settlement.run()
    slot.log = slot.held.open_partition(ORDERS, TOPIC_ID, SETTINGS, is_new=False, closed=True)
    slot.check_moved()


def test_the_checkpoints_of_the_new_place_are_written_before_the_swap(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    slot.log.advance_start(7)
    for step in slot.steps():
        if step == "swapped":
            break
    assert read_offsets(slot.paths[TARGET] / names.LOG_STARTS)[ORDERS] == 7
    assert ORDERS in read_offsets(slot.paths[TARGET] / names.RECOVERY_POINTS)
    slot.die()
    assert slot.log.log_start_offset == 7


def test_a_process_that_let_a_partition_go_leaves_the_other_s_checkpoints_alone(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    list(slot.steps())  # the replica let go of it in the first directory
    replica = slot.held
    slot.hand_over()
    slot.held.begin_move(ORDERS, SOURCE)
    future = FutureLog(slot.log, slot.held.futures[ORDERS][1])
    while (piece := future.next_slice()) is not None:
        piece.run()
        future.copied(piece)
    slot.held.expect(ORDERS, recovery_point=future.forced_to)()
    replica.flush_task({})()
    assert ORDERS in read_offsets(slot.paths[SOURCE] / names.RECOVERY_POINTS)


def test_a_deleted_partition_goes_with_its_copy_whoever_made_it(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    for step in slot.steps():
        if step == "slice":
            break
    slot.held.hand_over(ORDERS)
    assert slot.halves[LEADERS].delete_partition(ORDERS, TOPIC_ID)
    slot.halves[LEADERS].remove_deleted()
    assert [path for each in slot.paths for path in each.glob("orders-0*")] == []


class Held:
    """A partition as its process holds it."""

    def __init__(self, log: PartitionLog) -> None:
        self.topic_partition, self.log, self.directory = ORDERS, log, SOURCE

    def files_change(self) -> None:
        raise AssertionError("nothing is swapped here")

    def files_changed(self) -> None:
        raise AssertionError("nothing is swapped here")


class NoFlushes:
    def between_flushes(self, partition: Held, action: Callable[[], None]) -> None:
        action()

    def relocated(self, partition: Held) -> None:
        raise AssertionError("nothing is swapped here")


class Undone(Flusher):
    """A thread that has not come to anything yet."""

    def submit(self, work: Callable[[], None], ended_by: Callable[[StorageFault | None], None]) -> None:
        pass


def test_a_move_that_the_other_process_had_begun_is_not_begun_anew_when_it_is_ordered_again(
    tmp_path: Path,
) -> None:
    slot = Slot(tmp_path)
    assert "slice" in (step for step in slot.steps() if step == "slice")
    slot.hand_over()
    begun = slot.held.futures[ORDERS]
    partition = Held(slot.log)
    moves = LogMoves(
        {ORDERS: partition},
        slot.held,
        NoFlushes(),
        thread=Undone("test", eventfd=-1, threads=1),
        listener=PartitionListener(),
    )
    # Its log is open, and `opened` was not called yet: other logs of the same command are opened first.
    moves.alter(partition, TARGET)
    assert slot.held.futures[ORDERS] == begun
    assert begun[1].is_dir()
