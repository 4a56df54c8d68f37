"""Who appended which offsets of a partition, and when: ranges that network processes have observed.

Ranges do not overlap, except where an observation is wrong; then the one that begins later counts. At most RANGES_MAX
are kept of a partition; the newest ones are dropped, because older ones are needed first.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Final, NamedTuple

RANGES_MAX: Final = 5_000


class Appended(NamedTuple):
    """[first, end) were appended by one client, from `first_ms` to `last_ms`."""

    first: int
    end: int
    first_ms: int
    last_ms: int
    client: str = ""
    principal: str = ""

    def at_ms(self, offset: int) -> int:
        """Return when an offset was appended: its share of the time from the first to the last."""
        width = max(self.end - self.first, 1)
        return self.first_ms + (self.last_ms - self.first_ms) * (offset - self.first) // width


def at_once(at_ms: int) -> Appended:
    """Return what has one time for all offsets, such as a commit."""
    return Appended(0, 1, at_ms, at_ms)


class Attribution:
    """The ranges of one partition."""

    __slots__ = ("_ranges", "dropped")

    def __init__(self) -> None:
        self._ranges: list[Appended] = []
        self.dropped = 0

    def add(self, appended: Appended) -> None:
        """Take a range."""
        if len(self._ranges) >= RANGES_MAX:
            self.dropped += 1
        elif appended.end > appended.first:
            insort(self._ranges, appended)

    def of(self, offset: int) -> tuple[Appended, int] | None:
        """Return the range of an offset, and when this offset was appended, in ms; None if nobody saw it."""
        found, _ = self.around(offset)
        return None if found is None else (found, found.at_ms(offset))

    def around(self, offset: int) -> tuple[Appended | None, int | None]:
        """Return the range of an offset, None if nobody saw it, and up to where this holds; None: to the end."""
        ranges = self._ranges
        at = bisect_right(ranges, (offset, float("inf")))
        following = ranges[at].first if at < len(ranges) else None
        if not at or offset >= ranges[at - 1].end:
            return None, following
        found = ranges[at - 1]
        return found, found.end if following is None else min(found.end, following)

    def forget_below(self, offset: int) -> None:
        """Drop the ranges that end at or below an offset."""
        keep = 0
        while keep < len(self._ranges) and self._ranges[keep].end <= offset:
            keep += 1
        del self._ranges[:keep]
