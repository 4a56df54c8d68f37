"""Tell from the files of a partition's replicas whether compaction has taken batches out of them.

A cleaner notes in `cleaner-offset-checkpoint` how far it has compacted its own replica. That is not enough: a slot
copies a compacted log to an empty disk without the note, and a topic that is compacted no more loses it. The holes
stay. A hole is one of compaction if all of this holds:

    ├─ batch ─┼─ batch ─┤ 7 … 11 missing ├─ batch ─┼─ batch ─┤
              └ sound   └ same segment   └ sound   └ sound, and behind it; or the segment ends

    it lies before or between batches of one segment     bytes that are lost leave no sound batch behind them
    the batches around it are sound and in order         a damaged base offset, which no checksum covers, makes its
                                                         batch overlap the one behind it or the one before it
    no other replica has a sound batch in it             else this replica lacks what was written

What is missing at the end of a segment proves nothing: its last bytes may be lost.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from appliance.log.copy_end import index_position, segment_bases
from appliance.log.file_names import LOG, segment_file_name
from appliance.log.repair import read_batch
from appliance.protocol.records.batch import (
    H_BASE_OFFSET,
    H_BATCH_LENGTH,
    H_LAST_OFFSET_DELTA,
    H_MAGIC,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC_V2,
)

_HOLES_MAX: Final = 64
"""Of each replica that many are looked up in the others. Where it was compacted, the first one mostly decides."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a batch lies by its header, which may lie; offsets up to, not including, `next_offset`."""

    position: int
    base_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class _Hole:
    """Offsets from `start` to, not including, `end`."""

    start: int
    end: int


def were_compacted(replicas: Sequence[Path]) -> bool:
    """Return whether the replicas in these directories have a hole that only compaction makes.

    Running time: one pass over the headers of each where there is none.

    Raises:
        OSError: a file cannot be read.
    """
    return any(
        not any(_has_batches_in(hole, other) for other in replicas if other != directory)
        for directory in replicas
        for hole in islice(_holes(directory), _HOLES_MAX)
    )


def _holes(directory: Path) -> Iterator[_Hole]:
    bases = segment_bases(directory)
    for number, base in enumerate(bases):
        descriptor = _open(directory, base)
        try:
            yield from _holes_in(descriptor, base, bases[number + 1] if number + 1 < len(bases) else None)
        finally:
            os.close(descriptor)


def _holes_in(descriptor: int, base: int, end: int | None) -> Iterator[_Hole]:
    """Those of a segment that ends before offset `end`, None where that is not known."""
    expected: int | None = (
        base  # None behind an overlap: either of the two batches may have the damaged base offset
    )
    before: _Place | None = None
    doubtful: tuple[_Hole, _Place | None, _Place] | None = None
    for place in _places(descriptor, 0):
        is_in_order = expected is None or place.base_offset >= expected
        if doubtful is not None and is_in_order:
            hole, *around = doubtful
            if _are_sound(descriptor, [*around, place]):
                yield hole
        doubtful = None
        if expected is not None and place.base_offset > expected:
            doubtful = _Hole(expected, place.base_offset), before, place
        before, expected = place, place.next_offset if is_in_order else None
    if doubtful is not None and end is not None and expected is not None and expected <= end:
        hole, *around = doubtful
        if _are_sound(descriptor, around):
            yield hole


def _are_sound(descriptor: int, places: Sequence[_Place | None]) -> bool:
    return all(place is None or read_batch(descriptor, place.position) is not None for place in places)


def _has_batches_in(hole: _Hole, directory: Path) -> bool:
    """Whether a replica has a sound batch in what another one lacks."""
    bases = segment_bases(directory)
    for number, base in enumerate(bases[max(bisect_right(bases, hole.start) - 1, 0) :]):
        if base >= hole.end:
            break
        descriptor = _open(directory, base)
        try:
            start = index_position(directory, base, hole.start) if number == 0 else 0
            for place in _places(descriptor, start):
                if place.base_offset >= hole.end:
                    break
                if place.next_offset > hole.start and read_batch(descriptor, place.position) is not None:
                    return True
        finally:
            os.close(descriptor)
    return False


def _places(descriptor: int, position: int) -> Iterator[_Place]:
    """The batches of a segment from `position` on, until something is none."""
    size_bytes = os.fstat(descriptor).st_size
    while position + HEADER_BYTES <= size_bytes:
        header = HEADER.unpack(os.pread(descriptor, HEADER_BYTES, position))
        length_bytes = header[H_BATCH_LENGTH] + LOG_OVERHEAD
        if (
            header[H_MAGIC] != MAGIC_V2
            or not HEADER_BYTES <= length_bytes <= size_bytes - position
            or header[H_LAST_OFFSET_DELTA] < 0
        ):
            return
        base = header[H_BASE_OFFSET]
        yield _Place(position, base, base + header[H_LAST_OFFSET_DELTA] + 1)
        position += length_bytes


def _open(directory: Path, base: int) -> int:
    return os.open(directory / segment_file_name(base, LOG), os.O_RDONLY | os.O_CLOEXEC)
