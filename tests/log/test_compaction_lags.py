"""min.compaction.lag.ms, max.compaction.lag.ms: what is still safe from compaction, what has waited long enough."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from appliance.clock import ManualClock
from appliance.log.config import LogSettings
from appliance.log.dirtiness import Dirtiness, dirtiness
from appliance.log.partition_log import PartitionLog
from tests.log.batches import NOW_MS, batch_of, open_log, read_all
from tests.log.compaction import compact

MINUTE_MS = 60_000
SETTINGS = LogSettings(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=1.0)


def aged_log(directory: Path, settings: LogSettings, *ages_ms: int) -> PartitionLog:
    """A closed segment of two records of one key for each age, and an active one of now."""
    log = open_log(directory, settings=settings)
    for age_ms in ages_ms:
        for value in (b"first", b"second"):
            log.append(batch_of([value], key=b"key", timestamp_ms=NOW_MS - age_ms), leader_epoch=0)
        log.roll()
    log.append(batch_of([b"end"], key=b"end", timestamp_ms=NOW_MS), leader_epoch=0)
    return log


def found(log: PartitionLog, *, now_ms: int = NOW_MS, checkpoint: int = 0) -> Dirtiness:
    bounds = log.bounds(log.log_end_offset)
    return dirtiness(log.directory, bounds, log.settings, checkpoint=checkpoint, now_ms=now_ms)


def offsets(log: PartitionLog) -> list[int]:
    return [record.offset for record in read_all(log)]


def test_a_round_ends_before_the_first_segment_with_a_record_younger_than_the_lag(tmp_path: Path) -> None:
    """What follows a young segment waits too, however old."""
    settings = replace(SETTINGS, min_compaction_lag_ms=10 * MINUTE_MS)
    log = aged_log(tmp_path / "log", settings, 30 * MINUTE_MS, 20 * MINUTE_MS, 5 * MINUTE_MS, 40 * MINUTE_MS)
    assert compact(log, checkpoint=0, now_ms=NOW_MS) == 4
    assert offsets(log) == [3, 4, 5, 6, 7, 8]
    look_ms = found(log, checkpoint=4).next_look_ms
    assert look_ms == NOW_MS + 5 * MINUTE_MS + 1
    assert compact(log, checkpoint=4, now_ms=look_ms) == 8
    assert offsets(log) == [7, 8]


def test_the_youngest_record_of_a_segment_counts(tmp_path: Path) -> None:
    settings = replace(SETTINGS, min_compaction_lag_ms=10 * MINUTE_MS, min_cleanable_dirty_ratio=0.0)
    log = open_log(tmp_path / "log", settings=settings)
    for age_ms in (30 * MINUTE_MS, MINUTE_MS, 20 * MINUTE_MS):
        log.append(batch_of(key=b"key", timestamp_ms=NOW_MS - age_ms), leader_epoch=0)
    log.roll()
    assert not found(log).is_cleanable(settings)
    assert found(log, now_ms=NOW_MS + 9 * MINUTE_MS + 1).is_cleanable(settings)


@pytest.mark.parametrize("lag_ms", [0, 1])
def test_without_a_lag_even_a_record_of_the_future_is_compacted(tmp_path: Path, lag_ms: int) -> None:
    settings = replace(SETTINGS, min_compaction_lag_ms=lag_ms, min_cleanable_dirty_ratio=0.0)
    log = aged_log(tmp_path / "log", settings, -MINUTE_MS)
    assert found(log).is_cleanable(settings) == (lag_ms == 0)


def test_what_has_waited_for_the_longest_lag_is_compacted_however_little_it_is(tmp_path: Path) -> None:
    settings = replace(SETTINGS, max_compaction_lag_ms=10 * MINUTE_MS)
    log = aged_log(tmp_path / "log", settings, 30 * MINUTE_MS, 9 * MINUTE_MS)
    assert found(log).is_cleanable(settings)
    waits = found(log, checkpoint=2)
    assert not waits.is_cleanable(settings), "half of the log is clean"
    assert waits.next_look_ms == NOW_MS + MINUTE_MS + 1
    assert not found(log, checkpoint=2, now_ms=waits.next_look_ms - 1).is_cleanable(settings)
    assert found(log, checkpoint=2, now_ms=waits.next_look_ms).is_cleanable(settings)


def test_the_shortest_lag_holds_although_the_longest_has_passed(tmp_path: Path) -> None:
    """Kafka lets them be equal; a segment may be older than that by its first record and younger by its last."""
    both = replace(SETTINGS, min_compaction_lag_ms=10 * MINUTE_MS, max_compaction_lag_ms=10 * MINUTE_MS)
    log = open_log(tmp_path / "log", settings=both)
    for age_ms in (30 * MINUTE_MS, MINUTE_MS):
        log.append(batch_of(key=b"key", timestamp_ms=NOW_MS - age_ms), leader_epoch=0)
    log.roll()
    assert not found(log).is_cleanable(both)
    assert found(log, now_ms=NOW_MS + 9 * MINUTE_MS + 1).is_cleanable(both)


def test_a_segment_that_nobody_appends_to_is_closed_when_the_longest_lag_has_passed(tmp_path: Path) -> None:
    configs = {"cleanup.policy": "compact", "max.compaction.lag.ms": str(10 * MINUTE_MS)}
    settings = LogSettings.from_configs(configs)
    clock = ManualClock(NOW_MS)
    log = open_log(tmp_path / "log", settings=settings, clock=clock)
    for value in (b"first", b"second"):
        log.append(batch_of([value], key=b"key"), leader_epoch=0)
    look_ms = found(log).next_look_ms
    assert look_ms == NOW_MS + 10 * MINUTE_MS + 1
    assert not log.maybe_roll_by_time(look_ms - 1)
    assert log.maybe_roll_by_time(look_ms)
    assert compact(log, checkpoint=0, now_ms=look_ms) == 2
    assert offsets(log) == [1]


def test_an_empty_segment_is_looked_at_before_its_first_record_can_be_overdue(tmp_path: Path) -> None:
    settings = replace(SETTINGS, max_compaction_lag_ms=10 * MINUTE_MS)
    log = open_log(tmp_path / "log", settings=settings)
    assert found(log).next_look_ms == NOW_MS + 10 * MINUTE_MS + 1
    log.append(batch_of(key=b"key", timestamp_ms=NOW_MS + 1), leader_epoch=0)
    assert found(log, now_ms=NOW_MS + 10 * MINUTE_MS + 1).next_look_ms == NOW_MS + 10 * MINUTE_MS + 2
    assert found(open_log(tmp_path / "never", settings=SETTINGS)).next_look_ms is None
