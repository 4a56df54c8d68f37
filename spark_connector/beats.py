"""One thread of this process that calls leases at intervals, so that readers keep what they read while they live.

A lease must be touched while nothing else runs: a task waits for Spark to take its rows, a stream waits for its next
trigger. The thread starts with the first caller, keeps weak references only, and ends when nobody is left.

A process that forks (PySpark's daemon) leaves the thread behind; the child begins with no callers.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from typing import Final, Protocol

LOG: Final = logging.getLogger("spark_connector")
BEAT_S: Final = 10.0
"""A third of `appliance.log.reader_leases.GRACE_MS`: a wall clock that jumps cannot outrun it."""
_BEATS_A_LEASE: Final = 3


class Beating(Protocol):
    """What wants to be called at intervals."""

    def beat(self) -> None:
        """Called on the thread of beats; OSError is logged."""
        ...


def period_s(ttl_ms: int) -> float:
    """How often a lease of `ttl_ms` is to be touched."""
    return min(BEAT_S, ttl_ms / 1000 / _BEATS_A_LEASE)


class _Beats:
    __slots__ = ("_callers", "_changed", "_next_number", "_thread")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Nobody calls, and no thread runs: as at the start, and in a child after a fork."""
        self._changed = threading.Condition()
        self._callers: dict[int, tuple[weakref.ref[Beating], float, float]] = {}
        """By number: who, how often, and when next."""
        self._next_number = 0
        self._thread: threading.Thread | None = None

    def add(self, caller: Beating, every_s: float) -> int:
        with self._changed:
            self._next_number += 1
            self._callers[self._next_number] = weakref.ref(caller), every_s, time.monotonic() + every_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lease beats", daemon=True)
                self._thread.start()
            elif every_s < BEAT_S:  # the thread looks at its callers every BEAT_S at least
                self._changed.notify()
            return self._next_number

    def remove(self, number: int) -> None:
        with self._changed:
            self._callers.pop(number, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._callers:
                    self._changed.wait(BEAT_S)
                    if not self._callers:
                        self._thread = None
                        return
                due = self._due()
                if not due:
                    next_s = min(each[2] for each in self._callers.values()) if self._callers else 0.0
                    self._changed.wait(max(0.01, min(BEAT_S, next_s - time.monotonic())))
                    continue
            for caller in due:
                try:
                    caller.beat()
                except OSError as error:
                    LOG.warning("cannot renew a lease: %s", error)
            del due, caller

    def _due(self) -> list[Beating]:
        now_s = time.monotonic()
        due = []
        for number, (reference, every_s, at_s) in list(self._callers.items()):
            caller = reference()
            if caller is None:
                del self._callers[number]
            elif at_s <= now_s:
                self._callers[number] = reference, every_s, now_s + every_s
                due.append(caller)
        return due


_beats: Final = _Beats()
os.register_at_fork(after_in_child=_beats.begin)


def start_beating(caller: Beating, *, ttl_ms: int) -> int:
    """Call `caller.beat` as often as a lease of `ttl_ms` needs it, for as long as somebody else refers to `caller`.

    Returns a number for `stop_beating`.
    """
    return _beats.add(caller, period_s(ttl_ms))


def stop_beating(number: int) -> None:
    """End what `start_beating` began. A call that is under way may go on."""
    _beats.remove(number)
