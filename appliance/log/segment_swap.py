"""Putting a compacted segment into the place of those it was made of. For the log's owner, between two requests.

    0                                                                            a crash here
    1  <base>.*.cleaned  →  <base>.*.swap                                        undone: both are removed
    2  <source>.*        →  <source>.*.deleted, the oldest source first          done: the loader goes on from here
    3  <base>.*.swap     →  <base>.*                                             done
    later: the .deleted files are removed

Only renames, four a segment at most; the content was forced to the disk before. The names are not: a power cut leaves
some first part of the renames, and each is a state above. A source that lies behind the last batch kept (everything in
it was superseded) may survive a crash in 2: it is compacted once more. Sources go oldest first, so that a tombstone
never goes before what it deletes. Source: `LocalLog.replaceSegments`; `loader` is the other half.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from appliance.errors import StorageFault
from appliance.log.config import LogSettings
from appliance.log.faults import storage_faults
from appliance.log.file_names import (
    CLEANED,
    DELETED,
    LOG,
    OFFSET_INDEX,
    SEGMENT_SUFFIXES,
    SWAP,
    TIME_INDEX,
    segment_file_name,
)
from appliance.log.segment import Segment
from appliance.log.snapshots import Snapshots


class SwapInterrupted(StorageFault):
    """The host refused a rename in the middle: the log must be closed and opened anew, which resolves it."""


def is_prepared(directory: Path, base_offset: int) -> bool:
    """Whether a cleaner has finished the files that are to be swapped in."""
    return all(
        (directory / segment_file_name(base_offset, suffix + CLEANED)).is_file()
        for suffix in (LOG, OFFSET_INDEX, TIME_INDEX)
    )


def swap(
    directory: Path,
    base_offset: int,
    sources: Sequence[Segment],
    *,
    snapshots: Snapshots,
    settings: LogSettings,
    now_ms: int,
) -> tuple[Segment, tuple[Path, ...]]:
    """The new segment in the place of `sources`, and the `.deleted` files that may be removed. O(sources).

    The snapshots of all sources but the first go too: their offsets begin no segment any more.

    Raises:
        StorageFault: nothing has changed.
        SwapInterrupted: it happened in part.
    """
    try:
        for suffix in SEGMENT_SUFFIXES:
            _rename(directory, base_offset, (suffix + CLEANED, suffix + SWAP))
    except StorageFault:
        _remove_swap(directory, base_offset)
        raise
    removed: list[Path] = []
    try:
        for source in sources:
            source.abandon()
            for suffix in SEGMENT_SUFFIXES:
                if _rename(directory, source.base_offset, (suffix, suffix + DELETED)):
                    removed.append(source.path(suffix + DELETED))
        for suffix in SEGMENT_SUFFIXES:
            _rename(directory, base_offset, (suffix + SWAP, suffix))
        with storage_faults(directory):
            sizes = [
                (directory / segment_file_name(base_offset, suffix)).stat().st_size
                for suffix in (LOG, OFFSET_INDEX, TIME_INDEX)
            ]
        for source in sources[1:]:
            removed += snapshots.mark_deleted(source.base_offset)
    except StorageFault as fault:
        raise SwapInterrupted(str(fault)) from fault
    segment = Segment(
        directory,
        base_offset,
        settings=settings,
        created_ms=now_ms,
        size_bytes=sizes[0],
        offset_index_bytes=sizes[1],
        time_index_bytes=sizes[2],
    )
    return segment, tuple(removed)


def _rename(directory: Path, base_offset: int, suffixes: tuple[str, str]) -> bool:
    source, target = (directory / segment_file_name(base_offset, suffix) for suffix in suffixes)
    with storage_faults(source):
        try:
            os.rename(source, target)
        except FileNotFoundError:
            return False
    return True


def _remove_swap(directory: Path, base_offset: int) -> None:
    # The .swap files first: a .cleaned file beside them says that they are not whole.
    for mark in (SWAP, CLEANED):
        for suffix in SEGMENT_SUFFIXES:
            path = directory / segment_file_name(base_offset, suffix + mark)
            with storage_faults(path):
                path.unlink(missing_ok=True)
