"""Tell from the files of a partition's replicas whether compaction has taken records out of them.

A cleaner notes in `cleaner-offset-checkpoint` how far it has compacted its own replica. That is not enough: a slot
copies a compacted log to an empty disk without the note, and a topic that is compacted no more loses it. The holes
stay. Each of these proves compaction:

    a sound batch has fewer records than offsets      a broker takes no such batch from a client
    a hole before or between batches of a segment     bytes that are lost leave no sound batch behind them
    an empty file, in several replicas                a file that one replica has lost, another one has

The batches around a hole must be sound and in order. A base offset, which no checksum covers, may be damaged: then its
batch overlaps the one behind it or the one before it.

    ├─ batch ─┼─ batch ─┤ 7 … 11 missing ├─ batch ─┼─ batch ─┤
              └ sound   └ same segment   └ sound   └ sound, and behind it; or the segment ends

What another replica has a sound batch in is no hole of compaction: this replica lacks what was written. What is missing
at the end of a segment proves nothing: its last bytes may be lost.
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
    H_RECORDS_COUNT,
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
    records: int


@dataclass(frozen=True, slots=True)
class _Hole:
    """Offsets from `start` to, not including, `end`. `is_file`: all that a segment should have."""

    start: int
    end: int
    is_file: bool = False


def were_compacted(replicas: Sequence[Path]) -> bool:
    """Return whether the replicas in these directories lack what only compaction takes out.

    Running time: up to two passes over the headers of each where it has taken out nothing.

    Raises:
        OSError: a file cannot be read.
    """
    return any(
        _is_agreed(hole, [other for other in replicas if other != directory])
        for directory in replicas
        for hole in islice(_holes(directory), _HOLES_MAX)
    ) or any(_has_thinned_batch(directory) for directory in replicas)


def _is_agreed(hole: _Hole, others: Sequence[Path]) -> bool:
    if any(_has_batches_in(hole, other) for other in others):
        return False
    return not hole.is_file or any(_goes_past(hole, other) for other in others)


def _goes_past(hole: _Hole, directory: Path) -> bool:
    """Whether a replica begins before a hole and goes on behind it."""
    bases = segment_bases(directory)
    return bool(bases) and bases[0] <= hole.start and bases[-1] >= hole.end


def _has_thinned_batch(directory: Path) -> bool:
    for base in segment_bases(directory):
        descriptor = _open(directory, base)
        try:
            for place in _places(descriptor, 0):
                is_thinned = place.records < place.next_offset - place.base_offset
                if is_thinned and _are_sound(descriptor, [place]):
                    return True
        finally:
            os.close(descriptor)
    return False


def _holes(directory: Path) -> Iterator[_Hole]:
    bases = segment_bases(directory)
    for number, base in enumerate(bases):
        end = bases[number + 1] if number + 1 < len(bases) else None
        descriptor = _open(directory, base)
        try:
            if end is not None and not os.fstat(descriptor).st_size:
                yield _Hole(base, end, is_file=True)
            yield from _holes_in(descriptor, base, end)
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
        yield _Place(position, base, base + header[H_LAST_OFFSET_DELTA] + 1, header[H_RECORDS_COUNT])
        position += length_bytes


def _open(directory: Path, base: int) -> int:
    return os.open(directory / segment_file_name(base, LOG), os.O_RDONLY | os.O_CLOEXEC)
