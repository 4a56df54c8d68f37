from __future__ import annotations

import pytest

from appliance.errors import RejectedRequest
from appliance.log.config import LogSettings
from appliance.log.producer_state import AppendOrigin
from appliance.log.validator import Validator, check_frame
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import Codec, compress
from appliance.protocol.records.record import Record, decode_records, encode_batch, encode_record, frame_batch
from tests.log.batches import NOW_MS, batch_of, marker

HOUR_MS = 3_600_000


def validated(
    batch: memoryview, settings: LogSettings | None = None, origin: AppendOrigin = AppendOrigin.CLIENT
) -> tuple[memoryview, int]:
    return Validator(settings or LogSettings()).check(batch, check_frame(batch), now_ms=NOW_MS, origin=origin)


def code_of(
    batch: b.Buffer, settings: LogSettings | None = None, origin: AppendOrigin = AppendOrigin.CLIENT
) -> ErrorCode:
    with pytest.raises(RejectedRequest) as refused:
        validated(memoryview(batch), settings, origin)
    return ErrorCode(refused.value.code)


def payload(*values: bytes) -> bytes:
    return encode_batch([Record(value, timestamp_ms=0) for value in values])[b.RECORDS :]


def with_crc(batch: memoryview | bytes, **fields: int) -> bytes:
    """A batch with other header fields and a checksum that holds again."""
    header = b.read_header(batch)
    values = {name: getattr(header, name) for name in header.__slots__} | fields
    out = bytearray(batch)
    b.HEADER.pack_into(out, 0, *values.values())
    b.restamp(out, values["attributes"], max_timestamp_ms=values["max_timestamp_ms"])
    return bytes(out)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("count", [1, 10, 300])
def test_a_sound_batch_is_taken_as_it_is(codec: Codec, count: int) -> None:
    batch = batch_of([b"value"] * count, codec=codec)
    found, timestamp_ms = validated(batch)
    assert found is batch
    assert timestamp_ms == NOW_MS


def test_nothing_and_less_than_a_batch_is_refused() -> None:
    batch = bytes(batch_of())
    for length in range(len(batch)):
        assert code_of(batch[:length]) == ErrorCode.INVALID_RECORD, length


def test_two_batches_are_refused() -> None:
    assert code_of(bytes(batch_of()) * 2) == ErrorCode.INVALID_RECORD


def test_bytes_after_the_batch_are_refused() -> None:
    assert code_of(bytes(batch_of()) + b"\0") == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1, 3, 127, 255])
def test_other_formats_are_refused(magic: int) -> None:
    data = bytearray(batch_of())
    data[b.MAGIC] = magic
    assert code_of(data) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13])
def test_an_impossible_length_is_corrupt(length: int) -> None:
    data = bytearray(batch_of())
    data[8:12] = length.to_bytes(4, "big", signed=True)
    assert code_of(data) == ErrorCode.CORRUPT_MESSAGE


def test_a_wrong_checksum_is_corrupt() -> None:
    data = bytearray(batch_of())
    data[-1] ^= 1
    assert code_of(data) == ErrorCode.CORRUPT_MESSAGE


def test_a_batch_over_the_limit_is_too_large_and_one_at_it_is_not() -> None:
    batch = batch_of([bytes(1000)])
    validated(batch, LogSettings(max_message_bytes=len(batch)))
    assert code_of(batch, LogSettings(max_message_bytes=len(batch) - 1)) == ErrorCode.MESSAGE_TOO_LARGE


def test_the_marker_of_a_coordinator_has_no_limit() -> None:
    """Otherwise a transaction could not end after `max.message.bytes` was lowered."""
    batch = marker(committed=True, producer_id=7)
    settings = LogSettings(max_message_bytes=len(batch) - 1)
    assert validated(batch, settings, AppendOrigin.COORDINATOR)[0] == batch
    assert code_of(batch, settings, AppendOrigin.CLIENT) == ErrorCode.MESSAGE_TOO_LARGE
    data = batch_of()
    settings = LogSettings(max_message_bytes=len(data) - 1)
    assert code_of(data, settings, AppendOrigin.COORDINATOR) == ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_over_the_segment_size_is_refused_for_good() -> None:
    settings = LogSettings(max_message_bytes=10_000, segment_bytes=1000)
    assert code_of(batch_of([bytes(2000)]), settings) == ErrorCode.RECORD_LIST_TOO_LARGE


@pytest.mark.parametrize("records_count", [-1, 0, 1, 3, 2**31 - 1])
def test_a_record_count_that_lies_is_refused(records_count: int) -> None:
    assert code_of(with_crc(batch_of([b"a", b"b"]), records_count=records_count)) == ErrorCode.INVALID_RECORD
    lying = with_crc(
        batch_of([b"a", b"b"]), records_count=records_count, last_offset_delta=max(records_count - 1, 0)
    )
    assert code_of(lying) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("count", [2, 300])
def test_a_count_that_lies_is_refused_under_every_codec(codec: Codec, count: int) -> None:
    data = compress(codec, payload(*[b"v"] * count))
    for lie in (count - 1, count + 1):
        batch = frame_batch(
            data, count=lie, attributes=int(codec), base_timestamp_ms=NOW_MS, max_timestamp_ms=NOW_MS
        )
        assert code_of(batch) == ErrorCode.INVALID_RECORD


def test_a_base_offset_of_the_clients_own_is_refused() -> None:
    assert code_of(batch_of(base_offset=5)) == ErrorCode.INVALID_RECORD


def test_clients_may_not_write_markers_but_coordinators_may() -> None:
    batch = marker(committed=True, producer_id=1)
    assert code_of(batch) == ErrorCode.INVALID_RECORD
    assert validated(batch, origin=AppendOrigin.COORDINATOR)[0] is batch


def test_a_producer_id_takes_a_sequence() -> None:
    batch = batch_of(producer_id=1, producer_epoch=0, base_sequence=-1)
    assert code_of(batch) == ErrorCode.INVALID_RECORD
    validated(batch, origin=AppendOrigin.COORDINATOR)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unassigned_codec_is_refused(codec: int) -> None:
    assert code_of(with_crc(batch_of(), attributes=codec)) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_stream_that_does_not_decompress_is_refused(codec: Codec) -> None:
    assert code_of(frame_batch(b"no such stream", count=1, attributes=codec)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_decompression_bomb_is_too_large(codec: Codec) -> None:
    batch = batch_of([bytes(5_000_000)], codec=codec)
    assert code_of(batch, LogSettings(max_decompressed_bytes=1_000_000)) == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("count", [1, 100])
def test_a_compacted_topic_takes_keys_only(codec: Codec, count: int) -> None:
    settings = LogSettings(cleanup_policy=frozenset({"compact"}))
    assert code_of(batch_of([b"v"] * count, codec=codec), settings) == ErrorCode.INVALID_RECORD
    validated(batch_of([b"v"] * count, key=b"", codec=codec), settings)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("count", [1, 100])
def test_a_timestamp_too_far_off_is_refused(codec: Codec, count: int) -> None:
    settings = LogSettings(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=2000)
    for distance_ms in (-1000, 0, 2000):
        validated(batch_of([b"v"] * count, timestamp_ms=NOW_MS + distance_ms, codec=codec), settings)
    for distance_ms in (-1001, 2001):
        batch = batch_of([b"v"] * count, timestamp_ms=NOW_MS + distance_ms, codec=codec)
        assert code_of(batch, settings) == ErrorCode.INVALID_TIMESTAMP


def test_one_record_too_far_off_is_enough() -> None:
    records = [Record(b"v", timestamp_ms=NOW_MS) for _ in range(100)]
    records[50] = Record(b"v", timestamp_ms=NOW_MS + HOUR_MS + 1)
    assert code_of(encode_batch(records)) == ErrorCode.INVALID_TIMESTAMP


def test_records_without_a_timestamp_are_never_too_old() -> None:
    settings = LogSettings(message_timestamp_before_max_ms=1000)
    assert validated(batch_of(timestamp_ms=-1), settings)[1] == -1


def test_a_timestamp_that_overflows_is_refused() -> None:
    record = encode_record(Record(b"v"), offset_delta=0, timestamp_delta_ms=2**62)
    batch = frame_batch(record, count=1, base_timestamp_ms=2**62 + 2**61, max_timestamp_ms=2**63 - 1)
    settings = LogSettings(message_timestamp_after_max_ms=2**63 - 1)
    assert code_of(batch, settings) == ErrorCode.INVALID_TIMESTAMP


def test_a_max_timestamp_that_lies_is_corrected() -> None:
    lying = with_crc(batch_of(), max_timestamp_ms=NOW_MS + 5)
    found, timestamp_ms = validated(memoryview(lying))
    assert timestamp_ms == NOW_MS
    assert b.read_header(found).max_timestamp_ms == NOW_MS
    assert b.crc_holds(found)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_log_append_time_restamps_the_batch(codec: Codec) -> None:
    settings = LogSettings(message_timestamp_type="LogAppendTime")
    batch = batch_of([b"a", b"b"], timestamp_ms=5, codec=codec)
    before = bytes(batch)
    found, timestamp_ms = validated(batch, settings)
    assert bytes(batch) == before, "the sender's bytes stay as they are"
    assert timestamp_ms == NOW_MS
    assert b.crc_holds(found)
    assert {record.timestamp_ms for record in decode_records(found)} == {NOW_MS}


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_producers_may_not_claim_log_append_time(kind: str) -> None:
    settings = LogSettings.from_configs({"message.timestamp.type": kind})
    assert code_of(batch_of(attributes=b.LOG_APPEND_TIME), settings) == ErrorCode.INVALID_TIMESTAMP
