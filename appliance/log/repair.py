"""Replace damaged batches of a copy with the same batches of another copy, in place.

    ours      ├── batch ──┼─✗ batch ──┼── batch ──┤        position: the same in both, because a follower copies
    source    ├── batch ──┼── batch ──┼── batch ──┤        segments byte for byte

A batch is damaged if it is no batch, fails its checksum or does not continue the offsets. Its place is taken by what
the source has at the same position of the segment of the same name, if that is whole and of the same offset. Segments
that were compacted differ from copy to copy: there nothing is found, and the caller must copy the log anew.

What is replaced is kept in `recovered/` first. A death in the middle leaves a batch that is as damaged as before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.log.copy_end import index_position
from appliance.log.file_names import LOG, segment_file_name
from appliance.log.recovered import keep_bytes
from appliance.protocol.records.batch import (
    H_BASE_OFFSET,
    H_BATCH_LENGTH,
    H_LAST_OFFSET_DELTA,
    H_MAGIC,
    H_PARTITION_LEADER_EPOCH,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC_V2,
    crc_holds,
)

BATCH_BYTES_MAX: Final = 256 << 20
"""A longer batch is not read whole to be checked: its length is a lie, or it is beyond repair."""
_NO_LIMIT: Final = 1 << 62
_OFFSET_DELTA_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Damage:
    """Where a segment goes wrong: at `position` no sound batch of `offset` follows."""

    base_offset: int
    position: int
    offset: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A sound batch as it lies in a segment; offsets up to, not including, `next_offset`."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    data: bytes


def find_damage(
    partition: Path,
    base_offset: int,
    *,
    start: int = 0,
    end: int,
    is_gapless: bool,
    bytes_max: int = _NO_LIMIT,
) -> Damage | None:
    """Verify a segment's batches of offsets in [`start`, `end`); return the first that is damaged, None where none is.

    Begins at the last index entry at or below `start`, and ends `bytes_max` bytes later at the latest.

    Raises:
        OSError: the segment cannot be read.
    """
    position = 0 if start <= base_offset else index_position(partition, base_offset, start)
    offset = base_offset if position == 0 else None
    doubtful: Damage | None = None
    descriptor = os.open(partition / segment_file_name(base_offset, LOG), os.O_RDONLY | os.O_CLOEXEC)
    try:
        stop = position + bytes_max
        while offset is None or (offset < end and position < stop):
            batch = read_batch(descriptor, position)
            if batch is None or batch.next_offset > end:
                if offset is None:
                    # The index does not lead to a batch: look at the segment from its beginning.
                    position, offset, stop = 0, base_offset, _NO_LIMIT
                    continue
                if not is_gapless and not os.pread(descriptor, HEADER_BYTES, position).strip(b"\0"):
                    return None  # compaction has removed the last batches
                return Damage(base_offset, position, offset)
            if offset is not None and batch.base_offset < offset:
                return doubtful or Damage(base_offset, position, offset)
            doubtful = None
            if offset is not None and batch.base_offset > offset:
                # The checksum does not cover the base offset: what follows a hole shows whether it is one.
                doubtful = Damage(base_offset, position, offset)
                if is_gapless:
                    return doubtful
            position, offset = position + len(batch.data), batch.next_offset
    finally:
        os.close(descriptor)
    return None


def read_batch(descriptor: int, position: int) -> Batch | None:
    """Return the batch at a position of an open segment; None where there is no sound one.

    Raises:
        OSError: it cannot be read.
    """
    head = os.pread(descriptor, HEADER_BYTES, position)
    if len(head) < HEADER_BYTES:
        return None
    header = HEADER.unpack(head)
    size_bytes = header[H_BATCH_LENGTH] + LOG_OVERHEAD
    left_bytes = os.fstat(descriptor).st_size - position
    if header[H_MAGIC] != MAGIC_V2 or not HEADER_BYTES <= size_bytes <= min(left_bytes, BATCH_BYTES_MAX):
        return None
    if not 0 <= header[H_LAST_OFFSET_DELTA] <= _OFFSET_DELTA_MAX:
        return None
    data = head + os.pread(descriptor, size_bytes - HEADER_BYTES, position + HEADER_BYTES)
    if len(data) != size_bytes or not crc_holds(memoryview(data)):
        return None
    return Batch(
        header[H_BASE_OFFSET],
        header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1,
        header[H_PARTITION_LEADER_EPOCH],
        data,
    )


def sound_batch_of(source: Path, damage: Damage) -> Batch | None:
    """Return what a source has in the place of a damaged batch; None where that is not sound, or of another offset."""
    with suppress(OSError):
        descriptor = os.open(source / segment_file_name(damage.base_offset, LOG), os.O_RDONLY | os.O_CLOEXEC)
        try:
            batch = read_batch(descriptor, damage.position)
        finally:
            os.close(descriptor)
        return batch if batch is not None and batch.base_offset == damage.offset else None
    return None


def replace_batch(partition: Path, damage: Damage, batch: Batch, *, durable: bool) -> Path | None:
    """Write a sound batch over a damaged one; return where the damaged bytes are kept, None where they are not.

    Raises:
        OSError: it cannot be written.
    """
    path = partition / segment_file_name(damage.base_offset, LOG)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        kept = keep_bytes(
            path, damage.position, os.pread(descriptor, len(batch.data), damage.position), durable=durable
        )
        data = memoryview(batch.data)
        position = damage.position
        while data:
            written = os.pwrite(descriptor, data, position)
            position, data = position + written, data[written:]
        if durable:
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    return kept


def first_source(damage: Damage, sources: Sequence[tuple[int, Path]]) -> tuple[int, Batch] | None:
    """Return the first slot that has a sound batch in the place of a damaged one, and the batch."""
    for slot, source in sources:
        batch = sound_batch_of(source, damage)
        if batch is not None:
            return slot, batch
    return None
