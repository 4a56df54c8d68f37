from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from appliance.protocol.records.batch import LOG_APPEND_TIME, read_header
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.errors import InvalidRecords
from appliance.protocol.records.record import Record, decode_records, encode_batch, encode_record, frame_batch

NOW_MS = 1_700_000_000_000

texts = st.text(max_size=10)
some_bytes = st.binary(max_size=300)
records = st.builds(
    Record,
    value=st.none() | some_bytes,
    key=st.none() | some_bytes,
    headers=st.lists(st.tuples(texts, st.none() | some_bytes), max_size=3).map(tuple),
    timestamp_ms=st.integers(NOW_MS - 10**6, NOW_MS + 10**6),
)


def plain(record: Any) -> tuple[Any, ...]:
    return record.timestamp, record.key, record.value, [(name, value) for name, value in record.headers]


@given(st.lists(records, min_size=1, max_size=20), st.sampled_from(Codec), st.integers(0, 2**40))
def test_records_come_back_as_they_went_in(written: list[Record], codec: Codec, base_offset: int) -> None:
    batch = encode_batch(written, base_offset=base_offset, codec=codec)
    found = decode_records(batch)
    assert [(r.value, r.key, r.headers, r.timestamp_ms) for r in found] == [
        (r.value, r.key, r.headers, r.timestamp_ms) for r in written
    ]
    assert [r.offset for r in found] == list(range(base_offset, base_offset + len(written)))


@given(st.lists(records, min_size=1, max_size=8), st.sampled_from(Codec))
def test_other_clients_read_what_we_write(written: list[Record], codec: Codec) -> None:
    batch = encode_batch(written, codec=codec)
    expected = [(r.timestamp_ms, r.key, r.value, list(r.headers)) for r in written]
    kafka_python = KafkaPythonBatch(batch)
    assert kafka_python.validate_crc()
    assert [plain(record) for record in kafka_python] == expected
    aio = AioBatch(bytearray(batch))
    assert aio.validate_crc()
    assert [plain(record) for record in aio] == expected


@pytest.mark.parametrize("builder", [KafkaPythonBuilder, AioBuilder])
@pytest.mark.parametrize("codec", list(Codec))
def test_we_read_what_other_clients_write(builder: Any, codec: Codec) -> None:
    out = builder(
        magic=2,
        compression_type=int(codec),
        is_transactional=False,
        producer_id=5,
        producer_epoch=1,
        base_sequence=0,
        batch_size=1 << 20,
    )
    for number in range(200):
        out.append(number, NOW_MS + number, b"k%d" % number, b"v" * number, [("h", b"x"), ("n", None)])
    found = decode_records(bytes(out.build()))
    assert [(r.offset, r.timestamp_ms, r.key, r.value) for r in found] == [
        (number, NOW_MS + number, b"k%d" % number, b"v" * number) for number in range(200)
    ]
    assert found[0].headers == (("h", b"x"), ("n", None))


def test_null_and_empty_are_not_the_same() -> None:
    written = [Record(None, None), Record(b"", b""), Record(None, b""), Record(b"", None)]
    assert [(r.value, r.key) for r in decode_records(encode_batch(written))] == [
        (None, None),
        (b"", b""),
        (None, b""),
        (b"", None),
    ]


def test_log_append_time_gives_every_record_the_batch_timestamp() -> None:
    batch = encode_batch(
        [Record(b"a", timestamp_ms=5), Record(b"b", timestamp_ms=9)], attributes=LOG_APPEND_TIME
    )
    assert [r.timestamp_ms for r in decode_records(batch)] == [9, 9]


def test_bytes_after_the_last_record_are_refused() -> None:
    payload = encode_record(Record(b"v"), offset_delta=0, timestamp_delta_ms=0)
    with pytest.raises(InvalidRecords):
        decode_records(frame_batch(payload + b"\0", count=1))


def test_a_batch_that_was_emptied_by_compaction_has_no_records() -> None:
    batch = frame_batch(b"", count=0, last_offset_delta=9)
    assert decode_records(batch) == []
    assert read_header(batch).next_offset == 10
