"""The transactions of one log that are open, or ended where readers may not know it yet: what holds the last stable
offset back.

    offsets     10   20   30   40   50   60       high watermark 55
    A opens at  10 ····················· 60 ended, its marker at 60
    B opens at       20 ······ 40                 ended, its marker at 40
    C opens at            30 ···                  open

    first_open                                    30
    first_unstable(55)                            10, because A's marker is not below the high watermark
    first_unstable(61)                            30

Offsets only grow, so open transactions stand in the order of their first offsets. They end in any order: an ended one
leaves its place in the line, and is passed over when it comes to the front, or when half of the line is such places.
Ended ones stand in a heap by first offset. Every call is O(1) amortized, but for `end` and `first_unstable`, which are
O(log n) of the ended ones.

Source: `ongoingTxns`, `unreplicatedTxns` of `ProducerStateManager.java`. Figures and what was refused: decision 0088.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final

from appliance.errors import ApplianceDefect

NONE: Final = -1
_PLACES_MIN: Final = 64


class OpenTransactions:
    """Args:
    open_ones: first offset → producer id.
    ended: (first offset, marker offset) of transactions whose marker may not be below the high watermark.
    """

    __slots__ = ("_ended", "_line", "_open")

    def __init__(self, open_ones: dict[int, int], ended: Iterable[tuple[int, int]] = ()) -> None:
        self._open: dict[int, int] = open_ones
        self._line: deque[int] = deque(sorted(open_ones))
        self._ended: list[tuple[int, int]] = list(ended)
        heapify(self._ended)

    def begin(self, first_offset: int, producer_id: int) -> None:
        """`first_offset` is above that of every transaction that is known."""
        self._open[first_offset] = producer_id
        self._line.append(first_offset)

    def end(self, first_offset: int, marker_offset: int) -> None:
        open_ones, line = self._open, self._line
        if open_ones.pop(first_offset, None) is None:
            return
        heappush(self._ended, (first_offset, marker_offset))
        while line and line[0] not in open_ones:
            line.popleft()
        if len(line) > _PLACES_MIN and len(line) > 2 * len(open_ones):
            self._line = deque([offset for offset in line if offset in open_ones])

    @property
    def first_open(self) -> int:
        """Where the oldest open one begins, NONE where none is open."""
        line = self._line
        return line[0] if line else NONE

    def first_unstable(self, high_watermark: int) -> int:
        """Where the oldest one begins that is open, or whose marker is not below `high_watermark`; NONE without one.

        Forgets those that are neither, because high watermarks only grow.
        """
        ended, line = self._ended, self._line
        while ended and ended[0][1] < high_watermark:
            heappop(ended)
        if not ended:
            return line[0] if line else NONE
        first_ended = ended[0][0]
        return first_ended if not line or first_ended < line[0] else line[0]

    @property
    def is_empty(self) -> bool:
        return not (self._open or self._ended)

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def ended(self) -> list[tuple[int, int]]:
        """(first offset, marker offset) of those whose marker may not be below the high watermark, by first offset."""
        return sorted(self._ended)

    def check(self, open_ones: dict[int, int]) -> None:
        """Raise ApplianceDefect unless exactly these are open, by first offset, and the line is in order."""
        line = list(self._line)
        if self._open != open_ones:
            raise ApplianceDefect(f"open transactions {self._open} are not those of producers, {open_ones}")
        if line != sorted(line) or [offset for offset in line if offset in open_ones] != sorted(open_ones):
            raise ApplianceDefect(f"open transactions {sorted(open_ones)} are in line as {line}")
        if line and line[0] not in open_ones:
            raise ApplianceDefect(f"the first in line, {line[0]}, is not open")
