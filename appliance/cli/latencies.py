"""How often each latency was seen, to three significant digits, as in an HDR histogram.

The error is below 0.5 %, and there are at most 900 counters for each power of ten above a millisecond: 9,000 for all
latencies from 1 µs to a month. Thus memory does not grow with the count.
"""

from __future__ import annotations

from collections import Counter
from math import ceil, floor, log10


class Latencies:
    """Percentiles of many durations, each within 0.5 %."""

    __slots__ = ("_counts", "count", "total_s")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.total_s = 0.0

    def add(self, duration_s: float) -> None:
        """Notes one duration; what is below a microsecond counts as one."""
        self._counts[_rounded(max(1, round(duration_s * 1e6)))] += 1
        self.count += 1
        self.total_s += duration_s

    @property
    def counters(self) -> int:
        """Return how many different latencies are kept."""
        return len(self._counts)

    def percentile_ms(self, percent: float) -> float | None:
        """The smallest duration that `percent` of all do not exceed, by nearest rank; None without any."""
        if not self.count:
            return None
        left = max(1, ceil(self.count * percent / 100))
        for duration_us in sorted(self._counts):
            left -= self._counts[duration_us]
            if left <= 0:
                return duration_us / 1000
        raise AssertionError("the counts add up to `count`")

    def as_json(self) -> dict[str, float | None]:
        """The keys are stable; milliseconds."""
        told = {f"p{percent:g}": self.percentile_ms(percent) for percent in (50, 95, 99, 99.9)}
        mean = round(self.total_s / self.count * 1000, 3) if self.count else None
        return {"mean": mean, **told, "max": self.percentile_ms(100)}


def _rounded(amount: int) -> int:
    """`amount` to three significant digits."""
    step = int(10 ** max(0, floor(log10(amount)) - 2))
    return round(amount / step) * step
