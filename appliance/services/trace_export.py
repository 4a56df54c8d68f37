"""Sends the steps of traced records to a collector as OpenTelemetry spans, over HTTP (OTLP, JSON).

A thread of its own sends, so a collector that hangs holds up nothing. What waits is bounded. What does not fit, or is
not taken, is dropped and counted. Traces are complete in `__trace`, whatever the collector does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from appliance.collector import Collector, joined
from appliance.message_trace.event import Event
from appliance.message_trace.spans import request_of
from appliance.version import VERSION

WAITING_MAX: Final = 10_000
SENT_MAX: Final = 500
PAUSE_S: Final = 5.0
"""After a failure."""
PATH: Final = "/v1/traces"


class TraceExport:
    """Args:
    endpoint: the collector's URL, without the path of OTLP.
    complain: gets a line for the operator; called by the thread.
    """

    def __init__(self, endpoint: str, complain: Callable[[str], object]) -> None:
        self._collector = Collector(endpoint, PATH)
        self._complain = complain
        self._waiting: deque[Event] = deque()
        self._wakes = threading.Condition()
        self._is_ending = False
        self._thread: threading.Thread | None = None
        self.sent = 0
        self.dropped = 0

    def offer(self, events: list[Event]) -> None:
        """Take events to send; never waits."""
        with self._wakes:
            room = WAITING_MAX - len(self._waiting)
            self._waiting.extend(events[:room])
            self.dropped += max(len(events) - room, 0)
            self._wakes.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="trace-export", daemon=True)
            self._thread.start()

    def close(self) -> bool:
        """Send what waits, until a request fails; return whether the thread has ended (`collector.joined`).

        What was not sent then counts as dropped.
        """
        with self._wakes:
            self._is_ending = True
            self._wakes.notify()
        has_ended = joined(self._thread)
        with self._wakes:
            self.dropped += len(self._waiting)
            self._waiting.clear()
        return has_ended

    def _run(self) -> None:
        while True:
            with self._wakes:
                self._wakes.wait_for(lambda: self._waiting or self._is_ending)
                count = min(SENT_MAX, len(self._waiting))
                if not count:
                    return
                events = [self._waiting.popleft() for _ in range(count)]
            fault = self._collector.post(msgspec.json.encode(request_of(events, version=VERSION)))
            if fault is None:
                self.sent += len(events)
                continue
            self.dropped += len(events)
            self._complain(
                f"trace.otlp.endpoint {self._collector.url}: {fault}; {len(events)} steps were not sent"
            )
            with self._wakes:
                if self._wakes.wait_for(lambda: self._is_ending, timeout=PAUSE_S):
                    return
