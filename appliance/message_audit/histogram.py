"""Delays as a histogram of fixed bounds: 0, 1, 2, 5, 10, … ms, up to about three hours, and `inf`.

A bound counts the delays that are at most so long, and longer than the bound before. Bound 0 has the delays that are
not above 0, for example because the clock of a producer is ahead. Histograms add up bound by bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

BOUNDS_MS: Final = (0, *(digit * 10**power for power in range(7) for digit in (1, 2, 5)))
INFINITE: Final = "inf"
NAMES: Final = (*map(str, BOUNDS_MS), INFINITE)
DELAY_MS_MAX: Final = 1 << 53
"""Longer delays count as this one, so that sums stay exact in JSON."""


class Histogram:
    """Counts of delays in ms."""

    __slots__ = ("count", "counts", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.count = 0
        self.sum_ms = 0
        self.max_ms = 0

    def add(self, delay_ms: int, count: int = 1) -> None:
        """Count `count` records of one delay."""
        name = NAMES[bisect_left(BOUNDS_MS, delay_ms)]
        self.counts[name] = self.counts.get(name, 0) + count
        self.count += count
        delay_ms = min(max(delay_ms, 0), DELAY_MS_MAX)
        self.sum_ms += delay_ms * count
        self.max_ms = max(self.max_ms, delay_ms)

    def merge(self, counts: Mapping[str, int], *, sum_ms: int, max_ms: int) -> None:
        """Add another histogram. Bounds that this version does not know count as `inf`."""
        for name, count in counts.items():
            known = name if name in NAMES else INFINITE
            self.counts[known] = self.counts.get(known, 0) + count
            self.count += count
        self.sum_ms += sum_ms
        self.max_ms = max(self.max_ms, max_ms)

    def quantile_ms(self, share: float) -> int | None:
        """Return the bound below which `share` (0 to 1) of the delays are; None without a delay.

        The largest delay is returned instead of `inf`, and of a bound above it.
        """
        if not self.count:
            return None
        wanted = share * self.count
        seen = 0
        for name in NAMES:
            seen += self.counts.get(name, 0)
            if seen >= wanted and seen:
                return self.max_ms if name == INFINITE else min(int(name), self.max_ms)
        return self.max_ms
