"""Which records of a refused batch were at fault, found in the batch itself."""

from __future__ import annotations

import pytest

from appliance.channels.request_channel import EARLIEST_MS, LATEST_MS, REJECT_REASON, RejectReason
from appliance.protocol.produce import ProducePartition
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.record import Record, encode_batch
from appliance.requests.log_handlers.record_errors import RECORDS_MAX, record_errors

NOW_MS = 1_700_000_000_000


def refusal(reason: RejectReason, earliest_ms: int = -1, latest_ms: int = -1) -> tuple[int, ...]:
    fields = [0] * 14
    fields[REJECT_REASON], fields[EARLIEST_MS], fields[LATEST_MS] = reason, earliest_ms, latest_ms
    return tuple(fields)


def at_fault(records: list[Record], answer: tuple[int, ...], codec: Codec = Codec.NONE) -> list[int]:
    batch = bytes(encode_batch(records, codec=codec))
    block = memoryview(b"before" + batch + b"behind")
    wanted = ProducePartition("t", 3, 6, len(batch))
    return [each.batch_index for each in record_errors(block, wanted, answer)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_records_without_a_key_are_named(codec: Codec) -> None:
    records = [Record(b"v", None if number % 10 == 3 else b"k", timestamp_ms=NOW_MS) for number in range(100)]
    assert at_fault(records, refusal(RejectReason.MISSING_KEY), codec) == list(range(3, 100, 10))


def test_records_with_a_timestamp_out_of_bounds_are_named() -> None:
    records = [Record(b"v", timestamp_ms=NOW_MS + distance_ms) for distance_ms in (-11, -10, 0, 20, 21)]
    assert at_fault(records, refusal(RejectReason.TIMESTAMP, NOW_MS - 10, NOW_MS + 20)) == [0, 4]


def test_a_batch_of_very_many_records_is_not_walked() -> None:
    answer = refusal(RejectReason.MISSING_KEY)
    records = [Record(b"v", timestamp_ms=NOW_MS)] * RECORDS_MAX
    assert len(at_fault(records, answer)) == RECORDS_MAX
    assert at_fault([*records, records[0]], answer) == []


def test_a_batch_that_grows_very_large_is_not_decompressed() -> None:
    records = [Record(bytes(3 << 20), timestamp_ms=NOW_MS)]
    assert at_fault(records, refusal(RejectReason.MISSING_KEY), Codec.ZSTD) == []
