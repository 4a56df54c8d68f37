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
    client: str
    principal: str


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
        at = bisect_right(self._ranges, (offset, float("inf"))) - 1
        if at < 0:
            return None
        found = self._ranges[at]
        if offset >= found.end:
            return None
        share = (offset - found.first) / (found.end - found.first)
        return found, found.first_ms + int((found.last_ms - found.first_ms) * share)

    def forget_below(self, offset: int) -> None:
        """Drop the ranges that end at or below an offset."""
        keep = 0
        while keep < len(self._ranges) and self._ranges[keep].end <= offset:
            keep += 1
        del self._ranges[:keep]
