"""The segments of one log, by base offset."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Final

from appliance.errors import ApplianceDefect
from appliance.log.segment import Segment

_base: Final = attrgetter("base_offset")


class Segments:
    """Segments by their base offsets. Lookups are O(log segments).

    A plain list: most logs have one segment, and what a sorted container is made of costs a log without records more
    than all the rest of it.
    """

    __slots__ = ("_in_order", "_largest_so_far", "active", "first_base_offset")

    active: Segment
    """The last one, which appends go to."""
    first_base_offset: int
    """Where the first one begins; any thread may read it."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._in_order: list[Segment] = []
        # For each of the first closed segments the largest timestamp up to its end: it never falls, so it can be
        # bisected. Learnt when somebody asks, forgotten when segments before the last one change.
        self._largest_so_far: tuple[int, ...] = ()
        for segment in segments:
            self.add(segment)

    def __len__(self) -> int:
        return len(self._in_order)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._in_order)

    @property
    def first(self) -> Segment:
        return self._in_order[0]

    def add(self, segment: Segment) -> None:
        """Adds a segment; the one with the greatest base offset is the active one."""
        in_order = self._in_order
        if in_order and segment.base_offset <= self.active.base_offset:
            self._largest_so_far = ()
        slot = bisect_left(in_order, segment.base_offset, key=_base)
        if slot < len(in_order) and in_order[slot].base_offset == segment.base_offset:
            in_order[slot] = segment
        else:
            in_order.insert(slot, segment)
        self._ends_moved()

    def remove(self, segment: Segment) -> None:
        """Takes a segment out. Its files are not touched."""
        slot = bisect_left(self._in_order, segment.base_offset, key=_base)
        del self._in_order[slot]
        self._largest_so_far = ()
        if self._in_order:
            self._ends_moved()

    def _ends_moved(self) -> None:
        self.first_base_offset = self._in_order[0].base_offset
        self.active = self._in_order[-1]

    def floor(self, offset: int) -> Segment | None:
        """The segment that `offset` lies in, the one with the greatest base offset not above it."""
        slot = bisect_right(self._in_order, offset, key=_base) - 1
        return self._in_order[slot] if slot >= 0 else None

    def after(self, segment: Segment) -> Segment | None:
        """The segment that follows."""
        slot = bisect_right(self._in_order, segment.base_offset, key=_base)
        return self._in_order[slot] if slot < len(self._in_order) else None

    def since(self, offset: int) -> list[Segment]:
        """The segment that `offset` lies in and all later ones."""
        return self._in_order[self._slot_of(offset) :]

    def _slot_of(self, offset: int) -> int:
        return max(bisect_right(self._in_order, offset, key=_base) - 1, 0)

    def reaching(self, timestamp_ms: int, *, start: int) -> Iterator[Segment]:
        """In order, the segments from the one of offset `start` on that hold a batch of `timestamp_ms` or later.

        Raises:
            StorageFault, CorruptFile: the largest timestamp of a segment cannot be read.
        """
        first = max(self._slot_of(start), bisect_left(self._largest(), timestamp_ms))
        for segment in self._in_order[first:]:
            if segment.max_timestamp()[0] >= timestamp_ms:
                yield segment

    def latest(self, *, start: int) -> Segment:
        """The first with the largest timestamp of all, from the one of offset `start` on.

        Raises:
            StorageFault, CorruptFile: the largest timestamp of a segment cannot be read.
        """
        if self._slot_of(start):
            return max(self.since(start), key=lambda segment: segment.max_timestamp()[0])
        largest = self._largest()
        if not largest or self.active.max_timestamp()[0] > largest[-1]:
            return self.active
        return self._in_order[bisect_left(largest, largest[-1])]

    def _largest(self) -> tuple[int, ...]:
        """Of all closed segments, see `_largest_so_far`."""
        known = self._largest_so_far
        unknown = self._in_order[len(known) : -1]
        if unknown:
            timestamps = (segment.max_timestamp()[0] for segment in unknown)
            if known:
                self._largest_so_far = (*known[:-1], *accumulate(timestamps, max, initial=known[-1]))
            else:
                self._largest_so_far = tuple(accumulate(timestamps, max))
        return self._largest_so_far

    def check(self) -> None:
        """Raises ApplianceDefect where order or the active segment is wrong."""
        bases = [segment.base_offset for segment in self]
        if not bases or any(a >= b for a, b in pairwise(bases)) or self.active is not self._in_order[-1]:
            raise ApplianceDefect(f"segments {bases} have {self.active.base_offset} as the active one")
        known = list(self)[: len(self._largest_so_far)]
        largest = tuple(accumulate((segment.max_timestamp()[0] for segment in known), max))
        if largest != self._largest_so_far or len(known) == len(bases):
            raise ApplianceDefect(f"largest timestamps {self._largest_so_far} are not those of {known}")
