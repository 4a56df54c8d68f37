"""Sends the metrics to a collector, from a thread of its own: a collector that hangs holds up no page.

Counters are cumulative, so only the newest request matters: one that waits while another is under way is replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from appliance.collector import Collector, joined

PATH: Final = "/v1/metrics"


class MetricsExport:
    """Args:
    endpoint: the collector's URL, without the path of OTLP.
    complain: gets a line for the operator; called by the thread.
    """

    def __init__(self, endpoint: str, complain: Callable[[str], object]) -> None:
        self._collector = Collector(endpoint, PATH)
        self._complain = complain
        self._waiting: bytes | None = None
        self._wakes = threading.Condition()
        self._is_ending = False
        self._thread: threading.Thread | None = None
        self.sent = 0
        self.failed = 0

    def offer(self, request: bytes) -> None:
        """Take a request to send; never waits."""
        with self._wakes:
            self._waiting = request
            self._wakes.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="metrics-export", daemon=True)
            self._thread.start()

    def close(self) -> bool:
        """Send what waits, begin nothing after it, and return whether the thread has ended (`collector.joined`)."""
        with self._wakes:
            self._is_ending = True
            self._wakes.notify()
        return joined(self._thread)

    def _run(self) -> None:
        while True:
            with self._wakes:
                self._wakes.wait_for(lambda: self._waiting is not None or self._is_ending)
                request, self._waiting = self._waiting, None
                if request is None:
                    return
            fault = self._collector.post(request)
            if fault is None:
                self.sent += 1
            else:
                self.failed += 1
                self._complain(
                    f"metrics.otlp.endpoint {self._collector.url}: {fault}; the metrics were not sent"
                )
