"""The segments of one log, by base offset."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from sortedcontainers import SortedDict

from appliance.errors import ApplianceDefect
from appliance.log.segment import Segment


class Segments:
    """Base offset → segment, in order. Lookups are O(log segments)."""

    __slots__ = ("_by_base", "_largest_so_far", "active", "first_base_offset")

    active: Segment
    """The last one, which appends go to."""
    first_base_offset: int
    """Where the first one begins; any thread may read it."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._by_base: SortedDict[int, Segment] = SortedDict()
        # For each of the first closed segments the largest timestamp up to its end: it never falls, so it can be
        # bisected. Learnt when somebody asks, forgotten when segments before the last one change.
        self._largest_so_far: list[int] = []
        for segment in segments:
            self.add(segment)

    def __len__(self) -> int:
        return len(self._by_base)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._by_base.values())

    @property
    def first(self) -> Segment:
        segment: Segment = self._by_base.peekitem(0)[1]
        return segment

    def add(self, segment: Segment) -> None:
        """Adds a segment; the one with the greatest base offset is the active one."""
        if self._by_base and segment.base_offset <= self.active.base_offset:
            self._largest_so_far.clear()
        self._by_base[segment.base_offset] = segment
        self.first_base_offset = self._by_base.peekitem(0)[0]
        self.active = self._by_base.peekitem(-1)[1]

    def remove(self, segment: Segment) -> None:
        """Takes a segment out. Its files are not touched."""
        del self._by_base[segment.base_offset]
        self._largest_so_far.clear()
        if self._by_base:
            self.first_base_offset = self._by_base.peekitem(0)[0]
            self.active = self._by_base.peekitem(-1)[1]

    def get(self, base_offset: int) -> Segment | None:
        segment: Segment | None = self._by_base.get(base_offset)
        return segment

    def floor(self, offset: int) -> Segment | None:
        """The segment that `offset` lies in, the one with the greatest base offset not above it."""
        slot: int = self._by_base.bisect_right(offset) - 1
        if slot < 0:
            return None
        segment: Segment = self._by_base.peekitem(slot)[1]
        return segment

    def after(self, segment: Segment) -> Segment | None:
        """The segment that follows."""
        slot: int = self._by_base.bisect_right(segment.base_offset)
        if slot == len(self._by_base):
            return None
        following: Segment = self._by_base.peekitem(slot)[1]
        return following

    def since(self, offset: int) -> list[Segment]:
        """The segment that `offset` lies in and all later ones."""
        slot: int = max(self._by_base.bisect_right(offset) - 1, 0)
        return list(self._by_base.values()[slot:])

    def reaching(self, timestamp_ms: int, *, start: int) -> Iterator[Segment]:
        """In order, the segments from the one of offset `start` on that hold a batch of `timestamp_ms` or later.

        Raises:
            StorageFault, CorruptFile: the largest timestamp of a segment cannot be read.
        """
        by_base = self._by_base.values()
        first: int = max(self._by_base.bisect_right(start) - 1, 0)
        for slot in range(max(first, bisect_left(self._largest(), timestamp_ms)), len(by_base)):
            segment: Segment = by_base[slot]
            if segment.max_timestamp()[0] >= timestamp_ms:
                yield segment

    def latest(self, *, start: int) -> Segment:
        """The first with the largest timestamp of all, from the one of offset `start` on.

        Raises:
            StorageFault, CorruptFile: the largest timestamp of a segment cannot be read.
        """
        if self._by_base.bisect_right(start) > 1:
            return max(self.since(start), key=lambda segment: segment.max_timestamp()[0])
        largest = self._largest()
        if not largest or self.active.max_timestamp()[0] > largest[-1]:
            return self.active
        segment: Segment = self._by_base.peekitem(bisect_left(largest, largest[-1]))[1]
        return segment

    def _largest(self) -> list[int]:
        """Of all closed segments, see `_largest_so_far`."""
        largest = self._largest_so_far
        known = len(largest)
        if known < len(self._by_base) - 1:
            for segment in self._by_base.values()[known:-1]:
                timestamp_ms = segment.max_timestamp()[0]
                largest.append(max(timestamp_ms, largest[-1]) if largest else timestamp_ms)
        return largest

    def check(self) -> None:
        """Raises ApplianceDefect where order or the active segment is wrong."""
        bases = list(self._by_base)
        if bases != sorted(bases) or not bases or self.active.base_offset != bases[-1]:
            raise ApplianceDefect(f"segments {bases} have {self.active.base_offset} as the active one")
        known = list(self)[: len(self._largest_so_far)]
        largest = list(accumulate((segment.max_timestamp()[0] for segment in known), max))
        if largest != self._largest_so_far or len(known) == len(bases):
            raise ApplianceDefect(f"largest timestamps {self._largest_so_far} are not those of {known}")
