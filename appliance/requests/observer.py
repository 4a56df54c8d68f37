"""What one network process sees of audited and traced topics: who appended which offsets, and who fetched them.

    Produce answered ─┐ merge neighbours ─ every FLUSH_MS: one record ─→ owner of `__observations` ─→ services process
    Fetch arrives    ─┘

No count depends on it: counts come from the logs. So what does not fit is dropped and counted as lost. An append that
fails is not repeated. A defect here costs names, and no session or process. A fetch is not seen to arrive at the
client: the next fetch of the partition on this connection shows that the client has read up to there.

There is one only if there are services processes. Topics without `audit.enable` and `trace.enable` pay a look at a set.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from appliance.channels.request_channel import (
    CONNECTION_LIMIT,
    END_OFFSET,
    ERROR,
    FLAGS,
    PRODUCED_OFFSET,
    ROW,
    ResponseFlag,
    produce_request,
)
from appliance.channels.roles import Role
from appliance.clock import Clock
from appliance.cluster import OBSERVATIONS, ClusterImage
from appliance.ipc.agent import Timers
from appliance.ipc.buffer_pool import Block, BufferPool
from appliance.ipc.doorbell import Doorbell
from appliance.message_audit.observation import Fetched, Observation, Produced, encode, short
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from appliance.requests.log_handlers.fetch_item import FetchItem
from appliance.requests.session import Session
from appliance.requests.topic_routes import PartitionRoute, TopicRoutes
from appliance.requests.worker_lines import Answer, WorkerClient

FLUSH_MS: Final = 250
RANGES_MAX: Final = 2_000
"""Of each kind, between two flushes."""
ATTEMPTS_MAX: Final = 20
"""So many flushes keep what was seen while nobody leads `__observations`, for example because the first topic with
`audit.enable` was just created."""
READERS_MAX: Final = 10_000
"""Partitions of connections whose position is remembered; the one that was silent for longest is forgotten."""
STORE_TIMEOUT_MS: Final = 5_000

_API_VERSION: Final = 9
_ACKS_LEADER: Final = 1
_DUPLICATE: Final = int(ResponseFlag.DUPLICATE)
_OUT_OF_RANGE: Final = int(ErrorCode.OFFSET_OUT_OF_RANGE)
_ENABLED: Final = ("audit.enable", "trace.enable")

_logger: Final = logging.getLogger(__name__)


class _Appended:
    """A range of one client that still grows."""

    __slots__ = ("client", "end", "first", "first_ms", "last_ms", "log", "principal")

    def __init__(
        self,
        log: tuple[UUID, int],
        *,
        first: int,
        end: int,
        now_ms: int,
        client: str | None,
        principal: str,
    ) -> None:
        self.log = log
        self.first = first
        self.end = end
        self.first_ms = self.last_ms = now_ms
        self.client = client  # None: it has not said one
        self.principal = principal


class Observer:
    """One network process's observations.

    Args:
        bells: those of the services processes.
    """

    __slots__ = (
        "_appended",
        "_attempts",
        "_bells",
        "_block",
        "_clock",
        "_fetched",
        "_growing",
        "_has_failed",
        "_in_flight",
        "_is_armed",
        "_lines",
        "_lost",
        "_pool",
        "_readers",
        "_routes",
        "_timers",
        "_worker",
        "request_id",
        "rows",
    )

    def __init__(
        self,
        routes: TopicRoutes,
        lines: WorkerClient,
        *,
        pool: BufferPool,
        clock: Clock,
        timers: Timers,
        bells: Sequence[Doorbell],
    ) -> None:
        self._routes = routes
        self._lines = lines
        self._pool = pool
        self._clock = clock
        self._timers = timers
        self._bells = tuple(bells)
        self.rows: dict[int, tuple[UUID, int]] = {}
        """Row → topic id and partition, of observed topics."""
        self._appended: list[_Appended] = []
        self._growing: dict[int, _Appended] = {}
        self._fetched: list[Fetched] = []
        self._readers: dict[tuple[int, int], tuple[int, int]] = {}
        """Row and connection id → offset, and the most bytes of its answer. Each connection of a client has its own."""
        self._lost = self._in_flight = self._attempts = 0
        self._is_armed = self._has_failed = False
        self.request_id = 0
        self._block: Block | None = None
        self._worker: Role | None = None

    def look(self, image: ClusterImage) -> None:
        """Take the observed topics from a new image."""
        rows = {
            partition.row: (topic.topic_id, partition.partition)
            for topic in image.topics.values()
            if topic.configs and any(topic.configs.get(name) == "true" for name in _ENABLED)
            for partition in topic.partitions
        }
        before = self.rows
        if rows != before:
            self.rows = rows
            self._growing.clear()
            for reader in [each for each in self._readers if rows.get(each[0]) != before[each[0]]]:
                del self._readers[reader]

    # What is seen

    def produced(self, answer: Answer, session: Session) -> None:
        """A worker has appended a batch to an observed partition."""
        try:
            row, first, end = answer[ROW], answer[PRODUCED_OFFSET], answer[END_OFFSET]
            if answer[FLAGS] & _DUPLICATE or end <= first:
                return
            now_ms = self._clock.now_ms()
            growing = self._growing.get(row)
            if (
                growing is not None
                and growing.end == first
                and growing.client == session.client_id
                and growing.principal == session.principal
            ):
                growing.end = end
                growing.last_ms = now_ms
                return
            if len(self._appended) >= RANGES_MAX:
                self._lost += 1
                return
            growing = _Appended(
                self.rows[row],
                first=first,
                end=end,
                now_ms=now_ms,
                client=session.client_id,
                principal=session.principal,
            )
            self._growing[row] = growing
            self._appended.append(growing)
            self._arm()
        except Exception as error:
            self._fail(error)

    def fetching(self, items: Sequence[FetchItem], session: Session, max_bytes: int) -> None:
        """A client asks for records: it has read what lies before, as far as it has asked for it before.

        `items` were looked up, so they have the high watermark, or an error. An offset that is not in the log shows
        nothing, and the client goes on from another one.

        Args:
            max_bytes: of the whole answer.
        """
        try:
            rows, readers = self.rows, self._readers
            now_ms = 0
            for item in items:
                route = item.route
                if route is None or route.row not in rows:
                    continue
                reader = route.row, session.connection_id
                before = readers.pop(reader, None)
                if item.error == _OUT_OF_RANGE:
                    continue
                offset = item.wanted.fetch_offset
                if offset > item.high_watermark >= 0:
                    offset = item.high_watermark  # it is not readable beyond
                readers[reader] = offset, max(1, min(item.wanted.partition_max_bytes, max_bytes))
                if before is None:
                    if len(readers) > READERS_MAX:
                        del readers[next(iter(readers))]
                elif offset > before[0]:
                    if len(self._fetched) >= RANGES_MAX:
                        self._lost += 1
                        continue
                    now_ms = now_ms or self._clock.now_ms()
                    topic_id, partition = rows[route.row]
                    client, principal = short(session.client_id or ""), short(session.principal)
                    self._fetched.append(
                        Fetched(topic_id, partition, before[0], offset, now_ms, client, principal, before[1])
                    )
                    self._arm()
        except Exception as error:
            self._fail(error)

    # Writing it down

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._timers.after_ms(FLUSH_MS, self._flush)

    def _flush(self) -> None:
        self._is_armed = False
        try:
            self._write_down()
        except Exception as error:
            self._fail(error)

    def _write_down(self) -> None:
        if not self._appended and not self._fetched:
            return
        if self._block is not None:  # the batch before is not answered yet
            self._arm()
            return
        route = self._route()
        if route is None and self._attempts < ATTEMPTS_MAX:
            self._attempts += 1
            self._wake_services()
            self._arm()
            return
        self._attempts = 0
        observation = Observation(
            produced=[
                Produced(
                    *each.log,
                    each.first,
                    each.end,
                    each.first_ms,
                    each.last_ms,
                    short(each.client or ""),
                    short(each.principal),
                )
                for each in self._appended
            ],
            fetched=self._fetched,
            lost=self._lost,
        )
        self._in_flight = self._lost + len(self._appended) + len(self._fetched)
        self._appended, self._fetched = [], []
        self._growing.clear()
        if route is not None and self._place(observation, route):
            self._lost = 0
        else:
            self._lost, self._in_flight = self._in_flight, 0

    def _route(self) -> PartitionRoute | None:
        """Return where `__observations` is led; None if nobody leads it, or it is not created yet."""
        topic = self._routes.by_name(OBSERVATIONS)
        route = None if topic is None else topic.partition(0)
        if route is None or route.worker is None or not self._lines.is_up(route.worker):
            return None
        return route

    def _wake_services(self) -> None:
        for bell in self._bells[:1]:
            bell.wake()  # it may have to create the topic

    def _place(self, observation: Observation, route: PartitionRoute) -> bool:
        """Append to `__observations`; False: it could not be sent. The services process is woken in any case."""
        self._wake_services()
        if route.worker is None:
            return False
        batch = encode_batch([Record(encode(observation), timestamp_ms=self._clock.now_ms())])
        block = self._pool.take(len(batch))
        if block is None:
            return False
        block.view[: len(batch)] = batch
        operation = produce_request(
            self._lines.enter(self),
            0,
            route.row,
            route.incarnation,
            0,
            _ACKS_LEADER,
            block.position,
            len(batch),
            _API_VERSION,
            STORE_TIMEOUT_MS,
            CONNECTION_LIMIT - 1,  # of no connection that could be closed
        )
        if not self._lines.place(route.worker, operation):
            self._lines.leave(self)
            self._pool.give(block)
            return False
        self._block, self._worker = block, route.worker
        return True

    def answered(self, answer: Answer) -> None:
        """As an `AnswerListener`: the owner has appended the batch, or not. It is not sent again."""
        if answer[ERROR]:
            self._lost += self._in_flight
        self._settle()

    def worker_lost(self, worker: Role) -> None:
        """As an `AnswerListener`."""
        if worker == self._worker:
            self._lost += self._in_flight
            self._settle()

    def _settle(self) -> None:
        self._lines.leave(self)
        self._in_flight = 0
        if self._block is not None:
            self._pool.give(self._block)
            self._block = None
        self._worker = None

    def _fail(self, error: Exception) -> None:
        """Drop what was not written down. The first error is logged: the others would be the same."""
        self._lost += len(self._appended) + len(self._fetched)
        self._appended, self._fetched = [], []
        self._growing.clear()
        if not self._has_failed:
            self._has_failed = True
            _logger.error("internal error in observing, names are lost: %r", error, exc_info=error)
