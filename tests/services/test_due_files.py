"""The files of the index as a command reads them, while a services process writes and removes them."""

from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

from appliance.services.due_files import DueFiles, due_files
from appliance.services.due_index import SUFFIX, TAIL_SUFFIX, DueIndex
from appliance.services.due_keys import NOTHING, Key, fingerprint_of

NOW_MS = 1_800_000_000_000
TOPICS = [UUID(int=each) for each in (1, 2, 3)]


def add(index: DueIndex, count: int, *, seed: int = 1, spread_ms: int = 1_000) -> list[Key]:
    """Add entries of TOPICS, in turn by offset; each one's id is its offset modulo 100."""
    rng = random.Random(seed)
    entries = [(NOW_MS + rng.randrange(spread_ms), index.read_to + each) for each in range(count)]
    index.add(
        index.read_to + count,
        [due for due, _ in entries],
        [offset for _, offset in entries],
        [(fingerprint_of(UUID(int=1), 0, b"%d" % (offset % 100)), due, offset) for due, offset in entries],
        topics=[index.number_of(TOPICS[offset % 3]) for _, offset in entries],
        newest_ms=NOW_MS,
        batches={},
    )
    return entries


def opened(directory: Path, position: int = 0) -> DueFiles:
    return due_files(directory, "exact_1h-0-ab", position)


def made(directory: Path) -> DueIndex:
    index = DueIndex(directory, "exact_1h-0-ab")
    list(index.load(0, 0, uptime_ms=NOW_MS))
    return index


def soonest(files: DueFiles, *topics: UUID, frontier: Key = NOTHING) -> list[Key]:
    return list(files.soonest(topics, frontier))


def test_run_files_and_the_tail_file_are_one_index(tmp_path: Path) -> None:
    index = made(tmp_path)
    entries = add(index, 900)
    index.write(NOTHING)
    entries += add(index, 800, seed=2)
    index.write(NOTHING)
    entries += add(index, 700, seed=3)
    index.write_tail(NOTHING)
    add(index, 50, seed=4)  # in no file
    files = opened(tmp_path)
    assert (files.first, files.end) == (0, 2_400)
    assert soonest(files, *TOPICS) == sorted(entries)
    of_second = sorted(each for each in entries if each[1] % 3 == 1)
    assert soonest(files, TOPICS[1]) == of_second
    assert soonest(files, UUID(int=9)) == []
    frontier = of_second[300]
    assert soonest(files, TOPICS[1], frontier=frontier) == of_second[301:]
    waiting = [each for each in entries if each > frontier]
    assert files.counts(frontier) == {
        topic: sum(offset % 3 == number for _, offset in waiting) for number, topic in enumerate(TOPICS)
    }
    found = files.find([fingerprint_of(UUID(int=1), 0, b"7"), 5], frontier)
    assert found == sorted(offset for _, offset in waiting if offset % 100 == 7)


def test_files_of_before_the_position_and_of_others_are_passed_over(tmp_path: Path) -> None:
    index = made(tmp_path)
    add(index, 100)
    index.write(NOTHING)
    entries = add(index, 100, seed=2)
    index.write(NOTHING)
    other = DueIndex(tmp_path, "exact_1h-0-cd")  # of a topic that was deleted
    list(other.load(0, 0, uptime_ms=NOW_MS))
    add(other, 500)
    other.write(NOTHING)
    (tmp_path / "exact_1h-0-ab-x-y.run").write_bytes(b"")
    (tmp_path / f"exact_1h-0-ab-{200:020}-{300:020}.new").write_bytes(b"half")
    files = opened(tmp_path, 130)
    assert (files.first, files.end) == (100, 200)
    assert soonest(files, *TOPICS) == sorted(entries)


def test_a_gap_ends_what_the_files_cover(tmp_path: Path) -> None:
    index = made(tmp_path)
    for seed in range(3):
        add(index, 100, seed=seed)
        index.write(NOTHING)
    sorted(tmp_path.glob(f"*{SUFFIX}"))[1].unlink()
    assert opened(tmp_path).end == 100
    assert opened(tmp_path, 250).end == 300
    min(tmp_path.glob(f"*{SUFFIX}")).unlink()
    files = opened(tmp_path, 7)
    assert (files.first, files.end, soonest(files, *TOPICS)) == (7, 7, [])


def test_a_file_that_is_none_ends_the_search(tmp_path: Path) -> None:
    index = made(tmp_path)
    add(index, 100)
    index.write(NOTHING)
    (path,) = tmp_path.iterdir()
    for content in (b"", path.read_bytes()[:-3], b"x" * 200):
        path.write_bytes(content)
        assert opened(tmp_path, 3).end == 3


def test_the_longest_of_two_files_counts_while_one_replaces_the_other(tmp_path: Path) -> None:
    index = made(tmp_path)
    add(index, 2_500)
    index.write_tail(NOTHING)
    (tail,) = tmp_path.glob(f"*{TAIL_SUFFIX}")
    content = tail.read_bytes()
    add(index, 2_500, seed=2)
    index.write(NOTHING)
    assert not tail.exists()
    tail.write_bytes(content)  # as between the two steps
    files = opened(tmp_path)
    assert files.end == 5_000
    assert len(soonest(files, *TOPICS)) == 5_000


def test_a_look_up_goes_on_in_files_that_are_removed(tmp_path: Path) -> None:
    index = made(tmp_path)
    entries = add(index, 5_000)
    index.write(NOTHING)
    files = opened(tmp_path)
    keys = files.soonest(TOPICS, NOTHING)
    first = [next(keys) for _ in range(10)]
    for path in tmp_path.iterdir():
        path.unlink()
    assert first + list(keys) == sorted(entries)
