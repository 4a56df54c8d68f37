"""A request whose partitions are asked of their owners, one operation each: what is asked, and who is still to answer.

Its work is a generator (`requests.steps`): it places operations, pauses while ASKED_AT_ONCE are under way, and again
until all are answered, and builds the response. So a request of every partition fills no ring, and of a connection that
closes the owners are asked nothing more.

Produce and Fetch keep books of their own: theirs are on the hot path, and hold more than an owner.
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
from appliance.requests.log_dirs import LogDirs
from appliance.requests.log_handlers.finish import Finish
from appliance.requests.session import Request
from appliance.requests.steps import PAUSE, Steps, answering
from appliance.requests.topic_routes import PartitionRoute, TopicRoutes
from appliance.requests.worker_lines import Answer, Operation, WorkerLines

ASKED_AT_ONCE: Final = 64
"""Operations of one request under way: what owners do in some milliseconds."""
_PIECE: Final = 32

Resume = Callable[[Request], None]


class AsksOwners(ABC):
    """What the handlers of such requests have in common: one of each kind in a network process.

    Args:
        resume: continues the work of a request that pauses.
    """

    __slots__ = ("_coordinators", "_finish", "_lines", "_log_dirs", "_pool", "_routes", "_table", "resume")

    def __init__(
        self,
        routes: TopicRoutes,
        lines: WorkerLines,
        table: PartitionTable,
        *,
        log_dirs: LogDirs,
        coordinators: CoordinatorLines,
        pool: BufferPool,
        finish: Finish,
        resume: Resume,
    ) -> None:
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
        """The request; its block is given back.

        Raises:
            MalformedFrame: the body does not parse.
        """
        request = yield from decode_request_in_pieces(pending.api_key, pending.version, view, position, end)
        pending.give_block(self._pool)
        return request

    @contextmanager
    def _entered(self, asker: OwnersAsked) -> Iterator[None]:
        """Answers reach `asker` within the block."""
        self._lines.enter(asker)
        try:
            yield
        finally:
            self._lines.leave(asker)

    @staticmethod
    def _paced(asker: OwnersAsked, number: int) -> Steps[None]:
        """Called after partition `number` was begun."""
        while asker.waits_for >= ASKED_AT_ONCE:
            yield PAUSE
        if not number % _PIECE:
            yield None

    @staticmethod
    def _all_answered(asker: OwnersAsked) -> Steps[None]:
        while asker.is_waiting:
            yield PAUSE

    def _answer(self, pending: Request, response: object) -> Steps[None]:
        """The client gets `response`."""
        return answering(self._finish, pending, response)


def operation(
    op: Op,
    asker: OwnersAsked,
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
        request_id=asker.request_id,
        row=route.row,
        incarnation=route.incarnation,
        item=item,
        flags=flags,
        leader_epoch=epoch,
        length_bytes=length_bytes,
        api_version=asker.pending.version,
        offset=offset,
        connection=asker.pending.session.connection_id % CONNECTION_LIMIT,
    )


class OwnersAsked(ABC):
    """An `Asker` of `WorkerLines` that counts which operations are neither answered nor lost with their worker."""

    __slots__ = ("_resume", "_workers", "pending", "request_id")

    def __init__(self, pending: Request, resume: Resume) -> None:
        self.pending = pending
        self._resume = resume
        self.request_id = 0
        self._workers: dict[int, Role] = {}

    def asked(self, item: int, worker: Role) -> None:
        """The operation of partition `item` was placed."""
        self._workers[item] = worker

    def ask_leader(
        self,
        item: int,
        route: PartitionRoute,
        operation: Operation,
        *,
        table: PartitionTable,
        lines: WorkerLines,
    ) -> bool:
        """Places the operation of partition `item` with its owner. False: the slot that was asked does not serve it as
        its leader.
        """
        if (
            route.worker is None
            or route.leader != self.pending.session.slot
            or not table.serves(route.row, route.incarnation)
            or not lines.place(route.worker, operation)
        ):
            return False
        self.asked(item, route.worker)
        return True

    def told(self, item: int, error: int) -> None:
        """A coordinator, asked about partition `item`, has answered with no more than an error."""
        if self._workers.pop(item, None) is not None:
            self._take_error(item, error)
            self._settled()

    @property
    def waits_for(self) -> int:
        """How many operations are under way."""
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
        """As `_take`, of what a coordinator has said. Only requests that ask one need it."""
        raise NotImplementedError

    @abstractmethod
    def _take(self, item: int, answer: Answer) -> None:
        """The owner of partition `item` answered."""

    @abstractmethod
    def _lose(self, item: int) -> None:
        """Whether the owner of partition `item` did it is not known; the client may ask again."""
