"""Which segments a partition's directory holds.

Names change while a reader looks: retention and compaction rename segments to `.deleted`, compaction puts a new file
in their place through `.swap`. In the middle of that a name is missing, and a hole in a compacted log looks like any
other. So a directory is listed until two listings in a row agree and no `.swap` is among them.

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


def listing(directory: str | Path) -> tuple[list[int], list[int]]:
    """Base offsets of the living segments, and of the deleted ones that still lie there; both in order.

    Raises:
        FileNotFoundError, OSError: the directory cannot be read.
        NotReadable: it does not come to rest.
    """
    before: tuple[list[int], list[int]] | None = None
    for look in range(_LOOKS):
        living, deleted, swapping = [], [], False
        for name in os.listdir(directory):
            parsed = parse_segment_file_name(name)
            if parsed is None:
                continue
            if parsed[1] == LOG:
                living.append(parsed[0])
            elif parsed[1] == LOG + DELETED:
                deleted.append(parsed[0])
            elif parsed[1].endswith(SWAP):
                swapping = True
        found = sorted(living), sorted(deleted)
        if not swapping and found == before:
            return found
        before = None if swapping else found
        if look > 1:
            time.sleep(_PAUSE_S)
    raise NotReadable(f"{directory}: a swap of segments does not end; is its broker running?")


def segments(directory: str | Path) -> list[SegmentFacts]:
    """The segments of a partition in order, with those deleted ones before them that can still be read.

    Raises:
        As `listing`.
    """
    if is_address(str(directory)):
        return _exported(str(directory))
    for _ in range(_LOOKS):
        living, deleted = listing(directory)
        first = living[0] if living else None
        bases = [(base, True) for base in deleted if first is None or base < first]
        bases += [(base, False) for base in living]
        nexts = [base for base, _ in bases[1:]] + [-1] * bool(bases)
        try:
            return [
                _facts(directory, base, next_base, is_deleted)
                for (base, is_deleted), next_base in zip(bases, nexts, strict=True)
            ]
        except FileNotFoundError:
            continue  # renamed since
    raise NotReadable(f"{directory}: its segments change faster than they can be listed")


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


def aborted_transactions(directory: str | Path, *, start: int, end: int) -> list[AbortedTransaction]:
    """The aborted transactions with records in [start, end), by the end of each.

    An abort stands in the index of the segment that its marker lies in, which may follow long after. So indexes are
    read from the segment of `start` on until an entry's last stable offset has reached `end`: what ends later began
    later.

    Raises:
        OSError: an index cannot be read.
    """
    found: list[AbortedTransaction] = []
    if is_address(str(directory)):
        told = [AbortedTransaction(*each) for each in partition_of(str(directory))[1]["aborted"]]
        return [each for each in told if each.first_offset < end and each.last_offset >= start]
    known = segments(directory)
    for each in known:
        if 0 <= each.next_base <= start:
            continue
        suffix = TRANSACTION_INDEX + (DELETED if each.is_deleted else "")
        try:
            content = (Path(directory) / segment_file_name(each.base_offset, suffix)).read_bytes()
        except FileNotFoundError:
            continue
        for entry in decode_transactions(content):
            if entry.first_offset < end and entry.last_offset >= start:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found
    return found
