"""Offsets of transactions count when, and only when, the marker says so; a load leaves what the live book had.

The model is Kafka's rule, word for word: each offset keeps the log offset of its record, and a committed one replaces
what is there if its record stands later in the log.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.control.coordinator.offsets.expiry import expired
from appliance.control.coordinator.offsets.offset_book import OffsetBook, Replay
from appliance.control.coordinator.offsets.offset_fetch import fetch_offsets, fetch_offsets_in_pieces
from appliance.control.coordinator.offsets.offset_replay import ROW_MIN, replay_block
from appliance.control.coordinator.runtime.record_block import RecordBlock
from appliance.control.coordinator.runtime.replay import replay_chunk
from appliance.log.chunks import Chunk, read_chunks
from appliance.protocol.apis.offset_delete import (
    OffsetDeletePartition,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
)
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.protocol.records.control import EndTransactionMarker, encode_marker_batch
from appliance.protocol.records.keyed_batch import encode_keyed_batch
from appliance.protocol.records.offset_records import (
    CommittedOffset,
    encode_value,
    offset_key,
    parse_key,
)
from tests.control.coordinator.runtime.toy import ToyMachine
from tests.control.coordinator.test_offset_requests import KnownTopics, deleted

Where = tuple[str, str, int]

PLACES = st.tuples(st.sampled_from(("g", "g", "h")), st.sampled_from(("t", "t", "u")), st.integers(0, 1))
PRODUCERS = st.integers(1, 2)
ROW = [("g", "t", partition) for partition in range(ROW_MIN + 2)]


class Write(msgspec.Struct, frozen=True):
    """A batch of offsets; `producer` -1 writes outside of transactions. Where `deletes`, tombstones."""

    producer: int
    places: tuple[Where, ...]
    deletes: bool = False


class End(msgspec.Struct, frozen=True):
    producer: int
    committed: bool


Event = Write | End

MANY_PLACES = st.one_of(st.lists(PLACES, min_size=1, max_size=3).map(tuple), st.just(tuple(ROW)))
EVENTS = st.lists(
    st.one_of(
        st.builds(Write, st.just(-1), MANY_PLACES, st.sampled_from((False, False, False, True))),
        st.builds(Write, PRODUCERS, MANY_PLACES, st.just(False)),
        st.builds(Write, PRODUCERS, MANY_PLACES, st.just(False)),
        st.builds(End, PRODUCERS, st.booleans()),
    ),
    max_size=25,
)


class Model:
    """Kafka's `OffsetMetadataManager`, as far as records go: place → (record's log offset, value)."""

    def __init__(self) -> None:
        self.offsets: dict[Where, tuple[int, bytes]] = {}
        self.pending: dict[int, dict[Where, tuple[int, bytes]]] = {}
        self.open: set[tuple[int, str]] = set()

    def write(self, log_offset: int, producer: int, place: Where, value: bytes | None) -> None:
        if value is None:
            self.offsets.pop(place, None)
            for offsets in self.pending.values():
                offsets.pop(place, None)
        elif producer < 0:
            self.offsets[place] = (log_offset, value)
        else:
            self.pending.setdefault(producer, {})[place] = (log_offset, value)
            self.open.add((producer, place[0]))

    def end(self, producer: int, committed: bool) -> None:
        self.open = {(each, group) for each, group in self.open if each != producer}
        for place, (log_offset, value) in self.pending.pop(producer, {}).items():
            if committed and (place not in self.offsets or log_offset > self.offsets[place][0]):
                self.offsets[place] = (log_offset, value)

    def seen(self) -> tuple[dict[Where, bytes], set[Where], set[str]]:
        return (
            {place: value for place, (_, value) in self.offsets.items()},
            {place for offsets in self.pending.values() for place in offsets},
            {group for _, group in self.open},
        )


def seen(book: OffsetBook) -> tuple[dict[Where, bytes], set[Where], set[str]]:
    """What is told, what is pending, and which groups have an open transaction."""
    book.check()
    groups = book.groups()
    told = {
        (group, topic, partition): value
        for group in groups
        for topic, partitions in book.of(group).items()
        for partition, value in partitions.items()
    }
    pending = {
        (group, topic, partition) for group in groups for topic, partition, _ in book.pending.of(group)
    }
    assert all(book.pending.has(*place) for place in pending)
    return told, pending, {group for group in groups if book.pending.is_open_in(group)}


def value_of(log_offset: int) -> bytes:
    return encode_value(CommittedOffset(log_offset, 0, "", 1))


class Log:
    """Events as batches, and the model of them."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.model = Model()
        self.end_offset = 0

    def add(self, event: Event) -> list[tuple[Where, bytes | None]]:
        """Write the event; what a live coordinator would be told of it."""
        if isinstance(event, End):
            marker = EndTransactionMarker(event.committed, 1)
            batch = encode_marker_batch(marker, producer_id=event.producer, producer_epoch=0, timestamp_ms=1)
            self.model.end(event.producer, event.committed)
            records: list[tuple[Where, bytes | None]] = []
            count = 1
        else:
            records = [
                (place, None if event.deletes else value_of(self.end_offset + at))
                for at, place in enumerate(event.places)
            ]
            batch = encode_keyed_batch(
                [(offset_key(*place), value) for place, value in records],
                timestamp_ms=1,
                attributes=TRANSACTIONAL if event.producer >= 0 else 0,
                producer_id=event.producer,
                producer_epoch=0 if event.producer >= 0 else -1,
            )
            for at, (place, value) in enumerate(records):
                self.model.write(self.end_offset + at, event.producer, place, value)
            count = len(records)
        self.batches.append(struct.pack(">q", self.end_offset) + batch[8:])
        self.end_offset += count
        return records


def apply(book: OffsetBook, event: Event, records: Sequence[tuple[Where, bytes | None]]) -> None:
    """As the coordinator does when a write is committed."""
    if isinstance(event, End):
        book.end_transaction(event.producer, committed=event.committed)
        return
    for place, value in records:
        if event.producer >= 0:
            book.put_pending(event.producer, *place, value)
        else:
            book.put(*place, value)


class Loading(ToyMachine):
    """A machine of offsets alone, while it is loaded."""

    def __init__(self) -> None:
        super().__init__(0)
        self.book = OffsetBook()
        self.into = Replay(self.book)

    def take(self, block: RecordBlock) -> None:
        replay_block(block, self.into, lambda _, __: None)

    def replay_marker(
        self, offset: int, producer_id: int, producer_epoch: int, marker: EndTransactionMarker
    ) -> None:
        self.into.end_transaction(producer_id, committed=marker.committed)


def chunks(batches: Sequence[bytes], cuts: Sequence[int], folder: Path) -> Iterator[Chunk]:
    bounds = sorted({0, len(batches), *(cut % (len(batches) + 1) for cut in cuts)})
    for first, end in itertools.pairwise(bounds):
        path = folder / "chunk"
        data = b"".join(batches[first:end])
        path.write_bytes(data)
        yield from read_chunks(path, 0, len(data))


def loaded(batches: Sequence[bytes], cuts: Sequence[int], folder: Path) -> OffsetBook:
    """A book that is loaded from these batches, read in chunks that end at `cuts`."""
    machine = Loading()
    for chunk in chunks(batches, cuts, folder):
        replay_chunk(chunk, machine, machine.take, path=folder, from_offset=0, decompressed_bytes_max=1 << 20)
    machine.into.done()
    return machine.book


CUTS: st.SearchStrategy[list[int]] = st.one_of(
    st.just(list(range(51))), st.just([]), st.lists(st.integers(0, 50), max_size=4)
)
"""Each batch a chunk of its own, all one chunk, or something between."""


@settings(deadline=None, max_examples=300)
@given(events=EVENTS)
def test_a_live_book_says_what_kafkas_rule_says_after_each_event(events: list[Event]) -> None:
    log, book = Log(), OffsetBook()
    for event in events:
        apply(book, event, log.add(event))
        assert seen(book) == log.model.seen()


@settings(deadline=None, max_examples=200)
@given(before=EVENTS, after=EVENTS, cuts=CUTS)
def test_a_load_at_any_point_leaves_the_same_book_and_the_rest_of_the_log_does_the_same_to_it(
    before: list[Event], after: list[Event], cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    log = Log()
    for event in before:
        log.add(event)
    book = loaded(log.batches, cuts, folder)
    assert seen(book) == log.model.seen()
    for event in after:
        apply(book, event, log.add(event))
        assert seen(book) == log.model.seen()
    assert seen(loaded(log.batches, cuts, folder)) == log.model.seen()


PLACE = ("g", "t", 0)
A, B = 1, 2


@pytest.mark.parametrize(
    ("events", "record"),
    [
        pytest.param([Write(B, (PLACE,)), Write(A, (PLACE,)), End(B, True), End(A, True)], 1, id="in order"),
        pytest.param([Write(B, (PLACE,)), Write(A, (PLACE,)), End(A, True), End(B, True)], 1, id="overtaken"),
        pytest.param([Write(B, (PLACE,)), Write(A, (PLACE,)), End(A, False), End(B, True)], 0, id="aborted"),
        pytest.param([Write(A, (PLACE,)), Write(-1, (PLACE,)), End(A, True)], 1, id="plain is newer"),
        pytest.param([Write(-1, (PLACE,)), Write(A, (PLACE,)), End(A, True)], 1, id="plain is older"),
        pytest.param(
            [Write(-1, (PLACE,)), Write(A, (PLACE,)), Write(-1, (PLACE,)), End(A, True)], 2, id="plain again"
        ),
        pytest.param(
            [Write(-1, tuple(ROW)), Write(A, (PLACE,)), Write(-1, tuple(ROW)), End(A, True)],
            len(ROW) + 1,
            id="rows",
        ),
        pytest.param([Write(A, (PLACE,)), Write(-1, (PLACE,), True), End(A, True)], None, id="deleted"),
    ],
)
@pytest.mark.parametrize("cuts", [range(5), ()], ids=["chunks", "one chunk"])
def test_of_two_records_of_an_offset_the_later_one_in_the_log_counts(
    events: list[Event], record: int | None, cuts: Sequence[int], tmp_path: Path
) -> None:
    log, live = Log(), OffsetBook()
    for event in events:
        apply(live, event, log.add(event))
    wanted = None if record is None else value_of(record)
    assert live.value(*PLACE) == wanted
    assert loaded(log.batches, cuts, tmp_path).value(*PLACE) == wanted


# What requests and time see of it


def open_book() -> OffsetBook:
    """Group g has t-0 committed, and t-0 and t-1 pending of producer 7."""
    book = OffsetBook()
    book.put("g", "t", 0, value_of(10))
    book.put_pending(7, "g", "t", 0, value_of(20))
    book.put_pending(7, "g", "t", 1, value_of(21))
    return book


def fetch(book: OffsetBook, *, stable: bool, names: bool = True) -> dict[int, tuple[int, int]]:
    """Partition → offset and error, of g in t."""
    asked = (OffsetFetchTopic("t", partition_indexes=(0, 1, 2)),) if names else None
    request = OffsetFetchRequest(groups=(OffsetFetchGroup("g", asked),), require_stable=stable)
    elements, make = fetch_offsets(
        request, 9, topics=KnownTopics(), check=lambda _: 0, book_of=lambda _: book
    )
    (group,) = make(tuple(elements)).groups
    return {
        each.partition_index: (each.committed_offset, each.error_code)
        for topic in group.topics
        for each in topic.partitions
    }


UNSTABLE = int(ErrorCode.UNSTABLE_OFFSET_COMMIT)


def test_pending_offsets_are_not_told_and_who_wants_stable_ones_hears_that_they_are_not() -> None:
    book = open_book()
    assert fetch(book, stable=False) == {0: (10, 0), 1: (-1, 0), 2: (-1, 0)}
    assert fetch(book, stable=True) == {0: (-1, UNSTABLE), 1: (-1, UNSTABLE), 2: (-1, 0)}
    assert fetch(book, stable=True, names=False) == {0: (-1, UNSTABLE)}, "Kafka lists what is committed"
    assert fetch(book, stable=False, names=False) == {0: (10, 0)}
    book.end_transaction(7, committed=True)
    assert fetch(book, stable=True) == {0: (20, 0), 1: (21, 0), 2: (-1, 0)}


def test_marker_that_aborts_leaves_what_was_committed_before() -> None:
    book = open_book()
    book.end_transaction(7, committed=False)
    assert fetch(book, stable=True) == {0: (10, 0), 1: (-1, 0), 2: (-1, 0)}


def test_long_fetch_says_the_same_of_pending_offsets() -> None:
    book = open_book()
    partitions = tuple(range(200))
    request = OffsetFetchRequest(
        groups=(OffsetFetchGroup("g", (OffsetFetchTopic("t", partition_indexes=partitions),)),),
        require_stable=True,
    )
    steps = fetch_offsets_in_pieces(
        request, 9, topics=KnownTopics(), check=lambda _: 0, book_of=lambda _: book
    )
    pieces = 0
    try:
        while True:
            next(steps)
            pieces += 1
    except StopIteration as ended:
        told = ended.value.groups[0].topics[0].partitions
    assert pieces > 1
    assert [each.partition_index for each in told if each.error_code == UNSTABLE] == [0, 1]


def test_pending_offsets_go_with_their_group_with_one_tombstone_each() -> None:
    book = open_book()
    book.put_pending(8, "g", "t", 1, value_of(30))
    records = book.tombstones("g")
    assert sorted(parse_key(record.key).partition for record in records) == [0, 1]
    for record in records:
        book.apply(record.key, record.value)
    book.end_transaction(7, committed=True)
    book.end_transaction(8, committed=True)
    assert not book.has("g")


def test_deleting_an_offset_takes_what_is_pending_of_it_too() -> None:
    book = open_book()
    request = OffsetDeleteRequest(
        "g", (OffsetDeleteTopic("t", (OffsetDeletePartition(1), OffsetDeletePartition(2))),)
    )
    records, _ = deleted(request, book, check_topic=lambda _: 0)
    assert [parse_key(record.key).partition for record in records] == [1]
    book.apply(records[0].key, None)
    book.end_transaction(7, committed=True)
    assert fetch(book, stable=True) == {0: (20, 0), 1: (-1, 0), 2: (-1, 0)}


def test_an_offset_does_not_expire_while_a_transaction_has_another_of_it() -> None:
    book = open_book()
    book.put("g", "t", 2, value_of(11))

    def expired_now() -> list[int]:
        records = expired(book, "g", now_ms=10, retention_ms=5, empty_since_ms=None, subscribed=frozenset())
        return [parse_key(record.key).partition for record in records]

    assert expired_now() == [2]
    book.end_transaction(7, committed=False)
    assert expired_now() == [0, 2]


def test_a_group_has_its_transaction_until_the_marker_even_if_tombstones_left_nothing_of_it() -> None:
    book = OffsetBook()
    book.put_pending(7, "g", "t", 0, value_of(1))
    book.put("g", "t", 0, None)
    assert book.has("g")
    assert book.statistics()["pending"] == 0
    book.end_transaction(7, committed=True)
    assert not book.has("g")


def test_memory_of_pending_offsets_is_counted_and_comes_back() -> None:
    book = open_book()
    before = book.pending.bytes
    book.put_pending(7, "g", "t", 1, value_of(40))
    assert book.pending.bytes == before, "the same offset once more takes no more"
    book.put_pending(8, "h", "t", 1, value_of(41))
    assert book.pending.bytes > before
    book.end_transaction(8, committed=False)
    book.end_transaction(7, committed=True)
    assert book.pending.bytes == 0
