"""From a batch, or a part of it, to the buckets of its records.

    header only   one bucket has the whole batch, if its first and its latest timestamp are in this bucket
    records       each by its own time: the `audit.time` header (with audit.headers), else the timestamp

A batch of n records and s bytes, of which a part is counted, for example up to a committed offset, has its records and
bytes spread evenly over its offsets. Rounded sums of all parts are n and s, whatever the parts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from appliance.message_audit.header_values import header_values
from appliance.message_audit.runs import OTHER_BUCKET, Header
from appliance.message_audit.tally import BUCKETS_PER_BATCH_MAX, Part
from appliance.protocol.records.batch import (
    CODEC_MASK,
    CONTROL,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_BASE_TIMESTAMP,
    H_BATCH_LENGTH,
    H_LAST_OFFSET_DELTA,
    H_MAX_TIMESTAMP,
    H_RECORDS_COUNT,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    RECORDS,
)
from appliance.protocol.records.compression import DECOMPRESSED_BYTES_MAX, decompress

ID_HEADER: Final = "audit.id"
TIME_HEADER: Final = "audit.time"
TIME_MS_MAX: Final = 1 << 48
"""About 9,000 years: a later time is no time."""

_TIME_DIGITS_MAX: Final = 15
_ID_NAME: Final = ID_HEADER.encode()
_TIME_NAME: Final = TIME_HEADER.encode()

Stamped = tuple[int, int, bytes | None]
"""Offset, time in ms and `audit.id` of a record."""


class Facts(NamedTuple):
    """What the header of a batch says. `records`: 0 of a control batch. Times in ms; -1: none."""

    first: int
    end: int
    records: int
    size_bytes: int
    first_ms: int
    max_ms: int


def facts_of(header: Header) -> Facts:
    """Return the facts of a batch by the fields of its header."""
    first, attributes, max_ms = header[H_BASE_OFFSET], header[H_ATTRIBUTES], header[H_MAX_TIMESTAMP]
    return Facts(
        first,
        first + header[H_LAST_OFFSET_DELTA] + 1,
        0 if attributes & CONTROL else header[H_RECORDS_COUNT],
        header[H_BATCH_LENGTH] + LOG_OVERHEAD,
        max_ms if attributes & LOG_APPEND_TIME else header[H_BASE_TIMESTAMP],
        max_ms,
    )


def bucket_of(time_ms: int, bucket_ms: int) -> int:
    """Return the first millisecond of the bucket of a time; OTHER_BUCKET where there is no time."""
    return time_ms - time_ms % bucket_ms if time_ms >= 0 else OTHER_BUCKET


def part_of_header(facts: Facts, bucket_ms: int, *, first: int, end: int) -> Part | None:
    """Return what [first, end) has of a batch; None if only its records can say it."""
    bucket = bucket_of(facts.first_ms, bucket_ms)
    if bucket != bucket_of(facts.max_ms, bucket_ms):
        return None
    span = facts.end - facts.first
    low, high = max(first, facts.first) - facts.first, min(end, facts.end) - facts.first
    if facts.records == 0 or high <= low or span <= 0:
        return Part(bucket, 0, 0, facts.first_ms)
    return Part(
        bucket,
        facts.records * high // span - facts.records * low // span,
        facts.size_bytes * high // span - facts.size_bytes * low // span,
        facts.first_ms,
    )


def stamped(data: bytes, position: int, header: Header, *, by_headers: bool) -> list[Stamped]:
    """Return offset, time in ms and `audit.id` of each record of a batch, which begins at `position` of the data.

    Args:
        by_headers: the time is that of the header `audit.time`, if it is valid. Otherwise the timestamp counts.

    Raises:
        ApplianceError: the batch cannot be read.
    """
    at, end = position + RECORDS, position + header[H_BATCH_LENGTH] + LOG_OVERHEAD
    attributes = header[H_ATTRIBUTES]
    if attributes & CODEC_MASK:
        payload = memoryview(data)[at:end]
        data = bytes(decompress(attributes & CODEC_MASK, payload, DECOMPRESSED_BYTES_MAX))
        at, end = 0, len(data)
    values = header_values(
        data, at, end, header[H_RECORDS_COUNT], first_name=_ID_NAME, second_name=_TIME_NAME
    )
    base, base_ms = header[H_BASE_OFFSET], header[H_BASE_TIMESTAMP]
    if attributes & LOG_APPEND_TIME:
        max_ms = header[H_MAX_TIMESTAMP]
        values = [(delta, max_ms - base_ms, each_id, time) for delta, _, each_id, time in values]
    if not by_headers:
        return [(base + delta, base_ms + delta_ms, None) for delta, delta_ms, _, _ in values]
    return [
        (base + delta, base_ms + delta_ms if time is None else parse_time(time, base_ms + delta_ms), each_id)
        for delta, delta_ms, each_id, time in values
    ]


def parse_time(value: bytes, timestamp_ms: int) -> int:
    """Return the time that an `audit.time` header says, in ms; the timestamp if it says none."""
    if len(value) <= _TIME_DIGITS_MAX and value.isdigit():
        time_ms = int(value)
        if time_ms <= TIME_MS_MAX:
            return time_ms
    return timestamp_ms


def parts_of_records(
    records: Sequence[Stamped], facts: Facts, bucket_ms: int, *, first: int, end: int
) -> list[Part]:
    """Return the parts of the records in [first, end), by bucket. `records`: all of the batch."""
    count = len(records)
    if count and first <= facts.first and facts.end <= end:
        times = [time_ms for _, time_ms, _ in records]
        oldest_ms = min(times)
        bucket = bucket_of(oldest_ms, bucket_ms)
        if bucket == bucket_of(max(times), bucket_ms):
            return [Part(bucket, count, facts.size_bytes, oldest_ms)]
    found: dict[int, tuple[int, int, int]] = {}
    for index, (offset, time_ms, _) in enumerate(records):
        if not first <= offset < end:
            continue
        bucket = bucket_of(time_ms, bucket_ms)
        if bucket not in found and len(found) >= BUCKETS_PER_BATCH_MAX:
            bucket = OTHER_BUCKET
        size_bytes = facts.size_bytes * (index + 1) // count - facts.size_bytes * index // count
        seen, bytes_seen, oldest_ms = found.get(bucket, (0, 0, time_ms))
        found[bucket] = seen + 1, bytes_seen + size_bytes, min(oldest_ms, time_ms)
    return [
        Part(bucket, seen, size_bytes, oldest_ms) for bucket, (seen, size_bytes, oldest_ms) in found.items()
    ]
