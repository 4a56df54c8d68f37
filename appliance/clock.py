"""Time is handed in. Nothing below the process wings reads a clock on its own."""

from __future__ import annotations

import time
from typing import Final, Protocol

NS_PER_MS: Final = 1_000_000


class Clock(Protocol):
    """What a part may ask about time."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the epoch (Kafka timestamps). May jump."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds that never go back (deadlines). Comparable between processes of one host."""
        ...


class SystemClock:
    """The host's clocks: CLOCK_REALTIME and CLOCK_MONOTONIC."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // NS_PER_MS

    # Asked twice in every turn of every duty cycle: the builtin itself, without a call of ours around it.
    monotonic_ns = staticmethod(time.monotonic_ns)


class ManualClock:
    """A clock that tests move."""

    __slots__ = ("_monotonic_ns", "_now_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic_ns: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ns = monotonic_ns

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, duration_ms: int) -> None:
        """Moves both clocks on by `duration_ms` milliseconds."""
        self._now_ms += duration_ms
        self._monotonic_ns += duration_ms * NS_PER_MS

    def set_wall(self, now_ms: int) -> None:
        """Lets the wall clock jump, in either direction; the monotonic clock stays."""
        self._now_ms = now_ms
