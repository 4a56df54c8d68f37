"""The walk against the decoder: whatever the decoder cannot read, and nothing else, the walk must refuse."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.protocol.records import columns, walk_together
from appliance.protocol.records.batch import RECORDS
from appliance.protocol.records.columns import record_bounds, record_columns
from appliance.protocol.records.errors import InvalidRecords
from appliance.protocol.records.record import Record, decode_records, encode_batch, encode_record, frame_batch
from appliance.protocol.records.varint import write_varint
from appliance.protocol.records.walk import RecordsSummary, check_records
from appliance.protocol.records.walk_fields import STRETCH_BYTES, Walked, walk_fields

NOW_MS = 1_700_000_000_000


def payload_of(records: list[Record]) -> bytes:
    return encode_batch(records)[RECORDS:]


def decoded(payload: bytes, count: int) -> RecordsSummary | None:
    """What the slow reader makes of a payload; None if it refuses it."""
    try:
        records = decode_records(frame_batch(payload, count=count, base_timestamp_ms=0))
    except (InvalidRecords, IndexError):
        return None
    if [record.offset for record in records] != list(range(count)):
        return None
    times = [record.timestamp_ms for record in records]
    return min(times), max(times), any(record.key is None for record in records)


def walked(payload: bytes, count: int, *, before: bytes = b"", after: bytes = b"") -> RecordsSummary | None:
    """What the walk makes of it, whichever way is taken: which one is, hangs on sizes and on what is compiled."""
    data, begin, end = before + payload + after, len(before), len(before) + len(payload)
    chosen = _or_none(lambda: check_records(data, begin, end, count))
    if count * 7 <= len(payload):
        assert _or_none(lambda: _by(walk_fields, data, begin, end, count)) == chosen
        assert _or_none(lambda: _by(walk_together.walk_together, data, begin, end, count)) == chosen
    return chosen


def _or_none(walk: Callable[[], RecordsSummary]) -> RecordsSummary | None:
    try:
        return walk()
    except InvalidRecords:
        return None


def _by(way: Callable[..., Walked], data: bytes, begin: int, end: int, count: int) -> RecordsSummary:
    more = (0,) if way is walk_fields else ()
    at, records, low, high, keyless = way(data, begin, end, count, *more)
    if (at, records) != (end, count):
        raise InvalidRecords("bytes are left")
    return low, high, keyless


counts = st.one_of(st.integers(1, 30), st.integers(40, 90), st.integers(100, 700))


@st.composite
def batches_of_records(draw: st.DrawFn) -> list[Record]:
    """Records of one size, of two sizes, or of many; timestamps still, rising or anywhere."""
    count = draw(counts)
    rng = random.Random(draw(st.integers(0, 1000)))
    sizes = draw(st.sampled_from([(100,), (60, 70), (0, 3, 63, 64, 500, 9000), (10, 100, 20_000)]))
    keys = draw(st.sampled_from([(None,), (b"key",), (None, b"", b"long key" * 20)]))
    clock = draw(st.sampled_from(["still", "rising", "anywhere"]))
    headers = draw(st.sampled_from([0, 0, 1, 3, 40]))
    records = []
    for number in range(count):
        time_ms = {"still": NOW_MS, "rising": NOW_MS + number // 3, "anywhere": rng.randrange(2 * NOW_MS)}[
            clock
        ]
        names = tuple(
            (f"h{i}", rng.choice([None, b"", b"x" * 70])) for i in range(rng.randrange(headers + 1))
        )
        records.append(Record(bytes(rng.choice(sizes)), rng.choice(keys), names, time_ms))
    return records


@given(batches_of_records(), st.binary(max_size=5), st.binary(max_size=5))
@settings(deadline=None, max_examples=60)
def test_every_sound_batch_passes_and_is_summed_up_rightly(
    records: list[Record], before: bytes, after: bytes
) -> None:
    payload = payload_of(records)
    summary = walked(payload, len(records), before=before, after=after)
    base_ms = records[0].timestamp_ms
    times = [record.timestamp_ms - base_ms for record in records]
    assert summary == (min(times), max(times), any(record.key is None for record in records))


@given(batches_of_records(), st.integers(0, 10**9), st.integers(1, 255))
@settings(deadline=None, max_examples=150)
def test_a_damaged_batch_is_taken_exactly_when_it_can_still_be_read(
    records: list[Record], position: int, flip: int
) -> None:
    damaged = bytearray(payload_of(records))
    # Most bytes are values, where a flip changes nothing: aim at the first bytes of some record as often.
    if position % 2:
        damaged[position % len(damaged)] ^= flip
    else:
        damaged[position % min(len(damaged), 12)] ^= flip
    payload = bytes(damaged)
    assert walked(payload, len(records)) == decoded(payload, len(records))


@given(batches_of_records(), st.integers(-3, 3))
@settings(deadline=None, max_examples=40)
def test_a_count_that_lies_is_refused(records: list[Record], by: int) -> None:
    count = len(records) + by
    if by and count > 0:
        assert walked(payload_of(records), count) is None


@pytest.mark.parametrize("count", [1, 5, 21, 300])
def test_a_batch_cut_or_continued_by_one_byte_is_refused(count: int) -> None:
    payload = payload_of([Record(b"v" * 50, timestamp_ms=NOW_MS)] * count)
    assert walked(payload[:-1], count) is None
    assert walked(payload + b"\0", count) is None
    assert walked(payload[:-1], count, after=payload[-1:]) is None


@pytest.mark.parametrize("count", [3, 64, 400])
@pytest.mark.parametrize("wrong_at", [0, -1])
def test_offset_deltas_must_be_consecutive(count: int, wrong_at: int) -> None:
    deltas = list(range(count))
    deltas[wrong_at] += 1
    payload = b"".join(
        encode_record(Record(b"v"), offset_delta=delta, timestamp_delta_ms=0) for delta in deltas
    )
    assert walked(payload, count) is None


@pytest.mark.parametrize("size", range(STRETCH_BYTES - 40, STRETCH_BYTES + 8))
def test_a_record_may_end_anywhere_beside_a_stretch(size: int) -> None:
    records = [Record(bytes(length), b"k", (), NOW_MS + length) for length in (size, 3, 2 * size, 0, size, 5)]
    payload = payload_of(records)
    assert walked(payload, 6) == (-size, size, False)
    assert walked(payload[:-1], 6) is None
    assert walked(payload, 5) is None


@pytest.mark.parametrize("place", ["offset", "key", "value", "headers", "length"])
def test_a_record_that_no_stretch_holds_is_checked_like_any_other(place: str) -> None:
    sound = encode_record(
        Record(bytes(2 * STRETCH_BYTES), b"key", (("h", b"x"),)), offset_delta=0, timestamp_delta_ms=-5
    )
    assert walked(sound, 1) == (-5, -5, False)
    at = {"length": 2, "offset": 5, "key": 6, "value": 10, "headers": len(sound) - 5}[place]
    for flip in range(1, 256):
        damaged = bytearray(sound)
        damaged[at] ^= flip
        assert walked(bytes(damaged), 1) == decoded(bytes(damaged), 1), (place, flip)


@pytest.mark.parametrize("delta_ms", [-(2**63), 2**63 - 1])
@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize("size", [10, 2 * STRETCH_BYTES])
def test_the_outermost_timestamps_are_told_as_they_are(delta_ms: int, count: int, size: int) -> None:
    payload = b"".join(
        encode_record(Record(bytes(size)), offset_delta=number, timestamp_delta_ms=delta_ms)
        for number in range(count)
    )
    assert walked(payload, count) == (delta_ms, delta_ms, True)


@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize("size", [10, 2 * STRETCH_BYTES])
def test_null_may_be_written_in_more_bytes_than_it_needs(count: int, size: int) -> None:
    payload = bytearray()
    for number in range(count):
        body = bytearray(b"\0\0")
        write_varint(body, number)
        body += b"\x81\x00"  # a key of length -1
        write_varint(body, size)
        body += bytes(size) + b"\0"
        write_varint(payload, len(body))
        payload += body
    assert walked(bytes(payload), count) == (0, 0, True)


def wide(value: int, above: int = 0) -> bytes:
    """A varint in five bytes, with bits above the 32nd, which are dropped."""
    bits = ((value << 1) ^ (value >> 31)) & 0xFFFFFFFF | above << 32
    return bytes(bits >> 7 * byte & 0x7F | (0x80 if byte < 4 else 0) for byte in range(5))


def wide_record(number: int, *, key: bytes | None, size: int, above: int) -> bytes:
    body = b"\0\0" + wide(number, above) + wide(-1 if key is None else len(key), above) + (key or b"")
    body += wide(size, above) + bytes(size) + wide(0, above)
    return wide(len(body), above) + body


@pytest.mark.parametrize("key", [None, b"", b"key"])
@pytest.mark.parametrize("above", [0, 1, 7])
@pytest.mark.parametrize("sizes", [(10,), (10, 11), (2 * STRETCH_BYTES,)])
@pytest.mark.parametrize("count", [1, 12, 70])
def test_numbers_in_more_bytes_than_they_need_are_read(
    key: bytes | None, above: int, sizes: tuple[int, ...], count: int
) -> None:
    payload = b"".join(
        wide_record(number, key=key, size=sizes[number % len(sizes)], above=above) for number in range(count)
    )
    assert walked(payload, count) == decoded(payload, count) == (0, 0, key is None)
    bounds = record_bounds(payload, 0, len(payload), count)
    fields = record_columns(payload, bounds[:-1], bounds[1:])
    assert fields.offset_deltas.tolist() == list(range(count))
    assert fields.value_lengths.tolist() == [sizes[number % len(sizes)] for number in range(count)]


def in_two(value: int) -> bytes:
    """A varint in two bytes, whether it needs them or not."""
    bits = (value << 1) ^ (value >> 31)
    return bytes((bits & 0x7F | 0x80, bits >> 7 & 0x7F))


def record_in_two(number: int, *, value: bytes | None, declared: int | None = None) -> bytes:
    """A record without a key, all numbers in two bytes. `declared`: the value's length is said to be that."""
    length = (-1 if value is None else len(value)) if declared is None else declared
    body = b"\0" + in_two(0) + in_two(number) + in_two(-1) + in_two(length) + (value or b"") + in_two(0)
    return in_two(len(body)) + body


@pytest.mark.parametrize("value", [None, b"", b"x", bytes(63), bytes(64), bytes(5000)])
@pytest.mark.parametrize("count", [1, 12, 70])
def test_numbers_in_two_bytes_are_read_whether_they_need_them_or_not(value: bytes | None, count: int) -> None:
    payload = b"".join(record_in_two(number, value=value) for number in range(count))
    assert walked(payload, count) == decoded(payload, count) == (0, 0, True)


@pytest.mark.parametrize("declared", [-2, 9, 12, 8191, -8192])
@pytest.mark.parametrize("behind", [b"", bytes(9000)])
def test_a_value_length_in_two_bytes_that_does_not_fit_is_refused(declared: int, behind: bytes) -> None:
    payload = record_in_two(0, value=bytes(10), declared=declared) + behind
    with pytest.raises(InvalidRecords):
        check_records(payload, 0, len(payload), 2 if behind else 1)


def test_a_record_length_below_nothing_is_refused_in_two_bytes() -> None:
    with pytest.raises(InvalidRecords):
        check_records(in_two(-7) + bytes(20), 0, 22, 1)


@pytest.mark.interpreted
def test_short_runs_do_not_make_the_search_for_them_cost_more_than_the_walk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 20_000
    payload = b"".join(
        wide_record(number, key=None, size=3, above=number // 8 % 2) for number in range(count)
    )
    sought = {"walk": 0, "bounds": 0}
    walk_run, bounds_run = walk_together._walk_run, columns._run

    def walk_counted(*words: Any, wanted: int, **more: Any) -> Walked | None:
        sought["walk"] += wanted
        return walk_run(*words, wanted=wanted, **more)

    def bounds_counted(data: bytes, at: int, end: int, wanted: int) -> Any:
        sought["bounds"] += wanted
        return bounds_run(data, at, end, wanted)

    monkeypatch.setattr(walk_together, "_walk_run", walk_counted)
    monkeypatch.setattr(columns, "_run", bounds_counted)
    assert check_records(payload, 0, len(payload), count) == (0, 0, True)
    assert len(record_bounds(payload, 0, len(payload), count)) == count + 1
    assert max(sought.values()) < 3 * count


def test_of_a_record_that_declares_headers_it_does_not_hold_nothing_is_taken() -> None:
    sound = encode_record(
        Record(bytes(2 * STRETCH_BYTES), None, (("h", b"x"),)), offset_delta=0, timestamp_delta_ms=0
    )
    with pytest.raises(InvalidRecords):
        check_records(sound, 0, len(sound) + 500, 1)
    for count in (2, 500):
        body = bytearray(b"\0\0\0\1")
        write_varint(body, 2 * STRETCH_BYTES)
        body += bytes(2 * STRETCH_BYTES)
        write_varint(body, count)
        body += bytes(10)
        record = bytearray()
        write_varint(record, len(body))
        assert walked(bytes(record + body), 1) is None


def test_a_million_headers_in_one_record_are_walked_once() -> None:
    body = bytearray(b"\0\0\0\1\1")
    write_varint(body, 200_000)
    body += b"\0\1" * 200_000
    record = bytearray()
    write_varint(record, len(body))
    payload = bytes(record + body)
    assert walked(payload, 1) == (0, 0, True)
    assert walked(payload[:-1] + b"\2", 1) is None


def test_a_headers_count_beyond_the_record_costs_nothing() -> None:
    body = bytearray(b"\0\0\0\1\1")
    write_varint(body, 2**31 - 1)
    record = bytearray()
    write_varint(record, len(body))
    assert walked(bytes(record + body), 1) is None


@pytest.mark.parametrize("length", [-1, -2, -50])
@pytest.mark.parametrize("count", [1, 60])
def test_negative_lengths_do_not_send_the_walk_backwards(length: int, count: int) -> None:
    record = bytearray()
    write_varint(record, length)
    assert walked(bytes(record) * count + bytes(7 * count), count) is None


def test_a_huge_declared_count_is_refused_before_anything_is_made_for_it() -> None:
    with pytest.raises(InvalidRecords):
        check_records(bytes(100), 0, 100, 2**31 - 1)


def test_records_are_walked_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [Record(bytes(number % 5), timestamp_ms=NOW_MS) for number in range(1000)]
    whole = walked(payload_of(records), 1000)
    monkeypatch.setattr(walk_together, "CHUNK_RECORDS", 100)
    assert walked(payload_of(records), 1000) == whole


@pytest.mark.parametrize("key", [None, b"key"])
def test_one_odd_record_in_a_uniform_run_is_noticed_at_every_byte(key: bytes | None) -> None:
    records = [Record(b"v" * 100, key, timestamp_ms=NOW_MS + number % 2) for number in range(120)]
    sound = payload_of(records)
    starts = [0]
    for number, record in enumerate(records):
        encoded = encode_record(record, offset_delta=number, timestamp_delta_ms=number % 2)
        starts.append(starts[-1] + len(encoded))
    refused = 0
    for position in range(starts[90], starts[91]):
        for flip in (1, 2, 0x80):
            damaged = bytearray(sound)
            damaged[position] ^= flip
            expected = decoded(bytes(damaged), 120)
            assert walked(bytes(damaged), 120) == expected, (position - starts[90], flip)
            refused += expected is None
    assert refused > 10
