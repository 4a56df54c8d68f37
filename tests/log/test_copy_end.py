"""Where another slot's copy ends: the comparison reads what the copy's own recovery would keep, and changes nothing."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.log.config import LogSettings
from appliance.log.copy_end import LogEnd, claimed_end, lacks_begin, sound_end_behind, valid_end
from appliance.log.partition_log import PartitionLog
from appliance.protocol.records.batch import batches
from tests.log.batches import NOW_MS, batch_of, crash, open_log

SETTINGS = LogSettings(segment_bytes=3000, index_interval_bytes=250)
RECORDS = 60


def filled(directory: Path, count: int = RECORDS, *, epoch: int = 1) -> PartitionLog:
    """A log of several segments whose owner has died."""
    log = open_log(directory, settings=SETTINGS)
    for number in range(count):
        log.append(batch_of([b"%d" % number + bytes(90)], timestamp_ms=NOW_MS), leader_epoch=epoch)
    crash(log)
    return log


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def ends(path: Path) -> list[int]:
    return [at + header.size_bytes for at, header in batches(path.read_bytes())]


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}


def test_a_log_that_nothing_happened_to_ends_where_its_owner_left_it(tmp_path: Path) -> None:
    filled(tmp_path / "a-0")
    assert claimed_end(tmp_path / "a-0") == LogEnd(1, RECORDS)
    assert valid_end(tmp_path / "a-0", recovery_point=0, is_compacted=False) == LogEnd(1, RECORDS)


@pytest.mark.parametrize("seed", range(40))
def test_the_valid_end_is_where_a_recovery_ends_the_log(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    directory = tmp_path / "a-0"
    filled(directory)
    recovery_point = chance.choice((0, 0, chance.randrange(RECORDS)))
    for _ in range(chance.randint(1, 2)):
        path = chance.choice(segments(directory))
        data = path.read_bytes()
        size_bytes = ends(path)[-1] if ends(path) else 1
        match chance.choice(("cut", "flip", "zero", "remove")):
            case "cut":
                path.write_bytes(data[: chance.randrange(size_bytes)])
            case "flip":
                flip(path, chance.randrange(size_bytes), chance.randrange(8))
            case "zero":
                at = chance.randrange(size_bytes)
                path.write_bytes(data[:at] + bytes(len(data) - at))
            case "remove" if path != segments(directory)[0]:
                path.unlink()
    before = content(directory)
    claimed = claimed_end(directory)
    end = valid_end(directory, recovery_point=recovery_point, is_compacted=False)
    assert content(directory) == before
    shutil.copytree(directory, tmp_path / "b-0")
    recovered = open_log(tmp_path / "b-0", settings=SETTINGS, recovery_point=recovery_point)
    assert end is not None
    assert claimed is not None
    assert end.offset == recovered.log_end_offset
    assert end.epoch == (1 if end.offset else -1)
    assert claimed.offset >= end.offset, "what is claimed bounds what is valid"
    assert valid_end(tmp_path / "b-0", recovery_point=recovery_point, is_compacted=False) == end


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_hole_between_segments_ends_a_log_that_compaction_did_not_make_it_in(
    tmp_path: Path, *, is_compacted: bool
) -> None:
    directory = tmp_path / "a-0"
    filled(directory)
    first, second, *_ = segments(directory)
    with first.open("r+b") as file:
        file.truncate(ends(first)[-3])
    end = valid_end(directory, recovery_point=0, is_compacted=is_compacted)
    assert end == LogEnd(1, RECORDS if is_compacted else int(second.stem) - 2)


def test_a_later_epoch_counts_more_than_more_records() -> None:
    assert LogEnd(2, 10).is_beyond(LogEnd(1, 20))
    assert LogEnd(2, 11).is_beyond(LogEnd(2, 10))
    assert not LogEnd(2, 10).is_beyond(LogEnd(2, 10))
    assert not LogEnd(1, 20).is_beyond(LogEnd(2, 10))


def test_a_log_without_batches_is_compared_by_its_offset_alone() -> None:
    """Retention and DeleteRecords empty a log: the copy that still has files has no more than that."""
    assert not LogEnd(3, 50).is_beyond(LogEnd(-1, 50))
    assert LogEnd(3, 51).is_beyond(LogEnd(-1, 50))
    assert LogEnd(-1, 60).is_beyond(LogEnd(3, 50))


def test_a_missing_directory_has_no_end(tmp_path: Path) -> None:
    assert claimed_end(tmp_path / "a-0") is None
    assert valid_end(tmp_path / "a-0", recovery_point=0, is_compacted=False) is None


Damage = Callable[[bytearray], None]


def flip_a_value(data: bytearray) -> None:
    data[66] ^= 1


def garble_the_length(data: bytearray) -> None:
    data[9] ^= 1


@pytest.mark.parametrize("damage", [flip_a_value, garble_the_length])
def test_a_batch_behind_a_damaged_one_is_found(damage: Damage) -> None:
    data = bytearray(batch_of([b"1"], base_offset=7)) + batch_of([b"2", b"3"], base_offset=8)
    damage(data)
    assert sound_end_behind(bytes(data), 7) == 10


def test_behind_a_torn_batch_there_is_none() -> None:
    whole = bytes(batch_of([b"1" * 100], base_offset=7))
    assert sound_end_behind(whole[:-3], 7) is None
    assert sound_end_behind(whole[:90] + bytes(4000), 7) is None


def test_a_copy_whose_first_segment_lost_all_its_pages_lacks_its_beginning(tmp_path: Path) -> None:
    directory = tmp_path / "a-0"
    filled(directory)
    assert not lacks_begin(directory, log_start=0, is_compacted=False)
    first, second, *_ = segments(directory)
    first.write_bytes(bytes(first.stat().st_size))
    assert lacks_begin(directory, log_start=0, is_compacted=False)
    assert not lacks_begin(directory, log_start=0, is_compacted=True), "compaction empties segments"
    log = open_log(directory, settings=SETTINGS)
    assert log.lacks_begin
    assert log.log_start_offset == int(second.stem)


def test_a_copy_that_was_shortened_from_the_front_lacks_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "a-0"
    filled(directory)
    first, second, *_ = segments(directory)
    first.unlink()
    assert lacks_begin(directory, log_start=0, is_compacted=False)
    assert not lacks_begin(directory, log_start=int(second.stem), is_compacted=False)
