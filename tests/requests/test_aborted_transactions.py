"""What a network process reads off the disk of aborted transactions is what the owner of the log knows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final
from uuid import uuid4

import pytest

from appliance.log.config import LogSettings
from appliance.log.file_names import LOG, TRANSACTION_INDEX, segment_file_name
from appliance.log.producer_state import AppendOrigin
from appliance.log.transaction_index import AbortedTransaction, encode_transactions
from appliance.requests.aborted_transactions import AbortedTransactions, aborted_in
from appliance.requests.segment_files import SegmentFiles
from appliance.requests.segment_replaced import SegmentReplaced
from appliance.requests.topic_routes import PartitionRoute
from tests.log.batches import batch_of, crash, marker, open_log

_TRANSACTIONAL: Final = 0x10
ROUTE: Final = PartitionRoute("t", uuid4(), 0, 7, 1, 0, 0, None, 0)


def test_the_indexes_tell_a_reader_what_the_owner_knows(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=LogSettings(segment_bytes=900))
    for number in range(30):
        producer_id = number % 3
        batch = batch_of(
            [b"%d" % number],
            attributes=_TRANSACTIONAL,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=number // 3,
        )
        log.append(batch, leader_epoch=0, transaction_verified=True)
        if number % 4 == 3:
            log.append(
                marker(committed=number % 8 == 3, producer_id=producer_id),
                leader_epoch=0,
                origin=AppendOrigin.COORDINATOR,
            )
    end = log.log_end_offset
    indexed = sorted(int(path.stem) for path in tmp_path.glob("*.txnindex"))
    assert len(indexed) > 1
    for offset in range(end):
        found = log.read(offset, max_bytes=1, upper_bound=end)
        for upper_bound in (offset + 1, (offset + end) // 2 + 1, end):
            known = log.aborted_transactions(offset, upper_bound=upper_bound)
            told = aborted_in(
                tmp_path, indexed, found.segment_base_offset, offset=offset, upper_bound=upper_bound
            )
            assert [tuple(each) for each in told] == [(e.producer_id, e.first_offset) for e in known]
    crash(log)


class Scene:
    """Index files of one partition, and what a network process finds in them. `bytes_read`: of all files."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = directory / "t-0"
        self.path.mkdir()
        self.version = 0
        self.files = SegmentFiles({0: (directory,)}, is_served=lambda _: True, version=lambda _: self.version)
        self.aborted = AbortedTransactions(self.files)
        self.listings = self.bytes_read = 0
        listdir, pread = os.listdir, os.pread

        def counted_listdir(path: Path) -> list[str]:
            self.listings += 1
            return listdir(path)

        def counted_pread(descriptor: int, length: int, position: int) -> bytes:
            read = pread(descriptor, length, position)
            self.bytes_read += len(read)
            return read

        monkeypatch.setattr(os, "listdir", counted_listdir)
        monkeypatch.setattr(os, "pread", counted_pread)

    def index(self, segment: int, entries: list[AbortedTransaction]) -> None:
        (self.path / segment_file_name(segment, LOG)).touch()
        if entries:
            (self.path / segment_file_name(segment, TRANSACTION_INDEX)).write_bytes(
                encode_transactions(entries)
            )

    def among(
        self, offset: int, end_offset: int, stable: int, *, segment: int = 0, goes_on: bool = False
    ) -> list[tuple[int, int]]:
        told = self.aborted.among(
            ROUTE,
            directory=0,
            segment=segment,
            offset=offset,
            end_offset=end_offset,
            last_stable_offset=stable,
            goes_on=goes_on,
            files_version=self.version,
        )
        return [(producer_id, first_offset) for producer_id, first_offset in told]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path, monkeypatch)
    yield made
    made.files.close()


def entries(count: int, *, first: int = 0) -> list[AbortedTransaction]:
    """One transaction of nine records after the other, producer by producer."""
    return [
        AbortedTransaction(number, 10 * number, 10 * number + 9, 10 * number + 10)
        for number in range(first, first + count)
    ]


def test_of_a_long_index_only_what_overlaps_is_read_and_told(scene: Scene) -> None:
    scene.index(0, entries(100_000))
    assert scene.among(555_555, 555_575, 1_000_000) == [
        (55_555, 555_550),
        (55_556, 555_560),
        (55_557, 555_570),
    ]
    assert scene.bytes_read < 20_000, "of 3.4 MB"


def test_a_reader_of_a_backlog_lists_the_directory_once(scene: Scene) -> None:
    scene.index(0, entries(100))
    scene.index(1_000, entries(100, first=100))
    scene.index(2_000, [])
    for offset in range(0, 2_000, 20):
        segment = 1_000 if offset >= 1_000 else 0
        told = scene.among(offset, offset + 20, 2_000, segment=segment)
        assert told == [(offset // 10, offset), (offset // 10 + 1, offset + 10)]
    assert scene.listings == 1


def test_an_index_that_came_after_the_listing_is_seen_once_more_is_stable(scene: Scene) -> None:
    scene.index(0, entries(10))
    assert scene.among(0, -1, 100) == [(number, 10 * number) for number in range(10)]
    scene.index(100, entries(10, first=10))
    assert scene.among(150, -1, 200, segment=100) == [(number, 10 * number) for number in range(15, 20)]
    assert scene.among(95, 105, 200) == [(9, 90), (10, 100)]
    assert scene.listings == 2


def test_entries_that_were_added_to_a_known_index_are_seen(scene: Scene) -> None:
    scene.index(0, entries(10))
    scene.among(0, 50, 100)
    scene.index(0, entries(11))
    assert scene.among(95, 110, 110) == [(9, 90), (10, 100)]


def test_a_listing_does_not_outlive_its_files_version(scene: Scene) -> None:
    """The log was cut, or segments were swapped: the same names are other files, and there may be others."""
    scene.index(0, entries(10))
    scene.among(0, 100, 100)
    (scene.path / segment_file_name(0, TRANSACTION_INDEX)).unlink()
    scene.index(50, entries(4, first=5))
    scene.version = 2
    assert scene.among(0, 100, 100) == [(number, 10 * number) for number in range(5, 9)]


def test_what_changes_while_it_is_read_is_not_told_and_not_kept(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.index(0, entries(10))
    pread = os.pread

    def swap(descriptor: int, length: int, position: int) -> bytes:
        scene.version = 2
        return pread(descriptor, length, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", swap)
        with pytest.raises(SegmentReplaced):
            scene.among(0, 100, 100)
    assert scene.aborted.statistics() == {"listings": 0, "listed": 0}


def test_a_segment_that_goes_on_bounds_what_is_told_by_the_next_one(scene: Scene) -> None:
    """Where nobody knows at which offset the records end, they end with their segment."""
    scene.index(0, entries(100))
    scene.index(1_000, entries(900, first=100))
    assert scene.among(980, -1, 10_000, goes_on=True) == [(98, 980), (99, 990)]


def test_listings_are_bounded_by_their_names(tmp_path: Path) -> None:
    routes = [PartitionRoute("t", uuid4(), number, number, 1, 0, 0, None, 0) for number in range(20)]
    files = SegmentFiles({0: (tmp_path,)}, is_served=lambda _: True, version=lambda _: 0)
    aborted = AbortedTransactions(files, limit=30)
    for route in routes:
        path = tmp_path / f"t-{route.partition}"
        path.mkdir()
        for segment in range(10):
            (path / segment_file_name(segment, LOG)).touch()
        told = aborted.among(
            route,
            directory=0,
            segment=0,
            offset=0,
            end_offset=9,
            last_stable_offset=9,
            goes_on=False,
            files_version=0,
        )
        assert told == []
    assert aborted.statistics() == {"listings": 3, "listed": 30}
    files.close()


@pytest.mark.parametrize("seed", range(8))
def test_every_stretch_is_told_what_overlaps_it_and_nothing_else(scene: Scene, seed: int) -> None:
    """Random transactions that overlap, over random segments, against Kafka's rule in one line."""
    dice = Random(seed)
    open_since: dict[int, int] = {}
    told: list[AbortedTransaction] = []
    by_segment: dict[int, list[AbortedTransaction]] = {0: []}
    segment, end = 0, dice.randrange(200, 3_000)
    for offset in range(end):
        if dice.random() < 0.01:
            segment = offset
            by_segment[segment] = []
        producer_id = dice.randrange(6)
        if producer_id not in open_since:
            open_since[producer_id] = offset
        elif dice.random() < 0.3:
            first = open_since.pop(producer_id)
            if dice.random() < 0.5:
                stable = min(open_since.values(), default=offset + 1)
                by_segment[segment].append(AbortedTransaction(producer_id, first, offset, stable))
                told.append(by_segment[segment][-1])
    for base, some in by_segment.items():
        scene.index(base, some)
    stable = min(open_since.values(), default=end)
    bases = sorted(by_segment)
    for _ in range(200):
        offset = dice.randrange(stable) if stable else 0
        end_offset = dice.randrange(offset + 1, stable + 1) if offset < stable else stable
        fetched = max(base for base in bases if base <= offset)
        expected = [
            (each.producer_id, each.first_offset)
            for each in told
            if each.last_offset >= offset and each.first_offset < end_offset
        ]
        assert scene.among(offset, end_offset, stable, segment=fetched) == expected
