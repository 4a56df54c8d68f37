"""A look-up by the index shows what reading everything shows, whatever of the index is there."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from appliance.delivery.due import ID as ID_HEADER
from appliance.delivery.waiting import Origin, Waiting
from appliance.protocol.records.record import Record
from appliance.services.due_files import DueFiles, due_files
from appliance.services.due_index import TAIL_RECORDS, DueIndex
from appliance.services.due_keys import index_name
from appliance.services.exact_lane import ExactLane
from appliance.services.progress import Frontier, Progress
from appliance.services.progress import encode as encoded
from appliance.views.delayed import DelayedView, WaitingView, cancelling
from appliance.views.delayed_lookup import READ_MAX, DelayedLookup, WaitingIndex
from appliance.views.topic_access import PlacedRecord
from tests.services.stored_records import as_stored
from tests.views.test_views import ID, Place, Topics

NOW_MS = 1_800_000_000_000
LEVELS_MS = {"exact_1m": 60_000, "exact_1h": 3_600_000}


class Reader(Topics):
    """As `Topics`, and reads single records; `read` counts what it has read of levels."""

    def __init__(self) -> None:
        names = (f"__delayed_{level}" for level in ("5s", *LEVELS_MS, "state", "cancels"))
        super().__init__(t=3, u=1, **dict.fromkeys(names, 2))
        self.read = 0

    def records(self, starts: Mapping[Place, int], ends: Mapping[Place, int]) -> Iterator[PlacedRecord]:
        for found in super().records(starts, ends):
            self.read += found.topic.startswith("__delayed_exact")
            yield found

    def records_at(self, offsets: Mapping[Place, Sequence[int]]) -> Iterator[PlacedRecord]:
        for place, some in offsets.items():
            assert list(some) == sorted(set(some))
            for offset in some:
                if self.log_starts[place] <= offset < len(self.logs[place]):
                    self.read += 1
                    yield PlacedRecord(*place, offset, self.logs[place][offset])


class House:
    """Internal topics with two partitions, a lane for each exact one, and its index files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.topics = Reader()
        self.lanes = {
            (f"__delayed_{level}", number): self.lane(level, number)
            for level in LEVELS_MS
            for number in range(2)
        }
        self.offset = 0

    def lane(self, level: str, number: int) -> ExactLane:
        topic_id = self.topics.topic_ids()[f"__delayed_{level}"]
        index = DueIndex(self.directory, index_name(level, number, topic_id))
        return ExactLane(level, LEVELS_MS[level], position=0, index=index, frontier=Frontier(), uptime_ms=0)

    def store(
        self,
        level: str,
        due_in_ms: int,
        name: bytes = b"",
        *,
        topic: str = "t",
        partition: int = 0,
        stored_ms: int = NOW_MS,
    ) -> None:
        topic_id = self.topics.topic_ids()[topic] if topic != "gone" else UUID(int=999)
        record = Record(b"v", None, ((ID_HEADER, name),) if name else (), 1)
        self.offset += 1
        made = Waiting(topic_id, partition, self.offset, stored_ms + due_in_ms, Origin(), record)
        number = (topic_id.int + partition) % 2
        log = self.topics.logs[f"__delayed_{level}", number]
        at = made.to_record(stored_ms)
        log.append(Record(at.value, at.key, at.headers, at.timestamp_ms, len(log)))

    def cancel(self, name: bytes, *, topic: str = "t", partition: int = 0) -> None:
        topic_id = self.topics.topic_ids()[topic]
        record = Record(None, None, tuple(cancelling(name)), 1)
        self.offset += 1
        made = Waiting(topic_id, partition, self.offset, NOW_MS, Origin(), record)
        self.topics.logs["__delayed_cancels", (topic_id.int + partition) % 2].append(made.to_record(NOW_MS))

    def read(self) -> None:
        for place, lane in self.lanes.items():
            log = self.topics.logs[place]
            if lane.read_to < len(log):
                lane.take(as_stored(log[lane.read_to :]), next_offset=len(log), now_ms=NOW_MS, uptime_ms=0)

    def deliver(self, until_ms: int) -> None:
        for place, lane in self.lanes.items():
            while True:
                lane.loaded(as_stored([self.topics.logs[place][each] for each in lane.to_load()]))
                due_ms = lane.first_due(until_ms)
                if due_ms is None or due_ms > until_ms:
                    break
                lane.pop()
        for number in range(2):
            lanes = [lane for place, lane in self.lanes.items() if place[1] == number]
            for lane in lanes:
                lane.settle()
            progress = Progress(
                {lane.level: lane.position for lane in lanes},
                exact={lane.level: lane.progress() for lane in lanes},
            )
            record = Record(encoded(progress), timestamp_ms=until_ms)
            self.topics.logs["__delayed_state", number].append(record)

    def of(self, level: str, topic_id: UUID, partition: int, position: int) -> DueFiles | None:
        return due_files(self.directory, index_name(level, partition, topic_id), position)

    def lookup(self) -> DelayedLookup:
        return DelayedLookup(DelayedView(self.topics), self.topics, self)


class Nothing:
    """No index."""

    def of(self, level: str, topic_id: UUID, partition: int, position: int) -> DueFiles | None:
        return None


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def dues(found: Sequence[WaitingView]) -> list[int]:
    return [each.waiting.due_ms - NOW_MS for each in found]


def scanned(house: House, topic: str | None) -> list[WaitingView]:
    return sorted(DelayedView(house.topics).waiting(topic), key=lambda each: each.waiting.due_ms)


@pytest.mark.parametrize("seed", range(8))
def test_a_look_up_shows_what_reading_everything_shows(house: House, seed: int) -> None:
    rng = random.Random(seed)
    until_ms = NOW_MS
    for _ in range(rng.randrange(1, 12)):
        for _ in range(rng.randrange(200)):
            topic = rng.choice(["t", "t", "u", "gone"])
            partition = rng.randrange(3 if topic == "t" else 1)
            level = rng.choice(["5s", *LEVELS_MS])
            due_in_ms = rng.randrange(LEVELS_MS.get(level, 5_000) * (1 + (rng.random() < 0.1)))
            name = rng.choice([b"", b"%d" % rng.randrange(20)])
            house.store(level, due_in_ms, name, topic=topic, partition=partition)
        if rng.random() < 0.5:
            house.cancel(b"%d" % rng.randrange(20), partition=rng.randrange(3))
        house.read()
        if rng.random() < 0.5:
            until_ms += rng.randrange(10_000)
            house.deliver(until_ms)
        for lane in house.lanes.values():
            if lane.read_to and rng.random() < 0.5:
                lane.write()
    index: WaitingIndex = house if seed % 4 else Nothing()
    lookup = DelayedLookup(DelayedView(house.topics), house.topics, index)
    shown: list[str | None] = [None, "t", "u"]
    for only in shown:
        everything = scanned(house, only)
        for limit in (1, 7, 5_000):
            listing = lookup.soonest(only, limit)
            assert dues(listing.records) == dues(everything)[:limit]
            assert (listing.count, listing.is_exact) == (len(everything), True)
    everything = scanned(house, "t")
    for number in range(20):
        wanted = [each for each in everything if each.waiting.delivery_id == b"%d" % number]
        assert dues(lookup.with_id("t", b"%d" % number)) == dues(wanted)


def test_the_cost_follows_what_is_shown(house: House) -> None:
    for number in range(6_000):
        house.store("exact_1h", 1_000 + number * 7_919 % 6_000, b"%d" % number)
    for number in range(6_000, 6_000 + TAIL_RECORDS):
        house.store("exact_1h", 1_000 + number, b"%d" % number)
    house.store("exact_1h", 1, b"rare", topic="u")
    place = "__delayed_exact_1h", ID.int % 2
    lane = house.lanes[place]
    log = house.topics.logs[place]
    lane.take(as_stored(log[:6_000]), next_offset=6_000, now_ms=NOW_MS, uptime_ms=0)
    lane.write()
    lane.take(as_stored(log[6_000:]), next_offset=len(log), now_ms=NOW_MS, uptime_ms=0)
    lane.write_tail()
    house.read()
    for other in house.lanes.values():
        if other is not lane and other.read_to:
            other.write()
    house.deliver(NOW_MS)
    house.topics.read = 0
    assert dues(house.lookup().with_id("t", b"77")) == [1_000 + 77 * 7_919 % 6_000]
    assert dues(house.lookup().with_id("t", b"6077")) == [7_077]
    assert house.topics.read == 2
    listing = house.lookup().soonest("t", 20)
    assert dues(listing.records) == list(range(1_000, 1_020))
    assert listing.count == 6_000 + TAIL_RECORDS
    assert house.topics.read <= 2 + 40
    assert dues(house.lookup().soonest("u", 20).records) == [1]
    assert house.topics.read <= 2 + 40 + 2


def test_what_no_file_has_is_read_and_said(house: House) -> None:
    for number in range(100):
        house.store("exact_1m", number, b"%d" % number)
    house.read()
    house.deliver(NOW_MS - 1)
    lookup = house.lookup()
    assert dues(lookup.with_id("t", b"7")) == [7]
    assert lookup.unindexed == 100
    (lane,) = (each for each in house.lanes.values() if each.read_to)
    lane.write()
    assert dues(lookup.with_id("t", b"7")) == [7]
    assert lookup.unindexed == 0


def test_a_record_that_is_delivered_or_cancelled_during_a_look_up_is_not_shown(house: House) -> None:
    for number in range(10):
        house.store("exact_1m", number, b"%d" % number)
    house.read()
    for lane in house.lanes.values():
        if lane.read_to:
            lane.write()
    house.deliver(NOW_MS - 1)

    class Meanwhile(Reader):
        def records_at(self, offsets: Mapping[Place, Sequence[int]]) -> Iterator[PlacedRecord]:
            found = list(house.topics.records_at(offsets))
            house.deliver(NOW_MS + 3)
            house.cancel(b"5")
            yield from found

    reader = Meanwhile()
    reader.logs, reader.log_starts = house.topics.logs, house.topics.log_starts
    lookup = DelayedLookup(DelayedView(reader), reader, house)
    assert lookup.with_id("t", b"2") == []
    assert dues(lookup.soonest("t", 20).records) == [4, 6, 7, 8, 9]


def test_a_record_that_goes_to_another_level_during_a_look_up_is_shown_once(house: House) -> None:
    house.store("exact_1m", 100_000, b"long")
    house.read()
    (place,) = (place for place, lane in house.lanes.items() if lane.read_to)
    house.lanes[place].write()
    house.deliver(NOW_MS)

    class Meanwhile(Reader):
        def records_at(self, offsets: Mapping[Place, Sequence[int]]) -> Iterator[PlacedRecord]:
            found = list(house.topics.records_at(offsets))
            house.deliver(NOW_MS + 60_000)
            yield from found

    reader = Meanwhile()
    reader.logs, reader.log_starts = house.topics.logs, house.topics.log_starts
    lookup = DelayedLookup(DelayedView(reader), reader, house)
    assert dues(lookup.with_id("t", b"long")) == [100_000]
    (record,) = house.topics.logs[place]
    house.topics.logs[place[0].replace("1m", "1h"), place[1]].append(record)
    for each in (house.lookup(), lookup):
        assert dues(each.with_id("t", b"long")) == [100_000]
        assert dues(each.soonest("t", 9).records) == [100_000]


def test_a_list_reads_everything_where_most_records_wait_for_longer_than_their_level(house: House) -> None:
    for number in range(READ_MAX + 200):
        house.store("exact_1m", 10**9 - number, stored_ms=NOW_MS + number)
    house.store("exact_1m", 10**6)
    house.read()
    for lane in house.lanes.values():
        if lane.read_to:
            lane.write()
    house.deliver(NOW_MS - 1)
    lookup = house.lookup()
    listing = lookup.soonest("t", 3)
    assert lookup.has_read_all
    assert dues(listing.records)[0] == 10**6
    assert listing.count == READ_MAX + 201


def test_many_cancelled_records_make_the_count_a_bound(house: House) -> None:
    for number in range(600):
        house.store("exact_1m", number + 1, b"%d" % number)
    for number in range(501):
        house.cancel(b"%d" % number)
    house.read()
    for lane in house.lanes.values():
        if lane.read_to:
            lane.write()
    house.deliver(NOW_MS)
    listing = house.lookup().soonest(None, 5)
    assert dues(listing.records) == [502, 503, 504, 505, 506]
    assert (listing.count, listing.is_exact) == (600, False)
