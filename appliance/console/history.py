"""The console's own short history: one point a sample, for the charts of the overview. Without I/O.

A point has rates, which need two samples: what all processes have counted by now, less what they had counted before,
divided by the time between. No count falls, so no rate is negative.

The history has a fixed number of points. Readers wait for points that are newer than the last one they have seen; one
that is slow gets the newest, and never a queue of old ones.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

POINTS_MAX: Final = 300
NS_PER_S: Final = 1_000_000_000

SERIES: Final[Mapping[str, str]] = {
    "bytes_in": "Bytes in per second",
    "bytes_out": "Bytes out per second",
    "records_in": "Records in per second",
    "requests": "Requests per second",
    "network_busy": "Network processes: busy share",
    "worker_busy": "I/O workers: busy share",
    "connections": "Connections",
}
"""Name of a value of a point → its title."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What everything has counted up to one moment."""

    monotonic_ns: int
    time_ms: int
    bytes_in: int
    bytes_out: int
    records_in: int
    requests: int
    network_idle_ns: int
    network_processes: int
    worker_idle_ns: int
    worker_processes: int
    connections: int


@dataclass(frozen=True, slots=True)
class Point:
    """Rates between two samples; `number` grows by one with each."""

    number: int
    time_ms: int
    values: Mapping[str, float]

    def as_json(self) -> dict[str, object]:
        """Return what the page's script reads."""
        return {"n": self.number, "t": self.time_ms, "v": self.values}


def rates(before: Totals, after: Totals) -> dict[str, float]:
    """Return the values of a point, by the names of SERIES. Shares are from 0 to 1."""
    passed_ns = max(1, after.monotonic_ns - before.monotonic_ns)

    def rate(first: int, last: int) -> float:
        return round(max(0, last - first) * NS_PER_S / passed_ns, 1)

    def busy(first: int, last: int, processes: int) -> float:
        if not processes:
            return 0.0
        idle = max(0, last - first) / (passed_ns * processes)
        return round(1 - min(1.0, idle), 4)

    return {
        "bytes_in": rate(before.bytes_in, after.bytes_in),
        "bytes_out": rate(before.bytes_out, after.bytes_out),
        "records_in": rate(before.records_in, after.records_in),
        "requests": rate(before.requests, after.requests),
        "network_busy": busy(before.network_idle_ns, after.network_idle_ns, after.network_processes),
        "worker_busy": busy(before.worker_idle_ns, after.worker_idle_ns, after.worker_processes),
        "connections": float(after.connections),
    }


class History:
    """The last POINTS_MAX points. One thread adds, others wait."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=POINTS_MAX)
        self._before: Totals | None = None
        self._number = 0
        self._changed = threading.Condition()
        self._is_closed = False

    def add(self, totals: Totals) -> None:
        """Take a sample. The first one only begins."""
        before, self._before = self._before, totals
        if before is None or totals.monotonic_ns <= before.monotonic_ns:
            return
        with self._changed:
            self._number += 1
            self._points.append(Point(self._number, totals.time_ms, rates(before, totals)))
            self._changed.notify_all()

    def points(self) -> list[Point]:
        """Return all points, the oldest first."""
        with self._changed:
            return list(self._points)

    def latest(self) -> Point | None:
        """Return the newest point."""
        with self._changed:
            return self._points[-1] if self._points else None

    def wait(self, after: int, timeout_s: float) -> Point | None:
        """Return the newest point, once its number is above `after`; None if there is none in time, or at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._number > after, timeout_s)
            if self._is_closed or self._number <= after:
                return None
            return self._points[-1]

    @property
    def is_closed(self) -> bool:
        """Whether the process ends."""
        return self._is_closed

    def close(self) -> None:
        """Wake all that wait, for the last time."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
