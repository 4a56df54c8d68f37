"""Finds out when the wall clock was set back."""

from __future__ import annotations

from typing import Final

from appliance.clock import NS_PER_MS, Clock

TOLERANCE_MS: Final = 20
"""A clock that is only made slower goes back by less between two looks."""


class ClockSteps:
    """Args:
    since_ms: what the clock has shown before, at the latest; 0 if that is not known.
    """

    __slots__ = ("_clock", "_monotonic_ns", "_wall_ms")

    def __init__(self, clock: Clock, *, since_ms: int) -> None:
        self._clock = clock
        self._monotonic_ns = clock.monotonic_ns()
        self._wall_ms = since_ms

    @property
    def wall_ms(self) -> int:
        """What the clock showed at the last look."""
        return self._wall_ms

    def set_back_ms(self) -> int:
        """Return by how much the clock was set back since the last look; 0 if by no more than TOLERANCE_MS."""
        wall_ms, monotonic_ns = self._clock.now_ms(), self._clock.monotonic_ns()
        expected_ms = self._wall_ms + (monotonic_ns - self._monotonic_ns) // NS_PER_MS
        self._wall_ms, self._monotonic_ns = wall_ms, monotonic_ns
        return expected_ms - wall_ms if expected_ms - wall_ms > TOLERANCE_MS else 0
