"""Replace damaged batches of a copy with the same batches of another copy, in place.

    ours      ├── batch ──┼─✗ batch ──┼── batch ──┤        position: the same in both, because a follower copies
    source    ├── batch ──┼── batch ──┼── batch ──┤        segments byte for byte

A batch is damaged if it is no batch, fails its checksum or does not continue the offsets. Its place is taken by what
the source has at the same position of the segment of the same name, if all of this holds:

    whole, and of the same offset
    of the leader epoch             that the damaged log's own history has for the offset
    between the same neighbours     the sound batches before and behind are the same, byte for byte, in both copies

A copy that once followed another leader may have other records at the same offsets and positions. Segments that were
compacted differ from copy to copy: there nothing is found, and the caller must copy the log anew.

What is replaced is kept in `recovered/` first. A death in the middle leaves a batch that is as damaged as before.
"""

from __future__ import annotations

import os
from bisect import bisect_right
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
NEIGHBOUR_BYTES_MAX: Final = 16 << 20
"""How far behind a damaged batch a sound neighbour is looked for."""
_READ_BYTES: Final = 1 << 20
_OFFSET_DELTA_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Damage:
    """Where a segment goes wrong: at `position` no sound batch of `offset` follows."""

    base_offset: int
    position: int
    offset: int


@dataclass(frozen=True, slots=True)
class History:
    """What a damaged log knows of its leader epochs.

    `epochs`: (epoch, start offset), oldest first. `is_complete`: no later epoch has begun than the latest of these.
    """

    epochs: Sequence[tuple[int, int]]
    is_complete: bool

    def has(self, batch: Batch, neighbours: Sequence[Batch]) -> bool:
        """Return whether a batch is of its offset's leader epoch. Where that is unknown, neighbours have to do."""
        number = bisect_right(self.epochs, batch.base_offset, key=lambda entry: entry[1])
        if number == 0:
            return bool(neighbours)
        known = self.epochs[number - 1][0]
        if batch.leader_epoch == known:
            return True
        may_be_later = not self.is_complete and number == len(self.epochs) and batch.leader_epoch > known
        return may_be_later and any(each.leader_epoch == batch.leader_epoch for each in neighbours)


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


def sound_batch_of(
    source: Path, partition: Path, damage: Damage, history: History, end: int | None
) -> Batch | None:
    """Return what a source has in the place of a batch that is damaged in `partition`.

    None where it is not sound, of another offset or of another history. `end`: where the segment ends, if known.
    """
    name = segment_file_name(damage.base_offset, LOG)
    with suppress(OSError):
        theirs = os.open(source / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            batch = read_batch(theirs, damage.position)
            if batch is None or batch.base_offset != damage.offset:
                return None
            ours = os.open(partition / name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                before = _batch_before(
                    ours, index_position(partition, damage.base_offset, damage.offset), damage
                )
                if before is not None and not _is_same(before, theirs, damage.position - len(before.data)):
                    return None
                is_between, behind = _neighbour_behind(ours, theirs, damage.position, batch, end)
            finally:
                os.close(ours)
        finally:
            os.close(theirs)
        neighbours = [each for each in (before, behind) if each is not None]
        return batch if is_between and history.has(batch, neighbours) else None
    return None


def _batch_before(descriptor: int, start: int, damage: Damage) -> Batch | None:
    """Return the sound batch that ends where a damaged one begins; None at the beginning of a segment."""
    for begin in (start, 0) if 0 < start < damage.position else (0,):
        position, found = begin, None
        while position < damage.position:
            found = read_batch(descriptor, position)
            if found is None:
                break
            position += len(found.data)
        if position == damage.position:
            return found
    return None


def _neighbour_behind(
    ours: int, theirs: int, position: int, batch: Batch, end: int | None
) -> tuple[bool, Batch | None]:
    """Follow the source behind `batch` to where our log is sound again, or ends.

    (whether the source leads there, and has the same batch; that batch, None at the end)
    """
    limit = position + len(batch.data) + NEIGHBOUR_BYTES_MAX
    here = batch
    while position < limit:
        position += len(here.data)
        if end is not None and here.next_offset >= end:
            return here.next_offset == end, None
        own, their = read_batch(ours, position), read_batch(theirs, position)
        if own is not None and their is not None:
            return own.base_offset == here.next_offset and own.data == their.data, own
        if own is None and _ends_at(ours, position):
            return True, None
        following = own or their  # where one of the two is damaged, the other one says where to go on
        if following is None or following.base_offset != here.next_offset:
            break
        here = following
    return False, None


def _is_same(batch: Batch, descriptor: int, position: int) -> bool:
    return os.pread(descriptor, len(batch.data), position) == batch.data


def _ends_at(descriptor: int, position: int) -> bool:
    """Whether nothing but zeros follows in a segment."""
    if position > os.fstat(descriptor).st_size:
        return False
    while piece := os.pread(descriptor, _READ_BYTES, position):
        if piece.strip(b"\0"):
            return False
        position += len(piece)
    return True


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


def first_source(
    partition: Path, damage: Damage, sources: Sequence[tuple[int, Path]], history: History, end: int | None
) -> tuple[int, Batch] | None:
    """Return the first slot that has the batch which is damaged in `partition`, and the batch."""
    for slot, source in sources:
        batch = sound_batch_of(source, partition, damage, history, end)
        if batch is not None:
            return slot, batch
    return None
