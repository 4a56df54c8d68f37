"""When segments that were rolled are forced to the disk: soon, so that a crash leaves little to read again.

A log that is written at 250 MB/s rolls every four seconds. If its closed segments waited for the next checkpoint (a
minute), a crash just before would have fifteen of them read and checked again; as it is, the active one and those whose
flush is under way (decision 0046). Several that roll together go in one round, and a round ends before the next begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.clock import NS_PER_MS, Clock
from appliance.ipc.agent import Timers

FLUSH_ROLLED_MS: Final = 1_000


class RolledFlush:
    """Calls `begin`, which says whether it could, `FLUSH_ROLLED_MS` after `rolled`, and again until it could."""

    __slots__ = ("_begin", "_clock", "_is_due", "_timers")

    def __init__(self, timers: Timers, clock: Clock, *, begin: Callable[[], bool]) -> None:
        self._timers = timers
        self._clock = clock
        self._begin = begin
        self._is_due = False

    def rolled(self) -> None:
        """A flush waits. May be called as often as one likes."""
        if not self._is_due:
            self._is_due = True
            self._timers.add(self._clock.monotonic_ns() + FLUSH_ROLLED_MS * NS_PER_MS, self._run)

    def _run(self) -> None:
        self._is_due = False
        if not self._begin():
            self.rolled()
