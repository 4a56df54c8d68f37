"""What requests and flushes take in a worker, for the metrics process. Only where there is one.

    arrived ──(queue)──→ taken ──(log)──→ appended ──(replicate)──→ answered

A network process writes the moment of arrival into the operations of a request that it times (`requests/traffic.py`:
one in 16 of Produce and Fetch), so all others pay a look at that word. The worker counts in its own memory, and writes
to its page of the region `logs` every FLUSH_MS while there is something to write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from appliance.channels.request_channel import ERROR, ITEM, REQUEST_ID
from appliance.channels.roles import Role
from appliance.channels.traffic_table import (
    FETCH_LOG,
    FETCH_QUEUE,
    FLUSH_MS,
    FLUSH_TIME,
    PRODUCE_LOG,
    PRODUCE_QUEUE,
    PRODUCE_REPLICATE,
    bucket_of,
)
from appliance.clock import Clock
from appliance.log.flush_times import FLUSH_TIMES

WAITING_MAX: Final = 1024
"""Timed answers that wait for followers or for a disk. Of more than these, the wait is not counted."""
FLUSHES_LOOK_MS: Final = 1_000
"""How often the worker looks for flushes that have ended. Threads run them, so nothing else says it."""


class StageTimes:
    """Those of one worker.

    `waiting`: when the append of a timed answer that waits had ended, by who has asked, request and item.

    Args:
        view: the region `logs` (`channels.traffic_table`).
        at: index of the first word of this worker's page.
        after_ms: calls an action after some milliseconds.
    """

    __slots__ = ("_after_ms", "_at", "_began_ns", "_cells", "_clock", "_is_armed", "_times", "waiting")

    def __init__(
        self,
        view: memoryview,
        at: int,
        *,
        clock: Clock,
        after_ms: Callable[[int, Callable[[], None]], object],
    ) -> None:
        self._cells = view.cast("B").cast("q")
        self._at = at
        self._clock = clock
        self._after_ms = after_ms
        self._is_armed = False
        self._began_ns = 0
        self._times: list[tuple[int, int]] = []
        self.waiting: dict[tuple[Role, int, int], int] = {}
        self._look_at_flushes()

    def begin(self) -> None:
        """The worker takes a timed operation."""
        self._began_ns = self._clock.monotonic_ns()

    def appended(self, arrived_ns: int) -> None:
        """Its batch is appended, or refused."""
        now_ns = self._clock.monotonic_ns()
        self._time(PRODUCE_QUEUE, self._began_ns - arrived_ns)
        self._time(PRODUCE_LOG, now_ns - self._began_ns)
        self._began_ns = now_ns

    def held(self, peer: Role, answer: tuple[Any, ...]) -> None:
        """The answer of what was appended just now waits."""
        if len(self.waiting) < WAITING_MAX:
            self.waiting[peer, answer[REQUEST_ID], answer[ITEM]] = self._began_ns

    def left(self, peer: Role, answer: tuple[Any, ...]) -> None:
        """An answer that may have waited leaves. One with an error has not been replicated."""
        appended_ns = self.waiting.pop((peer, answer[REQUEST_ID], answer[ITEM]), 0)
        if appended_ns and not answer[ERROR]:
            self._time(PRODUCE_REPLICATE, self._clock.monotonic_ns() - appended_ns)

    def located(self, arrived_ns: int) -> None:
        """The place of a timed fetch's records is found."""
        self._time(FETCH_QUEUE, self._began_ns - arrived_ns)
        self._time(FETCH_LOG, self._clock.monotonic_ns() - self._began_ns)

    def drop_peer(self, peer: Role) -> None:
        """Nobody waits for its answers any more."""
        for key in [key for key in self.waiting if key[0] is peer]:
            del self.waiting[key]

    def _time(self, histogram: int, duration_ns: int) -> None:
        self._times.append((histogram, max(0, duration_ns)))
        if not self._is_armed:
            self._is_armed = True
            self._after_ms(FLUSH_MS, self.flush)

    def _look_at_flushes(self) -> None:
        for duration_ns in FLUSH_TIMES.take():
            self._time(FLUSH_TIME, duration_ns)
        self._after_ms(FLUSHES_LOOK_MS, self._look_at_flushes)

    def flush(self) -> None:
        """Write what was counted."""
        self._is_armed = False
        cells = self._cells
        for histogram, duration_ns in self._times:
            at = self._at + histogram
            cells[at + bucket_of(duration_ns)] += 1
            cells[at] += duration_ns
        self._times.clear()
