"""A request whose partitions are asked of their owners, one operation each: what is asked, and who is still to answer.

Produce and Fetch keep books of their own: theirs are on the hot path, and hold more than an owner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from appliance.channels.partition_table import PartitionTable
from appliance.channels.request_channel import CONNECTION_LIMIT, Op, partition_request
from appliance.channels.roles import Role
from appliance.netproc.connection import Pending
from appliance.netproc.log_handlers.finish import Finish
from appliance.netproc.topic_routes import PartitionRoute, TopicRoutes
from appliance.netproc.worker_lines import Answer, Asker, Operation, WorkerLines
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.messages import encode_response


class Asking(Asker, Protocol):
    """One request while owners are asked; its `request_id` is given by `WorkerLines.enter`."""

    pending: Pending


class AsksOwners:
    """What the handlers of such requests have in common: one of each kind in a network process."""

    __slots__ = ("_finish", "_lines", "_routes", "_table")

    def __init__(
        self, routes: TopicRoutes, lines: WorkerLines, table: PartitionTable, *, finish: Finish
    ) -> None:
        self._routes = routes
        self._lines = lines
        self._table = table
        self._finish = finish

    def _route(self, topic: str, partition: int) -> PartitionRoute | None:
        """None: there is no such partition."""
        known = self._routes.by_name(topic)
        return known.partition(partition) if known is not None else None

    def _answer(self, api_key: ApiKey, asker: Asking, response: object) -> None:
        """Nobody is waited for any more, and the client gets `response`."""
        self._lines.leave(asker)
        pending = asker.pending
        self._finish(pending, [encode_response(api_key, pending.version, response, pending.correlation_id)])


def operation(
    op: Op,
    asker: Asking,
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
        connection=asker.pending.connection.connection_id % CONNECTION_LIMIT,
    )


class OwnersAsked(ABC):
    """An `Asker` of `WorkerLines` that is complete when each operation was answered, or its worker lost."""

    __slots__ = ("_workers", "pending", "request_id")

    def __init__(self, pending: Pending) -> None:
        self.pending = pending
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
            or route.leader != self.pending.connection.slot
            or not table.serves(route.row, route.incarnation)
            or not lines.place(route.worker, operation)
        ):
            return False
        self.asked(item, route.worker)
        return True

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._workers)

    def answered(self, answer: Answer) -> None:
        item = answer[4]
        if self._workers.pop(item, None) is not None:
            self._take(item, answer)
            self._settled()

    def worker_lost(self, worker: Role) -> None:
        for item in [item for item, owner in self._workers.items() if owner == worker]:
            del self._workers[item]
            self._lose(item)
            self._settled()

    def _settled(self) -> None:
        if not self._workers:
            self._complete()

    @abstractmethod
    def _take(self, item: int, answer: Answer) -> None:
        """The owner of partition `item` answered."""

    @abstractmethod
    def _lose(self, item: int) -> None:
        """Whether the owner of partition `item` did it is not known; the client may ask again."""

    @abstractmethod
    def _complete(self) -> None:
        """Nobody is waited for any more."""
