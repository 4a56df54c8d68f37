"""How long a dead process waits for its next life."""

from __future__ import annotations

HEALTHY_LIFE_MS = 30_000


class BackOff:
    """At once after the first death, then `first_ms` doubling up to `longest_ms`; a healthy life forgets all.

    Example with 50 and 5,000: 0, 50, 100, 200, … 3,200, 5,000, 5,000; after 30 s of life again 0.
    """

    __slots__ = ("_deaths", "_first_ms", "_longest_ms")

    def __init__(self, first_ms: int, longest_ms: int) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._deaths = 0

    @property
    def deaths(self) -> int:
        """Deaths in a row, without a healthy life between them."""
        return self._deaths

    def after_death(self, lived_ms: int) -> int:
        """Milliseconds to wait after a life of `lived_ms`."""
        if lived_ms >= HEALTHY_LIFE_MS:
            self._deaths = 0
        self._deaths += 1
        if self._deaths == 1:
            return 0
        # The exponent is bounded so that a process that dies for a year does not count in huge numbers.
        return min(self._longest_ms, self._first_ms << min(self._deaths - 2, 32))
