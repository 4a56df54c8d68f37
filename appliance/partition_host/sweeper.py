"""Removing files beside the requests: one queue by time, one thread that serves it.

Unlinking a large segment takes the file system tens of milliseconds, so the duty cycle only says what is to go and
when. What is due is handed to the thread, which begins with the first of it and waits without a poll for more.

What a reader's lease holds (`log.reader_leases`) is asked for again later.

Killed before something was removed, the next start finds it by its `.deleted` or `-delete` name.
"""

from __future__ import annotations

import heapq
import os
import threading
from collections.abc import Callable
from itertools import count
from queue import SimpleQueue

from appliance.clock import NS_PER_MS, Clock
from appliance.errors import StorageFault
from appliance.ipc.agent import Timer, Timers
from appliance.log.reader_leases import Again

Action = Callable[[], object]


class Sweeper:
    """What waits for its removal in one process.

    Args:
        timers: of the process's duty cycle.
        eventfd: the process's doorbell, rung when something was removed; written always, since a thread cannot tell
            whether sleep is near.
    """

    __slots__ = (
        "_again",
        "_armed",
        "_clock",
        "_due",
        "_eventfd",
        "_number",
        "_removed",
        "_thread",
        "_timers",
        "_todo",
        "_warn",
    )

    def __init__(self, timers: Timers, clock: Clock, *, eventfd: int, warn: Callable[[str], None]) -> None:
        self._timers = timers
        self._clock = clock
        self._eventfd = eventfd
        self._warn = warn
        self._number = count()
        self._due: list[tuple[int, int, Action]] = []
        self._armed: tuple[int, Timer] | None = None
        self._todo: SimpleQueue[list[Action]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._removed = False
        self._again: SimpleQueue[tuple[Action, int]] = SimpleQueue()

    def add(self, action: Action, *, delay_ms: int = 0) -> None:
        """Runs `action`, which removes files and may raise StorageFault or OSError, in `delay_ms` on the thread.

        Where it returns `Again`, it is run again; False: it has removed nothing that others need to know of.
        """
        due_ns = self._clock.monotonic_ns() + delay_ms * NS_PER_MS
        heapq.heappush(self._due, (due_ns, next(self._number), action))
        self._arm()

    def take_removed(self) -> bool:
        """Whether files were removed since the last call; what could not be yet is put back into the queue."""
        while not self._again.empty():
            action, delay_ms = self._again.get()
            self.add(action, delay_ms=delay_ms)
        removed, self._removed = self._removed, False
        return removed

    def _arm(self) -> None:
        if not self._due:
            return
        due_ns = self._due[0][0]
        if self._armed is not None:
            if self._armed[0] <= due_ns:
                return
            self._armed[1].cancel()
        self._armed = due_ns, self._timers.add(due_ns, self._hand_over)

    def _hand_over(self) -> None:
        self._armed = None
        now_ns = self._clock.monotonic_ns()
        actions = []
        while self._due and self._due[0][0] <= now_ns:
            actions.append(heapq.heappop(self._due)[2])
        if actions:
            self._todo.put(actions)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="sweep", daemon=True)
                self._thread.start()
        self._arm()

    def _serve(self) -> None:
        while True:
            removed = False
            for action in self._todo.get():
                try:
                    result = action()
                    if isinstance(result, Again):
                        self._again.put((action, result.delay_ms))
                    elif result is not False:
                        removed = True
                except (StorageFault, OSError) as fault:
                    self._warn(f"not removed, the next start tries again: {fault}")
            self._removed |= removed
            os.eventfd_write(self._eventfd, 1)

    def statistics(self) -> dict[str, int]:
        """How much waits for its time."""
        return {"waiting": len(self._due)}
