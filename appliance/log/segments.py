"""The segments of one log, by base offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sortedcontainers import SortedDict

from appliance.errors import ApplianceDefect
from appliance.log.segment import Segment


class Segments:
    """Base offset → segment, in order. Lookups are O(log segments)."""

    __slots__ = ("_by_base", "active", "first_base_offset")

    active: Segment
    """The last one, which appends go to."""
    first_base_offset: int
    """Where the first one begins; any thread may read it."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._by_base: SortedDict[int, Segment] = SortedDict()
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
        self._by_base[segment.base_offset] = segment
        self.first_base_offset = self._by_base.peekitem(0)[0]
        self.active = self._by_base.peekitem(-1)[1]

    def remove(self, segment: Segment) -> None:
        """Takes a segment out. Its files are not touched."""
        del self._by_base[segment.base_offset]
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

    def check(self) -> None:
        """Raises ApplianceDefect where order or the active segment is wrong."""
        bases = list(self._by_base)
        if bases != sorted(bases) or not bases or self.active.base_offset != bases[-1]:
            raise ApplianceDefect(f"segments {bases} have {self.active.base_offset} as the active one")
