"""The wait of a process's loop: sleep until there is work, wake for it, account for both.

Not a framework: each process writes its own loop in one file (see `appliance.process`), for example

    cycle.add_inbox(inbox)
    while running:
        for descriptor, events in cycle.wait():
            ...
        for message in inbox.drain():
            ...

`wait` never polls: without work it sleeps in epoll until a descriptor, the doorbell or the next timer says
otherwise. With work left in an inbox (a drain has a limit) it looks at the sockets and returns at once, so
neither side starves the other.
"""

from __future__ import annotations

import gc
import heapq
import select
import time
from collections.abc import Callable
from itertools import count
from typing import Final, Protocol

from appliance.clock import NS_PER_MS
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.process_table import BUSY_NS, IDLE_NS, LOOPS, ProcessRow

MAXIMUM_EVENTS: Final = 256
# Container objects that may be alive at once above the frozen ones before the collector looks for cycles among them.
YOUNG_OBJECTS: Final = 20_000

NEVER_NS: Final = 1 << 61
"""The moment of an alarm that is not set. Compiled code makes an object of an integer of 63 bits or more."""


class Inbox(Protocol):
    """What `wait` must know of a queue: whether it may sleep."""

    def is_empty(self) -> bool: ...


class Timer:
    """An action that is due at a moment; `cancel` makes it void."""

    __slots__ = ("action", "due_ns")

    def __init__(self, due_ns: int, action: Callable[[], None]) -> None:
        self.due_ns = due_ns
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class Alarm:
    """An action at a moment that moves with most requests: moving it is a store. NEVER_NS: there is none.

    It is taken back before its action runs, which may set it again.
    """

    __slots__ = ("action", "due_ns")

    def __init__(self) -> None:
        self.due_ns = NEVER_NS
        self.action: Callable[[], None] | None = None


class Timers:
    """A process's few periodic and one-time actions, by CLOCK_MONOTONIC; not for one timer per request.

    `alarm`: one more, which may move with each request.

    Args:
        monotonic_ns: the clock of `after_ms`, CLOCK_MONOTONIC nanoseconds.
    """

    __slots__ = ("_heap", "_monotonic_ns", "_order", "alarm")

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._monotonic_ns = monotonic_ns
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = count()
        self.alarm = Alarm()

    def add(self, due_ns: int, action: Callable[[], None]) -> Timer:
        timer = Timer(due_ns, action)
        heapq.heappush(self._heap, (due_ns, next(self._order), timer))
        return timer

    def after_ms(self, pause_ms: int, action: Callable[[], None]) -> Timer:
        """Add an action that is due in `pause_ms`."""
        return self.add(self._monotonic_ns() + pause_ms * NS_PER_MS, action)

    def clear(self) -> None:
        """Drop every action."""
        self._heap.clear()

    @property
    def any(self) -> bool:
        """Whether one may be set."""
        return bool(self._heap) or self.alarm.due_ns != NEVER_NS

    def next_due_ns(self) -> int | None:
        """When the next one is due, or None when none is set."""
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
        alarm_ns = self.alarm.due_ns
        if self._heap and self._heap[0][0] < alarm_ns:
            return self._heap[0][0]
        return None if alarm_ns == NEVER_NS else alarm_ns

    def run_due(self, now_ns: int) -> int:
        """Run what is due at `now_ns`, earliest first and the alarm last; return how many ran.

        Those added meanwhile wait for the next call.
        """
        due: list[Timer] = []
        while self._heap and self._heap[0][0] <= now_ns:
            due.append(heapq.heappop(self._heap)[2])
        ran = 0
        for timer in due:
            action, timer.action = timer.action, None
            if action is not None:
                action()
                ran += 1
        alarm = self.alarm
        if alarm.due_ns <= now_ns:
            alarm.due_ns = NEVER_NS
            if alarm.action is not None:
                alarm.action()
                ran += 1
        return ran


def _wake() -> None:
    """The action of a timer that only ends a sleep."""


class DutyCycle:
    """An epoll set with the doorbell in it, the inboxes to look at before sleeping, and the timers to sleep
    for.

    Args:
        doorbell: this process's own.
        row: this process's row; `wait` keeps loops, busy_ns and idle_ns.
        monotonic_ns: the clock, CLOCK_MONOTONIC nanoseconds.
    """

    __slots__ = (
        "_busy_ns",
        "_cells",
        "_doorbell",
        "_idle_ns",
        "_inboxes",
        "_loops",
        "_monotonic_ns",
        "_poll",
        "_report",
        "_report_interval_ns",
        "_report_is_armed",
        "_report_ns",
        "_reported_loops",
        "_woke_ns",
        "epoll",
        "timers",
    )

    def __init__(self, doorbell: Doorbell, row: ProcessRow, *, monotonic_ns: Callable[[], int]) -> None:
        self.epoll = select.epoll()
        self.timers = Timers(monotonic_ns)
        self._poll = self.epoll.poll
        self._doorbell = doorbell
        self._cells = row.cells
        self._monotonic_ns = monotonic_ns
        self._inboxes: list[Inbox] = []
        self._woke_ns = monotonic_ns()
        self._loops = self._busy_ns = self._idle_ns = 0
        self._report: Callable[[], None] | None = None
        self._report_ns = NEVER_NS
        self._report_interval_ns = self._reported_loops = 0
        self._report_is_armed = False
        # Edge-triggered: each ring is one event, and the eventfd need not be read to silence it.
        self.epoll.register(doorbell.eventfd, select.EPOLLIN | select.EPOLLET)

    def add_inbox(self, inbox: Inbox) -> None:
        self._inboxes.append(inbox)

    def remove_inbox(self, inbox: Inbox) -> None:
        self._inboxes.remove(inbox)

    def wait(self, timeout_ms: int | None = None) -> list[tuple[int, int]]:
        """Sleeps until there is work: ready (descriptor, epoll events), without the doorbell; often empty.

        At most `timeout_ms` (None: for ever) and not beyond the next timer; due timers have run on return.
        """
        timers, doorbell = self.timers, self._doorbell
        before_ns = self._monotonic_ns()
        if before_ns >= self._report_ns:
            self._report_now(before_ns)
        timeout_s = -1.0 if timeout_ms is None else timeout_ms / 1000
        if timers.any:
            timeout_s = self._until_due_s(timeout_s, before_ns)
        if timeout_s:
            doorbell.announce_sleep()
            for inbox in self._inboxes:
                if not inbox.is_empty():
                    timeout_s = 0.0
                    break
        events = self._poll(timeout_s, MAXIMUM_EVENTS)
        doorbell.awake()
        now_ns = self._monotonic_ns()
        self._account(before_ns, now_ns, slept=timeout_s != 0.0)
        if events:
            bell = self._doorbell.eventfd
            for index, (descriptor, _) in enumerate(events):
                if descriptor == bell:
                    del events[index]
                    break
        if timers.any:
            timers.run_due(now_ns)
        return events

    def report_every(self, interval_ms: int, report: Callable[[], None]) -> None:
        """Call `report` at the end of a turn, at most every `interval_ms`, while the process works.

        An idle process is not woken for it, but once: `interval_ms` after the last report, for what has changed since.
        """
        self._report = report
        self._report_interval_ns = interval_ms * NS_PER_MS
        self._report_ns = 0

    def _report_now(self, now_ns: int) -> None:
        report = self._report
        assert report is not None
        report()
        if self._report_is_armed and self._loops == self._reported_loops + 1:
            # Nothing but the timer woke the process since the last report.
            self._report_is_armed = False
            self._report_ns = 0
        else:
            self._report_is_armed = True
            self._report_ns = now_ns + self._report_interval_ns
            self.timers.add(self._report_ns, _wake)
        self._reported_loops = self._loops

    def close(self) -> None:
        """Closes the epoll set; the doorbell's descriptor stays the supervisor's."""
        self.epoll.close()

    def _account(self, before_ns: int, now_ns: int, *, slept: bool) -> None:
        cells = self._cells
        self._loops += 1
        self._busy_ns += before_ns - self._woke_ns
        if slept:
            self._idle_ns += now_ns - before_ns
        else:
            self._busy_ns += now_ns - before_ns
        self._woke_ns = now_ns
        cells[LOOPS] = self._loops
        cells[BUSY_NS] = self._busy_ns
        cells[IDLE_NS] = self._idle_ns

    def _until_due_s(self, timeout_s: float, now_ns: int) -> float:
        """`timeout_s` or the time to the next timer, whichever is less; -1.0 is for ever. Epoll rounds up to 1 ms."""
        due_ns = self.timers.next_due_ns()
        if due_ns is None:
            return timeout_s
        until_due_s = max(0, due_ns - now_ns) / 1e9
        return until_due_s if timeout_s < 0 else min(until_due_s, timeout_s)


def freeze_garbage() -> None:
    """Call once when everything is imported and wired: what lives now is never walked by the collector again.

    Pages shared with the parent stay shared, and a collection costs what the loop made, not what the house
    holds; and it looks rarely, since what a request makes is freed by counting.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
