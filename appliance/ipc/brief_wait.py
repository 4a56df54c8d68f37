"""A short look-out before sleep, for as long as it pays.

Waking another process costs a system call, an interrupt to the other core and, where that core had halted, tens of
microseconds. When two processes answer each other turn by turn, the next message is nearer than that, and it is
cheaper to look for it a moment longer. When it is not near, looking only keeps a core from whoever has work; so every
look-out that was in vain makes the next ones rarer (`while_it_pays`).

Between looks the core is offered to whoever else wants it (sched_yield): the scheduler may well have put the other
process behind this one on the same core, and then looking without yielding keeps away the very message that is looked
for. Where the core goes to a stranger for a time slice instead, the look-out was in vain even if it found something.

A process calls it only where it expects exactly one message and has nothing else to do. Measured in decision 0012.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

from appliance.ipc.agent import Inbox
from appliance.ipc.while_it_pays import WhileItPays

LIMIT_NS: Final = 50_000
LOOKS_BETWEEN_YIELDS: Final = 4
# Later than this after the limit, the core was lost to a stranger.
LOST_NS: Final = 500_000


class BriefWait:
    """One process's look-out.

    Args:
        monotonic_ns: the clock, CLOCK_MONOTONIC nanoseconds.
        limit_ns: how long one look-out lasts at most.
    """

    __slots__ = ("_limit_ns", "_monotonic_ns", "_pays")

    def __init__(self, monotonic_ns: Callable[[], int], *, limit_ns: int = LIMIT_NS) -> None:
        self._monotonic_ns = monotonic_ns
        self._limit_ns = limit_ns
        self._pays = WhileItPays()

    def look_out(self, inboxes: Sequence[Inbox]) -> bool:
        """Whether something came to one of `inboxes` before the limit; False at once when it does not pay now."""
        if self._pays.skips():
            return False
        clock = self._monotonic_ns
        until_ns = clock() + self._limit_ns
        while True:
            found = False
            for _ in range(LOOKS_BETWEEN_YIELDS):
                for inbox in inboxes:
                    found = found or not inbox.is_empty()
            late_ns = clock() - until_ns
            if found or late_ns >= 0:
                break
            os.sched_yield()
        if found and late_ns < LOST_NS:
            self._pays.paid()
        else:
            self._pays.was_in_vain()
        return found
