"""The swap of a cleaned segment: killed between any two of its steps, and refused where it must be."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.clock import ManualClock
from appliance.errors import CorruptFile, StorageFault
from appliance.log.cleaning import LogCleaning
from appliance.log.config import LogSettings
from appliance.log.dirtiness import Swap, dirtiness
from appliance.log.partition_log import PartitionLog
from appliance.log.segment_swap import SwapInterrupted
from tests.log.batches import NOW_MS, batch_of, crash, open_log, read_all
from tests.log.compaction import clean, cleaning_of, compact

SETTINGS = LogSettings(
    segment_bytes=1500, index_interval_bytes=100, cleanup_policy=frozenset({"compact"}), delete_retention_ms=0
)


def superseding_log(directory: Path) -> PartitionLog:
    """Several closed segments, in which later records supersede most of the earlier ones; a tombstone among them."""
    log = open_log(directory, settings=SETTINGS)
    for number in range(60):
        key = b"key-%d" % (number % 7)
        value = None if number in (20, 41) else b"value-%d" % number * 10
        log.append(batch_of([value], key=key), leader_epoch=0)
    log.roll()
    log.append(batch_of([b"end"], key=b"end"), leader_epoch=0)
    return log


def last_values(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in read_all(log)}


def prepared(log: PartitionLog) -> tuple[LogCleaning, Swap]:
    """A round up to its first wish for a swap."""
    bounds = log.bounds(log.log_end_offset)
    what = dirtiness(log.directory, bounds, log.settings, checkpoint=0, now_ms=NOW_MS)
    round_ = cleaning_of(log, what, now_ms=NOW_MS)
    return round_, next(step for step in round_.steps() if isinstance(step, Swap))


def test_a_swap_that_is_killed_after_any_rename_loses_no_last_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = superseding_log(tmp_path / "log")
    expected = last_values(log)
    _, wish = prepared(log)
    cuts = log.bounds(0).cuts
    renames = 0
    rename = os.rename

    def state_after(count: int) -> Path:
        return tmp_path / f"after-{count}"

    def counted(source: Path, target: Path) -> None:
        nonlocal renames
        rename(source, target)
        renames += 1
        shutil.copytree(tmp_path / "log", state_after(renames))

    shutil.copytree(tmp_path / "log", state_after(0))
    monkeypatch.setattr(os, "rename", counted)
    done = log.replace_segments(wish.base_offset, wish.end_offset, source_bytes=wish.source_bytes, cuts=cuts)
    monkeypatch.undo()
    assert done
    assert renames >= 9
    log.check()
    for count in range(renames + 1):
        for clean_stop in (False, True):
            directory = tmp_path / f"{count}-{clean_stop}"
            shutil.copytree(state_after(count), directory)
            opened = open_log(directory, settings=SETTINGS, clean=clean_stop)
            opened.check()
            assert last_values(opened) == expected
            assert opened.log_end_offset == log.log_end_offset
            compact(opened, checkpoint=0, now_ms=NOW_MS)
            opened.check()
            assert {k: v for k, v in expected.items() if v is not None} == {
                k: v for k, v in last_values(opened).items() if v is not None
            }
            crash(opened)
            marks = [p.name for p in directory.iterdir() if p.suffix in {".cleaned", ".swap", ".deleted"}]
            assert not [name for name in marks if not name.endswith(".deleted")]


def test_a_reader_that_has_an_old_segment_open_reads_on(tmp_path: Path) -> None:
    log = superseding_log(tmp_path)
    before = log.segment_path(0).read_bytes()
    with log.segment_path(0).open("rb") as held:
        compact(log, checkpoint=0, now_ms=NOW_MS)
        assert held.read() == before
    assert log.segment_path(0).read_bytes() != before


def test_a_fetch_at_an_offset_that_is_gone_begins_with_the_next_batch(tmp_path: Path) -> None:
    log = superseding_log(tmp_path)
    compact(log, checkpoint=0, now_ms=NOW_MS)
    left = [record.offset for record in read_all(log)]
    for offset in range(log.log_end_offset):
        following = [record.offset for record in read_all(log, start=offset)]
        assert following == [place for place in left if place >= offset]


@pytest.mark.parametrize("change", ["roll", "cut", "unprepared", "deleted", "policy"])
def test_a_swap_of_segments_that_the_cleaner_has_not_read_changes_nothing(
    tmp_path: Path, change: str
) -> None:
    log = superseding_log(tmp_path)
    _, wish = prepared(log)
    bounds = log.bounds(0)
    source_bytes, end_offset = wish.source_bytes, wish.end_offset
    match change:
        case "roll":
            end_offset = log.log_end_offset + 1  # the active segment too
        case "cut":
            log.truncate_to(log.log_end_offset - 1)
        case "unprepared":
            (tmp_path / "00000000000000000000.index.cleaned").unlink()
        case "deleted":
            source_bytes -= 1
        case "policy":
            log.update_settings(replace(SETTINGS, cleanup_policy=frozenset({"delete"})))
    before = sorted(path.name for path in tmp_path.iterdir())
    assert not log.replace_segments(wish.base_offset, end_offset, source_bytes=source_bytes, cuts=bounds.cuts)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    log.check()


def test_a_rename_that_the_host_refuses_at_first_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = superseding_log(tmp_path)
    expected = read_all(log)
    _, wish = prepared(log)
    rename = os.rename
    calls = 0

    def refused(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(StorageFault):
        log.replace_segments(
            wish.base_offset, wish.end_offset, source_bytes=wish.source_bytes, cuts=log.bounds(0).cuts
        )
    monkeypatch.undo()
    log.check()
    assert read_all(log) == expected
    assert not list(tmp_path.glob("*.swap"))


def test_a_swap_that_the_host_interrupts_is_finished_or_undone_by_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = superseding_log(tmp_path / "log")
    expected = last_values(log)
    _, wish = prepared(log)
    log.close(clean=False)
    rename = os.rename
    for refused in range(5, 13):  # the first four only prepare
        directory = tmp_path / str(refused)
        shutil.copytree(tmp_path / "log", directory)
        calls = itertools.count(1)

        def limited(
            source: Path, target: Path, *, calls: Iterator[int] = calls, refused: int = refused
        ) -> None:
            if next(calls) == refused:
                raise OSError(5, "Input/output error")
            rename(source, target)

        opened = prepared_again(tmp_path / "log", directory)
        monkeypatch.setattr(os, "rename", limited)
        with pytest.raises(SwapInterrupted):
            opened.replace_segments(
                wish.base_offset, wish.end_offset, source_bytes=wish.source_bytes, cuts=opened.bounds(0).cuts
            )
        monkeypatch.undo()
        crash(opened)
        again = open_log(directory, settings=SETTINGS)
        again.check()
        assert last_values(again) == expected
        crash(again)


def prepared_again(source: Path, directory: Path) -> PartitionLog:
    """Opens a log, and puts the `.cleaned` files beside it that opening removes."""
    opened = open_log(directory, settings=SETTINGS)
    for path in source.glob("*.cleaned"):
        shutil.copy2(path, directory)
    return opened


def test_tombstones_stay_for_their_time_and_go_in_a_later_round(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    settings = LogSettings(
        segment_bytes=400, cleanup_policy=frozenset({"compact"}), delete_retention_ms=5_000
    )
    log = open_log(tmp_path, settings=settings, clock=clock)
    log.append(batch_of([b"x" * 200], key=b"gone"), leader_epoch=0)
    log.append(batch_of([None], key=b"gone"), leader_epoch=0)
    log.append(batch_of([b"y" * 300], key=b"kept"), leader_epoch=0)
    log.roll()
    end = compact(log, checkpoint=0, now_ms=clock.now_ms())
    assert [(r.offset, r.key, r.value is None) for r in read_all(log)][:1] == [(1, b"gone", True)]
    log.append(batch_of([b"z"], key=b"other"), leader_epoch=0)
    log.roll()
    end = compact(log, checkpoint=end, now_ms=clock.now_ms() + 4_999)
    assert 1 in [record.offset for record in read_all(log)]
    log.append(batch_of([b"z"], key=b"other"), leader_epoch=0)
    log.roll()
    compact(log, checkpoint=end, now_ms=clock.now_ms() + 5_000)
    assert [record.key for record in read_all(log)] == [b"kept", b"other"]
    log.check()


def test_nothing_of_a_corrupt_segment_is_cleaned(tmp_path: Path) -> None:
    log = superseding_log(tmp_path)
    path = log.segment_path(0)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    bounds = log.bounds(log.log_end_offset)
    what = dirtiness(log.directory, bounds, log.settings, checkpoint=0, now_ms=NOW_MS)
    with pytest.raises(CorruptFile):
        clean(log, cleaning_of(log, what, now_ms=NOW_MS))
    assert not list(tmp_path.glob("*.cleaned"))
    assert path.read_bytes() == content
