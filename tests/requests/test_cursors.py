"""Cursors: who reads a log in order is led through it whole, without gap or overlap, and seldom asks its owner."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack
from uuid import uuid4

import pytest

from appliance.log.config import LogSettings
from appliance.log.file_names import LOG, OFFSET_INDEX, segment_file_name
from appliance.log.partition_log import PartitionLog
from appliance.protocol.records.batch import batches
from appliance.requests.cursors import NOTHING, Cursors, _entry_before
from appliance.requests.segment_files import SegmentFiles
from appliance.requests.topic_routes import PartitionRoute
from tests.log.batches import batch_of, open_log

ROUTE = PartitionRoute("t", uuid4(), 0, 7, 1, 0, 0, None, 0)
SMALL = LogSettings(segment_bytes=200_000, index_interval_bytes=512)


class Reader:
    """Fetches as the network process does: from a cursor where there is one, else from the owner."""

    def __init__(self, log: PartitionLog, directory: Path) -> None:
        self.log = log
        self.version = 0
        self.files = SegmentFiles({0: (directory,)}, is_served=lambda _: True, version=lambda _: self.version)
        self.cursors = Cursors(self.files)
        self.asked = 0
        self.announced: dict[int, int] = {}  # bytes that were said to follow, by their position
        self.led: dict[int, int] = {}

    def fetch(
        self,
        offset: int,
        *,
        max_bytes: int,
        upper_bound: int | None = None,
        settled_below: int = -1,
        read_committed: bool = False,
    ) -> bytes:
        """The records of one answer."""
        bound = self.log.log_end_offset if upper_bound is None else upper_bound
        cursor = self.cursors.find(ROUTE, offset, files_version=self.version)
        if cursor is not None:
            length_bytes, following_bytes, _ = self.cursors.advance(
                ROUTE, cursor, max_bytes=max_bytes, upper_bound=bound, read_committed=read_committed
            )
            self.announced[cursor.position + length_bytes] = following_bytes
            self.led[cursor.position] = length_bytes
            if length_bytes:
                return self.sent(cursor.segment, cursor.position, length_bytes)
        self.asked += 1
        found = self.log.read(offset, max_bytes=max_bytes, upper_bound=bound)
        length_bytes = found.length_bytes
        if length_bytes == max_bytes > found.first_batch_bytes:
            held = self.files.hold(ROUTE, found.segment_base_offset, version=self.version)
            length_bytes, following_bytes, _ = self.cursors.follow(
                ROUTE,
                held,
                directory=0,
                segment=found.segment_base_offset,
                position=found.position,
                length_bytes=length_bytes,
                upper_bound=bound,
                settled_below=settled_below,
            )
            held.release()
            self.announced[found.position + length_bytes] = following_bytes
        return self.sent(found.segment_base_offset, found.position, length_bytes)

    def sent(self, segment: int, position: int, length_bytes: int) -> bytes:
        held = self.files.hold(ROUTE, segment, version=self.version)
        try:
            return os.pread(held.fd, length_bytes, position)
        finally:
            held.release()

    def read_on(
        self, offset: int, *, max_bytes: int, upper_bound: int | None = None
    ) -> list[tuple[int, int]]:
        """(base offset, last offset) of every batch from `offset` to the bound, answer by answer."""
        bound = self.log.log_end_offset if upper_bound is None else upper_bound
        found: list[tuple[int, int]] = []
        while offset < bound:
            whole = list(batches(self.fetch(offset, max_bytes=max_bytes, upper_bound=bound)))
            assert whole, f"nothing at {offset} of {bound}"
            found += [(header.base_offset, header.last_offset) for _, header in whole]
            offset = found[-1][1] + 1
        return found


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with reading(tmp_path, SMALL) as made:
        yield made


@contextmanager
def reading(directory: Path, settings: LogSettings) -> Iterator[Reader]:
    """A reader of a log under `directory`; both are closed afterwards."""
    (directory / "t-0").mkdir()
    made = Reader(open_log(directory / "t-0", settings=settings), directory)
    try:
        yield made
    finally:
        made.files.close()
        made.log.close(clean=False)


def fill(log: PartitionLog, sizes: list[int]) -> list[tuple[int, int]]:
    """Appends a batch of one to three records for each size; (base offset, last offset) of each."""
    made: list[tuple[int, int]] = []
    for size_bytes in sizes:
        count = 1 + size_bytes % 3
        base = log.log_end_offset
        log.append(batch_of([bytes(size_bytes // count)] * count), leader_epoch=0)
        made.append((base, log.log_end_offset - 1))
    return made


@pytest.mark.parametrize("seed", range(6))
def test_every_batch_is_read_once_whatever_their_sizes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    settings = LogSettings(segment_bytes=150_000, index_interval_bytes=chance.choice((1, 512, 4096)))
    with reading(tmp_path, settings) as reader:
        largest = chance.choice((200, 3_000, 20_000))
        made = fill(reader.log, [chance.randrange(1, largest) for _ in range(400)])
        for max_bytes in (1_000, 9_000, 40_000, 1 << 20):
            bound = chance.choice(made)[0]
            assert reader.read_on(0, max_bytes=max_bytes) == made
            assert reader.read_on(0, max_bytes=max_bytes, upper_bound=bound) == [
                one for one in made if one[1] < bound
            ]


def test_the_owner_is_asked_once_a_segment_and_at_its_end(reader: Reader) -> None:
    made = fill(reader.log, [1_000] * 1_000)
    assert reader.read_on(0, max_bytes=10_000) == made
    segments = 1 + made[-1][0] * 1_000 // SMALL.segment_bytes
    assert reader.asked <= 3 * segments < 100


def test_what_is_less_than_was_asked_for_is_the_owners_to_find(reader: Reader) -> None:
    """A reader who wants so much at least waits for it, and must not be told that it is there."""
    made = fill(reader.log, [1_000] * 100)
    following = [each for _, each in batches(reader.fetch(0, max_bytes=9_000))][-1].next_offset
    cursor = reader.cursors.find(ROUTE, following, files_version=0)
    assert cursor is not None
    readable = [bound for base, bound in made if base >= following]

    def led(batches_readable: int) -> int:
        assert cursor is not None
        return reader.cursors.advance(
            ROUTE,
            cursor,
            max_bytes=9_000,
            upper_bound=readable[batches_readable - 1] + 1,
            read_committed=False,
        )[0]

    assert [led(count) > 0 for count in (1, 5, 8, 12)] == [False, False, False, True]


@pytest.mark.parametrize(("interval", "max_bytes"), [(1, 200_000), (60_000, 48_000)])
def test_an_index_of_many_entries_or_few_cuts_no_answer_to_a_piece(
    tmp_path: Path, interval: int, max_bytes: int
) -> None:
    settings = LogSettings(segment_bytes=4 << 20, index_interval_bytes=interval)
    with reading(tmp_path, settings) as reader:
        fill(reader.log, [50] * 10_000)
        offset = answers = 0
        while offset < reader.log.log_end_offset:
            answers += 1
            for _, header in batches(reader.fetch(offset, max_bytes=max_bytes)):
                offset = header.next_offset
        assert 2 * answers <= 3 * (1 + reader.log.size_bytes // max_bytes)


def test_what_is_said_to_follow_is_what_comes_next(tmp_path: Path) -> None:
    """It is read ahead: anything else would be read in vain."""
    with reading(tmp_path, LogSettings(index_interval_bytes=512)) as reader:
        fill(reader.log, [1_000] * 500)
        reader.read_on(0, max_bytes=10_000)
        followed = [position for position in reader.led if position in reader.announced]
        assert len(followed) > 40
        assert [reader.led[position] for position in followed[:-1]] == [
            reader.announced[position] for position in followed[:-1]
        ]


def test_what_is_said_to_follow_is_there_whatever_the_index_held_before(tmp_path: Path) -> None:
    """A follower has cut what was never committed, and leads now: its index still has what was there behind its end."""
    with reading(tmp_path, LogSettings()) as reader:
        log = reader.log
        fill(log, [999] * 600)
        log.truncate_to(300)
        log._active.lay_down()
        for _ in range(25):
            log.append(batch_of([bytes(50)] * 20), leader_epoch=1)
        reader.fetch(150, max_bytes=100_000)
        assert reader.announced
        for position, following_bytes in reader.announced.items():
            assert position + following_bytes <= log.size_bytes


def test_two_readers_at_different_places_do_not_meet(reader: Reader) -> None:
    made = fill(reader.log, [1_000] * 150)
    one, other = 0, made[40][0]
    for _ in range(8):
        for header in [each for _, each in batches(reader.fetch(one, max_bytes=9_000))]:
            assert header.base_offset == one
            one = header.next_offset
        for header in [each for _, each in batches(reader.fetch(other, max_bytes=7_000))]:
            assert header.base_offset == other
            other = header.next_offset


def test_a_cursor_counts_only_for_the_files_it_was_made_for(reader: Reader) -> None:
    fill(reader.log, [1_000] * 100)
    following = [each for _, each in batches(reader.fetch(0, max_bytes=9_000))][-1].next_offset
    assert reader.cursors.find(ROUTE, following, files_version=0) is not None
    assert reader.cursors.find(ROUTE, following, files_version=2) is None
    assert reader.cursors.find(ROUTE, following, files_version=0) is None, "forgotten with the first doubt"


def test_a_swap_between_the_look_and_the_opening_asks_the_owner(reader: Reader) -> None:
    fill(reader.log, [1_000] * 100)
    following = [each for _, each in batches(reader.fetch(0, max_bytes=9_000))][-1].next_offset
    cursor = reader.cursors.find(ROUTE, following, files_version=0)
    assert cursor is not None
    reader.version = 2
    assert (
        reader.cursors.advance(ROUTE, cursor, max_bytes=9_000, upper_bound=100, read_committed=False)
        == NOTHING
    )


def test_no_cursor_is_made_while_files_change(reader: Reader) -> None:
    fill(reader.log, [1_000] * 100)
    reader.version = 1
    assert len(reader.fetch(0, max_bytes=9_000)) == 9_000
    assert reader.cursors.statistics() == {"cursors": 0}


def test_a_read_committed_reader_goes_on_only_where_somebody_looked_for_aborted_transactions(
    reader: Reader,
) -> None:
    made = fill(reader.log, [1_002] * 100)
    reader.fetch(0, max_bytes=9_000)
    cursor_at = next(iter(reader.cursors._by_place))[1]
    cursor = reader.cursors.find(ROUTE, cursor_at, files_version=0)
    assert cursor is not None
    bound = made[-1][1]
    assert (
        reader.cursors.advance(ROUTE, cursor, max_bytes=9_000, upper_bound=bound, read_committed=True)
        == NOTHING
    )
    settled = made[20][0]
    reader.fetch(cursor_at - 3, max_bytes=9_000, settled_below=settled)
    place = max(reader.cursors._by_place)[1]
    while place < settled - 9:
        place = [
            each
            for _, each in batches(
                reader.fetch(place, max_bytes=5_000, settled_below=settled, read_committed=True)
            )
        ][-1].next_offset
        assert place <= settled
    before = reader.asked
    reader.fetch(settled, max_bytes=5_000, settled_below=settled, read_committed=True)
    assert reader.asked == before + 1


def test_an_index_that_says_something_else_than_the_log_is_not_believed(
    reader: Reader, tmp_path: Path
) -> None:
    """Its last entry may be half written; and whole files come from elsewhere."""
    made = fill(reader.log, [1_000] * 150)
    following = [each for _, each in batches(reader.fetch(0, max_bytes=9_000))][-1].next_offset
    index = tmp_path / "t-0" / segment_file_name(0, OFFSET_INDEX)
    content = bytearray(index.read_bytes())
    for at in range(6, len(content), 8):
        content[at] ^= 1  # 256 bytes further on or back
    with index.open("r+b") as file:
        file.write(content)
    cursor = reader.cursors.find(ROUTE, following, files_version=0)
    assert cursor is not None
    assert (
        reader.cursors.advance(ROUTE, cursor, max_bytes=9_000, upper_bound=150, read_committed=False)
        == NOTHING
    )
    before = reader.asked
    assert reader.read_on(following, max_bytes=9_000) == [one for one in made if one[0] >= following]
    assert reader.asked > before + 10


def test_the_least_recently_used_are_forgotten(reader: Reader) -> None:
    reader.cursors = Cursors(reader.files, limit=3)
    made = fill(reader.log, [1_000] * 100)
    assert reader.read_on(0, max_bytes=5_000) == made
    assert reader.cursors.statistics() == {"cursors": 3}


def test_an_index_that_is_gone_or_no_file_asks_the_owner(reader: Reader, tmp_path: Path) -> None:
    made = fill(reader.log, [1_000] * 100)
    (tmp_path / "t-0" / segment_file_name(0, OFFSET_INDEX)).unlink()
    assert reader.read_on(0, max_bytes=9_000) == made
    assert reader.cursors.statistics() == {"cursors": 0}
    assert (tmp_path / "t-0" / segment_file_name(0, LOG)).exists()


def test_the_entry_before_a_place_is_found_in_short_and_long_indexes_with_anything_behind_their_end(
    tmp_path: Path,
) -> None:
    randomly = random.Random(7)
    for entries in (0, 1, 2, 511, 512, 513, 3000):
        places = sorted(randomly.sample(range(61, 61 + 61 * 8 * (entries + 1), 61), entries))
        # An index is allocated ahead: zeros behind its end, or what was there before the log was cut.
        behind = [(0, 0)] * 700 if entries % 2 else [(5, -1)] * 700
        path = tmp_path / f"{entries}.index"
        path.write_bytes(b"".join(pack(">ii", number, at) for number, at in [*enumerate(places), *behind]))
        with path.open("rb") as index:
            for position in [0, 60, 61, *randomly.sample(range(61 * 8 * (entries + 2)), 60), 1 << 30]:
                wanted = max(sum(at <= position for at in places) - 1, 0)
                assert _entry_before(index.fileno(), position) == wanted
