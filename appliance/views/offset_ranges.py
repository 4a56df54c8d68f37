"""Offsets as ranges that do not touch, because a range of a stranger may span all offsets of a log.

add(3, 5), add(9, 12), add(4, 9)   →   [3, 12)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class OffsetRanges:
    """A set of offsets. Adding and looking take the time of a binary search, and a copy of what lies behind."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Add [start, end); nothing if it is empty."""
        if start >= end:
            return
        # Those from `first` on end at the start or later; those before `behind` begin at the end or earlier.
        first, behind = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < behind:
            start, end = min(start, self._starts[first]), max(end, self._ends[behind - 1])
        self._starts[first:behind] = [start]
        self._ends[first:behind] = [end]

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._starts)
