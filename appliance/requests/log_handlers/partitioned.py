"""A partitioned request: each of its partitions is asked of its owner, by one operation.

A `PartitionedHandler` serves one API key. Its `begin` is a generator (`requests.steps`): it places operations, pauses
while ASKED_AT_ONCE are in flight, waits for the last answers, and builds the response. So a request for every partition
does not fill a ring, and after its connection has closed no further operation is placed.

A `PartitionedRequest` is one such request in flight. It knows which operations are not answered yet.

Produce and Fetch have classes of their own for both, because they are on the hot path and keep more for each partition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from appliance.channels.partition_table import PartitionTable
from appliance.channels.request_channel import CONNECTION_LIMIT, ITEM, Op, partition_request
from appliance.channels.roles import Role
from appliance.ipc.buffer_pool import BufferPool
from appliance.protocol.messages import decode_request_in_pieces
from appliance.requests.coordinator_lines import CoordinatorLines
from appliance.requests.guards.guarding import Guarding
from appliance.requests.log_dirs import LogDirs
from appliance.requests.log_handlers.finish import Finish
from appliance.requests.session import Request
from appliance.requests.steps import PAUSE, Steps, answering
from appliance.requests.topic_routes import PartitionRoute, TopicRoutes
from appliance.requests.worker_lines import Answer, Operation, WorkerClient

ASKED_AT_ONCE: Final = 64
"""Operations of one request in flight: what owners do in some milliseconds."""
_PIECE: Final = 32

Resume = Callable[[Request], None]


class PartitionedHandler(ABC):
    """The base of the handlers of partitioned requests. A network process has one handler for each API key.

    Args:
        resume: continues the work of a request that pauses.
    """

    __slots__ = (
        "_coordinators",
        "_finish",
        "_guarding",
        "_lines",
        "_log_dirs",
        "_pool",
        "_routes",
        "_table",
        "resume",
    )

    def __init__(
        self,
        routes: TopicRoutes,
        lines: WorkerClient,
        table: PartitionTable,
        *,
        log_dirs: LogDirs,
        coordinators: CoordinatorLines,
        pool: BufferPool,
        finish: Finish,
        resume: Resume,
        guarding: Guarding | None = None,
    ) -> None:
        self._guarding = guarding
        self._routes = routes
        self._coordinators = coordinators
        self._lines = lines
        self._table = table
        self._log_dirs = log_dirs
        self._pool = pool
        self._finish = finish
        self.resume = resume

    @abstractmethod
    def begin(self, pending: Request, view: memoryview, position: int, end: int) -> Steps[None]:
        """Decode the request whose body lies in view[position:end], ask the owners, and answer.

        Raises:
            MalformedFrame: the body does not parse.
        """

    def _route(self, topic: str, partition: int) -> PartitionRoute | None:
        """None: there is no such partition."""
        known = self._routes.by_name(topic)
        return known.partition(partition) if known is not None else None

    def _decoded(self, pending: Request, view: memoryview, position: int, end: int) -> Steps[Any]:
        """The request, or what is left of it where rights are checked; its block is given back.

        Raises:
            Denied: nothing of it is allowed.
            MalformedFrame: the body does not parse.
        """
        request = yield from decode_request_in_pieces(pending.api_key, pending.version, view, position, end)
        pending.give_block(self._pool)
        if self._guarding is not None:
            request = yield from self._guarding.judged(pending, request)
        return request

    @contextmanager
    def _entered(self, partitioned: PartitionedRequest) -> Iterator[None]:
        """Within the block, answers reach `partitioned`."""
        self._lines.enter(partitioned)
        try:
            yield
        finally:
            self._lines.leave(partitioned)

    @staticmethod
    def _paced(partitioned: PartitionedRequest, number: int) -> Steps[None]:
        """Called after partition `number` was begun."""
        while partitioned.waits_for >= ASKED_AT_ONCE:
            yield PAUSE
        if not number % _PIECE:
            yield None

    @staticmethod
    def _all_answered(partitioned: PartitionedRequest) -> Steps[None]:
        while partitioned.is_waiting:
            yield PAUSE

    def _answer(self, pending: Request, response: object) -> Steps[None]:
        """The client gets `response`."""
        if self._guarding is not None:
            response = yield from self._guarding.answered(pending, response)
        yield from answering(self._finish, pending, response)


def operation(
    op: Op,
    partitioned: PartitionedRequest,
    item: int,
    route: PartitionRoute,
    *,
    flags: int = 0,
    epoch: int = -1,
    length_bytes: int = 0,
    offset: int = 0,
) -> Operation:
    """What the owner of partition `item` is asked: a request by the field names of `channels.request_channel`."""
    return partition_request(
        op,
        request_id=partitioned.request_id,
        row=route.row,
        incarnation=route.incarnation,
        item=item,
        flags=flags,
        leader_epoch=epoch,
        length_bytes=length_bytes,
        api_version=partitioned.pending.version,
        offset=offset,
        connection=partitioned.pending.session.connection_id % CONNECTION_LIMIT,
    )


class PartitionedRequest(ABC):
    """One request in flight: an `AnswerListener` that knows which operations are neither answered nor lost.

    An operation is lost if its worker dies before it answers.
    """

    __slots__ = ("_resume", "_workers", "pending", "request_id")

    def __init__(self, pending: Request, resume: Resume) -> None:
        self.pending = pending
        self._resume = resume
        self.request_id = 0
        self._workers: dict[int, Role] = {}

    def placed(self, item: int, worker: Role) -> None:
        """The operation of partition `item` was placed."""
        self._workers[item] = worker

    def ask_leader(
        self,
        item: int,
        route: PartitionRoute,
        operation: Operation,
        *,
        table: PartitionTable,
        lines: WorkerClient,
    ) -> bool:
        """Place the operation of partition `item` with its owner.

        Return False, and place nothing, if this slot does not serve the partition as its leader.
        """
        if (
            route.worker is None
            or route.leader != self.pending.session.slot
            or not table.serves(route.row, route.incarnation)
            or not lines.place(route.worker, operation)
        ):
            return False
        self.placed(item, route.worker)
        return True

    def coordinator_answered(self, item: int, error: int) -> None:
        """A coordinator that was asked about partition `item` answered with an error code, 0 for none."""
        if self._workers.pop(item, None) is not None:
            self._take_error(item, error)
            self._settled()

    @property
    def waits_for(self) -> int:
        """How many operations are in flight."""
        return len(self._workers)

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._workers)

    def answered(self, answer: Answer) -> None:
        item = answer[ITEM]
        if self._workers.pop(item, None) is not None:
            self._take(item, answer)
            self._settled()

    def worker_lost(self, worker: Role) -> None:
        for item in [item for item, owner in self._workers.items() if owner == worker]:
            del self._workers[item]
            self._lose(item)
        self._settled()

    def _settled(self) -> None:
        if len(self._workers) in (0, ASKED_AT_ONCE // 2):
            self._resume(self.pending)

    def _take_error(self, item: int, error: int) -> None:
        """As `_take`, for a coordinator's answer. Only requests that ask a coordinator implement it."""
        raise NotImplementedError

    @abstractmethod
    def _take(self, item: int, answer: Answer) -> None:
        """The owner of partition `item` answered."""

    @abstractmethod
    def _lose(self, item: int) -> None:
        """The owner of partition `item` died, and may have done the operation or not. The client may retry."""
