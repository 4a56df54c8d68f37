"""Which segments a partition's directory holds.

Names change while a reader looks: retention and compaction rename segments to `.deleted`, compaction puts a new file
in their place through `.swap`. In the middle of that a name is missing, and a hole in a compacted log looks like any
other. So a directory is listed until no `.swap` is among the names and nothing was renamed meanwhile: its time of
change is the same before and after, and lies long enough back that another change would show; else until two listings
in a row agree. The same time tells later that a listing still holds.

Segments that were deleted and still lie there (a lease holds them, or `file.delete.delay.ms`) count as long as nothing
has taken their place: they are those before the first living one.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.log.file_names import (
    DELETED,
    LOG,
    SWAP,
    TRANSACTION_INDEX,
    parse_segment_file_name,
    segment_file_name,
)
from appliance.log.transaction_index import AbortedTransaction, decode_transactions
from spark_connector.errors import NotReadable
from spark_connector.storage import below, directory_of, is_address, partition_of

_LOOKS: Final = 200
_PAUSE_S: Final = 0.01
_CLOCK_TICK_NS: Final = 50_000_000
"""File systems take the time of change from a clock that ticks every few milliseconds."""
_DELETED_LOG: Final = LOG + DELETED


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment's `.log` file as it was when it was listed. Sizes in bytes, times in milliseconds since the epoch."""

    base_offset: int
    next_base: int
    """Where the following segment begins; -1 for the last one."""
    path: str
    size_bytes: int
    modified_ms: int
    device: int
    inode: int
    is_deleted: bool

    @property
    def is_active(self) -> bool:
        """Whether it is the one that is appended to."""
        return self.next_base < 0


@dataclass(frozen=True, slots=True)
class Listing:
    """The segments by the names in a directory: base offsets, in order."""

    living: tuple[int, ...]
    deleted: tuple[int, ...]
    """Those that still lie there."""
    indexed_aborts: frozenset[int]
    """Those beside which an index of aborted transactions lies."""
    mark: tuple[int, int] | None
    """(inode, time of change in nanoseconds) of the directory: as long as it has the same, it holds the same names.
    None: it had changed so shortly before that another change might not show."""

    @property
    def readable(self) -> list[tuple[int, bool]]:
        """The segments that can be read, in order, and whether each is deleted."""
        first = self.living[0] if self.living else None
        found = [(base, True) for base in self.deleted if first is None or base < first]
        return found + [(base, False) for base in self.living]

    def holds(self, directory: str | Path) -> bool:
        """Whether the directory surely still holds the same names."""
        try:
            return self.mark is not None and mark_of(directory) == self.mark
        except OSError:
            return False


def mark_of(directory: str | Path) -> tuple[int, int]:
    """(inode, time of change) of a directory.

    Raises:
        FileNotFoundError, OSError: it cannot be looked at.
    """
    status = os.stat(directory)
    return status.st_ino, status.st_mtime_ns


def listing(directory: str | Path) -> Listing:
    """The segments that lie in `directory`.

    Raises:
        FileNotFoundError, OSError: the directory cannot be read.
        NotReadable: it does not come to rest.
    """
    before: Listing | None = None
    for look in range(_LOOKS):
        mark = mark_of(directory)
        lasts = abs(time.time_ns() - mark[1]) > _CLOCK_TICK_NS
        found = _listed(directory, mark if lasts else None)
        if found is not None and (found == before or (lasts and mark_of(directory) == mark)):
            return found
        before = found
        if look > 1:
            time.sleep(_PAUSE_S)
    raise NotReadable(f"{directory}: a swap of segments does not end; is its broker running?")


def _listed(directory: str | Path, mark: tuple[int, int] | None) -> Listing | None:
    """One look at the names; None in the middle of a swap."""
    living, deleted, aborts = [], [], set()
    for name in os.listdir(directory):
        parsed = parse_segment_file_name(name)
        if parsed is None:
            continue
        base, suffix = parsed
        if suffix == LOG:
            living.append(base)
        elif suffix == _DELETED_LOG:
            deleted.append(base)
        elif suffix.startswith(TRANSACTION_INDEX):
            aborts.add(base)
        if suffix.endswith(SWAP):
            return None
    return Listing(tuple(sorted(living)), tuple(sorted(deleted)), frozenset(aborts), mark)


def segments(
    directory: str | Path,
    *,
    known: Listing | None = None,
    start: int = 0,
    end: int | None = None,
) -> list[SegmentFacts]:
    """The segments with offsets in [start, end), in order: deleted ones that can still be read among them.

    Args:
        known: a listing that was made before; what it names is held against the files.
        end: None: the log's.

    Raises:
        As `listing`.
    """
    if is_address(str(directory)):
        return [each for each in _exported(str(directory)) if _overlaps(each, start, end)]
    for _ in range(_LOOKS):
        found = known or listing(directory)
        known = None
        bases = found.readable
        nexts = [base for base, _ in bases[1:]] + [-1] * bool(bases)
        try:
            return [
                _facts(directory, base, next_base, is_deleted)
                for (base, is_deleted), next_base in zip(bases, nexts, strict=True)
                if (end is None or base < end) and not 0 <= next_base <= start
            ]
        except FileNotFoundError:
            continue  # renamed since
    raise NotReadable(f"{directory}: its segments change faster than they can be listed")


def _overlaps(segment: SegmentFacts, start: int, end: int | None) -> bool:
    return (end is None or segment.base_offset < end) and not 0 <= segment.next_base <= start


def _facts(directory: str | Path, base: int, next_base: int, is_deleted: bool) -> SegmentFacts:
    path = os.path.join(directory, segment_file_name(base, LOG + (DELETED if is_deleted else "")))
    status = os.stat(path)
    return SegmentFacts(
        base_offset=base,
        next_base=next_base,
        path=path,
        size_bytes=status.st_size,
        modified_ms=status.st_mtime_ns // 1_000_000,
        device=status.st_dev,
        inode=status.st_ino,
        is_deleted=is_deleted,
    )


def _exported(directory: str) -> list[SegmentFacts]:
    """What the manifest of an export says; all of it is closed."""
    address = directory_of(directory)
    return [
        SegmentFacts(
            base_offset=each["base_offset"],
            next_base=each["next_base"],
            path=below(address, each["file"]),
            size_bytes=each["size_bytes"],
            modified_ms=0,
            device=0,
            inode=each["size_bytes"],
            is_deleted=False,
        )
        for each in partition_of(directory)[1]["segments"]
    ]


def aborted_transactions(
    directory: str | Path, *, start: int, end: int, known: Listing | None = None
) -> list[AbortedTransaction]:
    """The aborted transactions with records in [start, end), by the end of each.

    An abort stands in the index of the segment that its marker lies in, which may follow long after. So indexes are
    read from the segment of `start` on until an entry's last stable offset has reached `end`: what ends later began
    later.

    Args:
        known: a listing that was made before. An index that has gone since is passed over: whoever gives one looks
            afterwards whether it still holds.

    Raises:
        OSError: an index cannot be read.
    """
    found: list[AbortedTransaction] = []
    if is_address(str(directory)):
        told = [AbortedTransaction(*each) for each in partition_of(str(directory))[1]["aborted"]]
        return [each for each in told if each.first_offset < end and each.last_offset >= start]
    listed = known or listing(directory)
    bases = listed.readable
    nexts = [base for base, _ in bases[1:]] + [-1]
    for (base, is_deleted), next_base in zip(bases, nexts, strict=False):
        if base not in listed.indexed_aborts or 0 <= next_base <= start:
            continue
        name = segment_file_name(base, TRANSACTION_INDEX + (DELETED if is_deleted else ""))
        try:
            content = Path(directory, name).read_bytes()
        except FileNotFoundError:
            continue
        for entry in decode_transactions(content):
            if entry.first_offset < end and entry.last_offset >= start:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found
    return found
