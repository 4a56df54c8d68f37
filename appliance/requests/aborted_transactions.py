"""Which transactions of a stretch of a log were aborted: what a read_committed client must know beside the records.

Read off the disk, from the `.txnindex` files of the partition, like the records themselves. Kafka answers the same:
entries that overlap the fetched range, by the segments from the one fetched from up to the first entry whose last
stable offset is not below the bound (`UnifiedLog.java`; KIP-98).

    names     which segments have an index: a listing of the directory, kept until it may lack something that counts
    bisect    to the first entry whose marker is not below the offset: markers rise from entry to entry
    entries   up to the first one that is stable at the bound

A listing holds for all bounds up to the last stable offset that was known before it was made: a transaction that begins
below that offset has its marker, and that its entry, in a file that was there. It holds as long as incarnation and
files version stand (`cursors`). Segments that were removed since then are below the log's start, and so were their
markers; the caller has to look at the log's start afterwards.

No entry is kept: to find them costs a few reads of a file that is in the page cache (decision 0099).
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from appliance.log.faults import storage_faults
from appliance.log.file_names import LOG, TRANSACTION_INDEX, parse_segment_file_name, segment_file_name
from appliance.log.transaction_index import ENTRY
from appliance.protocol.fetch_response import AbortedTransaction
from appliance.requests.segment_files import SegmentFiles
from appliance.requests.topic_routes import PartitionRoute

LISTED_MAX: Final = 65_536
"""Files in all listings of a network process, about 40 bytes each."""

_ENTRY_BYTES: Final = ENTRY.size
_BLOCK_ENTRIES: Final = 256
"""Read at once, 8.5 KiB; a stretch that reads on has seldom more."""


class Listing:
    """The segments of one partition's directory, as they were under `files_version`.

    `bases`: of all segments; `indexed`: of those with an index of aborted transactions. Both ascend.
    `holds_below`: the bounds up to which no file is missing here.
    """

    __slots__ = ("bases", "files_version", "holds_below", "incarnation", "indexed", "leader")

    def __init__(
        self, names: Iterable[str], route: PartitionRoute, *, files_version: int, holds_below: int
    ) -> None:
        bases: list[int] = []
        indexed: list[int] = []
        for name in names:
            if name.endswith((LOG, TRANSACTION_INDEX)):
                parsed = parse_segment_file_name(name)
                if parsed is not None and parsed[1] == LOG:
                    bases.append(parsed[0])
                elif parsed is not None and parsed[1] == TRANSACTION_INDEX:
                    indexed.append(parsed[0])
        bases.sort()
        indexed.sort()
        self.bases = tuple(bases)
        self.indexed = tuple(indexed)
        self.incarnation = route.incarnation
        self.leader = route.leader
        self.files_version = files_version
        self.holds_below = holds_below

    def __len__(self) -> int:
        return len(self.bases) + len(self.indexed)

    def after(self, segment: int) -> int:
        """Return where the segment behind `segment` begins, -1 where none is known."""
        at = bisect_right(self.bases, segment)
        return self.bases[at] if at < len(self.bases) else -1


class AbortedTransactions:
    """Those of all partitions that one network process serves.

    Args:
        files: knows where partitions lie, and whether names still mean the same files.
    """

    __slots__ = ("_files", "_limit", "_listed", "_listings")

    def __init__(self, files: SegmentFiles, *, limit: int = LISTED_MAX) -> None:
        self._files = files
        self._limit = limit
        self._listings: OrderedDict[tuple[int, int], Listing] = OrderedDict()
        self._listed = 0

    def among(
        self,
        route: PartitionRoute,
        *,
        directory: int,
        segment: int,
        offset: int,
        end_offset: int,
        last_stable_offset: int,
        goes_on: bool,
        files_version: int,
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap what is sent from `offset` on, oldest marker first.

        Args:
            segment: the base offset of the segment that the records lie in.
            end_offset: no record that is sent has this offset or a higher one; -1 where that is not known.
            last_stable_offset: as it was before this call.
            goes_on: records below it are in later segments too.
            files_version: from before the records were located.

        Raises:
            StorageFault: an index cannot be read.
            SegmentReplaced: the files of the partition have changed meanwhile.
        """
        path = self._files.directory_of(route, directory)
        bound = last_stable_offset if end_offset < 0 else min(end_offset, last_stable_offset)
        listing = self._listing(
            path, route, directory, bound=bound, stable=last_stable_offset, files_version=files_version
        )
        if end_offset < 0 and goes_on:
            following = listing.after(segment)
            if following >= 0:
                bound = min(bound, following)
        found = aborted_in(path, listing.indexed, segment, offset=offset, upper_bound=bound)
        self._files.expect(route, version=files_version)
        if not files_version & 1:
            self._keep((route.row, directory), listing)
        return found

    def _listing(
        self,
        path: Path,
        route: PartitionRoute,
        directory: int,
        *,
        bound: int,
        stable: int,
        files_version: int,
    ) -> Listing:
        known = self._listings.get((route.row, directory))
        if (
            known is not None
            and known.incarnation == route.incarnation
            and known.leader == route.leader
            and known.files_version == files_version
            and bound <= known.holds_below
        ):
            return known
        with storage_faults(path):
            return Listing(os.listdir(path), route, files_version=files_version, holds_below=stable)

    def _keep(self, place: tuple[int, int], listing: Listing) -> None:
        listings = self._listings
        before = listings.pop(place, None)
        if before is not None:
            self._listed -= len(before)
        listings[place] = listing
        self._listed += len(listing)
        while self._listed > self._limit:
            _, oldest = listings.popitem(last=False)
            self._listed -= len(oldest)

    def statistics(self) -> dict[str, int]:
        return {"listings": len(self._listings), "listed": self._listed}


def aborted_in(
    directory: Path, indexed: Sequence[int], segment: int, *, offset: int, upper_bound: int
) -> list[AbortedTransaction]:
    """Aborted transactions that overlap [`offset`, `upper_bound`), oldest marker first.

    Args:
        indexed: the base offsets of the segments with an index, ascending.
        segment: that of the segment that `offset` lies in.

    Raises:
        StorageFault: an index cannot be read.
    """
    found: list[AbortedTransaction] = []
    for at in range(bisect_left(indexed, segment), len(indexed)):
        path = directory / segment_file_name(indexed[at], TRANSACTION_INDEX)
        with storage_faults(path):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # removed with its segment
            try:
                if _read_on(descriptor, found, offset, upper_bound):
                    break
            finally:
                os.close(descriptor)
    return found


def _read_on(index: int, found: list[AbortedTransaction], offset: int, upper_bound: int) -> bool:
    """Add what overlaps; return whether the last entry that was read says that no later one does."""
    count = os.fstat(index).st_size // _ENTRY_BYTES
    low, high = 0, count
    while high - low > _BLOCK_ENTRIES:
        middle = (low + high) // 2
        entry = os.pread(index, _ENTRY_BYTES, middle * _ENTRY_BYTES)
        if len(entry) == _ENTRY_BYTES and ENTRY.unpack(entry)[3] < offset:
            low = middle + 1
        else:
            high = middle
    while low < count:
        block = os.pread(index, min(_BLOCK_ENTRIES, count - low) * _ENTRY_BYTES, low * _ENTRY_BYTES)
        entries = len(block) // _ENTRY_BYTES
        if not entries:
            break
        for number in range(_first_ended(block, entries, offset), entries):
            _, producer_id, first_offset, _, stable = ENTRY.unpack_from(block, number * _ENTRY_BYTES)
            if first_offset < upper_bound:
                found.append(AbortedTransaction(producer_id, first_offset))
            if stable >= upper_bound:
                return True
        low += entries
    return False


def _first_ended(block: bytes, entries: int, offset: int) -> int:
    """The first entry of a block whose marker is not below `offset`."""
    return bisect_left(
        range(entries), offset, key=lambda number: ENTRY.unpack_from(block, number * _ENTRY_BYTES)[3]
    )
