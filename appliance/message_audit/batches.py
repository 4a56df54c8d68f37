"""From a batch, or a part of it, to the buckets of its records.

    header only   one bucket has the whole batch, if its first and its latest timestamp are in this bucket
    records       each by its own time: the `audit.time` header (with audit.headers), else the timestamp

A batch of n records and s bytes, of which a part is counted, for example up to a committed offset, has its records and
bytes spread evenly over its offsets. Rounded sums of all parts are n and s, whatever the parts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from appliance.message_audit.tally import BUCKETS_PER_BATCH_MAX, OTHER_BUCKET, Part
from appliance.protocol.records.batch import (
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
)
from appliance.protocol.records.record import Record

ID_HEADER: Final = "audit.id"
TIME_HEADER: Final = "audit.time"
TIME_MS_MAX: Final = 1 << 48
"""About 9,000 years: a later time is no time."""

Header = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]


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


def time_of(record: Record, *, by_headers: bool) -> int:
    """Return when a record was produced, in ms: the first valid `audit.time` header, else its timestamp."""
    if by_headers:
        for name, value in record.headers:
            if name == TIME_HEADER and value is not None and len(value) <= 15 and value.isdigit():
                time_ms = int(value)
                if time_ms <= TIME_MS_MAX:
                    return time_ms
    return record.timestamp_ms


def parts_of_records(
    records: Sequence[Record], facts: Facts, bucket_ms: int, *, first: int, end: int, by_headers: bool
) -> list[Part]:
    """Return the parts of the records in [first, end), by bucket. `records`: all of the batch."""
    found: dict[int, tuple[int, int, int]] = {}
    count = max(len(records), 1)
    for index, record in enumerate(records):
        if not first <= record.offset < end:
            continue
        time_ms = time_of(record, by_headers=by_headers)
        bucket = bucket_of(time_ms, bucket_ms)
        if bucket not in found and len(found) >= BUCKETS_PER_BATCH_MAX:
            bucket = OTHER_BUCKET
        size_bytes = facts.size_bytes * (index + 1) // count - facts.size_bytes * index // count
        seen, bytes_seen, oldest_ms = found.get(bucket, (0, 0, time_ms))
        found[bucket] = seen + 1, bytes_seen + size_bytes, min(oldest_ms, time_ms)
    return [
        Part(bucket, seen, size_bytes, oldest_ms) for bucket, (seen, size_bytes, oldest_ms) in found.items()
    ]
