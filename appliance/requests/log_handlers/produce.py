"""Produce 3-13 in the network process: split by partition, place, answer when every partition is answered.

The payload is not touched here: the worker reads it where it was received. acks=0 answers nothing; an error there
closes the connection, since the client has no other way to notice (as Kafka does). A worker that dies with the
request under way may or may not have appended it: REQUEST_TIMED_OUT is retriable and says neither, and an
idempotent producer's retry is recognised. A worker that is down is NOT_LEADER_OR_FOLLOWER: surely not appended. What
was sent behind a refused batch is refused like it (`refused_batches`). While nobody leads, the refusal itself waits a
moment for a leader (`leader_wait`).
Internal topics refuse every client (INVALID_TOPIC_EXCEPTION); Kafka lets one in that calls itself `__admin_client`.
A transactional producer's batch may need proof that its partition belongs to an open transaction
(`transactional_produce`); a transactional batch of a request that names no transactional id is refused by its leader
(TRANSACTIONAL_ID_AUTHORIZATION_FAILED, as Kafka).

Left out: the list of rejected records (`record_errors`) of a very large batch, because the network process could
serve no other connection while it makes the list. If a request without a transactional id has a transactional batch,
Kafka also rejects the batches of the other partitions. The appliance rejects only the transactional batch, because
otherwise the network process would have to read every batch of each request.
"""

from __future__ import annotations

from collections.abc import Collection
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
    ROW,
    ProduceFlag,
    RejectReason,
    RequestFlag,
    produce_request,
)
from appliance.channels.roles import Role
from appliance.delivery.division import RefusedDelay
from appliance.protocol.acl import AclOperation, ResourceType
from appliance.protocol.errors import ErrorCode
from appliance.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResult,
    RecordError,
    encode_produce_response,
    parse_produce,
)
from appliance.requests.auditing import Auditing
from appliance.requests.log_handlers.delayed_records import DelayedRecords, Divided
from appliance.requests.log_handlers.finish import Finish, Refuse
from appliance.requests.log_handlers.leader_wait import LeaderWait
from appliance.requests.log_handlers.produce_failures import (
    failed_result,
    failure_of_unanswered,
    hinted_pieces,
    note_refused,
)
from appliance.requests.log_handlers.record_errors import record_errors
from appliance.requests.log_handlers.refused_batches import NOT_APPENDED
from appliance.requests.log_handlers.transactional_produce import (
    ADDS_FROM_VERSION,
    HeldProduce,
    TransactionalProduce,
    is_transactional,
)
from appliance.requests.observer import Observer
from appliance.requests.rights import Rights
from appliance.requests.session import Request, Session
from appliance.requests.topic_routes import PartitionRoute, TopicRoutes
from appliance.requests.traffic import Traffic
from appliance.requests.transaction_questions import TransactionQuestions
from appliance.requests.worker_lines import Answer, WorkerClient

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
_DENIED: Final = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_WRITE: Final = int(AclOperation.WRITE)
_TOPIC: Final = int(ResourceType.TOPIC)
_TRANSACTIONAL_ID: Final = int(ResourceType.TRANSACTIONAL_ID)
_INVALID_ACKS: Final = int(ErrorCode.INVALID_REQUIRED_ACKS)
_INVALID_RECORD: Final = int(ErrorCode.INVALID_RECORD)
_NO_TRANSACTIONAL_ID: Final = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
_INVALID_TXN_STATE: Final = int(ErrorCode.INVALID_TXN_STATE)
_NOT_PERMITTED: Final = int(RejectReason.NOT_PERMITTED)
_UNPROVED: Final = int(ProduceFlag.UNPROVED)
_GAPS: Final = int(ProduceFlag.GAPS)
_SENT_AGAIN: Final = frozenset({int(ErrorCode.NOT_ENOUGH_REPLICAS), int(ErrorCode.CONCURRENT_TRANSACTIONS)})
_NOTHING: Final[frozenset[int]] = frozenset()
_UNPERMITTED: Final = ProduceResult("", -1, _INVALID_TXN_STATE)
"""In the place of a result that the coordinator's word decides."""


class ProduceHandler:
    """Serves Produce for one network process."""

    __slots__ = (
        "_auditing",
        "_delayed",
        "_finish",
        "_leader_wait",
        "_lines",
        "_refuse",
        "_rights",
        "_routes",
        "_transactional",
        "observer",
        "traffic",
    )

    def __init__(
        self,
        routes: TopicRoutes,
        lines: WorkerClient,
        *,
        questions: TransactionQuestions,
        leader_wait: LeaderWait,
        finish: Finish,
        refuse: Refuse,
        delayed: DelayedRecords | None = None,
        rights: Rights | None = None,
        auditing: Auditing | None = None,
    ) -> None:
        self.traffic: Traffic | None = None
        self.observer: Observer | None = None
        self._rights = rights
        self._auditing = auditing
        self._delayed = delayed
        self._transactional = TransactionalProduce(self, routes, questions)
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
        session = pending.session
        refusal = 0 if request.acks in (-1, 0, 1) else _INVALID_ACKS
        if self._rights is not None and not self._may_use_id(pending, request, self._rights):
            refusal = _NO_TRANSACTIONAL_ID
        transaction = session.transaction
        named = 0
        # Nothing is asked of the coordinator for who may not use the id: it would add partitions to the transaction.
        if transaction is not None and refusal != _NO_TRANSACTIONAL_ID:
            if self._transactional.holds(pending, request, transaction):
                return
            named = self._transactional.flags(pending, request, transaction)
        partitioned = _PartitionedProduce(self, pending, request)
        self._lines.enter(partitioned)
        self._place_items(partitioned, flags=_LONE | named if self._lines.is_idle else named, refusal=refusal)
        refused = session.refused_batches
        if refused is not None and not refused:
            session.refused_batches = None
        if not partitioned.outstanding:
            self.complete(partitioned)

    def _place_items(
        self,
        partitioned: _PartitionedProduce,
        *,
        flags: int,
        refusal: int,
        unproved: Collection[int] = _NOTHING,
    ) -> None:
        """Place each item that has no result, or give it the result of `refusal`."""
        pending, request, results = partitioned.pending, partitioned.request, partitioned.results
        lines, session, block = self._lines, pending.session, pending.block
        assert block is not None
        refused, has_unproved = session.refused_batches, bool(unproved)
        connection = session.connection_id % CONNECTION_LIMIT
        for item, wanted in enumerate(request.partitions):
            if results[item] is not None:
                continue
            if refusal:
                partitioned.fail(item, refusal)
                continue
            route, error = self._route(wanted, session)
            if route is None or route.worker is None:
                self._refuse_unrouted(partitioned, item, error)
                continue
            if refused is not None and (
                error := refused.before_placing(wanted, block.view, now_ns=session.last_active_ns)
            ):
                partitioned.fail(item, error)
                continue
            if wanted.records_length < 0:
                partitioned.fail(item, _INVALID_RECORD)
                continue
            item_flags = flags | _UNPROVED if has_unproved and item in unproved else flags
            if route.delays and self._place_divided(partitioned, item, route, item_flags):
                continue
            operation = produce_request(
                partitioned.request_id,
                item,
                route.row,
                route.incarnation,
                item_flags,
                request.acks,
                block.position + wanted.records_position,
                wanted.records_length,
                pending.version,
                max(request.timeout_ms, 0),
                connection,
                pending.arrived_ns,
            )
            if not lines.place(route.worker, operation):
                partitioned.refuse(item, _NOT_LEADER, arriving=True)
                continue
            partitioned.workers.append((item, route.worker))
            partitioned.outstanding += 1

    def _place_divided(
        self, partitioned: _PartitionedProduce, item: int, route: PartitionRoute, flags: int
    ) -> bool:
        """Place what is not delayed of a batch; False if nothing of it is (`delayed_records`)."""
        request, pending = partitioned.request, partitioned.pending
        wanted, block, delayed = request.partitions[item], pending.block, self._delayed
        assert block is not None
        assert route.worker is not None
        if delayed is None:
            return False
        batch = block.view[wanted.records_position : wanted.records_position + wanted.records_length]
        try:
            divided = delayed.divide(route, batch)
        except RefusedDelay as refused:
            partitioned.refuse_delay(item, refused)
            return True
        if divided is None:
            return False
        operation = produce_request(
            partitioned.request_id,
            item,
            route.row,
            route.incarnation,
            flags | _GAPS,
            request.acks,
            divided.block.position,
            divided.length_bytes,
            pending.version,
            max(request.timeout_ms, 0),
            pending.session.connection_id % CONNECTION_LIMIT,
            pending.arrived_ns,
        )
        if not self._lines.place(route.worker, operation):
            delayed.give(divided)
            partitioned.refuse(item, _NOT_LEADER, arriving=True)
            return True
        if partitioned.divided is None:
            partitioned.divided = {}
        partitioned.divided[item] = divided
        partitioned.workers.append((item, route.worker))
        partitioned.outstanding += 1
        return True

    def store_delayed(
        self, partitioned: _PartitionedProduce, item: int, divided: Divided, result: ProduceResult
    ) -> None:
        """What is not delayed was appended: store the rest, and answer then."""
        assert self._delayed is not None
        self._delayed.give(divided)
        self._delayed.store(
            divided,
            result.base_offset,
            partitioned.pending,
            partial(partitioned.stored, item, result),
            transactional_id=partitioned.request.transactional_id,
        )

    def _refuse_unrouted(self, partitioned: _PartitionedProduce, item: int, error: int) -> None:
        """Nobody takes the batch. Of a transactional one Kafka looks at the transactional id first."""
        pending, request = partitioned.pending, partitioned.request
        if error == _DENIED and self._auditing is not None:
            named = request.partitions[item].topic
            topic = self._routes.of(named)
            self._auditing.denied(pending, _WRITE, _TOPIC, str(named) if topic is None else topic.image.name)
        block = pending.block
        if block is not None and is_transactional(request.partitions[item], block.view):
            if request.transactional_id is None:
                partitioned.fail(item, _NO_TRANSACTIONAL_ID)
                return
            if error == _INVALID_TOPIC and request.version < ADDS_FROM_VERSION and not partitioned.was_asked:
                partitioned.not_permitted(item)
                return
        partitioned.refuse(item, error, arriving=True)

    def complete(self, partitioned: _PartitionedProduce) -> None:
        """Every partition has its answer."""
        self._lines.leave(partitioned)
        if partitioned.divided is not None and self._delayed is not None:
            for divided in partitioned.divided.values():
                self._delayed.give(divided)
            partitioned.divided = None
        transaction = partitioned.pending.session.transaction
        if transaction is not None and partitioned.unpermitted:
            self._transactional.not_permitted(self._held_again(partitioned), transaction)
            return
        if partitioned.leaderless and self._waits(partitioned):
            return
        self._answer(partitioned)
        if transaction is not None:
            self._transactional.answered(partitioned.pending.session, transaction)

    def held(self, pending: Request, request: ProduceRequest) -> _HeldProduce:
        """Return a request of which nothing is placed yet."""
        return _HeldProduce(self, pending, request)

    def _held_again(self, partitioned: _PartitionedProduce) -> _HeldProduce:
        """Return a request that waits for proof of the items that were not permitted, with its other answers."""
        held = _HeldProduce(self, partitioned.pending, partitioned.request)
        held.has_moved = partitioned.has_moved
        if isinstance(partitioned, _HeldProduce):
            held.rounds = partitioned.rounds
            held.said = partitioned.said
        for item, result in enumerate(partitioned.results):
            if result is _UNPERMITTED:
                held.to_prove.append(item)
            else:
                held.results[item] = result
        return held

    def place_again(self, partitioned: HeldProduce) -> None:
        """Place what has no answer of a request that was held, as `place` does with one that was not."""
        assert isinstance(partitioned, _HeldProduce)
        pending, request = partitioned.pending, partitioned.request
        transaction = pending.session.transaction
        named = 0 if transaction is None else self._transactional.flags(pending, request, transaction)
        refusal = 0 if request.acks in {-1, 0, 1} else _INVALID_ACKS
        if self._rights is not None and not self._may_use_id(pending, request, self._rights):
            refusal = _NO_TRANSACTIONAL_ID
        self._lines.enter(partitioned)
        self._place_items(partitioned, flags=named, refusal=refusal, unproved=partitioned.said)
        if not partitioned.outstanding:
            self.complete(partitioned)

    def drop(self, pending: Request) -> None:
        """The session of a request that was held has ended: give the request's block back."""
        self._finish(pending, [])

    def is_routed(self, wanted: ProducePartition, session: Session) -> bool:
        """Return whether the batch could be placed now."""
        route = self._route(wanted, session)[0]
        return route is not None and route.worker is not None and wanted.records_length >= 0

    def _waits(self, partitioned: _PartitionedProduce) -> bool:
        """Whether it is answered later: nothing of it was taken, and nobody to send it to is known."""
        pending, results = partitioned.pending, partitioned.results
        first = results[0]
        if partitioned.request.acks == 0 or partitioned.leaderless < len(results) or first is None:
            return False
        return self._leader_wait.hold(
            first.topic,
            first.partition,
            slot=pending.session.slot,
            timeout_ms=partitioned.request.timeout_ms,
            answer=partial(self._answer_late, partitioned),
        )

    def _answer_late(self, partitioned: _PartitionedProduce) -> None:
        self._answer(partitioned)
        session = partitioned.pending.session
        if session.transaction is not None:
            self._transactional.answered(session, session.transaction)

    def _answer(self, partitioned: _PartitionedProduce) -> None:
        pending = partitioned.pending
        if self.traffic is not None:
            self.traffic.not_produced(partitioned.results)
        if partitioned.request.acks == 0:
            self._finish(pending, [])
            failure = failure_of_unanswered(partitioned.results)
            if failure:
                self._refuse(pending, failure)
            return
        results = [result for result in partitioned.results if result is not None]
        if partitioned.has_moved and pending.version >= HINTS_FROM_VERSION:
            self._finish(pending, [*hinted_pieces(pending, results, self._routes)])
            return
        frame = encode_produce_response(pending.version, pending.correlation_id, results)
        self._finish(pending, [frame])

    def note_appended(self, answer: Answer, session: Session) -> None:
        """Count an appended batch, and note who produced it."""
        if self.traffic is not None:
            self.traffic.produced(answer)
        if self.observer is not None and answer[ROW] in self.observer.rows:
            self.observer.produced(answer, session)

    def _may_use_id(self, pending: Request, request: ProduceRequest, rights: Rights) -> bool:
        name = request.transactional_id
        if name is None or rights.may(pending.session, _WRITE, _TRANSACTIONAL_ID, name):
            return True
        if self._auditing is not None:
            self._auditing.denied(pending, _WRITE, _TRANSACTIONAL_ID, name)
        return False

    def _route(self, wanted: ProducePartition, session: Session) -> tuple[PartitionRoute | None, int]:
        topic = self._routes.of(wanted.topic)
        if self._rights is not None:
            # Before anything else: who may not write learns nothing about the topic.
            name = wanted.topic if topic is None else topic.image.name
            if isinstance(name, str) and not self._rights.may(session, _WRITE, _TOPIC, name):
                return None, _DENIED
        if topic is None:
            return None, _UNKNOWN_TOPIC if isinstance(wanted.topic, str) else _UNKNOWN_TOPIC_ID
        route = topic.partition(wanted.partition)
        if route is None:
            return None, _UNKNOWN_TOPIC
        if route.worker is None:
            return None, _LEADER_NOT_AVAILABLE
        if route.written_by_clients_of != session.slot:
            return None, _INVALID_TOPIC if topic.image.internal else _NOT_LEADER
        return route, 0


class _PartitionedProduce:
    """One Produce request in flight: its partitions are with their owners."""

    __slots__ = (
        "_handler",
        "divided",
        "has_moved",
        "leaderless",
        "outstanding",
        "pending",
        "request",
        "request_id",
        "results",
        "storing",
        "unpermitted",
        "workers",
    )

    def __init__(self, handler: ProduceHandler, pending: Request, request: ProduceRequest) -> None:
        self._handler = handler
        self.pending = pending
        self.request = request
        self.divided: dict[int, Divided] | None = None
        self.storing = _NOTHING
        self.leaderless = 0
        self.unpermitted = 0
        self.request_id = 0
        self.outstanding = 0
        self.has_moved = False
        self.results: list[ProduceResult | None] = [None] * len(request.partitions)
        self.workers: list[tuple[int, Role]] = []

    def answered(self, answer: Answer) -> None:
        item, error = answer[ITEM], answer[ERROR]
        if self.results[item] is not None:
            return
        wanted = self.request.partitions[item]
        if error == _OUT_OF_ORDER:
            ahead = self._refused_ahead(wanted)
            if ahead:
                self.fail(item, ahead)
            else:
                self.fail(item, error, answer[ANSWER_LOG_START])
        elif error:
            if answer[REJECT_REASON] == _NOT_PERMITTED:
                self.not_permitted(item)
            else:
                self.refuse(item, error, log_start=answer[ANSWER_LOG_START])
                if answer[REJECT_REASON]:
                    self._name_records(item, answer)
        else:
            result = ProduceResult(
                wanted.topic,
                wanted.partition,
                0,
                answer[PRODUCED_OFFSET],
                answer[LOG_APPEND_TIME_MS],
                answer[ANSWER_LOG_START],
            )
            handler = self._handler
            if handler.traffic is not None or handler.observer is not None:
                handler.note_appended(answer, self.pending.session)
            if self.divided is not None and item in self.divided:
                self.storing = self.storing | {item}
                self._handler.store_delayed(self, item, self.divided.pop(item), result)
                return
            self.results[item] = result
        self.outstanding -= 1
        if not self.outstanding:
            self._handler.complete(self)

    def stored(self, item: int, result: ProduceResult, error: int) -> None:
        """The delayed records of a batch are stored, or not; the rest of it was appended."""
        if error:
            self.fail(item, error)
        else:
            self.results[item] = result
        self.outstanding -= 1
        if not self.outstanding:
            self._handler.complete(self)

    def refuse_delay(self, item: int, refused: RefusedDelay) -> None:
        """Fail a batch because of one of its delayed records; nothing of it was appended."""
        self.refuse(item, int(refused.code), arriving=True)
        failed = self.results[item]
        assert failed is not None
        errors = (RecordError(refused.index, refused.message),)
        self.results[item] = failed._replace(error_message=refused.message, record_errors=errors)

    def worker_lost(self, worker: Role) -> None:
        for item, owner in self.workers:
            if owner == worker and self.results[item] is None and item not in self.storing:
                self.fail(item, _TIMED_OUT)
                # The log may have it or not; what comes behind it is surely not there.
                self._note(item, _NOT_LEADER, arriving=False)
                self.outstanding -= 1
                if not self.outstanding:
                    self._handler.complete(self)

    def refuse(self, item: int, error: int, *, arriving: bool = False, log_start: int = -1) -> None:
        """Fails it by an answer of its own; what the client has sent behind it fails like it."""
        self.fail(item, error, log_start)
        if error in (_NOT_LEADER, _LEADER_NOT_AVAILABLE):
            self.leaderless += 1
        if error in NOT_APPENDED:
            self._note(item, error, arriving=arriving)

    @property
    def was_asked(self) -> bool:
        """Whether the transaction's coordinator has been asked because of a refusal."""
        return False

    def not_permitted(self, item: int) -> None:
        """Only the transaction's coordinator can say whether the batch belongs to a transaction."""
        self.results[item] = _UNPERMITTED
        self.unpermitted += 1

    def _note(self, item: int, code: int, *, arriving: bool) -> None:
        if self.request.acks == ACKS_ALL:  # as every producer with sequence numbers
            wanted = self.request.partitions[item]
            note_refused(self.pending, wanted, code=code, arriving=arriving)

    def _name_records(self, item: int, answer: Answer) -> None:
        """Add which records of the batch were at fault (KIP-467)."""
        block, failed = self.pending.block, self.results[item]
        if block is not None and failed is not None:
            errors = record_errors(block.view, self.request.partitions[item], answer)
            self.results[item] = failed._replace(record_errors=errors)

    def _refused_ahead(self, wanted: ProducePartition) -> int:
        """The answer to the batch that is missing where the log saw a gap; 0 where no such batch was refused."""
        refused, block = self.pending.session.refused_batches, self.pending.block
        return 0 if refused is None or block is None else refused.instead_of_gap(wanted, block.view)

    def fail(self, item: int, error: int, log_start: int = -1) -> None:
        wanted = self.request.partitions[item]
        if error == _NOT_LEADER:
            self.has_moved = True
        self.results[item] = failed_result(wanted, error, log_start)


class _HeldProduce(_PartitionedProduce):
    """A request that waits for the transaction coordinator, or behind one that does (`HeldProduce`)."""

    __slots__ = ("rounds", "said", "to_prove")

    def __init__(self, handler: ProduceHandler, pending: Request, request: ProduceRequest) -> None:
        super().__init__(handler, pending, request)
        self.to_prove: list[int] = []
        self.rounds = 0
        self.said: dict[int, int] = {}

    @property
    def was_asked(self) -> bool:
        return self.rounds > 0

    def fail_unproved(self, item: int, error: int, message: str | None) -> None:
        """Answer an item that is not placed; what the client has sent behind it is refused like it."""
        wanted = self.request.partitions[item]
        self.results[item] = ProduceResult(wanted.topic, wanted.partition, error, error_message=message)
        if error in _SENT_AGAIN:
            self._note(item, error, arriving=True)
