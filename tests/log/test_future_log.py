"""A partition's copy in another log directory: it follows the log, takes its place, outlives a death at any step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.errors import LogDirectoryOffline, StorageFault
from appliance.log import file_names as names
from appliance.log.checkpoint import read_offsets
from appliance.log.config import LogSettings
from appliance.log.future_log import FutureLog, SourceChanged
from appliance.log.log_directories import LogDirectories
from appliance.log.partition_log import PartitionLog
from tests.log.batches import NOW_MS, batch_of, read_all
from tests.log.compaction import compact

ORDERS = TopicPartition("orders", 0)
TOPIC_ID = UUID(int=0x1234)
SETTINGS = LogSettings(segment_bytes=1000, index_interval_bytes=100)
SOURCE, TARGET = 0, 1


class Slot:
    """Two log directories, `orders-0` in the first, and its move to the second, step by step."""

    def __init__(self, root: Path) -> None:
        self.paths = (root / "a", root / "b")
        self.count = 0
        self.directories = self._open()
        self.log = self._log(is_new=True)
        self.append(40)

    def _open(self) -> LogDirectories:
        return LogDirectories.open(self.paths, node_id=0, cluster_id="c", clock=ManualClock(NOW_MS))

    def _log(self, *, is_new: bool = False) -> PartitionLog:
        return self.directories.open_partition(ORDERS, TOPIC_ID, SETTINGS, is_new=is_new)

    def append(self, count: int) -> None:
        for _ in range(count):
            self.log.append(batch_of(), leader_epoch=0)
            self.count += 1

    def die(self) -> None:
        """A death of the process: nothing more is written, and it is opened anew."""
        self.directories.abandon()
        self.directories = self._open()
        self.log = self._log()

    def steps(self, appended: int = 3) -> Iterator[str]:
        """The steps of a move, whichever life begins it, with records appended before each."""
        if ORDERS not in self.directories.futures:
            self.directories.begin_move(ORDERS, TARGET)
            yield "begun"
        future = FutureLog(self.log, self.directories.futures[ORDERS][1])
        while (piece := future.next_slice()) is not None:
            self.append(appended)
            piece.run()
            future.copied(piece)
            yield "slice"
        self.append(appended)
        self.directories.expect(ORDERS, recovery_point=future.forced_to)()
        yield "expected"
        while (piece := future.next_slice()) is not None:
            piece.run()
            future.copied(piece)
        future.copy_rest()
        yield "rest"
        settlement = self.directories.swap_in(ORDERS, recovery_point=future.forced_to)
        yield "swapped"
        self.append(appended)
        yield "appended"
        settlement.run()
        yield "settled"

    def check(self, home: int | None = None) -> None:
        self.log.check()
        records = read_all(self.log)
        assert len(records) == self.log.log_end_offset == self.count
        if home is not None:
            assert self.log.directory == self.paths[home] / "orders-0"
            (other,) = {SOURCE, TARGET} - {home}
            assert not (self.paths[other] / "orders-0").exists()
            assert not (self.log.directory / names.MOVED_HERE).exists()


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    return Slot(tmp_path)


def test_a_log_moves_with_all_its_files_and_goes_on(slot: Slot) -> None:
    before = {path.name: path.read_bytes() for path in slot.log.directory.iterdir()}
    assert "settled" in list(slot.steps())
    slot.check(TARGET)
    after = {path.name: path.read_bytes() for path in slot.log.directory.iterdir()}
    closed = [name for name in sorted(before) if name.endswith(names.LOG)][:-1]
    assert closed
    assert {name: after[name] for name in closed} == {name: before[name] for name in closed}
    assert before.keys() <= after.keys()
    slot.append(20)
    slot.check(TARGET)
    slot.directories.close({})
    slot.die()
    slot.check(TARGET)


def test_whoever_dies_at_any_step_finds_everything_and_ends_the_move(tmp_path: Path) -> None:
    taken: set[str] = set()
    for number in range(100):
        slot = Slot(tmp_path / str(number))
        steps = slot.steps()
        reached = [step for step, _ in zip(steps, range(number + 1), strict=False)]
        taken.add(reached[-1])
        slot.die()
        slot.check()
        slot.append(5)
        if slot.directories.index_of(ORDERS) == SOURCE:
            list(slot.steps())
        slot.directories.remove_deleted()
        slot.check(TARGET)
        slot.die()
        slot.check(TARGET)
        slot.directories.abandon()
        if len(reached) <= number:
            break
    assert taken == {"begun", "slice", "expected", "rest", "swapped", "appended", "settled"}


def test_without_power_the_place_that_holds_more_counts(slot: Slot) -> None:
    for step in slot.steps():
        if step == "swapped":
            break
    end, count = slot.log.log_end_offset, slot.count
    slot.append(1)
    active = slot.log.segments_since(end)[-1]
    slot.directories.abandon()
    os.truncate(
        active.file.path, active.size_bytes - 2 * len(batch_of())
    )  # never forced, hence acknowledged to nobody
    slot.directories = slot._open()
    slot.log = slot._log()
    slot.count = count
    slot.check(SOURCE)


def test_two_of_one_name_without_a_move_are_nobodys(slot: Slot) -> None:
    slot.directories.abandon()
    (slot.paths[TARGET] / "orders-0").mkdir()
    slot.directories = slot._open()
    with pytest.raises(LogDirectoryOffline, match="two log directories"):
        slot._log()


def test_closed_segments_are_not_copied_again_by_the_next_life(slot: Slot) -> None:
    for step in slot.steps():
        if step == "slice":
            break
    future = slot.directories.futures[ORDERS][1]
    inodes = {path.name: path.stat().st_ctime_ns for path in future.glob("*.log")}
    assert len(inodes) > 2
    slot.die()
    list(slot.steps())
    after = {path.name: path.stat().st_ctime_ns for path in slot.log.directory.glob("*.log")}
    again = [name for name in inodes if after[name] != inodes[name]]
    assert again == sorted(inodes)[-1:], "only the active one"


def test_what_retention_a_cut_or_another_hand_changed_is_copied_anew(slot: Slot) -> None:
    for step in slot.steps():
        if step == "slice":
            break
    stray = slot.directories.futures[ORDERS][1] / names.segment_file_name(999999, names.LOG)
    stray.write_bytes(b"left behind")
    slot.log.advance_start(28)
    slot.log.retire_oldest(2)
    slot.log.truncate_to(35)
    slot.count = 35
    slot.append(10)
    list(slot.steps())
    assert slot.log.log_start_offset == 28
    assert not (slot.log.directory / stray.name).exists()
    slot.log.check()
    assert len(read_all(slot.log, start=28)) == slot.count - 28
    slot.die()
    assert slot.log.log_start_offset == 28
    assert slot.log.log_end_offset == slot.count


def test_retention_and_cuts_between_slices_are_followed(slot: Slot) -> None:
    steps = slot.steps()
    for step in steps:
        if step == "slice":
            break
    slot.log.advance_start(14)
    slot.log.retire_oldest(1)
    slot.log.truncate_to(41)
    slot.count = 41
    list(steps)
    slot.log.check()
    assert slot.log.log_end_offset == slot.count
    on_disk = {path.name for path in slot.log.directory.glob("*.log")}
    assert on_disk == {names.segment_file_name(s.base_offset, names.LOG) for s in slot.log.segments_since(0)}


@pytest.mark.parametrize("copied_before", [1, 4, 7])
def test_nothing_stays_of_a_segment_that_went_while_its_slice_ran(slot: Slot, copied_before: int) -> None:
    slot.directories.begin_move(ORDERS, TARGET)
    future = FutureLog(slot.log, slot.directories.futures[ORDERS][1])
    piece = future.next_slice()
    assert piece is not None
    replace(piece, stretches=piece.stretches[:copied_before], bases=()).run()
    slot.log.advance_start(28)
    slot.log.retire_oldest(2)
    with pytest.raises(SourceChanged):
        piece.run()
    while (piece := future.next_slice()) is not None:
        piece.run()
        future.copied(piece)
    future.copy_rest()
    slot.directories.swap_in(ORDERS, recovery_point=future.forced_to).run()
    on_disk = {path.name for path in slot.log.directory.glob("*.log")}
    assert on_disk == {names.segment_file_name(s.base_offset, names.LOG) for s in slot.log.segments_since(0)}
    slot.die()
    assert [record.offset for record in read_all(slot.log, start=28)] == list(range(28, slot.count))


def test_a_swap_of_compaction_while_a_slice_runs_costs_no_record_behind_it(slot: Slot) -> None:
    """Several segments became one: what the slice had copied of them must not come back with the next opening."""
    slot.log.update_settings(replace(SETTINGS, segment_bytes=100_000, cleanup_policy=frozenset({"compact"})))
    for number in range(10):
        for value in range(5):
            slot.log.append(batch_of([b"%d" % value], key=b"key-%d" % number), leader_epoch=0)
        slot.log.roll()
    slot.log.append(batch_of(key=b"end"), leader_epoch=0)
    slot.directories.begin_move(ORDERS, TARGET)
    future = FutureLog(slot.log, slot.directories.futures[ORDERS][1])
    piece = future.next_slice()
    assert piece is not None
    replace(piece, stretches=piece.stretches[:-6], bases=()).run()
    compact(slot.log, checkpoint=0, now_ms=NOW_MS)
    with pytest.raises(SourceChanged):
        piece.run()
    while (piece := future.next_slice()) is not None:
        piece.run()
        future.copied(piece)
    future.copy_rest()
    slot.directories.swap_in(ORDERS, recovery_point=future.forced_to).run()
    before = [record.offset for record in read_all(slot.log)]
    slot.die()
    assert slot.log.log_end_offset == before[-1] + 1
    assert [record.offset for record in read_all(slot.log)] == before


def test_checkpoints_move_along(slot: Slot) -> None:
    slot.log.advance_start(7)
    slot.directories.flush_task({ORDERS: 9})()
    assert read_offsets(slot.paths[SOURCE] / names.LOG_STARTS) == {ORDERS: 7}
    for step in slot.steps():
        if step == "expected":
            break
    assert read_offsets(slot.paths[TARGET] / names.LOG_STARTS) == {ORDERS: 7}
    assert read_offsets(slot.paths[TARGET] / names.RECOVERY_POINTS)[ORDERS] > 0
    slot.die()
    list(slot.steps())
    slot.directories.flush_task({ORDERS: 9})()
    for name in (names.LOG_STARTS, names.RECOVERY_POINTS, names.HIGH_WATERMARKS):
        assert ORDERS not in read_offsets(slot.paths[SOURCE] / name)
        assert ORDERS in read_offsets(slot.paths[TARGET] / name)


def test_a_copy_that_the_target_refuses_leaves_the_log_alone(slot: Slot) -> None:
    for step in slot.steps():
        if step == "rest":
            break
    (slot.paths[TARGET] / "orders-0").mkdir()
    (slot.paths[TARGET] / "orders-0" / "in-the-way").touch()
    with pytest.raises(StorageFault):
        slot.directories.swap_in(ORDERS, recovery_point=0)
    slot.directories.cancel_move(ORDERS)
    slot.check()
    slot.append(3)
    slot.check()
    assert slot.log.directory == slot.paths[SOURCE] / "orders-0"
    slot.directories.remove_deleted()
    assert not list(slot.paths[TARGET].glob("orders-0.*"))
    assert slot.directories.futures == {}


def test_a_copy_without_its_partition_goes_unless_that_may_be_elsewhere(slot: Slot) -> None:
    next(slot.steps())
    slot.directories.delete_partition(ORDERS, TOPIC_ID)
    slot.directories.remove_deleted()
    assert not [path for each in slot.paths for path in each.glob("orders-0*")]
    copy = slot.paths[TARGET] / "orders-0.0123-future"
    copy.mkdir()
    slot.directories.abandon()
    slot.directories = slot._open()
    assert slot.directories.futures == {}
    slot.directories.remove_needless()
    slot.directories.remove_deleted()
    assert not copy.exists()


def test_new_partitions_count_copies_too(slot: Slot) -> None:
    next(slot.steps())
    log = slot.directories.open_partition(TopicPartition("new", 0), UUID(int=7), SETTINGS)
    assert log.directory.parent == slot.paths[SOURCE]
    log = slot.directories.open_partition(TopicPartition("new", 1), UUID(int=7), SETTINGS)
    assert log.directory.parent == slot.paths[TARGET]


def test_a_file_where_a_new_partitions_directory_should_be_is_told(tmp_path: Path) -> None:
    paths = (tmp_path / "a", tmp_path / "b")
    directories = LogDirectories.open(paths, node_id=0, cluster_id="c", clock=ManualClock(NOW_MS))
    for path in paths:
        (path / str(ORDERS)).write_bytes(b"")
    with pytest.raises(StorageFault):
        directories.open_partition(ORDERS, TOPIC_ID, SETTINGS, is_new=True)
