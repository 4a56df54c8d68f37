"""Work that can wait takes a bounded share of a core while other processes want the processors.

The kernel counts how long a process waits on a run queue although it could run: that is how others are noticed.

    ran 4 ms, waited 0 ms    nobody else wants this core: go on at once
    ran 4 ms, waited 3 ms    others do: rest 156 ms, so this work has a fortieth of a core
    the same for PATIENCE_S  rest 4 ms, so it has half of a core and catches up, before retention removes what it reads

Source: Documentation/scheduler/sched-stats.rst of Linux, `/proc/<pid>/schedstat`. Without that file nothing rests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from appliance.clock import NS_PER_MS

WAITED_SHARE: Final = 4
"""Others want the processors if this process has waited for more than one in so many parts of what it has run."""
RESTS: Final = 39
"""Rest so many times as long as it has run; after PATIENCE_S once as long."""
PATIENCE_S: Final = 30
LEAST_NS: Final = 1 * NS_PER_MS
"""After less work than this nothing is looked at."""
REST_MS_MAX: Final = 400
_PATH: Final = "/proc/self/schedstat"


def ran_and_waited() -> tuple[int, int]:
    """Return how long this process has run and waited to run, in ns; both 0 where the kernel does not say."""
    try:
        descriptor = os.open(_PATH, os.O_RDONLY | os.O_CLOEXEC)
        try:
            ran, waited, *_ = os.read(descriptor, 100).split()
        finally:
            os.close(descriptor)
        return int(ran), int(waited)
    except (OSError, ValueError):
        return 0, 0


class GivingWay:
    """Says how long to rest after a step of work.

    Args:
        monotonic_ns: the clock.
        measure: returns how long the process has run and waited, in ns, both since it began.
    """

    __slots__ = ("_measure", "_monotonic_ns", "_ran_ns", "_rested_since_ns", "_waited_ns")

    def __init__(
        self,
        monotonic_ns: Callable[[], int],
        measure: Callable[[], tuple[int, int]] = ran_and_waited,
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._measure = measure
        self._ran_ns, self._waited_ns = measure()
        self._rested_since_ns: int | None = None

    def caught_up(self) -> None:
        """Nothing is left to do: the next work has all the patience again."""
        self._rested_since_ns = None

    def rest_ms(self) -> int:
        """Return how long to rest now, in ms; 0: go on."""
        ran_ns, waited_ns = self._measure()
        ran, waited = ran_ns - self._ran_ns, waited_ns - self._waited_ns
        if ran < LEAST_NS:
            return 0
        self._ran_ns, self._waited_ns = ran_ns, waited_ns
        if waited * WAITED_SHARE <= ran:
            return 0
        now_ns = self._monotonic_ns()
        if self._rested_since_ns is None:
            self._rested_since_ns = now_ns
        rests = RESTS if now_ns - self._rested_since_ns < PATIENCE_S * 1_000 * NS_PER_MS else 1
        return min(ran * rests // NS_PER_MS, REST_MS_MAX)
