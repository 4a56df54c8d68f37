"""What retention decides, what it leaves behind, and what is found after a death between any two of its steps."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.clock import ManualClock
from appliance.errors import DiskFull, RejectedRequest
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.log.producer_state import AppendOrigin
from appliance.log.removal import Removal
from appliance.log.retention import DeletionReason, Expired, RetentionRules, expired
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import TRANSACTIONAL
from tests.log.batches import NOW_MS, batch_of, crash, open_log, read_all

START, SIZE, TIME = DeletionReason.LOG_START, DeletionReason.SIZE, DeletionReason.TIME
ONE_BATCH_SEGMENTS = LogSettings(segment_bytes=200, retention_ms=10_000, file_delete_delay_ms=500)
HOUR_MS = 3_600_000


@dataclass
class Facts:
    base_offset: int
    size_bytes: int = 100
    timestamp_ms: int = NOW_MS

    def largest_timestamp_ms(self) -> int:
        return self.timestamp_ms


def decided(
    segments: list[Facts],
    rules: RetentionRules,
    *,
    start: int = 0,
    end: int = 500,
    high_watermark: int = 500,
    now_ms: int = NOW_MS,
) -> Expired:
    return expired(
        segments,
        rules,
        size_bytes=sum(segment.size_bytes for segment in segments),
        log_start_offset=start,
        log_end_offset=end,
        high_watermark=high_watermark,
        now_ms=now_ms,
    )


FIVE = [Facts(base) for base in range(0, 500, 100)]

# The decision


def test_the_worked_example_of_the_file() -> None:
    found = decided(FIVE, RetentionRules(retention_bytes=250), start=130)
    assert found == Expired((START, SIZE), 200)


def test_at_least_retention_bytes_are_kept() -> None:
    for limit, kept in ((500, 5), (499, 5), (400, 4), (301, 4), (300, 3), (1, 1), (0, 0)):
        found = decided(FIVE, RetentionRules(retention_bytes=limit))
        assert len(FIVE) - len(found.reasons) == kept, limit


def test_a_record_as_old_as_retention_ms_stays_and_one_older_goes() -> None:
    rules = RetentionRules(retention_ms=1000)
    assert not decided(FIVE, rules, now_ms=NOW_MS + 1000)
    assert decided(FIVE, rules, now_ms=NOW_MS + 1001) == Expired((TIME,) * 5, 500)


def test_a_young_segment_keeps_the_old_ones_behind_it() -> None:
    segments = [Facts(0, timestamp_ms=1), Facts(100), Facts(200, timestamp_ms=1)]
    assert decided(segments, RetentionRules(retention_ms=1000), end=300) == Expired((TIME,), 100)


def test_a_timestamp_in_the_future_keeps_its_segment_and_is_named() -> None:
    segments = [Facts(0, timestamp_ms=NOW_MS + HOUR_MS), Facts(100, timestamp_ms=1)]
    found = decided(segments, RetentionRules(retention_ms=0), end=200)
    assert found == Expired((), 0, ahead_of_clock_ms=NOW_MS + HOUR_MS)
    assert decided(segments, RetentionRules(retention_bytes=0, retention_ms=0), end=200).reasons == (
        SIZE,
        SIZE,
    )


def test_nothing_at_or_above_the_high_watermark_goes() -> None:
    rules = RetentionRules(retention_bytes=0, retention_ms=0)
    found = decided(FIVE, rules, high_watermark=250, now_ms=NOW_MS + 1)
    assert found.log_start_offset == 200


def test_an_empty_active_segment_stays() -> None:
    segments = [Facts(0), Facts(500, size_bytes=0, timestamp_ms=1)]
    rules = RetentionRules(retention_bytes=0, retention_ms=0)
    assert decided(segments, rules, now_ms=NOW_MS + 1) == Expired((SIZE,), 500)


def test_timestamps_are_asked_for_only_as_far_as_they_count() -> None:
    class Dear(Facts):
        def largest_timestamp_ms(self) -> int:
            raise AssertionError("opened an index for nothing")

    segments = [Facts(0, timestamp_ms=1), Facts(100), Dear(200)]
    assert decided(segments, RetentionRules(retention_ms=1000), end=300).reasons == (TIME,)
    assert decided([Dear(0), Dear(100)], RetentionRules(), start=100, end=200).reasons == (START,)


# The log


def filled(
    directory: Path,
    count: int = 5,
    *,
    settings: LogSettings = ONE_BATCH_SEGMENTS,
    clock: ManualClock | None = None,
    removals: deque[Removal] | None = None,
) -> PartitionLog:
    """One batch of two records a segment, a second apart, each of an epoch of its own."""
    log = open_log(directory, settings=settings, clock=clock, removals=removals)
    for number in range(count):
        values = [bytes(40), bytes(40)]
        log.append(batch_of(values, timestamp_ms=NOW_MS + 1000 * number), leader_epoch=number)
    return log


def retire(log: PartitionLog, now_ms: int) -> Expired:
    found = log.expired(high_watermark=log.log_end_offset, now_ms=now_ms)
    log.advance_start(found.log_start_offset)
    log.retire_oldest(len(found.reasons))
    return found


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_retired_files_keep_a_deleted_name_until_their_removal_runs(tmp_path: Path) -> None:
    removals: deque[Removal] = deque()
    log = filled(tmp_path, removals=removals)
    assert retire(log, NOW_MS + 11_001).reasons == (TIME, TIME)
    marked = {name for name in names(tmp_path) if name.endswith(".deleted")}
    assert marked == {
        f"{base:020d}{suffix}.deleted"
        for base in (0, 2)
        for suffix in (".log", ".index", ".timeindex", ".snapshot")
        if (base, suffix) != (0, ".snapshot")
    }
    assert (log.log_start_offset, log.first_base_offset) == (4, 4)
    assert [removal.delay_ms for removal in removals] == [500, 500]
    log.check()
    for removal in removals:
        removal.run()
        removal.run()
    assert not any(name.endswith(".deleted") for name in names(tmp_path))


def test_the_active_segment_is_rolled_when_all_of_it_has_expired(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert retire(log, NOW_MS + HOUR_MS).reasons == (TIME,) * 5
    assert (log.log_start_offset, log.log_end_offset, log.statistics().segments) == (10, 10, 1)
    assert not retire(log, NOW_MS + 2 * HOUR_MS)
    assert log.append(batch_of(), leader_epoch=9).base_offset == 10
    log.check()
    crash(log)
    assert open_log(tmp_path, settings=ONE_BATCH_SEGMENTS).log_start_offset == 10


def test_the_clock_going_back_deletes_nothing(tmp_path: Path) -> None:
    log = filled(tmp_path)
    found = retire(log, NOW_MS - 365 * 24 * HOUR_MS)
    assert not found
    assert found.ahead_of_clock_ms == NOW_MS


def test_without_trust_in_the_clock_nothing_is_too_old(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.advance_start(2)
    found = log.expired(high_watermark=10, now_ms=NOW_MS + HOUR_MS, by_time=False)
    assert found.reasons == (START,)


def test_a_compacted_log_gives_up_only_what_is_below_its_start(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.update_settings(LogSettings(cleanup_policy=frozenset({"compact"}), retention_bytes=0, retention_ms=0))
    assert not retire(log, NOW_MS + HOUR_MS)
    log.advance_start(5)
    assert retire(log, NOW_MS + HOUR_MS).reasons == (START, START)
    assert (log.log_start_offset, log.first_base_offset) == (5, 4)


def test_records_without_timestamps_age_by_their_file(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=ONE_BATCH_SEGMENTS)
    for _ in range(3):
        log.append(batch_of([bytes(90)], timestamp_ms=-1), leader_epoch=0)
    for path in tmp_path.glob("*.log"):
        age_s = NOW_MS // 1000 + (0 if path.name.startswith("0" * 19 + "0") else 60)
        os.utime(path, (age_s, age_s))
    assert retire(log, NOW_MS + 10_001).reasons == (TIME,)


def test_looking_at_old_segments_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close(clean=True)
    log = open_log(tmp_path, settings=ONE_BATCH_SEGMENTS, clean=True)
    assert not log.expired(high_watermark=10, now_ms=NOW_MS)
    assert log.statistics().open_segments == 0


def test_a_fetch_under_way_goes_on_reading_a_retired_segment(tmp_path: Path) -> None:
    removals: deque[Removal] = deque()
    log = filled(tmp_path, removals=removals)
    piece = log.read(0, max_bytes=1000, upper_bound=10)
    with log.segment_path(piece.segment_base_offset).open("rb") as held:
        before = held.read()
        retire(log, NOW_MS + HOUR_MS)
        for removal in removals:
            removal.run()
        held.seek(0)
        assert held.read() == before
    with pytest.raises(RejectedRequest) as refused:
        log.read(0, max_bytes=1000, upper_bound=10)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_leader_epochs_begin_at_the_log_start(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.advance_start(5)
    kept = (tmp_path / "leader-epoch-checkpoint").read_text()
    assert kept == "0\n3\n2 5\n3 6\n4 8\n"
    assert (log.epoch_of(4), log.epoch_of(5)) == (-1, 2)


def test_an_open_transaction_that_began_below_the_start_is_unstable_from_the_start_on(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=ONE_BATCH_SEGMENTS)
    for sequence in range(4):
        log.append(
            batch_of(producer_id=1, producer_epoch=0, base_sequence=sequence, attributes=TRANSACTIONAL),
            leader_epoch=0,
            origin=AppendOrigin.CLIENT,
            transaction_verified=True,
        )
    log.advance_start(3)
    assert (log.last_stable_offset, log.stable_offset(4)) == (3, 3)
    log.check()


# Deaths in between


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("steps", range(12))
def test_a_death_between_any_two_renames_leaves_a_whole_log(
    tmp_path: Path, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path)
    found = log.expired(high_watermark=10, now_ms=NOW_MS + 12_001)
    log.advance_start(found.log_start_offset)
    rename, left = os.rename, iter([True] * steps)

    def rename_or_die(old: Path, new: Path) -> None:
        if str(new).endswith(".deleted") and not next(left, False):
            raise Killed
        rename(old, new)

    monkeypatch.setattr(os, "rename", rename_or_die)
    with suppress(Killed):
        log.retire_oldest(len(found.reasons))
    monkeypatch.undo()
    crash(log)
    # The checkpoint of log starts may be as old as the log or as new as the decision.
    for checkpoint in (0, 6):
        log = open_log(tmp_path, settings=ONE_BATCH_SEGMENTS, log_start=checkpoint)
        assert log.log_start_offset == max(checkpoint, log.first_base_offset)
        assert [record.offset for record in read_all(log)] == list(range(log.log_start_offset, 10))
        log.check()
        assert not any(name.endswith(".deleted") for name in names(tmp_path))
        crash(log)
    log = open_log(tmp_path, settings=ONE_BATCH_SEGMENTS)
    retire(log, NOW_MS + 12_001)
    assert (log.log_start_offset, log.first_base_offset) == (6, 6)


def test_what_could_not_be_marked_is_retired_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path)
    rename, calls = os.rename, iter(range(100))

    def fails_once(old: Path, new: Path) -> None:
        if next(calls) == 1:
            raise OSError(5, "Input/output error")
        rename(old, new)

    monkeypatch.setattr(os, "rename", fails_once)
    with pytest.raises(Exception, match="Input/output"):
        retire(log, NOW_MS + 11_001)
    retire(log, NOW_MS + 11_001)
    assert (log.log_start_offset, log.first_base_offset) == (4, 4)
    log.check()


def test_retention_makes_room_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the epochs' file nor a new active segment can be written; the sealed segments go all the same."""
    log = filled(tmp_path)
    real_open = os.open

    def full(path: Path, flags: int, *more: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(28, "No space left on device")
        return real_open(path, flags, *more)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(DiskFull):
        retire(log, NOW_MS + HOUR_MS)
    assert log.statistics().segments == 1
    monkeypatch.undo()
    retire(log, NOW_MS + HOUR_MS)
    assert log.first_base_offset == log.log_end_offset == 10
    log.check()
