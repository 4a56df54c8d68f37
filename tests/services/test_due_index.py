from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from uuid import UUID

import pytest

from appliance.delivery.waiting import Origin
from appliance.services.due_index import RUN_RECORDS, SUFFIX, TAIL_RECORDS, DueIndex, read_run
from appliance.services.due_keys import EVERYTHING, NOTHING, Batches, Key, fingerprint_of

NOW_MS = 1_800_000_000_000


def filled(
    directory: Path | None, entries: list[Key], *, read: int = 7, runs: int = 0, frontier: Key = NOTHING
) -> DueIndex:
    """Return an index of entries whose offsets ascend, `read` of them at a time; `runs`: write so many files."""
    index = DueIndex(directory, "x")
    list(index.load(0, 0, uptime_ms=NOW_MS))
    writes = {len(entries) * (number + 1) // (runs + 1) // read * read for number in range(runs)}
    for at in range(0, len(entries), read):
        if at in writes:
            index.write(frontier)
        some = entries[at : at + read]
        index.add(
            some[-1][1] + 1,
            [due for due, _ in some],
            [offset for _, offset in some],
            [(fingerprint_of(UUID(int=1), 0, b"%d" % (offset % 50)), due, offset) for due, offset in some],
            topics=[index.number_of(UUID(int=1 + offset % 3)) for _, offset in some],
            newest_ms=NOW_MS,
            batches={(UUID(int=1), 0, Origin(5, 0, at)): some[-1][1]},
        )
        index.check()
    return index


def all_of(index: DueIndex, key: Key = NOTHING, *, count: int = 10) -> list[Key]:
    found: list[Key] = []
    while True:
        dues, offsets = index.next(key, count)
        if not len(dues):
            return found
        assert len(dues) <= count
        found += zip(dues.tolist(), offsets.tolist(), strict=True)
        key = found[-1]


@pytest.mark.parametrize("runs", [0, 1, 5])
@pytest.mark.parametrize("dues", [3, 100_000], ids=["many-at-once", "spread"])
def test_entries_come_in_due_order_whatever_run_they_are_in(tmp_path: Path, runs: int, dues: int) -> None:
    rng = random.Random(5)
    entries = [(NOW_MS + rng.randrange(dues), offset) for offset in range(0, 3_000, 2)]
    index = filled(tmp_path, entries, runs=runs)
    assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == runs
    assert all_of(index) == sorted(entries)
    middle = sorted(entries)[700]
    assert all_of(index, middle, count=64) == [each for each in sorted(entries) if each > middle]
    assert index.waiting(middle) == len(entries) - 701
    waiting = [offset for due, offset in entries if (due, offset) > middle]
    assert index.oldest(middle, precisely=True) == min(waiting)
    assert index.oldest(middle) <= min(waiting)


def test_files_are_taken_again_up_to_where_they_are_wanted(tmp_path: Path) -> None:
    entries = [(NOW_MS + offset * 31 % 1_000, offset) for offset in range(2_100)]
    filled(tmp_path, entries, runs=2)
    index = DueIndex(tmp_path, "x")
    batches: Batches = {}
    for each in index.load(
        0, 1_500, uptime_ms=NOW_MS
    ):  # the third part was in memory, and the second file ends at 1,400
        batches |= each
    index.check()
    assert index.read_to == 1_400
    assert all_of(index) == sorted(entries[:1_400])
    assert max(batches.values()) == 1_399
    index = DueIndex(tmp_path, "x")
    list(index.load(0, 1_399, uptime_ms=NOW_MS))
    assert index.read_to == 700
    assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "empty"])
def test_a_damaged_file_is_no_index(tmp_path: Path, damage: str) -> None:
    entries = [(NOW_MS + offset, offset) for offset in range(2_100)]
    filled(tmp_path, entries, runs=2)
    second = sorted(tmp_path.glob(f"*{SUFFIX}"))[1]
    content = bytearray(second.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        second.unlink()
    else:
        second.write_bytes({"cut": bytes(content[:-9]), "flipped": bytes(content), "empty": b""}[damage])
    index = DueIndex(tmp_path, "x")
    list(index.load(0, 5_000, uptime_ms=NOW_MS))
    index.check()
    assert index.read_to == 700
    assert all_of(index) == entries[:700]


def test_files_that_do_not_reach_back_to_the_position_are_not_used(tmp_path: Path) -> None:
    entries = [(NOW_MS + offset, offset) for offset in range(2_100)]
    filled(tmp_path, entries, runs=2)
    min(tmp_path.glob(f"*{SUFFIX}")).unlink()
    index = DueIndex(tmp_path, "x")
    list(index.load(10, 5_000, uptime_ms=NOW_MS))
    assert (index.read_to, all_of(index)) == (0, [])
    assert not list(tmp_path.glob(f"*{SUFFIX}"))


def test_what_is_delivered_is_not_written_and_its_file_is_removed(tmp_path: Path) -> None:
    entries = [(NOW_MS + offset, offset) for offset in range(210)]
    index = filled(tmp_path, entries)
    index.write(entries[99])
    assert all_of(index) == entries[100:]
    index.forget(entries[-2], before_ms=NOW_MS + 1)
    assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == 1
    index.forget(entries[-1], before_ms=NOW_MS)
    assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == 1  # its batches can come again
    index.forget(entries[-1], before_ms=NOW_MS + 1)
    assert not list(tmp_path.iterdir())
    index.check()


def test_a_full_disk_keeps_what_is_in_memory(tmp_path: Path) -> None:
    entries = [(NOW_MS + offset, offset) for offset in range(210)]
    index = filled(tmp_path / "gone", entries)
    with pytest.raises(OSError, match="gone"):
        index.write(NOTHING)
    assert all_of(index) == entries
    (tmp_path / "gone").mkdir()
    index.write(NOTHING)
    assert (index.memory_entries, all_of(index)) == (0, entries)


def test_ids_are_found_while_their_records_wait(tmp_path: Path) -> None:
    entries = [(NOW_MS + offset * 7 % 100, offset) for offset in range(2_100)]
    index = filled(tmp_path, entries, runs=2)
    wanted = [fingerprint_of(UUID(int=1), 0, b"7"), fingerprint_of(UUID(int=1), 1, b"7")]
    found = index.find(wanted, NOTHING)
    assert {which for which, _ in found} == {0}
    assert sorted(offset for _, (_, offset) in found) == list(range(7, 2_100, 50))
    frontier = (NOW_MS + 50, 0)
    assert {key for _, key in index.find(wanted, frontier)} == {key for _, key in found if key > frontier}


def test_the_end_of_a_log_that_was_lost_is_forgotten(tmp_path: Path) -> None:
    entries = [(NOW_MS + offset, offset) for offset in range(2_100)]
    index = filled(tmp_path, entries, runs=2)
    index.cut(1_399)
    index.check()
    assert (index.read_to, all_of(index)) == (700, entries[:700])


def test_a_start_has_the_batches_of_one_file_in_memory_and_none_that_are_old(tmp_path: Path) -> None:
    index = DueIndex(tmp_path, "x")
    list(index.load(0, 0, uptime_ms=NOW_MS))
    old, each = 8, 2_000
    for at in range(0, 16 * each, each):  # each record in a batch of its own
        newest_ms = NOW_MS - (3_600_000 if at < old * each else 1_000)
        offsets = list(range(at, at + each))
        batches = {(UUID(int=1), 0, Origin(5, 0, offset)): offset for offset in offsets}
        index.add(
            at + each,
            offsets,
            offsets,
            [],
            topics=[index.number_of(UUID(int=1))] * len(offsets),
            newest_ms=newest_ms,
            batches=batches,
        )
        index.write(NOTHING)
    index = DueIndex(tmp_path, "x")
    found = []
    tracemalloc.start()
    try:
        for some in index.load(0, 16 * each, uptime_ms=NOW_MS):
            found.append((min(some.values()), max(some.values())))
            some.clear()
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [(at, at + each - 1) for at in range(old * each, 16 * each, each)]
    assert peak_bytes < 3 * each * 600


def test_old_batches_take_no_memory_while_a_log_is_read_again(tmp_path: Path) -> None:
    index = DueIndex(tmp_path, "x")
    list(index.load(0, 0, uptime_ms=NOW_MS))
    for at, stored_ms in ((0, NOW_MS - 3_600_000), (10, NOW_MS)):
        offsets = list(range(at, at + 10))
        batches = {(UUID(int=1), 0, Origin(5, 0, at)): at + 9}
        index.add(
            at + 10,
            offsets,
            offsets,
            [],
            topics=[index.number_of(UUID(int=1))] * len(offsets),
            newest_ms=stored_ms,
            batches=batches,
        )
    index.write(NOTHING)
    index = DueIndex(tmp_path, "x")
    (batches,) = index.load(0, 20, uptime_ms=NOW_MS)
    assert list(batches.values()) == [19]


def test_what_a_dead_writer_left_is_removed(tmp_path: Path) -> None:
    filled(tmp_path, [(NOW_MS + offset, offset) for offset in range(2_100)], runs=1)
    left = next(tmp_path.iterdir()).with_suffix(".new")
    left.write_bytes(b"half")
    list(DueIndex(tmp_path, "x").load(0, 5_000, uptime_ms=NOW_MS))
    assert not left.exists()


def test_what_is_in_memory_is_in_a_tail_file_until_a_run_file_has_it(tmp_path: Path) -> None:
    entries = [(NOW_MS + offset * 7 % 100, offset) for offset in range(TAIL_RECORDS - 3)]
    index = filled(tmp_path, entries)
    wanted = [index.wants_tail]
    more = [(NOW_MS, offset) for offset in range(TAIL_RECORDS - 3, TAIL_RECORDS)]
    for due, offset in more:
        index.add(offset + 1, [due], [offset], [], topics=[0], newest_ms=NOW_MS, batches={})
    wanted.append(index.wants_tail)
    index.write_tail(NOTHING)
    wanted.append(index.wants_tail)
    assert wanted == [False, True, False]
    (path,) = tmp_path.iterdir()
    run = read_run(path)
    assert run is not None
    assert list(zip(run.dues.tolist(), run.offsets.tolist(), strict=True)) == sorted(entries + more)
    assert {run.topics.table[each] for each in run.topics.numbers} == {UUID(int=each) for each in (1, 2, 3)}
    assert all_of(index) == sorted(entries + more)
    index.write(NOTHING)
    assert [each.suffix for each in tmp_path.iterdir()] == [SUFFIX]


def test_a_topic_is_known_behind_a_merge_and_a_file(tmp_path: Path) -> None:
    entries = [(NOW_MS + offset * 7_919 % 1_009, offset) for offset in range(1_001)]
    filled(tmp_path, entries, runs=1)
    (path,) = tmp_path.iterdir()
    run = read_run(path)
    assert run is not None
    found = {
        int(offset): run.topics.table[number]
        for offset, number in zip(run.offsets, run.topics.numbers, strict=True)
    }
    assert found == {offset: UUID(int=1 + offset % 3) for offset in range(run.end)}


def test_memory_is_bounded_by_a_run(tmp_path: Path) -> None:
    index = DueIndex(tmp_path, "x")
    list(index.load(0, 0, uptime_ms=NOW_MS))
    for at in range(0, RUN_RECORDS, 4_096):
        assert not index.is_full
        dues = list(range(at, at + 4_096))
        index.add(
            at + 4_096,
            dues,
            dues,
            [],
            topics=[index.number_of(UUID(int=1))] * len(dues),
            newest_ms=0,
            batches={},
        )
    assert index.is_full
    index.write(NOTHING)
    assert (index.is_full, index.memory_entries, len(index)) == (False, 0, RUN_RECORDS)


def test_a_file_of_a_time_before_the_host_was_started_is_kept_for_long_enough_and_no_longer(
    tmp_path: Path,
) -> None:
    filled(tmp_path, [(NOW_MS + offset, offset) for offset in range(100)], runs=1)  # after NOW_MS of uptime
    index = DueIndex(tmp_path, "x")
    uptime_ms = 60_000
    list(index.load(0, 5_000, uptime_ms=uptime_ms))
    index.forget(EVERYTHING, before_ms=uptime_ms)
    assert len(list(tmp_path.iterdir())) == 1
    index.forget(EVERYTHING, before_ms=uptime_ms + 1)
    assert not list(tmp_path.iterdir())
