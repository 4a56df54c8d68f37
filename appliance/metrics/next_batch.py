"""When the batch that holds an offset was written: its time stamp, read off the segment files.

    directory ──listing──→ segment ──.index──→ a position at or before the offset ──headers──→ the batch

Only headers are read, 61 bytes a batch, so a look costs the same whatever the records are. The time is that of the
first record of the batch, or of the append with `message.timestamp.type=LogAppendTime`. A record further behind in its
batch may be younger. Control batches (transaction markers) are passed over, because no consumer gets them.

The owner of the log writes, cuts and deletes the files meanwhile. A look that meets bytes which make no sense finds
nothing, and a later look may find it. An index has no checksum, and zeros or entries of cut batches may stand behind
its end, so an entry counts only if the header of its batch says the same (decision 0059).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from appliance.log.file_names import LOG, OFFSET_INDEX, parse_segment_file_name, segment_file_name
from appliance.protocol.records.batch import (
    CONTROL,
    DELETE_HORIZON,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_BASE_TIMESTAMP,
    H_BATCH_LENGTH,
    H_LAST_OFFSET_DELTA,
    H_MAGIC,
    H_MAX_TIMESTAMP,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_V2,
)

HEADERS_MAX: Final = 1024
"""Headers that one look reads. Between two entries of an index lie 4 KiB, which is at most 60 batches."""
WINDOW_BYTES: Final = 8192
_ENTRY: Final = Struct(">ii")
_NOTHING: Final = (-1, 0)

Fields = tuple[int, ...]


class NextBatch(NamedTuple):
    """The batch that a reader at some offset gets first."""

    base_offset: int
    timestamp_ms: int
    """Since 1970; -1: its producer has set none."""


def next_batch(directories: Sequence[Path], partition: str, *, offset: int, end: int) -> NextBatch | None:
    """Return the first batch with records that ends at `offset` or behind it, and begins below `end`.

    Args:
        directories: the log directories of the slot that leads the partition.
        partition: name of the partition's directory.

    None: there is none, or the files do not show it now.
    """
    with suppress(OSError):
        for directory in directories:
            place = directory / partition
            try:
                names = os.listdir(place)
            except FileNotFoundError:
                continue
            return _in_segments(place, names, offset, end)
    return None


def _in_segments(place: Path, names: Sequence[str], offset: int, end: int) -> NextBatch | None:
    parsed = (parse_segment_file_name(name) for name in names)
    bases = sorted(each[0] for each in parsed if each is not None and each[1] == LOG)
    later = [base for base in bases if base > offset]
    budget = HEADERS_MAX
    for base in [*bases[: len(bases) - len(later)][-1:], *later]:
        if base >= end:
            return None
        descriptor = os.open(place / segment_file_name(base, LOG), os.O_RDONLY | os.O_CLOEXEC)
        try:
            position = _position(place / segment_file_name(base, OFFSET_INDEX), descriptor, base, offset)
            for fields in _headers(descriptor, position):
                budget -= 1
                if fields[H_BASE_OFFSET] >= end or not budget:
                    return None
                last = fields[H_BASE_OFFSET] + fields[H_LAST_OFFSET_DELTA]
                if last >= offset and not fields[H_ATTRIBUTES] & CONTROL:
                    return NextBatch(fields[H_BASE_OFFSET], _timestamp_ms(fields))
        finally:
            os.close(descriptor)
    return None


def _timestamp_ms(fields: Fields) -> int:
    """Return the time of the first record. Compaction can put another time into its place."""
    if fields[H_ATTRIBUTES] & (LOG_APPEND_TIME | DELETE_HORIZON):
        return fields[H_MAX_TIMESTAMP]
    return fields[H_BASE_TIMESTAMP]


def _headers(descriptor: int, position: int) -> Iterator[Fields]:
    """Yield the header of each batch from `position` on, up to the first bytes that are none."""
    window, at = b"", 0
    while True:
        if len(window) - at < HEADER_BYTES:
            window, at = os.pread(descriptor, WINDOW_BYTES, position), 0
            if len(window) < HEADER_BYTES:
                return
        fields: Fields = HEADER.unpack_from(window, at)
        size_bytes = fields[H_BATCH_LENGTH] + LOG_OVERHEAD
        if fields[H_MAGIC] != MAGIC_V2 or size_bytes < HEADER_BYTES:
            return
        yield fields
        position += size_bytes
        at += size_bytes


def _position(index: Path, log: int, base: int, offset: int) -> int:
    """Return where to begin: a position of the index, else 0."""
    if offset <= base:
        return 0
    descriptor = os.open(index, os.O_RDONLY | os.O_CLOEXEC)
    try:
        low, high = 0, os.fstat(descriptor).st_size // _ENTRY.size
        found = _NOTHING
        while low < high:
            middle = (low + high) // 2
            raw = os.pread(descriptor, _ENTRY.size, middle * _ENTRY.size)
            entry = _ENTRY.unpack(raw) if len(raw) == _ENTRY.size else _NOTHING
            # No entry has position 0: that is room that is not yet written.
            if entry[1] > 0 and entry[0] <= offset - base:
                found, low = entry, middle + 1
            else:
                high = middle
    finally:
        os.close(descriptor)
    relative, position = found
    if position:
        fields = next(_headers(log, position), None)
        if fields is not None and fields[H_BASE_OFFSET] + fields[H_LAST_OFFSET_DELTA] == base + relative:
            return position
    return 0
