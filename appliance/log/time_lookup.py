"""From a timestamp to the record: the time index leads to a batch, the batch is decoded for the exact record.

    segment   the first whose largest timestamp is not below the one asked for
    batch     from the time index's entry on, the first whose max timestamp is not
    record    the first in it that is not; under compression this decompresses one batch

Source: `UnifiedLog.fetchOffsetByTimestamp`, `FileRecords.searchForTimestamp`; KIP-33, KIP-734.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.log.local_log import LocalLog
from appliance.log.segment import Segment
from appliance.log.segment_file import Header
from appliance.protocol.records.batch import (
    H_BASE_OFFSET,
    H_BATCH_LENGTH,
    H_MAX_TIMESTAMP,
    H_PARTITION_LEADER_EPOCH,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
)
from appliance.protocol.records.record import decode_records

Found = tuple[int, int, int]
"""(timestamp in ms, offset, leader epoch)"""


def find_first(
    log: LocalLog, timestamp_ms: int, *, start: int, upper_bound: int, decompressed_bytes_max: int
) -> Found | None:
    """The first record at `timestamp_ms` or later, from offset `start` on and below the bound.

    Raises:
        StorageFault, CorruptFile: the log cannot be read.
        RejectedRequest: a batch on the way cannot be decompressed within the bound.
    """
    for segment in log.segments.reaching(timestamp_ms, start=start):
        if segment.base_offset >= upper_bound:
            return None
        found = _first_in(
            log.opened(segment.base_offset),
            timestamp_ms,
            start=start,
            upper_bound=upper_bound,
            decompressed_bytes_max=decompressed_bytes_max,
        )
        if found is not None:
            return found
    return None


def find_largest(log: LocalLog, *, start: int, decompressed_bytes_max: int) -> Found | None:
    """The first record with the largest timestamp of all, from offset `start` on; None where none has one.

    Raises:
        As `find_first`.
    """
    bytes_max = decompressed_bytes_max
    latest = log.segments.latest(start=start)
    if latest.max_timestamp()[0] == NO_TIMESTAMP:
        return None
    found = _largest_in(log.opened(latest.base_offset), start=start, decompressed_bytes_max=bytes_max)
    if found is not None:
        return found
    # It lies below `start`, in the segment that `start` lies in: what is left there is read.
    first, *others = log.segments.since(start)
    found = _largest_by_reading(log.opened(first.base_offset), start=start, decompressed_bytes_max=bytes_max)
    latest = max(others, key=lambda segment: segment.max_timestamp()[0], default=first)
    if latest is first or (found is not None and found[0] >= latest.max_timestamp()[0]):
        return found
    return _largest_in(log.opened(latest.base_offset), start=start, decompressed_bytes_max=bytes_max)


def _first_in(
    segment: Segment, timestamp_ms: int, *, start: int, upper_bound: int, decompressed_bytes_max: int
) -> Found | None:
    """As `find_first`, in one segment."""
    for position, header in segment.batches_from_timestamp(timestamp_ms, start):
        if header[H_BASE_OFFSET] >= upper_bound:
            return None
        for found_ms, offset in _timestamps(segment, position, header, decompressed_bytes_max):
            if found_ms >= timestamp_ms and offset >= start:
                return (found_ms, offset, header[H_PARTITION_LEADER_EPOCH]) if offset < upper_bound else None
    return None


def _largest_in(segment: Segment, *, start: int, decompressed_bytes_max: int) -> Found | None:
    """The first record with the segment's largest timestamp, from offset `start` on."""
    timestamp_ms = segment.max_timestamp()[0]
    for position, header in segment.batches_from_timestamp(timestamp_ms, start):
        for found_ms, offset in _timestamps(segment, position, header, decompressed_bytes_max):
            if found_ms == timestamp_ms and offset >= start:
                return found_ms, offset, header[H_PARTITION_LEADER_EPOCH]
    return None


def _largest_by_reading(segment: Segment, *, start: int, decompressed_bytes_max: int) -> Found | None:
    """As `_largest_in`, where the record with the segment's largest timestamp may lie before `start`."""
    found: Found | None = None
    for position, header in segment.batches_from_timestamp(NO_TIMESTAMP, start):
        if found is None or header[H_MAX_TIMESTAMP] > found[0]:
            for timestamp_ms, offset in _timestamps(segment, position, header, decompressed_bytes_max):
                if offset >= start and (found is None or timestamp_ms > found[0]):
                    found = timestamp_ms, offset, header[H_PARTITION_LEADER_EPOCH]
    return found


def _timestamps(
    segment: Segment, position: int, header: Header, decompressed_bytes_max: int
) -> Iterator[tuple[int, int]]:
    batch = segment.file.read(position, header[H_BATCH_LENGTH] + LOG_OVERHEAD)
    for record in decode_records(batch, decompressed_bytes_max=decompressed_bytes_max):
        yield record.timestamp_ms, record.offset
