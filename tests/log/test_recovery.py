"""Opening a log that was not closed: torn tails, damage, lost files, interrupted renames."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.log.config import LogSettings
from appliance.log.copy_end import LogEnd, valid_end
from appliance.log.partition_log import PartitionLog
from appliance.log.recovered import KEPT_FILES_MAX, keep_segment
from appliance.log.segment import Segment
from appliance.protocol.records.batch import batches
from tests.log.batches import NOW_MS, batch_of, crash, open_log, read_all, values

SETTINGS = LogSettings(segment_bytes=3000, index_interval_bytes=250)


def filled(directory: Path, count: int = 40) -> PartitionLog:
    log = open_log(directory, settings=SETTINGS)
    for number in range(count):
        log.append(
            batch_of(
                [b"%d" % number + bytes(90)] * (number % 3 + 1),
                timestamp_ms=NOW_MS + number,
                producer_id=3,
                producer_epoch=0,
                base_sequence=log.log_end_offset,
            ),
            leader_epoch=1,
        )
    return log


def reopened(
    directory: Path, *, clean: bool = False, recovery_point: int = 0, log_start: int = 0
) -> PartitionLog:
    log = open_log(
        directory, settings=SETTINGS, clean=clean, recovery_point=recovery_point, log_start=log_start
    )
    log.check()
    return log


def logs(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def content(path: Path) -> bytes:
    """A segment's batches without the zeros behind them."""
    data = path.read_bytes()
    end = max((at + header.size_bytes for at, header in batches(data)), default=0)
    return data[:end]


def test_everything_appended_is_there_after_a_crash(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = filled(tmp_path)
    records = read_all(log)
    crash(log)
    with caplog.at_level(logging.WARNING):
        log = reopened(tmp_path)
    assert read_all(log) == records
    assert caplog.records == [], "zeros that were allocated ahead are nothing to warn of"
    log.release()
    assert log.statistics().allocated_bytes == log.statistics().size_bytes
    assert log.append(batch_of(), leader_epoch=1).base_offset == len(records)


def test_a_clean_stop_is_opened_without_reading_batches(tmp_path: Path) -> None:
    log = filled(tmp_path)
    records = read_all(log)
    log.close(clean=True)
    # Damage inside of a value, before the last index entry, is not looked for.
    first = logs(tmp_path)[0]
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    first.write_bytes(data)
    log = reopened(tmp_path, clean=True, recovery_point=len(records))
    assert log.log_end_offset == len(records)
    assert log.recovery_point == len(records)


def test_a_tail_torn_at_every_byte_is_cut_to_the_last_whole_batch(tmp_path: Path) -> None:
    log = filled(tmp_path / "origin", 7)
    records = read_all(log)
    crash(log)
    last = logs(tmp_path / "origin")[-1]
    data = content(last)
    found = list(batches(data))
    start = found[-1][0]
    whole = found[-1][1].base_offset
    for length in range(start, len(data)):
        directory = tmp_path / "torn"
        shutil.copytree(tmp_path / "origin", directory)
        (directory / last.name).write_bytes(data[:length])
        log = reopened(directory)
        assert log.log_end_offset == whole, length
        assert read_all(log) == records[:whole]
        assert log.append(batch_of([b"next"]), leader_epoch=2).base_offset == whole
        log.check()
        crash(log)
        shutil.rmtree(directory)


def test_a_tail_of_which_only_the_placement_is_missing_is_cut(tmp_path: Path) -> None:
    log = filled(tmp_path, 5)
    crash(log)
    path = logs(tmp_path)[-1]
    data = content(path)
    position, header = list(batches(data))[-1]
    path.write_bytes(data[:position] + bytes(17) + data[position + 17 :] + bytes(500))
    assert reopened(tmp_path).log_end_offset == header.base_offset


@pytest.mark.parametrize("flipped", [0, 1, 9, 11, 16, 18, 22, 26, 50, 60, 70])
def test_damage_ends_the_log_before_it_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, flipped: int
) -> None:
    log = filled(tmp_path, 60)
    records = read_all(log)
    crash(log)
    assert len(logs(tmp_path)) > 4
    damaged = logs(tmp_path)[1]
    data = bytearray(content(damaged))
    position, header = list(batches(bytes(data)))[2]
    data[position + flipped] ^= 0x40
    damaged.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        log = reopened(tmp_path)
    assert log.log_end_offset == header.base_offset
    assert read_all(log) == records[: header.base_offset]
    assert len(logs(tmp_path)) == 2, "segments after the damage are gone"
    cuts = [record.getMessage() for record in caplog.records if " truncated by " in record.getMessage()]
    assert len(cuts) == 1
    assert f"position {position}" in cuts[0]


def test_a_sound_batch_of_an_earlier_offset_is_no_part_of_the_log(tmp_path: Path) -> None:
    log = filled(tmp_path, 5)
    records = read_all(log)
    crash(log)
    path = logs(tmp_path)[-1]
    data = content(path)
    first = next(iter(batches(data)))[1]
    path.write_bytes(data + data[: first.size_bytes])
    assert read_all(reopened(tmp_path)) == records


def test_below_the_recovery_point_checksums_are_trusted(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.flush()
    end = log.log_end_offset
    log.append(batch_of([b"after"]), leader_epoch=1)
    crash(log)
    data = bytearray(logs(tmp_path)[-1].read_bytes())
    first = next(iter(batches(bytes(data))))[1]
    data[first.size_bytes - 1] ^= 1
    logs(tmp_path)[-1].write_bytes(data)
    assert reopened(tmp_path, recovery_point=end).log_end_offset == end + 1


def test_earlier_segments_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path)
    log.flush()
    point = log.recovery_point
    crash(log)
    rebuilt: list[int] = []
    start_rebuild = Segment.start_rebuild

    def spy(segment: Segment) -> None:
        rebuilt.append(segment.base_offset)
        start_rebuild(segment)

    monkeypatch.setattr(Segment, "start_rebuild", spy)
    log = reopened(tmp_path, recovery_point=point)
    assert rebuilt == [int(logs(tmp_path)[-1].name[:20])]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "bogus", "half an entry"])
@pytest.mark.parametrize("clean", [True, False])
def test_an_index_that_is_not_believable_is_built_again(
    tmp_path: Path, suffix: str, damage: str, clean: bool
) -> None:
    log = filled(tmp_path)
    records = read_all(log)
    log.flush()
    log.close(clean)
    index = sorted(tmp_path.glob("*" + suffix))[1]
    before = index.read_bytes()
    assert before
    if damage == "missing":
        index.unlink()
    elif damage == "bogus":
        index.write_bytes(before[:-8] + b"\xff" * 8)
    else:
        index.write_bytes(before + b"\0\0\0")
    log = reopened(tmp_path, clean=clean, recovery_point=len(records))
    assert index.read_bytes() == before
    assert read_all(log) == records


def test_every_index_and_snapshot_may_be_lost(tmp_path: Path) -> None:
    log = filled(tmp_path)
    records = read_all(log)
    end = log.log_end_offset
    crash(log)
    for path in list(tmp_path.iterdir()):
        if path.suffix != ".log":
            path.unlink()
    log = reopened(tmp_path)
    assert read_all(log) == records
    again = log.append(
        batch_of([b"39" + bytes(90)], producer_id=3, producer_epoch=0, base_sequence=end - 1), leader_epoch=1
    )
    assert again.duplicate


def test_a_damaged_snapshot_is_passed_over(tmp_path: Path) -> None:
    log = filled(tmp_path)
    end = log.log_end_offset
    log.close(clean=True)
    for path in tmp_path.glob("*.snapshot"):
        path.write_bytes(path.read_bytes()[:-1])
    log = reopened(tmp_path, clean=True, recovery_point=end)
    assert log.append(
        batch_of([b"x"], producer_id=3, producer_epoch=0, base_sequence=end - 1), leader_epoch=1
    ).duplicate


def test_an_index_without_its_log_is_removed(tmp_path: Path) -> None:
    crash(filled(tmp_path, 3))
    for suffix in (".index", ".timeindex", ".txnindex"):
        (tmp_path / f"00000000000000000999{suffix}").write_bytes(b"")
    reopened(tmp_path)
    assert not list(tmp_path.glob("*999.*"))


def test_a_log_that_ends_before_its_start_begins_anew_there(tmp_path: Path) -> None:
    crash(filled(tmp_path, 3))
    log = reopened(tmp_path, log_start=1000)
    assert (log.log_start_offset, log.log_end_offset) == (1000, 1000)
    assert log.append(batch_of(), leader_epoch=1).base_offset == 1000
    log.check()


def test_a_log_start_inside_hides_what_is_before(tmp_path: Path) -> None:
    crash(filled(tmp_path, 30))
    log = reopened(tmp_path, log_start=20)
    assert log.log_start_offset == 20
    assert read_all(log)[0].offset == 20


def test_a_recovery_point_beyond_the_end_is_lowered(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    end = log.log_end_offset
    crash(log)
    assert reopened(tmp_path, recovery_point=end + 100).recovery_point == end


# Interrupted renames, as Kafka resolves them


def renamed(path: Path, suffix: str) -> None:
    for each in path.parent.glob(path.stem + ".*"):
        if each.suffix in (".log", ".index", ".timeindex", ".txnindex"):
            each.rename(each.with_name(each.name + suffix))


def test_files_marked_deleted_are_removed(tmp_path: Path) -> None:
    log = filled(tmp_path, 40)
    log.close(clean=True)
    first = logs(tmp_path)[0]
    renamed(first, ".deleted")
    log = reopened(tmp_path, clean=True, recovery_point=log.recovery_point)
    assert not list(tmp_path.glob("*.deleted"))
    assert log.log_start_offset == int(logs(tmp_path)[0].stem) > 0


def test_an_unfinished_cleaning_is_thrown_away(tmp_path: Path) -> None:
    log = filled(tmp_path, 40)
    records = read_all(log)
    log.close(clean=True)
    for path in (logs(tmp_path)[0], logs(tmp_path)[1]):
        shutil.copy(path, path.with_name(path.name + ".cleaned"))
    second = logs(tmp_path)[1]
    shutil.copy(second, second.with_name(second.name + ".swap"))
    log = reopened(tmp_path, clean=True, recovery_point=log.recovery_point)
    assert read_all(log) == records
    assert not [name for name in os.listdir(tmp_path) if name.endswith((".cleaned", ".swap"))]


def test_a_finished_cleaning_is_put_in_place(tmp_path: Path) -> None:
    log = filled(tmp_path, 60)
    records = read_all(log)
    log.close(clean=True)
    first, second, third = logs(tmp_path)[:3]
    # As a cleaner would: the first two segments become one, which keeps only the batches of the second.
    swapped = first.with_name(first.name + ".swap")
    shutil.copy(second, swapped)
    log = reopened(tmp_path, clean=True, recovery_point=log.recovery_point)
    assert [path.name for path in logs(tmp_path)][:2] == [first.name, third.name]
    assert not swapped.exists()
    assert values(read_all(log)) == values(records[int(second.stem) :])
    assert log.read(0, max_bytes=1, upper_bound=log.log_end_offset).length_bytes > 0


def test_what_is_cut_is_kept_aside_byte_for_byte(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    crash(filled(tmp_path))
    first, *later = [path for path in logs(tmp_path) if path.stat().st_size]
    whole = {path.name: content(path) for path in (first, *later)}
    at = len(content(first)) // 2
    damaged = bytearray(first.read_bytes())
    damaged[at] ^= 0xFF
    first.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        log = reopened(tmp_path)
    crash(log)
    cut_at = len(content(first))
    assert 0 < cut_at <= at
    kept = {path.name: path.read_bytes() for path in (tmp_path / "recovered").iterdir()}
    tail = kept.pop(f"{first.name}.at-{cut_at}")
    assert tail == bytes(damaged[cut_at:]).rstrip(b"\0")
    assert {name: data[: len(whole[name])] for name, data in kept.items()} == {
        path.name: whole[path.name] for path in later
    }
    assert f"recovered/{first.name}.at-{cut_at}" in caplog.text
    assert len(read_all(reopened(tmp_path))) == log.log_end_offset, "and it is no part of the log"


def test_what_is_kept_aside_is_bounded_and_the_newest_stays(tmp_path: Path) -> None:
    for number in range(KEPT_FILES_MAX + 5):
        path = tmp_path / f"{number:020d}.log"
        path.write_bytes(b"x" * 10)
        os.utime(path, ns=(number, number))
        assert keep_segment(path) is not None
    names = sorted(path.name for path in (tmp_path / "recovered").iterdir())
    assert names == [f"{number:020d}.log" for number in range(5, KEPT_FILES_MAX + 5)]


def test_a_death_between_the_steps_of_a_cut_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash(filled(tmp_path))
    first = logs(tmp_path)[0]
    damaged = bytearray(first.read_bytes())
    damaged[len(content(first)) // 2] ^= 0xFF
    first.write_bytes(damaged)

    class Death(Exception):
        pass

    steps = 0
    for moment in range(1, 40):
        steps = 0

        def dies_at(real: Callable[..., object], moment: int = moment) -> Callable[..., object]:
            def step(*arguments: object, **named: object) -> object:
                nonlocal steps
                steps += 1
                if steps == moment:
                    raise Death
                return real(*arguments, **named)

            return step

        here = tmp_path / f"at-{moment}"
        shutil.copytree(tmp_path, here, ignore=shutil.ignore_patterns("at-*"))
        with monkeypatch.context() as patch:
            for name in ("rename", "unlink", "mkdir"):
                patch.setattr(Path, name, dies_at(getattr(Path, name)))
            patch.setattr(os, "ftruncate", dies_at(os.ftruncate))
            with suppress(Death):
                crash(reopened(here))
        survived = reopened(here)
        offsets = [record.offset for record in read_all(survived)]
        assert offsets == list(range(len(offsets))), f"a gap after step {moment}"
        crash(survived)
        if steps < moment:
            return
    raise AssertionError(f"{steps} steps did not do")


def test_a_log_whose_newest_segment_was_shortened_after_a_clean_stop_keeps_what_is_left(
    tmp_path: Path,
) -> None:
    """The mark of a clean stop says nothing of the files: an index that says more than its segment has is found out."""
    log = filled(tmp_path / "a-0")
    log.close(clean=True)
    newest = logs(log.directory)[-1]
    first, second, *_ = [(at, header) for at, header in batches(newest.read_bytes())]
    with newest.open("r+b") as file:
        file.truncate(second[0])
    assert reopened(log.directory, clean=True).log_end_offset == first[1].next_offset


def test_a_batch_that_a_clean_stop_left_and_that_is_torn_since_is_kept_aside(tmp_path: Path) -> None:
    log = filled(tmp_path / "a-0")
    log.close(clean=True)
    newest = logs(log.directory)[-1]
    with newest.open("r+b") as file:
        file.truncate(newest.stat().st_size - 3)
    again = reopened(log.directory, clean=True)
    assert again.log_end_offset < log.log_end_offset
    assert again.is_recovered
    assert list((log.directory / "recovered").iterdir())


def test_a_follower_begins_no_segment_below_its_log_end(tmp_path: Path) -> None:
    """Its leader's segment may begin there, after a change of leaders: ours went on in the one before."""
    log = open_log(tmp_path / "a-0")
    for offset in range(10):
        log.append_as_follower(batch_of(leader_epoch=0, base_offset=offset), segment_base_offset=0)
    for offset in range(10, 14):
        log.append_as_follower(batch_of(leader_epoch=1, base_offset=offset), segment_base_offset=7)
    assert [path.name for path in logs(log.directory)] == [f"{0:020d}.log", f"{10:020d}.log"]
    assert [record.offset for record in read_all(log, start=7)] == list(range(7, 14))
    crash(log)
    assert open_log(tmp_path / "a-0").log_end_offset == 14


@pytest.mark.parametrize("recovery_point", [0, 12])
def test_a_segment_whose_name_is_below_the_end_of_the_one_before_is_kept(
    tmp_path: Path, recovery_point: int
) -> None:
    """As followers of earlier versions have left it."""
    log = open_log(tmp_path / "a-0")
    for offset in range(10):
        log.append_as_follower(batch_of(leader_epoch=0, base_offset=offset), segment_base_offset=0)
    log.roll(7)
    for offset in range(10, 14):
        log.append_as_follower(batch_of(leader_epoch=1, base_offset=offset))
    crash(log)
    end = valid_end(tmp_path / "a-0", recovery_point=recovery_point, is_compacted=False)
    assert end == LogEnd(1, 14)
    assert open_log(tmp_path / "a-0", recovery_point=recovery_point).log_end_offset == 14


def test_a_segment_that_repeats_the_one_before_is_moved_aside(tmp_path: Path) -> None:
    log = open_log(tmp_path / "a-0")
    for offset in range(10):
        log.append_as_follower(batch_of(leader_epoch=0, base_offset=offset), segment_base_offset=0)
    crash(log)
    (log.directory / f"{7:020d}.log").write_bytes(batch_of(leader_epoch=0, base_offset=7))
    again = open_log(tmp_path / "a-0")
    again.append(batch_of(), leader_epoch=1)
    assert [record.offset for record in read_all(again)] == list(range(11))
    assert [path.name for path in logs(log.directory)] == [f"{0:020d}.log"]


def test_a_recovery_says_how_far_complete_batches_went_that_it_cut(tmp_path: Path) -> None:
    log = filled(tmp_path / "a-0")
    crash(log)
    *_, newest = logs(log.directory)
    damaged = bytearray(newest.read_bytes())
    damaged[70] ^= 1
    newest.write_bytes(damaged)
    again = reopened(log.directory)
    assert again.log_end_offset < again.cut_to == log.log_end_offset


def test_a_recovery_does_not_take_a_torn_batch_for_a_complete_one(tmp_path: Path) -> None:
    log = filled(tmp_path / "a-0")
    crash(log)
    *_, newest = logs(log.directory)
    end = len(content(newest))
    newest.write_bytes(newest.read_bytes()[: end - 3])
    again = reopened(log.directory)
    assert again.log_end_offset < log.log_end_offset
    assert again.cut_to == -1
