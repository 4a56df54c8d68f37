"""Columns without a broker: what a batch is cut by, what a corrupt one does, and the kernels without numba."""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from appliance.protocol.columns.encode import (
    BatchEncoder,
    Layout,
    UnfitColumns,
    by_partition,
    key_partitions,
    pieces,
)
from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import Codec, compress
from appliance.protocol.records.control import EndTransactionMarker, encode_marker_batch
from appliance.protocol.records.record import Record, decode_records, encode_batch, encode_record, frame_batch
from appliance_client import arrow, arrow_reading
from appliance_client.arrow_batches import ColumnsFuture
from appliance_client.arrow_reading import ColumnsReader
from appliance_client.core import Core
from appliance_client.errors import CorruptRecordsError, OptionError
from appliance_client.fetching import CHUNKS_MAX, Fetching
from appliance_client.kernel import partition_of_key
from appliance_client.options import ConsumerOptions, options_of
from appliance_client.reading import Chunk, Reading
from appliance_client.values import TopicPartition

PLACE = TopicPartition("t", 3)


def encoded(table: pa.Table, batch_bytes: int, piece_bytes: int = 1 << 20) -> list[bytes]:
    """The batches of a table's rows, framed, in order."""
    names = table.schema.names
    key, value, timestamp, headers = (
        name if name in names else None for name in ("key", "value", "timestamp", "headers")
    )
    layout = Layout.of(table.schema, key, value, timestamp, headers, None)
    encoder = BatchEncoder(batch_bytes)
    found = []
    for piece in pieces(table, layout, now_ms=7, piece_bytes=piece_bytes):
        largest = int(piece.sizes().max())
        for batch in encoder.batches(piece, np.arange(piece.rows), largest):
            found.append(
                frame_batch(
                    bytes(batch.room[b.HEADER_BYTES :]),
                    count=batch.count,
                    base_timestamp_ms=batch.first_ms,
                    max_timestamp_ms=batch.max_ms,
                )
            )
    return found


@pytest.mark.parametrize("batch_bytes", [1, 100, 1000, 16_384, 1 << 20])
def test_no_batch_is_longer_than_asked_for_and_none_could_take_the_next_record(batch_bytes: int) -> None:
    chance = random.Random(batch_bytes)
    values = [chance.randbytes(chance.randint(0, 400)) for _ in range(4000)]
    batches = encoded(pa.table({"value": values}), batch_bytes)
    records = [decode_records(each) for each in batches]
    assert [record.value for each in records for record in each] == values
    for batch, held, following in zip(batches, records, [*records[1:], None], strict=True):
        assert len(batch) <= batch_bytes or len(held) == 1
        if following is not None and batch_bytes < 1 << 20:
            assert len(batch) + len(following[0].value or b"") + 12 > batch_bytes


def test_a_record_is_the_same_bytes_as_one_that_was_encoded_alone() -> None:
    chance = random.Random(5)
    keys = [
        None if chance.random() < 0.3 else chance.randbytes(chance.choice([0, 1, 63, 64, 70]))
        for _ in range(500)
    ]
    values = [
        None if chance.random() < 0.3 else chance.randbytes(chance.choice([0, 9, 8191, 8192]))
        for _ in range(500)
    ]
    times_ms = [chance.randint(0, 1 << 44) for _ in range(500)]
    headers = [
        [("n" * chance.randint(0, 70), chance.choice([None, b"", b"x" * 64]))] * chance.choice([0, 1, 3])
        for _ in range(500)
    ]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "timestamp": times_ms,
            "headers": pa.array([[{"key": k, "value": v} for k, v in each] for each in headers], kind),
        }
    )
    (found,) = encoded(table, 1 << 24, 1 << 24)
    wanted = encode_batch(
        Record(value, key, tuple(listed), time_ms)
        for time_ms, key, value, listed in zip(times_ms, keys, values, headers, strict=True)
    )
    assert found[b.RECORDS :] == wanted[b.RECORDS :]


def test_keys_have_the_partition_of_the_default_partitioner_also_in_a_slice() -> None:
    chance = random.Random(1)
    keys = [chance.randbytes(length) for length in range(40) for _ in range(20)]
    table = pa.table({"key": [b"x", None, *keys]}).slice(1)
    layout = Layout.of(table.schema, "key", None, None, None, None)
    (piece,) = pieces(table, layout, now_ms=0, piece_bytes=1 << 20)
    for partitions in (1, 7, 1000):
        chosen = key_partitions(piece.keys, partitions)
        assert chosen.tolist() == [-1, *(partition_of_key(key, partitions) for key in keys)]
        rows = by_partition(chosen[1:], partitions)
        assert sorted(index for _, order in rows for index in order.tolist()) == list(range(len(keys)))
        for partition, order in rows:
            assert order.tolist() == sorted(order.tolist())
            assert set(chosen[1:][order].tolist()) == {partition}


LONG = "x" * 10_000


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["y", *[LONG] * 2_000, None]).dictionary_encode(),
        pa.array(["y", *[LONG] * 2_000, None])
        .dictionary_encode()
        .cast(pa.dictionary(pa.int32(), pa.large_string())),
        pa.DictionaryArray.from_arrays(
            pa.array([0, *[1] * 2_000, None]), pa.array(["y", LONG]).cast(pa.string_view())
        ),
        pa.chunked_array(
            [pa.array(["y"]).dictionary_encode(), pa.array([*[LONG] * 2_000, None]).dictionary_encode()]
        ),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(["y", *[LONG] * 2_000, None])),
    ],
    ids=["string", "large", "views", "chunks", "extension"],
)
def test_rows_that_share_their_bytes_are_pieces_of_a_bounded_size(column: Any) -> None:
    """20 MB of records; a dictionary has them in 20 KB."""
    table = pa.table({"value": column})
    layout = Layout.of(table.schema, None, "value", None, None, None)
    found, wanted = [], [b"y", *[LONG.encode()] * 2_000, None]
    for piece in pieces(table, layout, now_ms=0, piece_bytes=1 << 20):
        assert int(piece.values.lengths.clip(0).sum()) <= 1 << 20
        data, starts, lengths = piece.values
        found += [
            None if length < 0 else data[start : start + length].tobytes()
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
        ]
    assert found == wanted


@pytest.mark.parametrize("key", [["k"] * 20_200, pa.array(["k"] * 20_200).dictionary_encode()])
def test_rows_much_larger_than_the_average_are_pieces_of_a_bounded_size(key: Any) -> None:
    """20 MB of records in 200 rows behind many small ones: a thousand rows are a megabyte on average."""
    values = [b"y"] * 10_000 + [b"x" * 100_000] * 200 + [b"z"] * 10_000
    table = pa.table({"key": key, "value": pa.chunked_array([values[:10_100], values[10_100:]])})
    layout = Layout.of(table.schema, "key", "value", None, None, None)
    found: list[int] = []
    for piece in pieces(table, layout, now_ms=0, piece_bytes=1 << 20):
        assert int(piece.values.lengths.sum()) <= 2 << 20
        found += piece.values.lengths.tolist()
    assert found == [len(value) for value in values]


@pytest.mark.parametrize("names", [("key", "value"), ("value", "key"), ("name", "content")])
def test_headers_that_share_their_bytes_are_bounded_and_are_known_by_the_names_of_their_fields(
    names: tuple[str, str],
) -> None:
    """As Polars has them: views in large lists. A struct may have its fields in either order."""
    rows = [None, [], *[[("h", LONG), ("i", None)]] * 500]
    parts = {"key": 0, "name": 0, "value": 1, "content": 1}
    entry = pa.struct([(name, pa.string_view()) for name in names])
    lists = [
        None if row is None else [{name: each[parts[name]] for name in names} for each in row] for row in rows
    ]
    table = pa.table({"value": ["v"] * len(rows), "headers": pa.array(lists, pa.large_list(entry))})
    layout = Layout.of(table.schema, None, "value", None, "headers", None)
    count = 0
    for piece in pieces(table, layout, now_ms=0, piece_bytes=1 << 20):
        count += piece.rows
        assert int(piece.header_values.lengths.clip(0).sum()) <= 1 << 20
        data, starts, lengths = piece.header_names
        found = {data[s : s + n].tobytes() for s, n in zip(starts.tolist(), lengths.tolist(), strict=True)}
        assert found <= {b"h", b"i"}
    assert count == len(rows)


def test_without_numba_the_same_bytes_are_made() -> None:
    program = (
        "import sys, hashlib; sys.path.insert(0, '.');"
        "from tests.native.test_arrow_units import *;"
        "t = pa.table({'key': [str(n) * (n % 9) for n in range(900)], 'value': ['v' * (n % 300) for n in range(900)]});"
        "layout = Layout.of(t.schema, 'key', None, None, None, None);"
        "(piece,) = pieces(t, layout, now_ms=0, piece_bytes=1 << 20);"
        "print([hashlib.sha1(b''.join(encoded(t, 3000))).hexdigest(), key_partitions(piece.keys, 9).tolist(),"
        " [(p, o.tolist()) for p, o in by_partition(key_partitions(piece.keys, 9), 9)]])"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            env={"APPLIANCE_SPARK_COMPILED": switch, "PATH": "/usr/bin:/bin"},
        ).stdout
        for switch in ("0", "1")
    }
    assert len(made) == 1


def reader_of(data: bytes, position: int = 0, **options: object) -> tuple[ColumnsReader, Reading]:
    """A reader whose only partition has fetched these bytes."""
    chosen = options_of(ConsumerOptions, None, {"bootstrap_servers": "localhost:1", **options})
    fetching = Fetching(chosen, Core(chosen, now_s=0.0, auto_create=False), None)
    fetching.assign([PLACE])
    reading = fetching.readings[PLACE]
    reading.seek(position)
    reading.chunks.append(Chunk(memoryview(data), len(data), ()))
    return ColumnsReader(fetching, nullcontext(), check_crcs=chosen.check_crcs), reading


def batch_of(first: int, *values: bytes, step: int = 1) -> bytes:
    records = [
        encode_record(Record(each), offset_delta=n * step, timestamp_delta_ms=0)
        for n, each in enumerate(values)
    ]
    return frame_batch(
        b"".join(records),
        count=len(values),
        base_offset=first,
        last_offset_delta=(len(values) - 1) * step,
        base_timestamp_ms=1000,
        max_timestamp_ms=1000,
    )


@pytest.mark.parametrize("broken", [b.RECORDS + 3, b.CRC, b.MAX_TIMESTAMP])
def test_records_before_a_corrupt_batch_are_given_and_then_the_error_as_by_poll(broken: int) -> None:
    bad = bytearray(batch_of(2, b"c", b"d"))
    bad[broken] ^= 0x40
    reader, reading = reader_of(batch_of(0, b"a", b"b") + bytes(bad) + batch_of(4, b"e"))
    assert reader.table(reader.begin(None), None, None)["value"].to_pylist() == [b"a", b"b"]
    for _ in range(2):
        with pytest.raises(CorruptRecordsError, match="t-3@2: checksum fails") as told:
            reader.table(reader.begin(None), None, None)
        assert told.value.partition == PLACE
        assert reading.position == 2
        assert len(reading.chunks) == 1
    reading.seek(4)
    reading.chunks.append(Chunk(memoryview(batch_of(4, b"e")), len(batch_of(4, b"e")), ()))
    assert reader.table(reader.begin(None), None, None)["value"].to_pylist() == [b"e"]
    assert reading.position == 5


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_records_before_a_batch_that_does_not_decode_are_given(codec: Codec) -> None:
    lying = frame_batch(b"\x7f\x00\x00", count=1, base_offset=2, attributes=int(codec))
    reader, reading = reader_of(batch_of(0, b"a", b"b") + lying)
    assert reader.table(reader.begin(None), None, None)["value"].to_pylist() == [b"a", b"b"]
    assert reading.position == 2
    with pytest.raises(CorruptRecordsError, match="t-3@2: "):
        reader.table(reader.begin(None), None, None)


def test_a_corrupt_partition_does_not_keep_others_from_their_records() -> None:
    reader, reading = reader_of(batch_of(0, b"a"))
    other = TopicPartition("t", 4)
    reader._fetching.assign([PLACE, other])
    bad = bytearray(batch_of(0, b"x"))
    bad[b.CRC] ^= 1
    second = reader._fetching.readings[other]
    second.seek(0)
    second.chunks.append(Chunk(memoryview(bytes(bad)), len(bad), ()))
    found, errors = [], []
    for _ in range(4):
        try:
            found += reader.table(reader.begin(None), None, None)["value"].to_pylist()
        except CorruptRecordsError as error:
            errors.append(error.partition)
    assert found == [b"a"]
    assert errors[-1] == other
    assert (reading.position, second.position) == (1, 0)


def compressed(first: int, value: bytes, count: int = 1) -> bytes:
    records = b"".join(
        encode_record(Record(value), offset_delta=n, timestamp_delta_ms=0) for n in range(count)
    )
    return frame_batch(
        compress(Codec.ZSTD, records), count=count, base_offset=first, attributes=int(Codec.ZSTD)
    )


def test_a_table_of_what_compresses_well_is_bounded_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrow_reading, "DECODED_BYTES_MAX", 6 << 20)
    batches = [compressed(5 * n, bytes([n]) * 400_000, 5) for n in range(20)]
    reader, reading = reader_of(b"".join(batches))
    reading.chunks.append(Chunk(memoryview(compressed(100, b"last")), len(compressed(100, b"last")), ()))
    found: list[tuple[int, bytes]] = []
    calls = 0
    while taken := reader.begin(None):
        table = reader.table(taken, None, ("offset", "value"))
        assert table.nbytes < (6 << 20) + (5 << 20)
        found += zip(
            table["offset"].to_pylist(), (each[:1] for each in table["value"].to_pylist()), strict=True
        )
        assert reading.position == len(found)
        calls += 1
    assert found == [*((5 * n + k, bytes([n])) for n in range(20) for k in range(5)), (100, b"l")]
    assert calls >= 40_000_000 // (12 << 20)


def test_what_waits_does_not_grow_while_one_chunk_is_many_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch brings another chunk whenever fewer than two wait, also while a table is decoded."""
    monkeypatch.setattr(arrow_reading, "DECODED_BYTES_MAX", 1 << 20)
    reader, reading = reader_of(b"")
    reading.chunks.clear()
    numbers = iter(range(60))

    def fetch() -> None:
        while len(reading.chunks) < CHUNKS_MAX and (number := next(numbers, None)) is not None:
            data = b"".join(compressed(5 * number + k, b"x" * 1_500_000) for k in range(5))
            reading.chunks.append(Chunk(memoryview(data), len(data), ()))

    fetch()
    found, most = 0, 0
    while taken := reader.begin(None):
        fetch()
        found += reader.table(taken, None, ("value",)).num_rows
        fetch()
        most = max(most, len(reading.chunks))
        assert reading.position == found
    assert found == 300
    assert most <= 2 * CHUNKS_MAX


@pytest.mark.parametrize("stops", ["bytes", "corrupt"])
def test_what_is_cut_off_among_transactions_keeps_its_state(
    stops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer commits, and later aborts: what was walked over must not hide the records before the abort."""

    def transactional(first: int, value: bytes, codec: Codec = Codec.NONE) -> bytes:
        record = encode_record(Record(value), offset_delta=0, timestamp_delta_ms=0)
        return frame_batch(
            compress(codec, record),
            count=1,
            base_offset=first,
            attributes=b.TRANSACTIONAL | int(codec),
            producer_id=9,
            producer_epoch=0,
        )

    def end(first: int, *, committed: bool) -> bytes:
        marker = EndTransactionMarker(committed, 0)
        made = encode_marker_batch(marker, producer_id=9, producer_epoch=0, timestamp_ms=1)
        return first.to_bytes(8, "big") + made[8:]

    middle = bytearray(transactional(1, b"b" * 100, Codec.ZSTD))
    sound = bytes(middle)
    if stops == "corrupt":
        middle[b.CRC] ^= 1
    else:
        monkeypatch.setattr(arrow_reading, "DECODED_BYTES_MAX", 1)
    parts = [
        transactional(0, b"a"),
        bytes(middle),
        end(2, committed=True),
        transactional(3, b"aborted"),
        end(4, committed=False),
        compressed(5, b"z"),
    ]
    data = bytearray(b"".join(parts))
    reader, reading = reader_of(b"", isolation_level="read_committed")
    reading.chunks[0] = Chunk(memoryview(data), len(data), [(9, 3)])
    found = reader.table(reader.begin(None), None, ("value",))["value"].to_pylist()
    assert found == [b"a"]
    assert reading.position == 1
    if stops == "corrupt":
        data[len(parts[0]) : len(parts[0]) + len(sound)] = sound
    while taken := reader.begin(None):
        found += reader.table(taken, None, ("value",))["value"].to_pylist()
    assert found == [b"a", b"b" * 100, b"z"]
    assert reading.position == 6


def test_records_that_do_not_add_up_are_an_error_though_their_checksum_holds() -> None:
    lying = frame_batch(b"\x7f\x00\x00", count=1, base_offset=0)
    reader, reading = reader_of(lying)
    with pytest.raises(CorruptRecordsError, match="t-3@0: "):
        reader.table(reader.begin(None), None, None)
    assert reading.position == 0


def test_gaps_of_compaction_are_stepped_over_and_the_position_stands_behind_the_batch() -> None:
    batch = bytearray(batch_of(10, b"a", b"b", b"c", step=3))
    reader, reading = reader_of(bytes(batch), position=13)
    table = reader.table(reader.begin(None), None, None)
    assert table["offset"].to_pylist() == [13, 16]
    assert reading.position == 17


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_some_records_of_a_batch_leave_the_others_for_the_next_call(most: int) -> None:
    data = batch_of(0, b"0", b"1", b"2") + batch_of(3, b"3", b"4") + batch_of(5, b"5")
    reader, reading = reader_of(data)
    found: list[int] = []
    while taken := reader.begin(most):
        table = reader.table(taken, most, ("value",))
        assert table.num_rows <= most
        found += map(int, table["value"].to_pylist())
        assert reading.position == len(found)
    assert found == [0, 1, 2, 3, 4, 5]


def test_a_seek_during_decoding_wins() -> None:
    reader, reading = reader_of(batch_of(0, b"a", b"b"))
    taken = reader.begin(None)
    reading.seek(77)
    assert reader.table(taken, None, None).num_rows == 0
    assert reading.position == 77


def test_a_header_name_that_is_no_text_becomes_text() -> None:
    record = encode_record(
        Record(b"v", b"k", (("!!", b"1"), ("ok", None))), offset_delta=0, timestamp_delta_ms=0
    )
    reader, _ = reader_of(frame_batch(record.replace(b"!!", b"\xff\xfe"), count=1))
    table = reader.table(reader.begin(None), None, None)
    table.validate(full=True)
    (row,) = table.to_pylist()
    assert row["headers"] == [{"key": "��", "value": b"1"}, {"key": "ok", "value": None}]
    assert row["timestamp"] is None


@pytest.mark.parametrize("seconds", [1 << 62, -(1 << 62), 1 << 54])
def test_a_time_that_is_no_64_bit_number_of_milliseconds_is_refused(seconds: int) -> None:
    table = pa.table({"value": ["x"], "timestamp": pa.array([seconds], pa.timestamp("s"))})
    with pytest.raises(UnfitColumns, match="timestamp: column 'timestamp' has a time"):
        encoded(table, 1000)


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize(
    ("column", "wrong", "says"),
    [
        ("timestamp", pa.scalar(-7), "a time before 1970"),
        ("timestamp", pa.scalar(1 << 60, pa.timestamp("s")), "a time beyond 64 bits"),
        ("headers", pa.scalar([{"key": "ok"}, {"value": b"v"}], HEADERS), "a header without a name"),
        ("headers", pa.scalar([{"key": "ok"}, None], HEADERS), "a null among a record's headers"),
    ],
)
def test_the_first_wrong_row_is_named(column: str, wrong: Any, says: str, *, is_chunked: bool) -> None:
    """Rows 0 to 2 are nothing to complain of, 3 and 5 are wrong, and a piece has one row or all of them."""
    rows = pa.array([None] * 3 + [wrong, None, wrong], wrong.type)
    table = pa.table({"value": ["x"] * 6, column: pa.chunked_array([rows.slice(0, 2), rows.slice(2)])})
    with pytest.raises(UnfitColumns, match=f"^row 3: {column}: column '{column}' has {says}") as told:
        encoded(table, 1000, piece_bytes=1 if is_chunked else 1 << 20)
    assert told.value.row == 3


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary()])
@pytest.mark.parametrize("offsets", [[0, 99_000_000, 2], [0, -99_000_000, 2], [0, 3, 2]])
@pytest.mark.parametrize("column", ["key", "value"])
def test_offsets_outside_of_a_column_reach_no_memory_of_the_process(
    column: str, offsets: list[int], kind: Any
) -> None:
    number = np.int64 if kind == pa.large_binary() else np.int32
    buffers = [None, pa.py_buffer(np.array(offsets, number)), pa.py_buffer(b"abc")]
    broken = pa.Array.from_buffers(kind, 2, buffers)
    table = pa.table({"key": ["k", "k"], "value": ["v", "v"]} | {column: broken})
    with pytest.raises(UnfitColumns, match="offsets outside of its data"):
        encoded(table, 1000)


@pytest.mark.parametrize("offsets", [[0, 1_000_000, 2], [0, -1_000_000, 2]])
def test_lists_of_headers_outside_of_their_column_reach_no_memory_of_the_process(offsets: list[int]) -> None:
    entries = pa.array([{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}], HEADERS.value_type)
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32))]
    broken = pa.Array.from_buffers(HEADERS, 2, buffers, children=[entries])
    with pytest.raises(UnfitColumns, match="offsets outside of its data"):
        encoded(pa.table({"value": ["v", "v"], "headers": broken}), 1000)


@pytest.mark.parametrize("names", [("value", "name"), ("v", "key"), ("value", "key")])
def test_a_header_field_that_is_named_value_is_no_name(names: tuple[str, str]) -> None:
    row = [{names[0]: "content", names[1]: "name"}]
    (batch,) = encoded(pa.table({"value": ["x"], "headers": [row]}), 1000)
    assert [record.headers for record in decode_records(batch)] == [(("name", b"content"),)]


@pytest.mark.parametrize("ms_before_1970", [1, 2, 600_000_000_000])
def test_a_time_before_1970_asks_for_the_first_record(ms_before_1970: int) -> None:
    asked: dict[TopicPartition, int] = {}

    class Asked:
        def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, None]:
            asked.update(times)
            return dict.fromkeys(times)

    at = datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=ms_before_1970)
    arrow._resolved(Asked(), "start", at, {PLACE: 0}, {PLACE: 9})  # type: ignore[arg-type]
    assert asked == {PLACE: 0}  # Kafka gives negative times a meaning of their own: -1 is the end


@pytest.mark.parametrize("edge", ["start", "end"])
def test_a_time_within_a_millisecond_asks_for_the_next_one(edge: str) -> None:
    """A record of 12:00:00.010 is older than 12:00:00.010500."""
    asked: list[int] = []

    class Asked:
        def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, None]:
            asked.extend(times.values())
            return dict.fromkeys(times)

    for microseconds in (10_000, 10_001, 10_500, 11_000):
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
        arrow._resolved(Asked(), edge, at, {PLACE: 0}, {PLACE: 9})  # type: ignore[arg-type]
    assert asked == [10, 11, 11, 11]


@pytest.mark.parametrize("place", [True, -1, 1.5, "5", None, {3: -1}, {3: "x"}])
def test_what_is_no_place_is_refused(place: Any) -> None:
    with pytest.raises(OptionError, match=r"^start is .*: earliest, latest, an offset from 0 on"):
        arrow._resolved(None, "start", place, {PLACE: 0}, {PLACE: 9})  # type: ignore[arg-type]


def test_offsets_may_be_of_any_type_of_whole_numbers() -> None:
    found = arrow._resolved(None, "start", np.int64(4), {PLACE: 0}, {PLACE: 9})  # type: ignore[arg-type]
    assert found == {PLACE: 4}
    found = arrow._resolved(None, "end", {3: np.int32(4)}, {PLACE: 0}, {PLACE: 9})  # type: ignore[arg-type, dict-item]
    assert found == {PLACE: 4}


def test_a_name_instead_of_a_list_of_names_is_refused() -> None:
    with pytest.raises(OptionError, match="columns is 'value': a list of names"):
        arrow_reading.schema_of("value")


@pytest.mark.parametrize("how", [{"group_id": "g"}, {"config": {"group.id": "g"}}])
def test_a_bounded_read_commits_for_no_group(how: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="joins no group"):
        arrow.read_arrow("t", bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=200, **how)


def test_a_negative_number_of_records_is_refused() -> None:
    with pytest.raises(OptionError, match="max_records"):
        arrow.read_arrow("t", max_records=-1, bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=200)


def test_a_callback_of_a_table_that_raises_stops_no_other_callback() -> None:
    future, told = ColumnsFuture(), []
    future.add_callback(lambda _result, _error: 1 // 0)
    future.add_callback(lambda _result, error: told.append(error))
    future.settle()
    assert told == [None]
