"""What one network process counts for the metrics process: requests, bytes, records, errors, and how long answers took.

It counts in memory of its own, and writes to shared memory every FLUSH_MS (`channels.traffic_table`). There is one only
where there is a metrics process; without it, each request pays a look at an attribute.

No client waits for the counts, so a defect here costs counts, and no session or process: what fails is logged, and
what was not yet written is dropped.

Of Produce and Fetch, one request in SAMPLED is timed, because timing a request takes four times as long as counting it
(decision 0122). Every request of all other APIs is timed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from appliance.channels.partition_table import INCARNATION, PartitionTable
from appliance.channels.request_channel import (
    APPENDED_BYTES,
    END_OFFSET,
    FLAGS,
    PRODUCED_OFFSET,
    ROW,
    ResponseFlag,
)
from appliance.channels.traffic_table import (
    ANSWER_TIME,
    APIS,
    BYTES_IN,
    BYTES_OUT,
    CODES,
    COLUMNS,
    FAILED_FETCHES,
    FAILED_PRODUCES,
    FETCH_ERRORS,
    FETCHES,
    FIRST_CODE,
    FLUSH_MS,
    OF_INCARNATION,
    OTHER_API,
    PRODUCE_ERRORS,
    PRODUCES,
    RECEIVE_TIME,
    RECORDS_IN,
    REQUEST_BYTES,
    REQUESTS,
    SEND_TIME,
    TOTAL_TIME,
    TrafficPart,
    bucket_of,
)
from appliance.clock import Clock
from appliance.ipc.agent import Timers
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.produce import ProduceResult
from appliance.requests.log_handlers.fetch_item import FetchItem
from appliance.requests.session import Request, Session
from appliance.requests.slow_requests import SlowRequests
from appliance.requests.topic_routes import TopicRoutes
from appliance.requests.worker_lines import Answer

SAMPLED: Final = 16
UNSENT_MAX: Final = 64
"""Timed answers that have not left yet. Of more than these, the time in the socket's queue is not counted."""

_logger: Final = logging.getLogger(__name__)

_DUPLICATE: Final = int(ResponseFlag.DUPLICATE)
_OFTEN: Final = (int(ApiKey.PRODUCE), int(ApiKey.FETCH))


class Traffic:
    """Counts of one network process.

    Args:
        part: its part of the shared memory.
        routes: to find the partition that a failed item names.
        table: says which partition has a row.
        is_sending: whether a session has bytes that its socket has not taken.
    """

    __slots__ = (
        "_bytes",
        "_clock",
        "_errors",
        "_has_lost",
        "_is_armed",
        "_is_sending",
        "_part",
        "_periods",
        "_requests",
        "_routes",
        "_rows",
        "_table",
        "_timers",
        "_times",
        "_until_sample",
        "slow",
        "unsent",
    )

    def __init__(
        self,
        part: TrafficPart,
        routes: TopicRoutes,
        table: PartitionTable,
        *,
        timers: Timers,
        clock: Clock,
        is_sending: Callable[[Session], bool],
    ) -> None:
        self._part = part
        self._routes = routes
        self._table = table
        self._is_sending = is_sending
        self._timers = timers
        self._clock = clock
        self._is_armed = self._has_lost = False
        self._requests = [0] * APIS
        self._bytes = [0] * APIS
        self._periods = [SAMPLED if key in _OFTEN else 1 for key in range(APIS)]
        self._until_sample = [1] * APIS
        self._errors: dict[int, int] = {}
        self._times: list[tuple[int, int]] = []
        self._rows: dict[int, list[int]] = {}
        self.slow: SlowRequests | None = None
        self.unsent: list[tuple[Request, int]] = []
        """Timed requests that are answered and have not left yet, with the moment of the answer."""

    def log_slow(self, slow: SlowRequests | None) -> None:
        """Have slow requests logged from now on, or none. While they are, every request is timed."""
        self.slow = slow
        is_sampled = slow is None
        self._periods = [SAMPLED if is_sampled and key in _OFTEN else 1 for key in range(APIS)]
        if not is_sampled:
            self._until_sample = [1] * APIS

    # Requests

    def arrived(self, request: Request, size_bytes: int) -> None:
        """A request of a session begins."""
        try:
            key = request.api_key
            if not 0 <= key < OTHER_API:
                key = OTHER_API
            self._requests[key] += 1
            self._bytes[key] += size_bytes
            left = self._until_sample[key] - 1
            if left:
                self._until_sample[key] = left
            else:
                self._until_sample[key] = self._periods[key]
                now_ns = request.arrived_ns = self._clock.monotonic_ns()
                since_ns = request.session.receiving_since_ns
                self._time(request, RECEIVE_TIME, now_ns - since_ns if since_ns else 0)
                if self.slow is not None:
                    self.slow.arrived(request, size_bytes)
            if not self._is_armed:
                self._arm()
        except Exception as error:
            self._lose(error)

    def answered(self, request: Request) -> None:
        """A request that is timed has its answer."""
        try:
            now_ns = self._clock.monotonic_ns()
            self._time(request, ANSWER_TIME, now_ns - request.arrived_ns)
            if len(self.unsent) < UNSENT_MAX:
                self.unsent.append((request, now_ns))
            elif self.slow is not None:
                self.slow.sent(request, answered_ns=now_ns, now_ns=now_ns)
        except Exception as error:
            self._lose(error)

    def sent(self) -> None:
        """The end of a turn: count the answers that have left."""
        try:
            now_ns = self._clock.monotonic_ns()
            unsent: list[tuple[Request, int]] = []
            for request, answered_ns in self.unsent:
                session = request.session
                if session.closed:
                    continue
                queue = session.queue
                if (queue is not None and request in queue) or self._is_sending(session):
                    unsent.append((request, answered_ns))
                else:
                    self._time(request, SEND_TIME, now_ns - answered_ns)
                    self._time(request, TOTAL_TIME, now_ns - request.arrived_ns)
                    if self.slow is not None:
                        self.slow.sent(request, answered_ns=answered_ns, now_ns=now_ns)
            self.unsent = unsent
        except Exception as error:
            self._lose(error)

    def _time(self, request: Request, histogram: int, duration_ns: int) -> None:
        key = request.api_key if 0 <= request.api_key < OTHER_API else OTHER_API
        self._times.append((self._part.api_at(key) + histogram, max(0, duration_ns)))
        if not self._is_armed:
            self._arm()

    def waits(self, request: Request) -> None:
        """A fetch waits for records from now on."""
        if self.slow is not None:
            self.slow.waits(request)

    # Partitions

    def produced(self, answer: Answer) -> None:
        """A worker has appended a batch."""
        try:
            counted = self._row(answer[ROW])
            counted[PRODUCES] += 1
            if not answer[FLAGS] & _DUPLICATE:
                counted[BYTES_IN] += answer[APPENDED_BYTES]
                counted[RECORDS_IN] += answer[END_OFFSET] - answer[PRODUCED_OFFSET]
        except Exception as error:
            self._lose(error)

    def not_produced(self, results: Sequence[ProduceResult | None]) -> None:
        """A Produce request is answered: count what failed of it."""
        try:
            for result in results:
                if result is not None and result.error_code:
                    self._failed(PRODUCE_ERRORS, result.error_code)
                    topic = self._routes.of(result.topic)
                    route = None if topic is None else topic.partition(result.partition)
                    if route is not None:
                        counted = self._row(route.row)
                        counted[PRODUCES] += 1
                        counted[FAILED_PRODUCES] += 1
        except Exception as error:
            self._lose(error)

    def fetched(self, items: Sequence[FetchItem]) -> None:
        """A Fetch request is answered."""
        try:
            for item in items:
                route = item.route
                if item.error:
                    self._failed(FETCH_ERRORS, item.error)
                elif not item.length_bytes:
                    continue
                if route is not None:
                    counted = self._row(route.row)
                    counted[FETCHES] += 1
                    counted[BYTES_OUT] += item.length_bytes
                    if item.error:
                        counted[FAILED_FETCHES] += 1
        except Exception as error:
            self._lose(error)

    def _row(self, row: int) -> list[int]:
        """Return what was counted of a partition since the last flush. The first column is its incarnation."""
        counted = self._rows.get(row)
        if counted is None:
            counted = self._rows[row] = [0] * COLUMNS
            counted[OF_INCARNATION] = self._table.cells[self._table.at(row) + INCARNATION]
            if not self._is_armed:
                self._arm()
        return counted

    def _failed(self, at: int, code: int) -> None:
        word = at + min(max(code - FIRST_CODE, 0), CODES - 1)
        self._errors[word] = self._errors.get(word, 0) + 1
        if not self._is_armed:
            self._arm()

    # Shared memory

    def _arm(self) -> None:
        self._is_armed = True
        self._timers.after_ms(FLUSH_MS, self.flush)

    def flush(self) -> None:
        """Write what was counted."""
        try:
            self._is_armed = False
            part, cells = self._part, self._part.cells
            for key, count in enumerate(self._requests):
                if count:
                    at = part.api_at(key)
                    cells[at + REQUESTS] += count
                    cells[at + REQUEST_BYTES] += self._bytes[key]
                    self._requests[key] = self._bytes[key] = 0
            for word, count in self._errors.items():
                cells[word] += count
            self._errors.clear()
            for at, duration_ns in self._times:
                cells[at + bucket_of(duration_ns)] += 1
                cells[at] += duration_ns
            self._times.clear()
            for row, counted in self._rows.items():
                part.add_to_row(row, counted[OF_INCARNATION], counted)
            self._rows.clear()
        except Exception as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        """Drop what was not yet written. The first error is logged: the others would be the same, many in a second."""
        self._requests = [0] * APIS
        self._bytes = [0] * APIS
        self._errors.clear()
        self._times.clear()
        self._rows.clear()
        self.unsent = []
        if not self._has_lost:
            self._has_lost = True
            _logger.error(
                "internal error in counting for metrics, counts are lost: %r", error, exc_info=error
            )
