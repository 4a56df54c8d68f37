"""The batches before a snapshot, for producers of whom it keeps only the last.

Kafka's snapshot names one batch of each producer, which knows five in memory. A retry of one of the other four, sent
again after its broker went, would be taken for a gap. They are in the log, right before the snapshot's offset: their
headers are read again, as far back as LOOK_BACK_BYTES, or LOOK_BACK_ENTRIES of the index where batches are large, in
each of the last SEGMENTS_MAX segments. A log without idempotent producers is not touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from appliance.log.producer_state import BATCHES_REMEMBERED, ProducerEntry, Producers, RememberedBatch
from appliance.log.segment import Segment
from appliance.protocol.records.batch import (
    CONTROL,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_BASE_SEQUENCE,
    H_LAST_OFFSET_DELTA,
    H_MAX_TIMESTAMP,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
    SEQUENCE_MAX,
)

LOOK_BACK_BYTES: Final = 256 * 1024
LOOK_BACK_ENTRIES: Final = 32
SEGMENTS_MAX: Final = 2


def recall(producers: Producers, segments: Sequence[Segment], offset: int) -> None:
    """Adds what the log still has of batches before those of a snapshot at `offset`.

    Raises:
        StorageFault, CorruptFile: a segment cannot be read.
    """
    wanted = {
        entry.producer_id: entry
        for entry in producers.entries()
        if 0 < len(entry.batches) < BATCHES_REMEMBERED
    }
    if not wanted:
        return
    before = [segment for segment in segments if segment.base_offset < offset]
    for segment in reversed(before[-SEGMENTS_MAX:]):
        _recall_from(segment, wanted, offset)


def _recall_from(segment: Segment, wanted: Mapping[int, ProducerEntry], offset: int) -> None:
    found: dict[int, list[RememberedBatch]] = {}
    for _, header in segment.file.headers(_start(segment, offset), end=segment.file.size_bytes):
        if header[H_BASE_OFFSET] >= offset:
            break
        entry = wanted.get(header[H_PRODUCER_ID])
        if (
            entry is None
            or entry.epoch != header[H_PRODUCER_EPOCH]
            or header[H_BASE_SEQUENCE] < 0
            or header[H_ATTRIBUTES] & CONTROL
        ):
            continue
        found.setdefault(header[H_PRODUCER_ID], []).append(
            RememberedBatch(
                (header[H_BASE_SEQUENCE] + header[H_LAST_OFFSET_DELTA]) & SEQUENCE_MAX,
                header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA],
                header[H_LAST_OFFSET_DELTA],
                header[H_MAX_TIMESTAMP],
            )
        )
    for producer_id, batches in found.items():
        _put_before(wanted[producer_id], batches)
    segment.release()


def _put_before(entry: ProducerEntry, batches: list[RememberedBatch]) -> None:
    known = list(entry.batches)
    earlier = [batch for batch in batches if batch.last_offset < known[0].first_offset]
    entry.batches.clear()
    entry.batches.extend((*earlier, *known)[-BATCHES_REMEMBERED:])


def _start(segment: Segment, offset: int) -> int:
    """The position of a batch so far before `offset`. O(log entries)."""
    index = segment.offset_index
    place = index.lookup(offset)
    by_bytes = _entries_up_to(segment, place - LOOK_BACK_BYTES)
    by_entries = _entries_up_to(segment, place) - LOOK_BACK_ENTRIES
    entries = min(by_bytes, by_entries)
    return index.entry(entries - 1)[1] if entries > 0 else 0


def _entries_up_to(segment: Segment, position: int) -> int:
    """How many index entries point to `position` or before it."""
    index = segment.offset_index
    low, high = 0, index.entries
    while low < high:
        middle = (low + high) // 2
        if index.entry(middle)[1] <= position:
            low = middle + 1
        else:
            high = middle
    return low
