"""The quick way of delayed records from bytes to bytes says what the slow way says, in each of its answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from appliance.delivery.arriving import STORED_BYTES, Delayed, pieces_of, set_levels
from appliance.delivery.division import Division, RefusedDelay, Rules, divide
from appliance.delivery.due import AT, CANCEL, DELAY, ID, TIMESTAMP_NEAR_MS
from appliance.delivery.levels import Levels
from appliance.delivery.waiting import HEADER, OFFSET, Origin
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.record import (
    Record,
    decode_records,
    encode_batch,
    encode_record,
    frame_batch,
)
from appliance.protocol.records.varint import read_varint
from tests.delivery.slow_division import SlowDivision, divide_slowly

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
TOPIC_ID = UUID(int=77)
INT64_MAX = (1 << 63) - 1
LEVELS = Levels(["5s", "10s", "1h"], ["1m", "1d"])

times = st.one_of(
    st.integers(NOW_MS - 5, NOW_MS + 5),
    st.integers(NOW_MS - 2 * TIMESTAMP_NEAR_MS, NOW_MS + 2 * TIMESTAMP_NEAR_MS),
    st.sampled_from(
        [-1, 0, NOW_MS - TIMESTAMP_NEAR_MS, NOW_MS + TIMESTAMP_NEAR_MS, NOW_MS + DAY_MS, 10**18 - 1]
    ),
)
numbers = st.one_of(times, st.integers(0, DAY_MS + 5), st.sampled_from([0, DAY_MS, DAY_MS + 1]))
texts = st.one_of(
    numbers.map(lambda each: b"%d" % each),
    numbers.map(lambda each: b"%018d" % max(each, 0)),
    st.sampled_from(
        [None, b"", b" 5", b"5 ", b"+5", b"-5", b"5.0", b"9" * 19, b"\xb2", b"x", b"0" * 18, b"1/", b"1:"]
    ),
)
marks = st.one_of(
    st.tuples(st.sampled_from([AT, DELAY]), texts),
    st.tuples(st.just(ID), st.sampled_from([None, b"", b"id", b"i" * 255, b"i" * 256])),
    st.tuples(st.just(CANCEL), st.sampled_from([None, b"", b"id", b"i" * 256])),
)
others = st.tuples(
    st.sampled_from(
        ["", "h", HEADER, OFFSET, "delivery.", "delivery.delayed", "delivery.aT", "\udcff" * 11, "n" * 200]
    ),
    st.one_of(st.none(), st.binary(max_size=70)),
)
headers = st.one_of(
    st.just([]),
    marks.map(lambda each: [each]),
    st.lists(st.one_of(marks, others), max_size=5),
).map(tuple)
records = st.builds(
    Record,
    value=st.one_of(st.none(), st.just(b"delivery."), st.binary(max_size=150)),
    key=st.one_of(st.none(), st.binary(max_size=70)),
    headers=headers,
    timestamp_ms=times,
)
rules = st.builds(
    Rules,
    message_bytes_max=st.sampled_from([1 << 20, 600]),
    decompressed_bytes_max=st.just(8 << 20),
    is_compacted=st.booleans(),
    is_exact=st.booleans(),
    delay_ms_max=st.just(DAY_MS),
)
origins = st.sampled_from([Origin(), Origin(9, 3, 70), Origin(INT64_MAX, 32_767, (1 << 31) - 1)])


def answer(way: Any, batch: bytes, wanted: Rules) -> Any:
    """Return what a way says: a division, None, or the error."""
    try:
        return way(memoryview(batch), wanted, now_ms=NOW_MS)
    except RefusedDelay as refused:
        return refused.index, refused.code, refused.message


def stored(division: Division, base_offset: int, partition: int) -> dict[int, bytes]:
    """Return the encoded records for each level."""
    set_levels(division.delayed, LEVELS, is_exact=False, is_transactional=False)
    found = pieces_of(division.delayed, TOPIC_ID, partition, base_offset, division.origin)
    assert all(len(pieces.done) == 1 for pieces in found.values())
    return {
        level: frame_batch(payload, count=count)
        for level, pieces in found.items()
        for count, payload in pieces.done
    }


def stored_slowly(division: SlowDivision, base_offset: int, partition: int) -> dict[int, bytes]:
    by_level: dict[int, list[Record]] = {}
    made = division.records(TOPIC_ID, partition, base_offset, -1)
    for (_, due, _), record in zip(division.delayed, made, strict=True):
        level = LEVELS.cancels if due.is_cancel else LEVELS.of(due.wait_ms)
        by_level.setdefault(level, []).append(record)
    return {level: encode_batch(some) for level, some in by_level.items()}


def agree(batch: bytes, wanted: Rules, base_offset: int = 0, partition: int = 0) -> Any:
    """Assert that both ways say the same of a batch; return it."""
    quick, slow = answer(divide, batch, wanted), answer(divide_slowly, batch, wanted)
    if not isinstance(slow, SlowDivision):
        assert quick == slow
        return quick
    assert isinstance(quick, Division)
    assert (quick.kept, quick.origin, quick.is_transactional) == (
        slow.kept,
        slow.origin,
        slow.is_transactional,
    )
    assert [(each.index, each.at_ms, each.wait_ms, each.is_cancel) for each in quick.delayed] == [
        (index, *due) for index, due, _ in slow.delayed
    ]
    batches, expected = stored(quick, base_offset, partition), stored_slowly(slow, base_offset, partition)
    assert list(batches) == list(expected), "the order in which they are stored"
    assert batches == expected
    return quick


PLAIN = Rules(1 << 20, 8 << 20, is_compacted=False, is_exact=False, delay_ms_max=DAY_MS)
NUMBERS = [
    *(b"%d" % each for each in (0, 1, DAY_MS, DAY_MS + 1, 10**18 - 1)),
    *(b"%d" % (NOW_MS + each) for each in (-1, 0, 1, DAY_MS, DAY_MS + 1)),
    *(b"%d" % (NOW_MS + sign * TIMESTAMP_NEAR_MS + each) for sign in (-1, 1) for each in (-1, 0, 1)),
    *(b"0" * 17 + b"5", b"0" * 18, b"0" * 18 + b"5", b"1" * 19),
    *(b"", b" 5", b"5 ", b"+5", b"-5", b"1/", b"1:", b"\xb2", None),
]
HEADERS = [
    *((AT, each) for each in NUMBERS),
    *((DELAY, each) for each in NUMBERS),
    *((ID, each) for each in (None, b"", b"i", b"i" * 255, b"i" * 256)),
    *((CANCEL, each) for each in (None, b"", b"i")),
    *(
        (HEADER, b"1,2"),
        (OFFSET, b"5"),
        ("delivery.aT", b"5"),
        ("delivery.dela", b"5"),
        ("\udcff" * 11, None),
    ),
]
STAMPS_MS = [
    *(-1, 0, NOW_MS - 1, NOW_MS, NOW_MS + 1, NOW_MS + DAY_MS),
    *(NOW_MS + sign * TIMESTAMP_NEAR_MS + each for sign in (-1, 1) for each in (-1, 0, 1)),
]
ROUGH = Rules(600, 8 << 20, is_compacted=True, is_exact=False, delay_ms_max=DAY_MS)


@pytest.mark.parametrize("stamp_ms", STAMPS_MS)
def test_both_ways_say_the_same_of_each_header(stamp_ms: int) -> None:
    for header in HEADERS:
        for wanted in (PLAIN, ROUGH):
            for record in (Record(b"x", headers=(header,)), Record(b"x", b"k", ((ID, b"a"), header))):
                agree(encode_batch([replace(record, timestamp_ms=stamp_ms)]), wanted)


@pytest.mark.parametrize("first", HEADERS[:: len(NUMBERS) // 6] + HEADERS[-13:])
def test_both_ways_say_the_same_of_two_headers(first: tuple[str, bytes | None]) -> None:
    for second in HEADERS:
        for headers in ((first, second), (second, first)):
            agree(encode_batch([Record(b"x", b"k", headers, NOW_MS)]), PLAIN)


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_both_ways_say_the_same_of_long_records(over: int) -> None:
    for limit, wanted in (
        (600, ROUGH._replace(is_compacted=False)),
        (1 << 20, PLAIN._replace(message_bytes_max=4 << 20)),
    ):
        for name, value in ((DELAY, b"5"), (DELAY, b"0"), (CANCEL, b"i")):
            length = 0
            for _ in range(3):  # the length of the record without its value depends on that of the value
                record = Record(bytes(length), b"k", ((name, value),), NOW_MS)
                encoded = encode_record(record, offset_delta=0, timestamp_delta_ms=0)
                length += limit - 256 - 61 + over - read_varint(encoded, 0)[0]
            batch = encode_batch([Record(bytes(length), b"k", ((name, value),), NOW_MS)], codec=Codec.ZSTD)
            said = agree(batch, wanted)
            assert (said is None) == (value == b"0")
            assert said is None or isinstance(said, Division) == (over <= 0)


@pytest.mark.parametrize("count", [0, 1, 62, 63, 64, 1_022, 1_023, 1_024])
def test_headers_beside_the_time_stay(count: int) -> None:
    headers = (*[("h", b"v")] * count, (DELAY, b"5000"))
    said = agree(encode_batch([Record(b"x", headers=headers, timestamp_ms=NOW_MS)]), PLAIN)
    assert len(said.delayed) == 1


@settings(max_examples=40)
@given(
    st.lists(records, min_size=1, max_size=5),
    rules,
    origins,
    st.sampled_from(list(Codec)),
    st.booleans(),
    st.sampled_from([0, 1 << 62]),
    st.sampled_from([0, (1 << 31) - 1]),
)
def test_both_ways_say_the_same(  # noqa: PLR0917 - hypothesis gives them by position
    some: list[Record],
    wanted: Rules,
    origin: Origin,
    codec: Codec,
    is_transactional: bool,
    base_offset: int,
    partition: int,
) -> None:
    batch = encode_batch(
        some,
        codec=codec,
        attributes=TRANSACTIONAL if is_transactional else 0,
        producer_id=origin.producer_id,
        producer_epoch=origin.producer_epoch,
        base_sequence=origin.base_sequence,
    )
    agree(batch, wanted, base_offset, partition)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, -1, INT64_MAX, -INT64_MAX - 1]), headers), min_size=1, max_size=4
    ),
    st.sampled_from([INT64_MAX, -INT64_MAX - 1, -INT64_MAX, NOW_MS]),
    rules,
)
@example([(0, ((DELAY, b"5"),))], -INT64_MAX - 1, Rules(1 << 20, 1 << 20, False, False, DAY_MS))
def test_both_ways_say_the_same_of_timestamps_at_the_bounds(
    some: list[tuple[int, Any]], base_ms: int, wanted: Rules
) -> None:
    payload = b"".join(
        encode_record(Record(b"x", b"k", each), offset_delta=number, timestamp_delta_ms=delta)
        for number, (delta, each) in enumerate(some)
    )
    agree(frame_batch(payload, count=len(some), base_timestamp_ms=base_ms, max_timestamp_ms=base_ms), wanted)


@settings(max_examples=60)
@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_both_ways_say_the_same_of_damaged_records(some: list[Record], data: st.DataObject) -> None:
    payload = bytearray(
        b"".join(
            encode_record(each, offset_delta=number, timestamp_delta_ms=0) for number, each in enumerate(some)
        )
    )
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    batch = frame_batch(bytes(payload), count=len(some), base_timestamp_ms=NOW_MS, max_timestamp_ms=NOW_MS)
    quick, slow = answer(divide, batch, PLAIN), answer(divide_slowly, batch, PLAIN)
    if isinstance(slow, SlowDivision):
        # A number can be written in more bytes than it takes, and is copied like this: compare what is read.
        assert (quick.kept, len(quick.delayed)) == (slow.kept, len(slow.delayed))
        assert {level: decode_records(each) for level, each in stored(quick, 5, 0).items()} == {
            level: decode_records(each) for level, each in stored_slowly(slow, 5, 0).items()
        }
    else:
        assert quick == slow


@pytest.mark.parametrize("count", [63, 64, 1_023, 1_024, 1_025, 8_192, 8_193])
def test_records_of_long_batches_are_numbered(count: int) -> None:
    some = [
        Record(b"x", headers=((DELAY, b"5000"),) if number else (), timestamp_ms=NOW_MS)
        for number in range(count)
    ]
    found = agree(encode_batch(some, codec=Codec.ZSTD), PLAIN)
    assert len(found.delayed) == count - 1


@pytest.mark.parametrize("length", [900, 1_000, 1_024, 8_191, 70_000])
def test_long_records_are_stored(length: int) -> None:
    agree(encode_batch([Record(b"x" * length, headers=((DELAY, b"5000"),), timestamp_ms=NOW_MS)]), PLAIN)


def test_a_batch_for_an_internal_topic_has_a_bounded_size_or_one_record() -> None:
    sizes = [300_000, 300_000, 500_000, 1_048_000, 10, 10]
    some = [Record(bytes(size), headers=((DELAY, b"5000"),), timestamp_ms=NOW_MS) for size in sizes]
    wanted = PLAIN._replace(message_bytes_max=4 << 20)
    division = divide(memoryview(encode_batch(some)), wanted, now_ms=NOW_MS)
    assert division is not None
    set_levels(division.delayed, LEVELS, is_exact=False, is_transactional=False)
    (pieces,) = pieces_of(division.delayed, TOPIC_ID, 0, 0, division.origin).values()
    assert [count for count, _ in pieces.done] == [2, 1, 3]
    assert all(len(payload) <= STORED_BYTES for _, payload in pieces.done)
    read = [
        record
        for count, payload in pieces.done
        for record in decode_records(frame_batch(payload, count=count))
    ]
    assert [len(record.value or b"") for record in read] == sizes


@pytest.mark.parametrize("is_exact", [True, False])
@given(wait_ms=st.integers(-5, 2 * DAY_MS))
def test_levels_are_set_as_each_record_asks(is_exact: bool, wait_ms: int) -> None:
    some = [
        Delayed(0, 0, wait_ms, False, 0, b""),
        Delayed(1, 0, 0, True, 0, b""),
        Delayed(2, 0, wait_ms, False, 0, b""),
    ]
    wanted = LEVELS.of(wait_ms, is_exact=is_exact)
    found = set_levels(some, LEVELS, is_exact=is_exact, is_transactional=False)
    assert [each.level for each in some] == [wanted, LEVELS.cancels, wanted]
    assert found == {wanted, LEVELS.cancels}
    assert set_levels(some, LEVELS, is_exact=is_exact, is_transactional=True) == {LEVELS.transactions}
