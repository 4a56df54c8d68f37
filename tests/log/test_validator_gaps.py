"""Batches from which the network process has taken delayed records."""

from __future__ import annotations

import pytest

from appliance.errors import RejectedRequest
from appliance.log.config import LogSettings
from appliance.log.validator import CostlyBatch, Validator, check_frame
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import Codec, compress
from appliance.protocol.records.record import Record, decode_records, encode_record, frame_batch
from tests.log.batches import NOW_MS


def gapped(
    deltas: dict[int, int],
    *,
    last_delta: int,
    codec: Codec = Codec.NONE,
    key: bytes | None = b"k",
    producer_id: int = -1,
    attributes: int = 0,
    base_offset: int = 0,
) -> memoryview:
    """Return a batch with these offset deltas → timestamp deltas."""
    records = b"".join(
        encode_record(Record(b"v", key), offset_delta=delta, timestamp_delta_ms=timestamp)
        for delta, timestamp in deltas.items()
    )
    return memoryview(
        frame_batch(
            compress(codec, records),
            count=len(deltas),
            last_offset_delta=last_delta,
            attributes=attributes | codec,
            base_timestamp_ms=NOW_MS,
            max_timestamp_ms=NOW_MS + max(deltas.values(), default=0),
            producer_id=producer_id,
            base_offset=base_offset,
        )
    )


def checked(batch: memoryview, settings: LogSettings | None = None) -> tuple[memoryview, int]:
    return Validator(settings or LogSettings()).check_with_gaps(batch, check_frame(batch), now_ms=NOW_MS)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("deltas", [{0: 0}, {4: 0}, {1: 5, 3: -2}, {0: 0, 1: 0, 2: 0, 3: 0, 4: 7}])
def test_a_batch_with_gaps_is_taken_as_it_is(codec: Codec, deltas: dict[int, int]) -> None:
    batch = gapped(deltas, last_delta=4, codec=codec)
    found, timestamp_ms = checked(batch)
    assert found is batch
    assert timestamp_ms == NOW_MS + max(deltas.values())


def test_a_batch_may_have_no_record_at_all() -> None:
    batch = gapped({}, last_delta=4)
    assert checked(batch) == (batch, NOW_MS)
    stamped, timestamp_ms = checked(batch, LogSettings(message_timestamp_type="LogAppendTime"))
    assert (b.read_header(stamped).is_log_append_time, timestamp_ms) == (True, NOW_MS)
    assert checked(batch, LogSettings(compression_type="zstd"))[0] is batch


def test_a_wrong_max_timestamp_is_corrected() -> None:
    batch = bytearray(gapped({1: 3}, last_delta=1))
    b.restamp(batch, 0, max_timestamp_ms=5)
    found, timestamp_ms = checked(memoryview(batch))
    assert timestamp_ms == b.read_header(found).max_timestamp_ms == NOW_MS + 3


def test_it_is_compressed_again_for_a_topic_with_a_codec() -> None:
    found, _ = checked(gapped({1: 3, 4: 0}, last_delta=6), LogSettings(compression_type="zstd"))
    header = b.read_header(found)
    assert (header.codec, header.last_offset_delta, header.records_count) == (Codec.ZSTD, 6, 2)
    assert [record.offset for record in decode_records(found)] == [1, 4]


@pytest.mark.parametrize(
    ("batch", "settings", "code"),
    [
        (gapped({3: 0, 1: 0}, last_delta=4), None, ErrorCode.INVALID_RECORD),
        (gapped({1: 0, 5: 0}, last_delta=4), None, ErrorCode.INVALID_RECORD),
        (gapped({0: 0, 1: 0}, last_delta=0), None, ErrorCode.INVALID_RECORD),
        (gapped({1: 0}, last_delta=4, attributes=b.CONTROL), None, ErrorCode.INVALID_RECORD),
        (gapped({1: 0}, last_delta=4, producer_id=7), None, ErrorCode.INVALID_RECORD),
        (gapped({1: 0}, last_delta=4, base_offset=7), None, ErrorCode.INVALID_RECORD),
        (gapped({1: 0}, last_delta=4, attributes=b.LOG_APPEND_TIME), None, ErrorCode.INVALID_TIMESTAMP),
        (gapped({1: 10**10}, last_delta=4), None, ErrorCode.INVALID_TIMESTAMP),
        (
            gapped({1: 0}, last_delta=4, key=None),
            LogSettings(cleanup_policy=frozenset({"compact"})),
            ErrorCode.INVALID_RECORD,
        ),
        (gapped({1: 0}, last_delta=4), LogSettings(max_message_bytes=60), ErrorCode.MESSAGE_TOO_LARGE),
        (memoryview(frame_batch(b"\x02", count=1, last_offset_delta=3)), None, ErrorCode.INVALID_RECORD),
        (memoryview(frame_batch(b"", count=1, last_offset_delta=3)), None, ErrorCode.INVALID_RECORD),
        (memoryview(frame_batch(b"x", count=0, last_offset_delta=3)), None, ErrorCode.INVALID_RECORD),
        (memoryview(frame_batch(b"\x09" * 20, count=2, last_offset_delta=3)), None, ErrorCode.INVALID_RECORD),
    ],
)
def test_all_other_rules_hold_for_it(
    batch: memoryview, settings: LogSettings | None, code: ErrorCode
) -> None:
    with pytest.raises(RejectedRequest) as refused:
        checked(batch, settings)
    assert refused.value.code == code


def test_a_batch_that_grows_large_is_left_for_later() -> None:
    batch = gapped(dict.fromkeys(range(1, 200), 0), last_delta=200, codec=Codec.ZSTD)
    header, validator = check_frame(batch), Validator(LogSettings())
    with pytest.raises(CostlyBatch):
        validator.check_with_gaps(batch, header, now_ms=NOW_MS, cheap_bytes_max=1_000)
    assert validator.check_with_gaps(batch, header, now_ms=NOW_MS, cheap_bytes_max=4_000)[0] is batch
