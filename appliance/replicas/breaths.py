"""Long work of a process that others wait for meanwhile: their turns come between its pieces.

By time and not by count: a copy that was left by a kill takes a hundred times as long to open as a new one, and whoever
waits for this replica, with acks=all, waits for the next turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.clock import NS_PER_MS, Clock

EVERY_MS: Final = 5
"""A wake-up of a busy host takes as long. The work has at least so much between two turns, and half of the time."""


class Breaths:
    """`take` is called after each piece of the work, and takes a turn where it is time for one."""

    __slots__ = ("_clock", "_next_ns", "_turn")

    def __init__(self, turn: Callable[[], object], clock: Clock) -> None:
        self._turn = turn
        self._clock = clock
        self._next_ns = 0

    def take(self) -> None:
        begun_ns = self._clock.monotonic_ns()
        if begun_ns < self._next_ns:
            return
        self._turn()
        ended_ns = self._clock.monotonic_ns()
        self._next_ns = ended_ns + max(EVERY_MS * NS_PER_MS, ended_ns - begun_ns)
