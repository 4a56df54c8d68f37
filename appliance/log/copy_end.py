"""Find where a copy of a partition ends, by its files alone. Reads only; the copy's owner may have it open.

    segment 0          segment 57            segment 113
    ├──────────────────┼──────────┬──────────┼───────────────┤000000
    headers suffice               │ every checksum counts    │
                            recovery point             claimed end

`claimed_end` follows the batch headers of the last segment from its last index entry on, which costs a few kilobytes.
It is an upper bound of the valid end. `valid_end` applies the rules by which the owner's recovery cuts (`loader`): it
reads what lies beyond the recovery point and checks every checksum. A recovery that runs at the same time removes only
what is not valid, so both see the same valid end.

Two ends compare by the leader epoch of the last batch first: a later leader has decided what counts. No checksum covers
that epoch. `batch_mark` tells whether two copies have the same batch there: then they have one history up to it.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from appliance.errors import CorruptFile
from appliance.log.checkpoint import read_small
from appliance.log.file_names import LOG, OFFSET_INDEX, parse_segment_file_name, segment_file_name
from appliance.log.leader_epochs import read_epochs
from appliance.protocol.records.batch import (
    ATTRIBUTES,
    H_BASE_OFFSET,
    H_BATCH_LENGTH,
    H_CRC,
    H_LAST_OFFSET_DELTA,
    H_MAGIC,
    H_PARTITION_LEADER_EPOCH,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_V2,
)
from appliance.protocol.records.crc32c import checksum

_INDEX_ENTRY: Final = Struct(">ii")  # as `offset_index`: relative offset, position
_READ_BYTES: Final = 1 << 20
_SCAN_BYTES: Final = 1 << 16
SEARCH_BYTES_MAX: Final = 1 << 20
"""How far behind a damaged batch `sound_end_behind` searches."""
UNKNOWN_EPOCH: Final = -1
_OFFSET_MAX: Final = (1 << 63) - 1
_BATCH_OFFSETS_MAX: Final = (1 << 31) - 1


class LogEnd(NamedTuple):
    """Leader epoch of the last batch, UNKNOWN_EPOCH where there is no batch, and the offset that follows it."""

    epoch: int
    offset: int

    def is_beyond(self, other: LogEnd) -> bool:
        """Whether a log that ends here has what one that ends at `other` lacks. Without batches offsets decide."""
        if UNKNOWN_EPOCH in (self.epoch, other.epoch):
            return self.offset > other.offset
        return self > other


class BatchMark(NamedTuple):
    """What tells a batch from any other one. The checksum covers the records, and not the leader epoch."""

    base_offset: int
    length: int
    checksum: int
    epoch: int


def claimed_end(partition: Path) -> LogEnd | None:
    """Return the end that the batch headers claim; None where there is no segment.

    Raises:
        OSError: a file cannot be read.
    """
    return _claimed_end(partition, segment_bases(partition))


def valid_end(partition: Path, *, recovery_point: int, is_compacted: bool) -> LogEnd | None:
    """Return the end up to which the owner's recovery would keep the log; None where there is no segment.

    Checks every checksum from `recovery_point` on, and the headers of the segment that it lies in. Unless the log
    `is_compacted`, a hole between two segments beyond the recovery point ends it.

    Raises:
        OSError: a file cannot be read.
    """
    bases = segment_bases(partition)
    if not bases:
        return None
    first = max(bisect_right(bases, recovery_point) - 1, 0)
    end = _claimed_end(partition, bases[:first]) or LogEnd(UNKNOWN_EPOCH, bases[first])
    for number, base in enumerate(bases[first:], first):
        begins_empty = number == 1 and end == (UNKNOWN_EPOCH, bases[0])
        may_have_hole = is_compacted or begins_empty or number == first
        if base > max(end.offset, recovery_point) and not may_have_hole:
            break
        with suppress(FileNotFoundError):
            segment = _Segment(partition, base)
            try:
                end, is_whole = segment.walk(
                    0,
                    LogEnd(end.epoch, max(base, end.offset)),
                    verify_from=recovery_point,
                    is_gapless=not is_compacted,
                )
            finally:
                segment.close()
            if is_whole:
                continue
        break
    return end


def batch_mark(partition: Path, end_offset: int) -> BatchMark | None:
    """Return the mark of the batch that ends before `end_offset`, by its header; None where none does.

    Raises:
        OSError: a file cannot be read.
    """
    bases = segment_bases(partition)
    number = bisect_right(bases, end_offset - 1) - 1
    if number < 0:
        return None
    base = bases[number]
    with suppress(FileNotFoundError):
        segment = _Segment(partition, base)
        try:
            position = index_position(partition, base, end_offset - 1)
            found = segment.mark(position, end_offset)
            return segment.mark(0, end_offset) if found is None and position else found
        finally:
            segment.close()
    return None


def lacks_begin(partition: Path, *, log_start: int, is_compacted: bool) -> bool:
    """Return whether a copy begins later than anything that was written down says: files of it may have gone.

    `log_start`: of its owner's checkpoint. Whoever deletes from the front cuts the leader epochs there first.

    Raises:
        OSError: a file cannot be read.
        StorageFault: the leader epochs cannot be read. Garbage says nothing, as for their owner.
    """
    bases = segment_bases(partition)
    if not bases:
        return True
    begin = bases[0]
    if len(bases) > 1 and not is_compacted and _claimed_end(partition, bases[:1]) == (UNKNOWN_EPOCH, begin):
        begin = bases[1]
    epochs: list[tuple[int, int]] = []
    with suppress(CorruptFile):
        epochs = read_epochs(partition)
    return begin > max(log_start, epochs[0][1] if epochs else 0)


def segment_bases(partition: Path) -> list[int]:
    """Return the base offsets of a directory's segments, rising.

    Raises:
        OSError: the directory cannot be read.
    """
    try:
        names = os.listdir(partition)
    except FileNotFoundError:
        return []
    found = (parse_segment_file_name(name) for name in names if name.endswith(LOG))
    return sorted(each[0] for each in found if each is not None)


def sound_end_behind(data: bytes, offset: int) -> int | None:
    """Search the bytes behind a damaged batch of `offset` for whole ones; return the offset behind the last, or None.

    Batches that were written after the damaged one show that the damaged one had been complete: it was not torn by the
    death of its writer.
    """
    view = memoryview(data)
    found = None
    at = data.find(MAGIC_V2, MAGIC + 1)
    while at >= 0:
        start, size_bytes = at - MAGIC, 1
        if len(data) - start >= HEADER_BYTES:
            header = HEADER.unpack_from(data, start)
            length_bytes = header[H_BATCH_LENGTH] + LOG_OVERHEAD
            if (
                offset < header[H_BASE_OFFSET] <= offset + _BATCH_OFFSETS_MAX
                and HEADER_BYTES <= length_bytes <= len(data) - start
                and checksum(view[start + ATTRIBUTES : start + length_bytes]) == header[H_CRC]
            ):
                found, size_bytes = int(header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1), length_bytes
                offset = found - 1
        at = data.find(MAGIC_V2, at + size_bytes)
    return found


def _claimed_end(partition: Path, bases: Sequence[int]) -> LogEnd | None:
    for base in reversed(bases):
        try:
            segment = _Segment(partition, base)
        except FileNotFoundError:
            continue  # its owner's recovery has just removed it
        try:
            start = LogEnd(UNKNOWN_EPOCH, base)
            end = segment.walk(index_position(partition, base, _OFFSET_MAX), start)[0]
            if end.epoch == UNKNOWN_EPOCH:
                end = segment.walk(0, start)[0]
        finally:
            segment.close()
        if end.epoch != UNKNOWN_EPOCH:
            return end
    return LogEnd(UNKNOWN_EPOCH, bases[0]) if bases else None


def index_position(partition: Path, base: int, offset: int) -> int:
    """Return a position in a segment at or before the batch of `offset`, by its index; 0 where that has no entry.

    The index is being written by its owner: zeros may follow the entries, and the position must be borne out by what
    lies there.

    Raises:
        OSError: the index cannot be read.
    """
    data = read_small(partition / segment_file_name(base, OFFSET_INDEX)) or b""
    low, high = 0, len(data) // _INDEX_ENTRY.size
    while low < high:
        middle = (low + high) // 2
        relative, position = _INDEX_ENTRY.unpack_from(data, middle * _INDEX_ENTRY.size)
        if position and base + relative <= offset:
            low = middle + 1
        else:
            high = middle
    return int(_INDEX_ENTRY.unpack_from(data, (low - 1) * _INDEX_ENTRY.size)[1]) if low else 0


class _Segment:
    """One `.log` file that somebody else may have open."""

    __slots__ = ("_base", "_descriptor", "_size_bytes")

    def __init__(self, partition: Path, base: int) -> None:
        self._base = base
        self._descriptor = os.open(partition / segment_file_name(base, LOG), os.O_RDONLY | os.O_CLOEXEC)
        self._size_bytes = os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)

    def walk(
        self, position: int, end: LogEnd, *, verify_from: int | None = None, is_gapless: bool = False
    ) -> tuple[LogEnd, bool]:
        """Follow the batches from `position` on, behind `end`; (the new end, whether only zeros follow it).

        `verify_from`: batches that end at this offset or later count only if their checksum holds, and where the log
        `is_gapless` only if no offset is missing before them: the checksum does not cover the base offset.
        """
        chunk, chunk_at = b"", position
        read_bytes = _SCAN_BYTES if verify_from is None else _READ_BYTES
        while self._size_bytes - position >= HEADER_BYTES:
            if not chunk_at <= position <= chunk_at + len(chunk) - HEADER_BYTES:
                chunk, chunk_at = os.pread(self._descriptor, read_bytes, position), position
                if len(chunk) < HEADER_BYTES:
                    break  # its owner has cut the file meanwhile
            header = HEADER.unpack_from(chunk, position - chunk_at)
            size_bytes, last_offset = (
                header[H_BATCH_LENGTH] + LOG_OVERHEAD,
                header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA],
            )
            if (
                header[H_MAGIC] != MAGIC_V2
                or size_bytes < HEADER_BYTES
                or position + size_bytes > self._size_bytes
                or header[H_BASE_OFFSET] < end.offset
                or header[H_LAST_OFFSET_DELTA] < 0
                or last_offset - self._base > _BATCH_OFFSETS_MAX
            ):
                break
            if (
                verify_from is not None
                and last_offset >= verify_from
                and (
                    (is_gapless and header[H_BASE_OFFSET] != end.offset)
                    or self._checksum(position, size_bytes, chunk, position - chunk_at) != header[H_CRC]
                )
            ):
                break
            end = LogEnd(header[H_PARTITION_LEADER_EPOCH], last_offset + 1)
            position += size_bytes
        return end, verify_from is None or not self._has_more(position)

    def mark(self, position: int, end_offset: int) -> BatchMark | None:
        """As `batch_mark`, of the batches from `position` on."""
        while True:
            head = os.pread(self._descriptor, HEADER_BYTES, position)
            if len(head) < HEADER_BYTES:
                return None
            header = HEADER.unpack(head)
            length = header[H_BATCH_LENGTH]
            next_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
            if (
                header[H_MAGIC] != MAGIC_V2
                or length + LOG_OVERHEAD < HEADER_BYTES
                or next_offset > end_offset
            ):
                return None
            if next_offset == end_offset:
                return BatchMark(
                    header[H_BASE_OFFSET], length, header[H_CRC], header[H_PARTITION_LEADER_EPOCH]
                )
            position += length + LOG_OVERHEAD

    def _checksum(self, position: int, size_bytes: int, chunk: bytes, at: int) -> int:
        """Return the checksum of a batch; what is not in `chunk` is read in pieces: its length may be a lie."""
        if at + size_bytes <= len(chunk):
            return checksum(memoryview(chunk)[at + ATTRIBUTES : at + size_bytes])
        end = position + size_bytes
        position += ATTRIBUTES
        crc = 0
        while position < end:
            piece = os.pread(self._descriptor, min(_READ_BYTES, end - position), position)
            if not piece:
                return -1
            crc = checksum(piece, crc)
            position += len(piece)
        return crc

    def _has_more(self, position: int) -> bool:
        while piece := os.pread(self._descriptor, _READ_BYTES, position):
            if piece.strip(b"\0"):
                return True
            position += len(piece)
        return False
