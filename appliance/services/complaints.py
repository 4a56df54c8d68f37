"""What a services process says to the operator: each different line, and what was dropped, by partition.

One limit for all lines would hide a line that comes only once, such as one that names lost records, behind another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.clock import NS_PER_MS, Clock
from appliance.journal import RateLimited

INTERVAL_MS: Final = 10_000
LINES_MAX: Final = 100
"""Different lines in INTERVAL_MS; further ones share a limit. Some are about what clients did."""
GATHER_MS: Final = 1_000
"""So long the first dropped records wait for others of their partition."""
PLACES_MAX: Final = 100
"""Partitions and reasons that are named in INTERVAL_MS; the records of others are one number."""


class Complaints:
    """Says each different line at most once in INTERVAL_MS.

    Args:
        say: where a line goes.
    """

    __slots__ = ("_clock", "_others", "_said_ns", "_say")

    def __init__(self, say: Callable[[str], None], clock: Clock) -> None:
        self._say = say
        self._clock = clock
        self._said_ns: dict[str, int] = {}
        self._others = RateLimited(say, clock, interval_ms=INTERVAL_MS)

    def __call__(self, text: str) -> bool:
        """Return whether the line was said."""
        now_ns = self._clock.monotonic_ns()
        said = self._said_ns
        # In the order in which they were said.
        while said and now_ns - said[first := next(iter(said))] >= INTERVAL_MS * NS_PER_MS:
            del said[first]
        if text in said:
            return False
        if len(said) >= LINES_MAX:
            return self._others(text)
        said[text] = now_ns
        self._say(text)
        return True


class Drops:
    """Delayed records that were dropped, and of which no line was said yet.

    `total`: how many were dropped since the process began.
    """

    __slots__ = ("_counts", "_due_ns", "_more", "_said_ns", "total")

    def __init__(self) -> None:
        self.total = 0
        self._counts: dict[tuple[tuple[str, int] | None, str], int] = {}
        self._more = 0
        self._said_ns: int | None = None
        self._due_ns: int | None = None

    def add(self, count: int, why: str, *, place: tuple[str, int] | None = None) -> None:
        """Records were dropped.

        Args:
            place: the topic and the partition; None if they have no name any more: their topic was deleted.
        """
        self.total += count
        key = place, why
        if key in self._counts or len(self._counts) < PLACES_MAX:
            self._counts[key] = self._counts.get(key, 0) + count
        else:
            self._more += count

    def tell(self, say: Callable[[str], object], now_ns: int, *, is_last: bool = False) -> None:
        """Say what is to be said now.

        Args:
            is_last: nothing can be said later.
        """
        if not self._counts or (now_ns < self._due(now_ns) and not is_last):
            return
        for (place, why), count in self._counts.items():
            if place is None:
                say(f"{count} delayed records were dropped, because their topic was deleted")
            else:
                topic, partition = place
                say(f"partition {topic}-{partition}: {count} delayed records were dropped, because {why}")
        if self._more:
            what = "dropped delayed records"
            say(f"… and {self._more} more {what} in the last {INTERVAL_MS // 1_000} s")
        self._counts = {}
        self._more = 0
        self._said_ns, self._due_ns = now_ns, None

    def _due(self, now_ns: int) -> int:
        if self._due_ns is None:
            self._due_ns = now_ns + GATHER_MS * NS_PER_MS
            if self._said_ns is not None:
                self._due_ns = max(self._due_ns, self._said_ns + INTERVAL_MS * NS_PER_MS)
        return self._due_ns

    def wait_ms(self, now_ns: int) -> int | None:
        """Return in how many milliseconds `tell` has something; None if nothing was dropped."""
        if not self._counts:
            return None
        return max(self._due(now_ns) - now_ns, 0) // NS_PER_MS + 1
