"""A follower's log becomes its leader's, file by file, whatever both went through."""

from __future__ import annotations

import errno
import os
import random
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest

from appliance.channels.partition_table import (
    FILES_VERSION,
    HIGH_WATERMARK,
    ISR_BITS,
    NOT_FOLLOWING,
    SERVING_EPOCH,
    SERVING_EPOCH_START,
    SERVING_INCARNATION,
)
from appliance.clock import ManualClock
from appliance.errors import DiskFull
from appliance.log.config import COMPACT, DELETE, FSYNC, PAGE_CACHE, LogSettings
from appliance.log.file_names import LEADER_EPOCHS, LOG
from appliance.log.handed_over import decode_handed_over
from appliance.log.leader_epochs import read_epochs
from appliance.log.partition_log import PartitionLog
from appliance.log.partition_state import PartitionState, StateFile, read_state
from appliance.log.producer_state import AppendOrigin
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.replicas.follower import NotInSync
from appliance.replicas.leader_log import BATCHES_MAX, HOLE_LOOKS
from tests.log.batches import NOW_MS, batch_of, marker
from tests.replicas.pair import INCARNATION, ROW, SMALL_SEGMENTS, TOPIC_ID, Pair


def test_the_files_of_both_are_the_same_over_many_segments(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    for _ in range(20):
        pair.append(random.randrange(1, 9), size=random.randrange(10, 600))
        pair.catch_up()
    assert len(pair.files(0)) > 5
    assert pair.files(1) == pair.files(0)
    pair.follower.log.check()


def test_a_follower_has_its_leader_s_transactions_and_forgets_those_that_readers_know(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    for sequence in range(20):
        for producer, commit in ((7, True), (8, False)):
            batch = batch_of(
                [b"v" * 100],
                attributes=TRANSACTIONAL,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
            )
            pair.leader.append(batch, leader_epoch=0, transaction_verified=True)
            end = marker(committed=commit, producer_id=producer)
            if producer == 7 or sequence < 19:
                pair.leader.append(end, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    pair.publish()
    pair.table.cells[pair.table.at(ROW) + HIGH_WATERMARK] = pair.leader.log_end_offset
    pair.catch_up()
    led, copied = pair.leader, pair.follower.log
    assert copied.producers.first_open_offset == led.producers.first_open_offset == 78
    assert copied.producers.encode_snapshot() == led.producers.encode_snapshot()
    aborted = [log.aborted_transactions(0, upper_bound=99) for log in (led, copied)]
    assert aborted[0] == aborted[1]
    assert len(aborted[0]) == 19
    assert copied.producers.undecided() == []


def test_a_follower_that_comes_late_copies_everything(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.append(100)
    pair.catch_up()
    assert pair.files(1) == pair.files(0)
    assert pair.follower.log.leader_epochs.entries() == pair.leader.leader_epochs.entries()


def test_what_is_left_of_a_log_whose_files_somebody_removes_is_not_taken_for_all_of_it(
    tmp_path: Path,
) -> None:
    """Taken so, the copy would come into the ISR, lead, and have the others cut their logs to its beginning."""
    pair = Pair(tmp_path)
    pair.append(100)
    oldest, *_ = sorted((tmp_path / "slot-0" / "t-0").glob(f"*{LOG}"))
    aside = tmp_path / "aside"
    oldest.rename(aside)
    for _ in range(3):
        assert not pair.follower.look(pair.buffer, now_ms=NOW_MS, budget_bytes=1 << 20)
    assert pair.follower.log.log_end_offset == 0
    aside.rename(oldest)
    pair.catch_up()
    assert pair.files(1) == pair.files(0)


@pytest.mark.parametrize("isr", [(0, 1), (0,)])
def test_a_copy_that_begins_after_its_leader_s_is_not_taken_for_all_of_it(
    tmp_path: Path, isr: tuple[int, ...]
) -> None:
    """Its directory was removed while it rolled: the new segment was made behind the removal, and stayed."""
    pair = Pair(tmp_path)
    pair.append(100)
    pair.catch_up()
    pair.follower.stop()
    pair.follower.log.close(clean=False)
    *older, newest = sorted((tmp_path / "slot-1" / "t-0").glob(f"*{LOG}"))
    assert len(older) > 1
    for path in older:
        path.unlink()
    pair.reopen_follower(isr)
    assert pair.follower.log.log_start_offset == int(newest.stem)
    if 1 in isr:
        # It leaves the ISR first: whoever is in it may lead, and one that begins anew must not.
        with pytest.raises(NotInSync, match="begins at"):
            pair.catch_up()
        assert pair.followed_epoch() == NOT_FOLLOWING
        pair.table.cells[pair.table.at(ROW) + ISR_BITS] = 0b01
    pair.catch_up()
    assert pair.files(1) == pair.files(0)
    assert pair.follower.log.log_start_offset == 0
    pair.follower.log.check()


@pytest.mark.parametrize("isr", [(0, 1), (0,)])
def test_a_copy_that_ends_before_what_is_committed_is_out_of_sync_before_it_catches_up(
    tmp_path: Path, isr: tuple[int, ...]
) -> None:
    """Its newest files have gone while nobody had it open."""
    pair = Pair(tmp_path)
    pair.append(100)
    pair.catch_up()
    pair.table.cells[pair.table.at(ROW) + HIGH_WATERMARK] = 100
    pair.follower.stop()
    pair.follower.log.close(clean=False)
    newest = max((tmp_path / "slot-1" / "t-0").glob(f"*{LOG}"))
    newest.unlink()
    pair.reopen_follower(isr)
    assert pair.follower.log.log_end_offset == int(newest.stem)
    if 1 in isr:
        with pytest.raises(NotInSync, match="committed"):
            pair.catch_up()
        assert pair.followed_epoch() == NOT_FOLLOWING
        pair.table.cells[pair.table.at(ROW) + ISR_BITS] = 0b01
    pair.catch_up()
    assert pair.files(1) == pair.files(0)


def test_a_hole_between_the_leader_s_files_must_last_before_it_is_copied(tmp_path: Path) -> None:
    """Who removes a directory takes its files one by one; only compaction leaves holes that stay."""
    pair = Pair(tmp_path)
    pair.append(100)
    _, second, *_ = sorted((tmp_path / "slot-0" / "t-0").glob(f"*{LOG}"))
    aside = tmp_path / "aside"
    second.rename(aside)
    for _ in range(5):
        assert not pair.follower.look(pair.buffer, now_ms=NOW_MS, budget_bytes=1 << 20)
    assert pair.follower.log.log_end_offset == int(second.stem)
    aside.rename(second)
    pair.catch_up()
    assert pair.files(1) == pair.files(0)


@pytest.mark.parametrize("policy", [DELETE, COMPACT])
def test_a_hole_that_lasts_is_what_compaction_left(tmp_path: Path, policy: str) -> None:
    pair = Pair(tmp_path)
    pair.append(100)
    pair.follower.log.update_settings(replace(SMALL_SEGMENTS, cleanup_policy=frozenset({policy})))
    _, second, *_ = sorted((tmp_path / "slot-0" / "t-0").glob(f"*{LOG}"))
    second.unlink()
    looks = 1
    while not pair.follower.look(pair.buffer, now_ms=NOW_MS, budget_bytes=1 << 20):
        looks += 1
    assert looks == (1 if policy == COMPACT else HOLE_LOOKS)
    assert pair.files(1) == pair.files(0)


def test_nothing_is_copied_from_who_leads_no_more(tmp_path: Path) -> None:
    """Another slot began epoch 1 at 8; the one before follows it by now, and our order to do so has yet to come."""
    pair = Pair(tmp_path)
    pair.append(10)
    pair.catch_up()
    pair.leader.truncate_to(8)
    pair.epoch = 1
    pair.table.cells[pair.table.at(ROW) + SERVING_EPOCH_START] = 8
    pair.table.cells[pair.table.at(ROW) + SERVING_EPOCH] = 1
    pair.append(4)
    pair.catch_up()
    assert (pair.follower.log.log_end_offset, pair.followed_epoch()) == (10, NOT_FOLLOWING)
    pair.follower.follow(0, 1)
    pair.catch_up()
    assert pair.files(1) == pair.files(0)
    assert pair.follower.log.leader_epochs.entries() == [(0, 0), (1, 8)]


def test_nothing_beyond_what_the_leader_has_published_is_copied(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.append(3)
    pair.leader.append(batch_of([b"not yet"]), leader_epoch=0)
    pair.catch_up()
    assert pair.follower.log.log_end_offset == 3
    pair.publish()
    pair.catch_up()
    assert pair.follower.log.log_end_offset == 4


def test_a_batch_larger_than_the_buffer_is_copied_whole(tmp_path: Path) -> None:
    pair = Pair(tmp_path, LogSettings(segment_bytes=8 << 20, max_message_bytes=4 << 20))
    pair.append(1, size=3 << 20)
    pair.append(2)
    pair.catch_up()
    assert pair.files(1) == pair.files(0)


def test_catching_up_ends_its_turn_in_time_and_goes_on_where_it_was(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.append(2 * BATCHES_MAX + 10, size=1)
    ends = []
    while True:
        done = pair.follower.look(pair.buffer, now_ms=NOW_MS, budget_bytes=1 << 20, is_time_up=lambda: True)
        ends.append(pair.follower.log.log_end_offset)
        if done:
            break
    assert len(ends) >= 3
    assert all(0 < after - before <= BATCHES_MAX for before, after in pairwise([0, *ends[:-1]]))
    assert ends[-1] == pair.leader.log_end_offset
    assert pair.files(1) == pair.files(0)


def test_records_that_only_the_follower_has_are_cut_by_epoch(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.append(10)
    pair.catch_up()
    # What a leader of epoch 1 appended that nobody else has.
    pair.follower.log.append(batch_of([b"mine alone"] * 4), leader_epoch=1)
    pair.epoch = 1
    pair.elect()
    pair.append(6)
    assert pair.followed_epoch() == NOT_FOLLOWING
    pair.catch_up()
    assert pair.followed_epoch() == 2
    assert pair.follower.log.log_end_offset == 16
    assert (
        pair.follower.log.leader_epochs.entries() == pair.leader.leader_epochs.entries() == [(0, 0), (2, 10)]
    )
    pair.follower.log.check()


@pytest.mark.interpreted
def test_readers_off_the_disk_are_told_before_what_they_saw_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower led once, and its readers saw all it had; another one, without the last of it, was elected."""
    pair = Pair(tmp_path)
    pair.append(10)
    pair.catch_up()
    follower, log = pair.follower, pair.follower.log
    log.append(batch_of([b"seen and lost"]), leader_epoch=0)
    pair.table.cells[pair.table.at(ROW) + HIGH_WATERMARK] = log.log_end_offset
    state_file = StateFile(log.directory, UUID(int=1))
    follower.state_file = state_file
    before = state_file.publish(follower.state(now_ms=NOW_MS))
    assert before.high_watermark == 11
    told: list[PartitionState | None] = []
    truncate = PartitionLog.truncate_to

    def watched(self: PartitionLog, offset: int) -> bool:
        told.append(read_state(log.directory))
        return truncate(self, offset)

    monkeypatch.setattr(PartitionLog, "truncate_to", watched)
    pair.elect()
    pair.append(3)
    pair.catch_up()
    (state,) = told
    assert state is not None
    assert (state.high_watermark, state.log_end) == (10, 10)
    assert state.incarnation != before.incarnation


def test_nothing_is_copied_before_the_leader_serves_the_epoch(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.append(5)
    pair.follower.follow(0, 1)
    pair.catch_up()
    assert pair.follower.log.log_end_offset == 0
    assert pair.followed_epoch() == NOT_FOLLOWING


def test_nothing_is_copied_where_the_leader_is_withdrawn_while_its_epochs_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is not cut yet, so what it has behind the point where the logs part would stay below the new records."""
    pair = Pair(tmp_path)
    pair.append(5)

    def read_while_it_ends(directory: Path) -> list[tuple[int, int]]:
        pair.table.cells[pair.table.at(ROW) + SERVING_INCARNATION] = 0
        return read_epochs(directory)

    monkeypatch.setattr("appliance.replicas.follower.read_epochs", read_while_it_ends)
    pair.catch_up()
    assert pair.follower.log.log_end_offset == 0
    monkeypatch.undo()
    pair.serve()
    pair.catch_up()
    assert pair.files(1) == pair.files(0)
    assert pair.followed_epoch() == 0


def test_a_follower_behind_the_leader_s_log_start_begins_where_the_leader_s_files_begin(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path)
    pair.append(60)
    base = sorted(pair.files(0))[3]
    pair.leader.advance_start(int(base.removesuffix(LOG)) + 2)
    pair.leader.retire_oldest(3)
    pair.publish()
    pair.catch_up()
    assert pair.files(1) == pair.files(0)
    pair.follower.trim()
    assert pair.follower.log.log_start_offset == pair.leader.log_start_offset


@pytest.mark.parametrize("durability", [PAGE_CACHE, FSYNC])
def test_a_follower_that_has_no_room_to_begin_anew_does_so_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    pair = Pair(tmp_path, LogSettings(segment_bytes=2000, index_interval_bytes=200, durability=durability))
    pair.append(10)
    pair.catch_up()
    pair.append(60)
    base = sorted(pair.files(0))[3]
    pair.leader.advance_start(int(base.removesuffix(LOG)))
    pair.leader.retire_oldest(3)
    pair.publish()
    made = os.open

    def no_room(path: Path, *arguments: int) -> int:
        if Path(path) == pair.follower.log.directory / base:
            raise OSError(errno.ENOSPC, "No space left on device")
        return made(path, *arguments)

    with monkeypatch.context() as full:
        full.setattr(os, "open", no_room)
        for _ in range(2):
            with pytest.raises(DiskFull):
                pair.catch_up()
            pair.follower.stop()
            assert pair.follower.log.log_end_offset == 0
            pair.follower.log.check()
    pair.catch_up()
    assert pair.files(1) == pair.files(0)
    pair.follower.log.check()


def test_a_follower_retires_what_lies_below_the_leader_s_log_start(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.append(60)
    pair.catch_up()
    third = int(sorted(pair.files(0))[2].removesuffix(LOG))
    pair.leader.advance_start(third)
    pair.leader.retire_oldest(2)
    pair.publish()
    assert pair.follower.trim()
    assert pair.files(1) == pair.files(0)


def test_a_follower_waits_while_segments_are_renamed(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.append(5)
    cells, at = pair.table.cells, pair.table.at(ROW) + FILES_VERSION
    cells[at] = 1
    assert not pair.follower.look(pair.buffer, now_ms=NOW_MS, budget_bytes=1 << 20)
    cells[at] = 2
    pair.catch_up()
    assert pair.files(1) == pair.files(0)


@pytest.mark.parametrize("seed", range(5))
def test_after_any_mixture_of_appends_and_elections_both_are_the_same(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    pair = Pair(tmp_path)
    for _ in range(60):
        match choice.randrange(4):
            case 0:
                pair.append(choice.randrange(1, 6), size=choice.randrange(10, 400))
            case 1:
                pair.catch_up()
            case 2:
                pair.elect()
            case _:
                pair.catch_up()
                # The follower led for a moment, and nobody had its records when it went.
                pair.epoch += 1
                pair.follower.log.append(batch_of([b"alone"]), leader_epoch=pair.epoch)
                pair.elect()
    pair.catch_up()
    assert b"".join(pair.files(1)[name] for name in sorted(pair.files(1))) == b"".join(
        pair.files(0)[name] for name in sorted(pair.files(0))
    )
    pair.follower.log.check()


@pytest.mark.parametrize("moved_on", [0, 3])
def test_a_copy_without_files_whose_start_lies_inside_of_a_batch_begins_with_the_leader_s_segment(
    tmp_path: Path, moved_on: int
) -> None:
    """DeleteRecords moved the start there, it is written down, and then the copy's files went."""
    pair = Pair(tmp_path)
    for _ in range(20):
        pair.leader.append(batch_of([random.randbytes(30)] * 10), leader_epoch=pair.epoch)
    pair.leader.advance_start(15 + moved_on)
    pair.publish()
    pair.table.cells[pair.table.at(ROW) + HIGH_WATERMARK] = 200
    pair.follower.stop()
    pair.follower.log.start_anew_at(15)
    pair.catch_up()
    assert pair.files(1) == pair.files(0)
    pair.follower.log.check()


class LedByWhoFollowed(Pair):
    """Slot 0 has copied epochs 0 and 1, and leads epoch 3 with what its replica left to its worker."""

    def open(self, slot: int) -> PartitionLog:
        if slot:
            return super().open(slot)
        log = super().open(slot)
        for offset in range(5):
            log.append_as_follower(batch_of(base_offset=offset, leader_epoch=offset // 3))
        log.hand_over(partial(self.table.leave, ROW, INCARNATION, 0))
        left = self.table.left(ROW, INCARNATION, 0)
        return PartitionLog.open(
            log.directory,
            settings=self.settings,
            clock=ManualClock(NOW_MS),
            topic_id=TOPIC_ID,
            clean=True,
            flushed=False,
            left=None if left is None else decode_handed_over(left),
        )

    def serve(self) -> None:
        self.epoch = 3
        super().serve()


def test_a_follower_cuts_by_epochs_that_only_the_table_has(tmp_path: Path) -> None:
    pair = LedByWhoFollowed(tmp_path)
    for offset in range(5):
        pair.follower.log.append_as_follower(batch_of(base_offset=offset, leader_epoch=0))
    pair.follower.follow(0, 3)
    assert not (pair.leader.directory / LEADER_EPOCHS).exists()
    pair.append(1)
    pair.catch_up()
    assert pair.files(0) == pair.files(1)
    assert pair.follower.log.leader_epochs.entries() == [(0, 0), (1, 3), (3, 5)]
