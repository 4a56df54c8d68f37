"""Decoding: what clients wrote comes out, by machine code and by Python alike; nonsense is told, never followed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import RejectedRequest
from appliance.protocol.columns.batch_headers import walk_headers
from appliance.protocol.columns.chunk import Chunk
from appliance.protocol.columns.decode import Decoder, Rows, UndecodableBatch, Wanted
from appliance.protocol.columns.record_kernel import TIMESTAMP_MS_MAX
from appliance.protocol.columns.record_steps import BATCHES_MIN
from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import Codec, compress
from appliance.protocol.records.record import Record, decode_records, encode_batch, encode_record, frame_batch
from spark_connector.arrow_columns import BATCH_BYTES, BATCH_ROWS, ArrowColumns


def decode(chunk: Chunk, wanted: Wanted, **how: Any) -> Iterator[Rows]:
    return Decoder(wanted, **how).rows(chunk)


SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
ALL = 1 << 62

field = st.none() | st.binary(max_size=40)
record = st.builds(
    Record,
    value=field,
    key=field,
    headers=st.lists(st.tuples(st.text(max_size=8), field), max_size=3).map(tuple),
    timestamp_ms=st.integers(-1, 1 << 43),
)
records = st.lists(record, min_size=1, max_size=12)
codecs = st.sampled_from(list(Codec))


def chunk_of(data: bytes, start: int = -ALL, end: int = ALL, *, file_position: int = 0) -> Chunk:
    """A scan's chunk of the batches in `data`."""
    walk = walk_headers(data, file_position=file_position)
    return Chunk(
        np.frombuffer(data, np.uint8),
        walk.batches,
        start,
        end,
        "/disk/topic-3/00000000000000000000.log",
        file_position,
    )


def bytes_of(rows: Rows, fields: Any, index: int) -> bytes | None:
    assert fields is not None
    if fields.nulls[index]:
        return None
    return bytes(memoryview(rows.data)[fields.bounds[2 * index] : fields.bounds[2 * index + 1]])


def as_records(stretches: Iterator[Rows]) -> list[Record]:
    out = []
    for rows in stretches:
        for index in range(len(rows)):
            assert rows.headers is not None
            span = range(int(rows.headers.firsts[index]), int(rows.headers.firsts[index + 1]))
            out.append(
                Record(
                    bytes_of(rows, rows.values, index),
                    bytes_of(rows, rows.keys, index),
                    tuple(
                        (
                            (bytes_of(rows, rows.headers.names, at) or b"").decode(
                                "utf-8", "surrogateescape"
                            ),
                            bytes_of(rows, rows.headers.values, at),
                        )
                        for at in span
                    ),
                    int(rows.timestamps_us[index]) // 1000,
                    int(rows.offsets[index]),
                )
            )
    return out


def decoded(chunk: Chunk) -> list[Record]:
    """The records, after machine code and Python have agreed about them."""
    one = as_records(decode(chunk, Wanted(), compiled=True))
    assert one == as_records(decode(chunk, Wanted(), compiled=False))
    return one


@settings(deadline=None)
@given(st.lists(st.tuples(records, codecs, st.booleans()), max_size=4))
def test_records_of_every_codec_come_out_as_they_went_in(
    made: list[tuple[list[Record], Codec, bool]],
) -> None:
    data, expected, base_offset = b"", [], 100
    for batch_records, codec, log_append in made:
        batch = encode_batch(
            batch_records,
            base_offset=base_offset,
            codec=codec,
            attributes=b.LOG_APPEND_TIME if log_append else 0,
        )
        data += batch
        expected += decode_records(batch)
        base_offset += len(batch_records)
    assert decoded(chunk_of(data)) == expected


@settings(deadline=None)
@given(records, codecs, st.integers(0, 12), st.integers(0, 12))
def test_offsets_outside_of_the_bounds_are_left_out(
    made: list[Record], codec: Codec, start: int, end: int
) -> None:
    batch = encode_batch(made, base_offset=5, codec=codec)
    expected = [r for r in decode_records(batch) if start <= r.offset - 5 < end]
    assert decoded(chunk_of(batch, 5 + start, 5 + end)) == expected


@settings(deadline=None)
@given(records, st.integers(0, 1 << 43), st.integers(0, 1 << 43))
def test_timestamps_outside_of_the_bounds_are_left_out(
    made: list[Record], from_ms: int, until_ms: int
) -> None:
    batch = encode_batch(made)
    wanted = Wanted(from_ms=from_ms, until_ms=until_ms)
    expected = [r for r in decode_records(batch) if from_ms <= r.timestamp_ms < until_ms]
    assert as_records(decode(chunk_of(batch), wanted)) == expected
    assert as_records(decode(chunk_of(batch), wanted, compiled=False)) == expected


plain_record = st.builds(Record, value=field, key=field, timestamp_ms=st.integers(-1, 1 << 43))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.lists(plain_record, max_size=6), codecs, st.booleans()), min_size=1, max_size=6))
def test_many_batches_are_decoded_in_step_as_one_by_one(
    made: list[tuple[list[Record], Codec, bool]],
) -> None:
    made = [each for each in made * BATCHES_MIN if each[0]] * 2
    made.sort(key=lambda each: each[1] != Codec.NONE)
    data, base_offset = b"", 0
    for batch_records, codec, log_append in made:
        attributes = b.LOG_APPEND_TIME if log_append else 0
        data += encode_batch(batch_records, base_offset=base_offset, codec=codec, attributes=attributes)
        base_offset += len(batch_records)
    assert len(decoded(chunk_of(data))) == base_offset
    bounded = chunk_of(data, base_offset // 3, base_offset // 2)
    assert len(decoded(bounded)) == base_offset // 2 - base_offset // 3


@settings(deadline=None, max_examples=100)
@given(st.lists(plain_record, min_size=1, max_size=6), st.data())
def test_a_wrong_byte_among_many_batches_is_told_as_alone(made: list[Record], data: Any) -> None:
    payload = bytearray(
        b"".join(
            encode_record(one, offset_delta=index, timestamp_delta_ms=0) for index, one in enumerate(made)
        )
    )
    good = frame_batch(bytes(payload), count=len(made)) * BATCHES_MIN
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    many = good + frame_batch(bytes(payload), count=len(made))
    assert outcome(many, compiled=False) == outcome(many, compiled=True)


def outcome(data: bytes, *, compiled: bool) -> list[Record] | str:
    try:
        return as_records(decode(chunk_of(data), Wanted(), compiled=compiled))
    except UndecodableBatch as fault:
        return str(fault)


@settings(deadline=None, max_examples=300)
@given(records, st.data())
def test_a_byte_that_is_wrong_is_read_alike_and_never_beyond_the_batch(made: list[Record], data: Any) -> None:
    payload = bytearray(
        b"".join(
            encode_record(one, offset_delta=index, timestamp_delta_ms=0) for index, one in enumerate(made)
        )
    )
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    batch = frame_batch(bytes(payload), count=len(made))
    one = outcome(batch, compiled=True)
    assert one == outcome(batch, compiled=False)
    try:
        expected = decode_records(batch)
    except RejectedRequest:
        assert isinstance(one, str)
    else:
        most = TIMESTAMP_MS_MAX
        assert one == [replace(r, timestamp_ms=min(max(r.timestamp_ms, -most), most)) for r in expected]
    # Behind the batch lies another one: nothing of it may come out with this one's records.
    behind = frame_batch(b"\xff" * 64, count=0, base_offset=1 << 20)
    assert outcome(batch + behind[: b.HEADER_BYTES], compiled=True) == one


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=120), st.integers(-5, 1 << 31 - 1))
def test_nonsense_is_refused_alike(payload: bytes, count: int) -> None:
    batch = frame_batch(payload, count=min(count, 2**31 - 1), last_offset_delta=0)
    assert outcome(batch, compiled=True) == outcome(batch, compiled=False)


def test_what_does_not_decode_is_told_with_its_file_and_position() -> None:
    good = encode_batch([Record(b"a")])
    bad = frame_batch(b"\x10\x00\x00\x00\x01\x02", count=1)
    with pytest.raises(UndecodableBatch) as raised:
        decoded(chunk_of(good + bad, file_position=4096))
    assert (raised.value.path, raised.value.position) == (
        "/disk/topic-3/00000000000000000000.log",
        4096 + len(good),
    )


@pytest.mark.parametrize("compiled", [True, False])
def test_batches_that_do_not_decode_are_passed_over_and_counted_on_request(compiled: bool) -> None:
    bad_records = frame_batch(b"\x10\x00\x00\x00\x01\x02", count=1, base_offset=1)
    bad_gzip = frame_batch(b"no gzip", count=1, base_offset=3, attributes=Codec.GZIP)
    bad_codec = frame_batch(b"", count=0, base_offset=5, attributes=7)
    goods = [
        encode_batch([Record(name)], base_offset=offset, codec=codec)
        for name, offset, codec in (
            (b"a", 0, Codec.NONE),
            (b"b", 2, Codec.LZ4),
            (b"c", 4, Codec.GZIP),
            (b"d", 6, Codec.NONE),
        )
    ]
    data = goods[0] + bad_records + goods[1] + bad_gzip + goods[2] + bad_codec + goods[3]
    corrupt: list[tuple[str, int, str]] = []
    found = as_records(decode(chunk_of(data), Wanted(), compiled=compiled, corrupt=corrupt))
    assert [r.value for r in found] == [b"a", b"b", b"c", b"d"]
    assert [position for _, position, _ in corrupt] == sorted(
        [len(goods[0]), data.index(bad_gzip), data.index(bad_codec)]
    )


def test_fields_that_are_not_wanted_are_not_told() -> None:
    chunk = chunk_of(encode_batch([Record(b"v", b"k", (("h", b"x"),))]))
    for rows in decode(chunk, Wanted(key=False, value=False, headers=False)):
        assert (rows.keys, rows.values, rows.headers) == (None, None, None)
        assert list(rows.offsets) == [0]


def arrow(
    made: Sequence[Record], codec: Codec = Codec.NONE, schema: pa.Schema = SCHEMA
) -> list[pa.RecordBatch]:
    columns = ArrowColumns(schema.names, schema, topic="orders", partition=3)
    chunk = chunk_of(encode_batch(made, base_offset=7, codec=codec))
    return [batch for rows in decode(chunk, Wanted()) for batch in columns.batches(rows)]


@settings(deadline=None)
@given(records, codecs)
def test_arrow_tells_null_from_empty_and_every_header(made: list[Record], codec: Codec) -> None:
    (batch,) = arrow(made, codec)
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA)
    expected = decode_records(encode_batch(made, base_offset=7))
    rows = batch.to_pydict()
    assert rows["key"] == [r.key for r in expected]
    assert rows["value"] == [r.value for r in expected]
    assert rows["offset"] == [r.offset for r in expected]
    assert rows["topic"] == ["orders"] * len(made)
    assert rows["partition"] == [3] * len(made)
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [r.timestamp_ms * 1000 for r in expected]
    assert rows["headers"] == [
        [{"key": name, "value": content} for name, content in r.headers] or None for r in expected
    ]


def test_batches_are_bounded_in_rows_and_bytes() -> None:
    few_bytes = arrow([Record(b"")] * (2 * BATCH_ROWS + 1))
    assert [batch.num_rows for batch in few_bytes] == [BATCH_ROWS, BATCH_ROWS, 1]
    huge = Record(bytes(BATCH_BYTES + 1))
    many_bytes = arrow([Record(bytes(BATCH_BYTES // 4))] * 9 + [huge, Record(b"x")])
    assert [batch.num_rows for batch in many_bytes] == [4, 4, 1, 1, 1]
    headers = arrow([Record(b"", headers=(("h", bytes(BATCH_BYTES // 2 - 1)),))] * 3, Codec.ZSTD)
    assert [batch.num_rows for batch in headers] == [2, 1]


def test_a_large_compressed_chunk_comes_in_the_order_of_its_offsets() -> None:
    source = random.Random(7)
    data = b"".join(
        encode_batch(
            [Record(source.randbytes(10) * 10_000) for _ in range(10)],
            base_offset=10 * index,
            codec=source.choice(list(Codec)),
        )
        for index in range(12)
    )
    offsets = [int(o) for rows in decode(chunk_of(data), Wanted()) for o in rows.offsets]
    assert offsets == list(range(120))


def test_the_chosen_columns_come_in_their_order() -> None:
    schema = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
    (batch,) = arrow([Record(b"v")], schema=schema)
    assert batch.to_pylist() == [{"offset": 7, "value": b"v"}]


def test_two_gzip_members_are_one_stream() -> None:
    made = [Record(b"one"), Record(b"two")]
    payload = b"".join(
        encode_record(r, offset_delta=index, timestamp_delta_ms=0) for index, r in enumerate(made)
    )
    batch = frame_batch(
        compress(Codec.GZIP, payload[:4]) + compress(Codec.GZIP, payload[4:]), count=2, attributes=Codec.GZIP
    )
    assert [r.value for r in decoded(chunk_of(batch))] == [b"one", b"two"]
