"""Interceptors for message traces: a producer's `traceparent`, and when a consumer has got and processed a record.

    producer = Producer(..., interceptors=[TraceProducer(one_in=100)])
    consumer = Consumer(..., group_id="billing", interceptors=[TraceConsumer(reports, group="billing")])

`TraceConsumer` sends JSON reports to the topic `trace-reports`, from a thread of its own, and never waits. What does
not fit, or cannot be sent, is dropped and counted. `appliance trace` reads them (docs/trace.md). Source of the
header: W3C Trace Context, level 1.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from appliance_client.core import logger
from appliance_client.interceptors import Records
from appliance_client.values import OffsetAndMetadata, TopicPartition

TOPIC: Final = "trace-reports"
HEADER: Final = "traceparent"
WAITING_MAX: Final = 10_000
"""Records that were got and are not committed yet, and reports that wait to be sent; of more, the oldest is dropped."""
CLOSE_S: Final = 2.0
_PARENT: Final = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]([0-9a-f])(?:-.*)?", re.DOTALL)
_LENGTH_MAX: Final = 512


class _Sends(Protocol):
    def send(self, topic: str, value: bytes, key: bytes) -> object: ...


class TraceProducer:
    """Adds a sampled `traceparent` to one in `one_in` records that have none. 0: to none."""

    __slots__ = ("_count", "_one_in", "added")

    def __init__(self, *, one_in: int = 1) -> None:
        if one_in < 0:
            raise ValueError(f"one_in must not be negative, but is {one_in}")
        self._one_in = one_in
        self._count = 0
        self.added = 0

    def on_send(self, record: Any) -> None:
        """Give the record a trace id, if it is its turn."""
        if not self._one_in:
            return
        headers = record.headers or ()
        pairs = list(headers.items() if isinstance(headers, dict) else headers)
        if any(name == HEADER for name, _ in pairs):
            return
        self._count += 1
        if self._count % self._one_in:
            return
        value = f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-01".encode()
        record.headers = [*pairs, (HEADER, value)]
        self.added += 1


class TraceConsumer:
    """Reports when the program got a traced record, and when its offset was committed.

    Args:
        reports: a producer of its own, which has no interceptors.
        group: the consumer group's id.
        now_ms: gives the time in ms since 1970.
    """

    def __init__(
        self,
        reports: _Sends,
        *,
        group: str,
        client: str = "",
        topic: str = TOPIC,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._reports = reports
        self._group = group
        self._client = client
        self._topic = topic
        self._now_ms = now_ms
        self._got: dict[tuple[str, int, int], tuple[str, int]] = {}
        self._waiting: deque[dict[str, Any]] = deque()
        self._wakes = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def on_consume(self, records: Records) -> None:
        """Note the traced records among those that `poll` returns."""
        now_ms = self._now_ms()
        with self._wakes:
            for partition, some in records.items():
                for record in some:
                    trace = _trace_of(record.headers)
                    if trace:
                        self._got[partition.topic, partition.partition, record.offset] = trace, now_ms
            while len(self._got) > WAITING_MAX:
                del self._got[next(iter(self._got))]
                self.dropped += 1

    def on_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Report the traced records below the committed offsets as processed."""
        ends = {(place.topic, place.partition): each.offset for place, each in offsets.items()}
        now_ms = self._now_ms()
        with self._wakes:
            done = [place for place in self._got if place[2] < ends.get(place[:2], 0)]
            taken = [(place, *self._got.pop(place)) for place in done]
        for (topic, partition, offset), trace, got_ms in taken:
            self._report(
                {
                    "v": 1,
                    "trace": trace,
                    "step": "processed",
                    "topic": topic,
                    "partition": partition,
                    "offset": offset,
                    "at_ms": now_ms,
                    "since_ms": got_ms,
                    "client": self._client,
                    "group": self._group,
                }
            )

    def close(self, *, timeout_s: float = CLOSE_S) -> None:
        """Give what waits to the producer of the reports, and end the thread; wait for that at most `timeout_s`.

        Flush or close that producer after this, because it may not have sent what it got. Reports that come after this
        are dropped.
        """
        with self._wakes:
            self._is_closed = True
            self._wakes.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _report(self, report: dict[str, Any]) -> None:
        with self._wakes:
            if self._is_closed:
                self.dropped += 1
                return
            if len(self._waiting) >= WAITING_MAX:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(report)
            self._wakes.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trace-reports", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        has_failed = False
        while True:
            with self._wakes:
                self._wakes.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                report = self._waiting.popleft()
            try:
                self._reports.send(self._topic, json.dumps(report).encode(), report["trace"].encode())
            except Exception:
                self.dropped += 1
                if not has_failed:
                    has_failed = True
                    logger.exception(
                        "a report for a message trace could not be sent; further ones are counted"
                    )


def _trace_of(headers: Any) -> str:
    """Return the trace id of a record whose `traceparent` says that it is sampled; empty if there is none."""
    for name, value in headers or ():
        if name == HEADER and value is not None and len(value) <= _LENGTH_MAX:
            found = _PARENT.fullmatch(bytes(value))
            if found is not None and int(found[2], 16) & 1 and found[1].strip(b"0"):
                return found[1].decode()
    return ""
