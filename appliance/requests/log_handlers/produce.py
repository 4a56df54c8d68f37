"""Produce 3-13 in the network process: split by partition, place, answer when every partition is answered.

The payload is not touched here: the worker reads it where it was received. acks=0 answers nothing; an error there
closes the connection, since the client has no other way to notice (as Kafka does). A worker that dies with the
request under way may or may not have appended it: REQUEST_TIMED_OUT is retriable and says neither, and an
idempotent producer's retry is recognised. A worker that is down is NOT_LEADER_OR_FOLLOWER: surely not appended. What
was sent behind a refused batch is refused like it (`refused_batches`). While nobody leads, the refusal itself waits a
moment for a leader (`leader_wait`).
Internal topics refuse every client (INVALID_TOPIC_EXCEPTION); Kafka lets one in that calls itself `__admin_client`.

Left out: transactional produce (INVALID_TXN_STATE); authorization; the list of rejected records of a very large batch
(`record_errors`), because the network process would serve no other connection meanwhile.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from appliance.channels.request_channel import (
    ANSWER_LOG_START,
    CONNECTION_LIMIT,
    ERROR,
    ITEM,
    LOG_APPEND_TIME_MS,
    PRODUCED_OFFSET,
    REJECT_REASON,
    RequestFlag,
    produce_request,
)
from appliance.channels.roles import Role
from appliance.protocol.errors import ErrorCode
from appliance.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResult,
    encode_produce_response,
    parse_produce,
)
from appliance.requests.leader_hints import with_hints
from appliance.requests.log_handlers.finish import Finish, Refuse
from appliance.requests.log_handlers.leader_wait import LeaderWait
from appliance.requests.log_handlers.record_errors import record_errors
from appliance.requests.log_handlers.refused_batches import NOT_APPENDED, RefusedBatches
from appliance.requests.session import Request
from appliance.requests.topic_routes import PartitionRoute, TopicRoutes
from appliance.requests.worker_lines import Answer, WorkerLines

HINTS_FROM_VERSION: Final = 10
ACKS_ALL: Final = -1

_LONE: Final = int(RequestFlag.LONE)
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_UNKNOWN_TOPIC: Final = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_UNKNOWN_TOPIC_ID: Final = int(ErrorCode.UNKNOWN_TOPIC_ID)
_LEADER_NOT_AVAILABLE: Final = int(ErrorCode.LEADER_NOT_AVAILABLE)
_TIMED_OUT: Final = int(ErrorCode.REQUEST_TIMED_OUT)
_OUT_OF_ORDER: Final = int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
_INVALID_TOPIC: Final = int(ErrorCode.INVALID_TOPIC_EXCEPTION)
_INVALID_ACKS: Final = int(ErrorCode.INVALID_REQUIRED_ACKS)
_INVALID_RECORD: Final = int(ErrorCode.INVALID_RECORD)
_EXPLAINED: Final = frozenset(
    {
        int(ErrorCode.INVALID_RECORD),
        int(ErrorCode.INVALID_TIMESTAMP),
        int(ErrorCode.CORRUPT_MESSAGE),
        int(ErrorCode.MESSAGE_TOO_LARGE),
        _INVALID_ACKS,
    }
)


class ProduceHandler:
    """Serves Produce for one network process."""

    __slots__ = ("_finish", "_leader_wait", "_lines", "_refuse", "_routes")

    def __init__(
        self,
        routes: TopicRoutes,
        lines: WorkerLines,
        *,
        leader_wait: LeaderWait,
        finish: Finish,
        refuse: Refuse,
    ) -> None:
        self._routes = routes
        self._lines = lines
        self._leader_wait = leader_wait
        self._finish = finish
        self._refuse = refuse

    def begin(self, pending: Request, view: memoryview, position: int, end: int) -> None:
        """Parses and places the request whose body is at `position` of its block.

        Raises:
            MalformedFrame: the body does not parse.
        """
        request = parse_produce(view, position, end, pending.version)
        self.place(pending, request)

    def place(self, pending: Request, request: ProduceRequest) -> None:
        """Places a parsed request; its positions are within its block."""
        asker = _Asker(self, pending, request)
        lines, slot = self._lines, pending.session.slot
        block = pending.block
        assert block is not None
        pool_position, request_id = block.position, lines.enter(asker)
        bad_acks = request.acks not in (-1, 0, 1)
        flags = _LONE if lines.is_idle else 0
        refused = pending.session.refused_batches
        connection = pending.session.connection_id % CONNECTION_LIMIT
        for item, wanted in enumerate(request.partitions):
            if bad_acks:
                asker.fail(item, _INVALID_ACKS)
                continue
            route, error = self._route(wanted, slot)
            if route is None or route.worker is None:
                asker.refuse(item, error, arriving=True)
                continue
            if refused is not None and (
                error := refused.before_placing(wanted, block.view, now_ns=pending.session.last_active_ns)
            ):
                asker.fail(item, error)
                continue
            if wanted.records_length < 0:
                asker.fail(item, _INVALID_RECORD)
                continue
            operation = produce_request(
                request_id,
                item,
                route.row,
                route.incarnation,
                flags,
                request.acks,
                pool_position + wanted.records_position,
                wanted.records_length,
                pending.version,
                max(request.timeout_ms, 0),
                connection,
            )
            if not lines.place(route.worker, operation):
                asker.refuse(item, _NOT_LEADER, arriving=True)
                continue
            asker.workers.append((item, route.worker))
            asker.outstanding += 1
        if refused is not None and not refused:
            pending.session.refused_batches = None
        if not asker.outstanding:
            self.complete(asker)

    def complete(self, asker: _Asker) -> None:
        """Every partition has its answer."""
        self._lines.leave(asker)
        if asker.leaderless and self._waits(asker):
            return
        self._answer(asker)

    def _waits(self, asker: _Asker) -> bool:
        """Whether it is answered later: nothing of it was taken, and nobody to send it to is known."""
        pending, results = asker.pending, asker.results
        first = results[0]
        if asker.acks == 0 or asker.leaderless < len(results) or first is None:
            return False
        return self._leader_wait.hold(
            first.topic,
            first.partition,
            slot=pending.session.slot,
            timeout_ms=asker.timeout_ms,
            answer=partial(self._answer, asker),
        )

    def _answer(self, asker: _Asker) -> None:
        pending = asker.pending
        if asker.acks == 0:
            failed = next((result.error_code for result in asker.results if result and result.error_code), 0)
            self._finish(pending, [])
            if failed:
                self._refuse(pending, f"a produce request with acks=0 failed with {ErrorCode(failed).name}")
            return
        results = [result for result in asker.results if result is not None]
        if asker.has_moved and pending.version >= HINTS_FROM_VERSION:
            hinted, endpoints = with_hints(self._routes, results, pending.session.told_host)
            frame = encode_produce_response(
                pending.version, pending.correlation_id, hinted, node_endpoints=endpoints
            )
        else:
            frame = encode_produce_response(pending.version, pending.correlation_id, results)
        self._finish(pending, [frame])

    def note_refused(self, pending: Request, wanted: ProducePartition, *, code: int, arriving: bool) -> None:
        """What was sent behind this batch is to be refused like it."""
        session, block = pending.session, pending.block
        if block is None:
            return
        refused = session.refused_batches
        if refused is None:
            refused = session.refused_batches = RefusedBatches()
        refused.note(wanted, block.view, code=code, now_ns=session.last_active_ns, arriving=arriving)

    def _route(self, wanted: ProducePartition, slot: int) -> tuple[PartitionRoute | None, int]:
        topic = self._routes.of(wanted.topic)
        if topic is None:
            return None, _UNKNOWN_TOPIC if isinstance(wanted.topic, str) else _UNKNOWN_TOPIC_ID
        route = topic.partition(wanted.partition)
        if route is None:
            return None, _UNKNOWN_TOPIC
        if route.worker is None:
            return None, _LEADER_NOT_AVAILABLE
        if route.written_by_clients_of != slot:
            return None, _INVALID_TOPIC if topic.image.internal else _NOT_LEADER
        return route, 0


class _Asker:
    """One Produce request while its partitions are with their owners."""

    __slots__ = (
        "_handler",
        "_wanted",
        "acks",
        "has_moved",
        "leaderless",
        "outstanding",
        "pending",
        "request_id",
        "results",
        "timeout_ms",
        "workers",
    )

    def __init__(self, handler: ProduceHandler, pending: Request, request: ProduceRequest) -> None:
        wanted = request.partitions
        self._handler = handler
        self._wanted = wanted
        self.pending = pending
        self.acks = request.acks
        self.timeout_ms = request.timeout_ms
        self.leaderless = 0
        self.request_id = 0
        self.outstanding = 0
        self.has_moved = False
        self.results: list[ProduceResult | None] = [None] * len(wanted)
        self.workers: list[tuple[int, Role]] = []

    def answered(self, answer: Answer) -> None:
        item, error = answer[ITEM], answer[ERROR]
        if self.results[item] is not None:
            return
        wanted = self._wanted[item]
        if error == _OUT_OF_ORDER:
            self.fail(item, self._refused_ahead(wanted) or error)
        elif error:
            self.refuse(item, error)
            if answer[REJECT_REASON]:
                self._name_records(item, answer)
        else:
            self.results[item] = ProduceResult(
                wanted.topic,
                wanted.partition,
                0,
                answer[PRODUCED_OFFSET],
                answer[LOG_APPEND_TIME_MS],
                answer[ANSWER_LOG_START],
            )
        self.outstanding -= 1
        if not self.outstanding:
            self._handler.complete(self)

    def worker_lost(self, worker: Role) -> None:
        for item, owner in self.workers:
            if owner == worker and self.results[item] is None:
                self.fail(item, _TIMED_OUT)
                # The log may have it or not; what comes behind it is surely not there.
                self._note(item, _NOT_LEADER, arriving=False)
                self.outstanding -= 1
                if not self.outstanding:
                    self._handler.complete(self)

    def refuse(self, item: int, error: int, *, arriving: bool = False) -> None:
        """Fails it by an answer of its own; what the client has sent behind it fails like it."""
        self.fail(item, error)
        if error in (_NOT_LEADER, _LEADER_NOT_AVAILABLE):
            self.leaderless += 1
        if error in NOT_APPENDED:
            self._note(item, error, arriving=arriving)

    def _note(self, item: int, code: int, *, arriving: bool) -> None:
        if self.acks == ACKS_ALL:  # as every producer with sequence numbers
            self._handler.note_refused(self.pending, self._wanted[item], code=code, arriving=arriving)

    def _name_records(self, item: int, answer: Answer) -> None:
        """Add which records of the batch were at fault (KIP-467)."""
        block, failed = self.pending.block, self.results[item]
        if block is not None and failed is not None:
            errors = record_errors(block.view, self._wanted[item], answer)
            self.results[item] = failed._replace(record_errors=errors)

    def _refused_ahead(self, wanted: ProducePartition) -> int:
        """The answer to the batch that is missing where the log saw a gap; 0 where no such batch was refused."""
        refused, block = self.pending.session.refused_batches, self.pending.block
        return 0 if refused is None or block is None else refused.instead_of_gap(wanted, block.view)

    def fail(self, item: int, error: int) -> None:
        wanted = self._wanted[item]
        if error == _NOT_LEADER:
            self.has_moved = True
        message = ErrorCode(error).message if error in _EXPLAINED else None
        self.results[item] = ProduceResult(wanted.topic, wanted.partition, error, error_message=message)
