"""Where readers who follow a log go on: the next stretch of a segment, found without asking its owner.

Whoever reads a backlog asks for what follows the answer before. That answer ends where a batch begins, by the segment's
`.index`, and a cursor remembers where: by the offset that the next fetch will name. Then the owner is not asked again
until the segment, or what the index knows of it, ends.

    answer to 4711                 the next fetch says 9240
    ├──────────────────────────────┤├────────────────────── …
    position                        entry of the index: a batch at 1048012 ends with 9255
                                    its header: begins with 9240, ends with 9255

A stretch is bounded by an entry whose batch ends below what the partition table says is readable, and only as long as
incarnation and files version are those under which the owner answered: then the file is the one it spoke of, in which
what is readable never changes, and what is readable was said by the same leader. The index is being written by
somebody else, has no checksum, and behind its end may stand what was there before the log was cut: an entry counts if
the header of its batch says the same (decision 0059).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from struct import Struct
from typing import Final

from appliance.errors import StorageFault
from appliance.protocol.records.batch import HEADER, HEADER_BYTES, MAGIC_V2
from appliance.requests.segment_files import SegmentFile, SegmentFiles
from appliance.requests.segment_replaced import SegmentReplaced
from appliance.requests.topic_routes import PartitionRoute

CURSORS_MAX: Final = 1024
"""Of one network process, 200 bytes each; readers who ask for a megabyte at a time leave one for each megabyte."""

_ENTRY: Final = Struct(">ii")
_ENTRY_BYTES: Final = 8
# An entry stands for `index.interval.bytes`, 4 KiB: so much of the index reaches beyond the most that is asked for.
_LOG_BYTES_PER_INDEX_BYTE: Final = 256
_WINDOW_BYTES_MIN: Final = 4 * 1024
_WINDOW_BYTES_MAX: Final = 64 * 1024

_ENTRIES_AT_ONCE: Final = 512
"""One read of so many entries costs less than the nine reads that would halve them."""

_NO_BOUND: Final = 1 << 62


Cut = tuple[int, int, int]
"""Bytes of whole batches, bytes of whole batches behind them that the next fetch may get, and the offset that the batch
behind the first ones begins with: -1 where what is sent may end inside of a batch."""
NOTHING: Final = (0, 0, -1)


class Cursor:
    """A batch that begins at `position` of a segment; `entry` of the index is the last at or before it.

    `settled_below`: no transaction that was aborted has records between it and this offset; -1 where nobody has looked.
    `has_aborted`: one has, somewhere: a read_committed fetch from here on reads the indexes of aborted transactions.
    `on_older_segment`: what may be read goes on in a later one; else it may by now.
    """

    __slots__ = (
        "directory",
        "entry",
        "files_version",
        "has_aborted",
        "incarnation",
        "on_older_segment",
        "position",
        "segment",
        "settled_below",
    )

    def __init__(
        self,
        *,
        incarnation: int,
        files_version: int,
        directory: int,
        segment: int,
        position: int,
        entry: int,
        settled_below: int,
        has_aborted: bool,
        on_older_segment: bool,
    ) -> None:
        self.incarnation = incarnation
        self.files_version = files_version
        self.directory = directory
        self.segment = segment
        self.position = position
        self.entry = entry
        self.settled_below = settled_below
        self.has_aborted = has_aborted
        self.on_older_segment = on_older_segment


class Cursors:
    """The cursors of one network process, the least recently used forgotten first."""

    __slots__ = ("_by_place", "_files", "_limit")

    def __init__(self, files: SegmentFiles, *, limit: int = CURSORS_MAX) -> None:
        self._files = files
        self._limit = limit
        self._by_place: OrderedDict[tuple[int, int], Cursor] = OrderedDict()

    def find(self, route: PartitionRoute, offset: int, *, files_version: int) -> Cursor | None:
        """Where the batch that begins with `offset` lies, if an answer has ended before it."""
        cursor = self._by_place.get((route.row, offset))
        if cursor is None:
            return None
        if cursor.incarnation != route.incarnation or cursor.files_version != files_version:
            del self._by_place[route.row, offset]
            return None
        return cursor

    def advance(
        self,
        route: PartitionRoute,
        cursor: Cursor,
        *,
        max_bytes: int,
        upper_bound: int,
        read_committed: bool,
    ) -> Cut:
        """How many bytes of whole batches from the cursor on end below `upper_bound`; remembers what follows them.

        They are cut short by `max_bytes` and by nothing else. `NOTHING` where the owner has to be asked: near the end
        of the segment, of what is indexed and of what is readable, for a batch that is larger than `max_bytes`, and for
        a `read_committed` reader where nobody knows whether aborted transactions lie.
        """
        if read_committed and not cursor.has_aborted:
            upper_bound = min(upper_bound, cursor.settled_below)
        files = self._files
        try:
            held = files.hold(route, cursor.segment, cursor.directory, version=cursor.files_version)
        except (OSError, SegmentReplaced):
            return NOTHING
        try:
            return self._cut(
                route, held, cursor, max_bytes=max_bytes, upper_bound=upper_bound, is_found=False
            )
        except (OSError, StorageFault, SegmentReplaced):
            return NOTHING
        finally:
            held.release()

    def follow(
        self,
        route: PartitionRoute,
        held: SegmentFile,
        *,
        directory: int,
        segment: int,
        position: int,
        length_bytes: int,
        upper_bound: int,
        settled_below: int,
        has_aborted: bool = False,
        on_older_segment: bool = False,
    ) -> Cut:
        """Cuts what an owner found down to whole batches, and remembers what follows them.

        All of `length_bytes` are left where there is no place to go on from.
        """
        if held.version & 1:
            return length_bytes, 0, -1
        try:
            index = self._files.index_of(held, route, segment, directory)
            cursor = Cursor(
                incarnation=route.incarnation,
                files_version=held.version,
                directory=directory,
                segment=segment,
                position=position,
                entry=_entry_before(index, position),
                settled_below=settled_below,
                has_aborted=has_aborted,
                on_older_segment=on_older_segment,
            )
            cut = self._cut(
                route, held, cursor, max_bytes=length_bytes, upper_bound=upper_bound, is_found=True
            )
        except (OSError, StorageFault, SegmentReplaced):
            return length_bytes, 0, -1
        return cut if cut[0] else (length_bytes, 0, -1)

    def end_offset(
        self, route: PartitionRoute, held: SegmentFile, *, directory: int, segment: int, position: int
    ) -> int:
        """Return the first offset of a batch that begins at `position` or behind it, -1 where the index names none.

        Source: `LogSegment.fetchUpperBoundOffset`.
        """
        if held.version & 1:
            return -1
        try:
            index = self._files.index_of(held, route, segment, directory)
            number = _entry_before(index, position - 1) + 1
            window = os.pread(index, 2 * _ENTRY_BYTES, (number - 1) * _ENTRY_BYTES)
            for at in range(len(window) // _ENTRY_BYTES):
                if _ENTRY.unpack_from(window, at * _ENTRY_BYTES)[1] >= position:
                    return _first_offset(held, segment, window, at)
        except (OSError, StorageFault, SegmentReplaced):
            pass
        return -1

    def _cut(
        self,
        route: PartitionRoute,
        held: SegmentFile,
        cursor: Cursor,
        *,
        max_bytes: int,
        upper_bound: int,
        is_found: bool,
    ) -> Cut:
        """Up to the last entry that fits. `is_found`: an owner says that so much is readable; else an entry must."""
        index = self._files.index_of(held, route, cursor.segment, cursor.directory)
        base, position = cursor.segment, cursor.position
        wanted = min(max(max_bytes // _LOG_BYTES_PER_INDEX_BYTE, _WINDOW_BYTES_MIN), _WINDOW_BYTES_MAX)
        window = os.pread(index, wanted, cursor.entry * _ENTRY_BYTES)
        last, bound = position + max_bytes, upper_bound - base
        count = _entries_within(window, 0, last=last, bound=bound)
        if not count:
            return NOTHING
        is_last = count == len(window) // _ENTRY_BYTES
        if not is_found and (is_last or _ENTRY.unpack_from(window, count * _ENTRY_BYTES)[1] <= last):
            return NOTHING
        at = _ENTRY.unpack_from(window, (count - 1) * _ENTRY_BYTES)[1]
        if at <= position or at - position < max_bytes // 2:
            # Where entries are few, or more than the window holds, an owner's answer is worth more than whole batches.
            return NOTHING
        offset = _first_offset(held, base, window, count - 1)
        if offset < 0:
            return NOTHING
        self._remember(
            (route.row, offset),
            Cursor(
                incarnation=cursor.incarnation,
                files_version=cursor.files_version,
                directory=cursor.directory,
                segment=base,
                position=at,
                entry=cursor.entry + count - 1,
                settled_below=cursor.settled_below,
                has_aborted=cursor.has_aborted,
                on_older_segment=cursor.on_older_segment,
            ),
        )
        following = _entries_within(window, count, last=at + max_bytes, bound=bound)
        if following == count or _first_offset(held, base, window, following - 1) < 0:
            return at - position, 0, offset
        return at - position, _ENTRY.unpack_from(window, (following - 1) * _ENTRY_BYTES)[1] - at, offset

    def _remember(self, place: tuple[int, int], cursor: Cursor) -> None:
        by_place = self._by_place
        by_place[place] = cursor
        by_place.move_to_end(place)
        if len(by_place) > self._limit:
            by_place.popitem(last=False)

    def statistics(self) -> dict[str, int]:
        return {"cursors": len(self._by_place)}


def _entries_within(window: bytes, low: int, *, last: int, bound: int) -> int:
    """How many entries name batches at or before `last` that end below `bound`; the first `low` of them do."""
    high = len(window) // _ENTRY_BYTES
    while low < high:
        middle = (low + high) // 2
        relative, at = _ENTRY.unpack_from(window, middle * _ENTRY_BYTES)
        # Behind the last entry of an active segment are zeros, or what was there before the log was cut.
        if 0 < at <= last and relative < bound:
            low = middle + 1
        else:
            high = middle
    return low


def _first_offset(held: SegmentFile, base: int, window: bytes, number: int) -> int:
    """The first offset of the batch that an entry names; -1 where the batch's header does not say the same."""
    relative, at = _ENTRY.unpack_from(window, number * _ENTRY_BYTES)
    header = os.pread(held.fd, HEADER_BYTES, at)
    if len(header) < HEADER_BYTES:
        return -1
    offset, _, _, magic, _, _, delta, *_ = HEADER.unpack(header)
    return int(offset) if magic == MAGIC_V2 and delta >= 0 and offset + delta == base + relative else -1


def _entry_before(index: int, position: int) -> int:
    """The last entry of an index whose batch begins at or before `position`; the first, where there is none."""
    # The index of an active segment is allocated ahead, so its size says little. No batch is smaller than its header,
    # so no more entries than this can lie before `position`.
    low, high = 0, min(os.fstat(index).st_size // _ENTRY_BYTES, position // HEADER_BYTES + 1)
    while high - low > _ENTRIES_AT_ONCE:
        middle = (low + high) // 2
        entry = os.pread(index, _ENTRY_BYTES, middle * _ENTRY_BYTES)
        if len(entry) == _ENTRY_BYTES and 0 < _ENTRY.unpack(entry)[1] <= position:
            low = middle + 1
        else:
            high = middle
    window = os.pread(index, (high - low) * _ENTRY_BYTES, low * _ENTRY_BYTES)
    return max(low + _entries_within(window, 0, last=position, bound=_NO_BOUND) - 1, 0)
