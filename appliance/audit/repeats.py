"""How many entries of one principal are recorded in an interval. The others are counted. Pure: time is handed in.

    INTERVAL_NS from the first entry      the first `most` are recorded, the others counted
    the end of the interval               one entry has the count; the next entry begins another interval

PRINCIPALS_MAX principals have counts of their own at a time. All others share one count, so a client that can choose
its name costs no memory.
"""

from __future__ import annotations

from typing import Final, NamedTuple

INTERVAL_NS: Final = 60_000_000_000
PRINCIPALS_MAX: Final = 1_000
OTHERS: Final = "(others)"


class LeftOut(NamedTuple):
    """Entries about `event` of `principal` that were not recorded, in an interval that is over."""

    event: str
    principal: str
    entries: int


class _Interval:
    __slots__ = ("ends_ns", "left_out", "recorded")

    def __init__(self, ends_ns: int) -> None:
        self.ends_ns = ends_ns
        self.recorded = 0
        self.left_out = 0


class Repeats:
    """The intervals of one process.

    Args:
        most: entries that are recorded of a principal in an interval.
    """

    __slots__ = ("_intervals", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._intervals: dict[tuple[str, str], _Interval] = {}

    def __len__(self) -> int:
        return len(self._intervals)

    def may_record(self, event: str, principal: str, now_ns: int) -> bool:
        """Count an entry; return whether it is to be recorded. Call `over` before."""
        key = event, principal
        interval = self._intervals.get(key)
        if interval is None:
            if len(self._intervals) >= PRINCIPALS_MAX:
                key = event, OTHERS
                interval = self._intervals.get(key)
            if interval is None:
                interval = self._intervals[key] = _Interval(now_ns + INTERVAL_NS)
        if interval.recorded < self._most:
            interval.recorded += 1
            return True
        interval.left_out += 1
        return False

    def over(self, now_ns: int) -> list[LeftOut]:
        """Forget the intervals that are over; return what was left out in them."""
        told = []
        # In the order in which they began, which is that of their ends.
        while self._intervals:
            key = next(iter(self._intervals))
            interval = self._intervals[key]
            if interval.ends_ns > now_ns:
                break
            del self._intervals[key]
            if interval.left_out:
                told.append(LeftOut(*key, interval.left_out))
        return told

    def rest(self) -> list[LeftOut]:
        """Forget every interval, because the process stops; return what was left out."""
        return self.over(1 << 62)
