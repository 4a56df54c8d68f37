"""From a timestamp to the record: the time index leads to a batch, the batch is decoded for the exact record.

    segment   the first whose largest timestamp is not below the one asked for
    batch     from the time index's entry on, the first whose max timestamp is not
    record    the first in it that is not; under compression this decompresses one batch

Source: `UnifiedLog.fetchOffsetByTimestamp`, `FileRecords.searchForTimestamp`; KIP-33, KIP-734.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.log.segment import Segment
from appliance.log.segment_file import Header
from appliance.protocol.records.batch import LOG_OVERHEAD, NO_TIMESTAMP
from appliance.protocol.records.record import decode_records

Found = tuple[int, int, int]
"""(timestamp in ms, offset, leader epoch)"""


def find_from(
    segment: Segment, timestamp_ms: int, *, start: int, upper_bound: int, decompressed_bytes_max: int
) -> Found | None:
    """The first record of a segment at `timestamp_ms` or later, from offset `start` on and below the bound.

    Raises:
        StorageFault, CorruptFile: the segment cannot be read.
        RejectedRequest: a batch on the way cannot be decompressed within the bound.
    """
    for position, header in segment.batches_from_timestamp(timestamp_ms, start):
        if header[0] >= upper_bound:
            return None
        for found_ms, offset in _timestamps(segment, position, header, decompressed_bytes_max):
            if found_ms >= timestamp_ms and offset >= start:
                return (found_ms, offset, header[2]) if offset < upper_bound else None
    return None


def find_largest(segment: Segment, *, start: int, decompressed_bytes_max: int) -> Found | None:
    """The first record with the segment's largest timestamp, from offset `start` on.

    Raises:
        As `find_from`.
    """
    timestamp_ms = segment.max_timestamp()[0]
    for position, header in segment.batches_from_timestamp(timestamp_ms, start):
        for found_ms, offset in _timestamps(segment, position, header, decompressed_bytes_max):
            if found_ms == timestamp_ms and offset >= start:
                return found_ms, offset, header[2]
    return None


def find_largest_by_reading(segment: Segment, *, start: int, decompressed_bytes_max: int) -> Found | None:
    """As `find_largest`, where the record with the segment's largest timestamp may lie before `start`.

    Raises:
        As `find_from`.
    """
    found: Found | None = None
    for position, header in segment.batches_from_timestamp(NO_TIMESTAMP, start):
        if found is None or header[8] > found[0]:
            for timestamp_ms, offset in _timestamps(segment, position, header, decompressed_bytes_max):
                if offset >= start and (found is None or timestamp_ms > found[0]):
                    found = timestamp_ms, offset, header[2]
    return found


def _timestamps(
    segment: Segment, position: int, header: Header, decompressed_bytes_max: int
) -> Iterator[tuple[int, int]]:
    batch = segment.file.read(position, header[1] + LOG_OVERHEAD)
    for record in decode_records(batch, decompressed_bytes_max=decompressed_bytes_max):
        yield record.timestamp_ms, record.offset
