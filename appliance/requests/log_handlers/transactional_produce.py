"""Produce of a transactional producer: ask the coordinator where the leader needs proof, keep the order meanwhile.

    < 12   placed ─→ the leader knows the transaction, or has its permit: appended
                  └→ NOT_PERMITTED ─→ what the session has placed is answered ─→ verified ─→ placed again
    12+    added by this session before ─→ as above, but with an addition instead of a verification
           otherwise ─→ added ─→ placed
                      └→ an error ─→ placed, and told if the leader knows of no open transaction

So a client of the older protocol pays nothing but for the first batch of a session: it added the partition itself, and
the coordinator's permit reached the leader before the answer did. NOT_PERMITTED comes when that permit is lost, because
the leader has moved or its worker has died, when the batch does not belong to an open transaction, and when no
coordinator has said yet in this session that the transactional id is the producer's (ProduceFlag.UNPROVED): a permit is
the producer id's, and a request may name somebody else's transactional id. Only the coordinator can tell which. Where
the transaction is open in the partition the name is not looked at, as in Kafka (decision 0100).

A transactional batch for an internal topic is verified before it is refused, below version 12, as in Kafka.

While a request of a session waits, all later Produce requests of the session wait behind it, in the order in which they
came. (Apache Kafka reads no further request of the connection.) Before a refused batch is verified, all that the
session has placed is answered: a batch that was sent behind it could otherwise meet the new permit and be appended in
front of it, where the leader takes any first sequence number.

Who dies:

| dies | then |
|---|---|
| session | what waits is dropped when the question is answered; what is placed stays with its worker |
| coordinator | NOT_ENOUGH_REPLICAS, which every client retries without asking for metadata |
| worker | what it had: REQUEST_TIMED_OUT, as of every Produce. What waits meets its next life, which has no permit |

What was sent behind a batch that got such an answer is refused like it (`refused_batches`).

A batch that is refused again after ROUNDS_MAX verifications is answered NOT_ENOUGH_REPLICAS, because its leader changes
all the time. The handler asks only about batches that it could place: other partitions get the error that they would
get without a transaction.

Source: `ReplicaManager.handleProduceAppend`, `AddPartitionsToTxnManager` (KIP-890).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from appliance.channels.request_channel import ProduceFlag
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.coordinator_errors import told_to_producer
from appliance.protocol.errors import ErrorCode
from appliance.protocol.produce import ProducePartition, ProduceRequest, ProduceResult
from appliance.protocol.records.batch import (
    H_ATTRIBUTES,
    H_MAGIC,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
    HEADER,
    HEADER_BYTES,
    MAGIC_V2,
    TRANSACTIONAL,
)
from appliance.requests.log_handlers.session_transaction import SessionTransaction
from appliance.requests.session import Request, Session
from appliance.requests.topic_routes import TopicRoutes
from appliance.requests.transaction_questions import TransactionOf, TransactionQuestions

ADDS_FROM_VERSION: Final = 12
"""From this version on a client leaves it to the broker to add partitions (`transaction.version` 2)."""
ABORTABLE_FROM_VERSION: Final = 11
ROUNDS_MAX: Final = 3

_PRODUCE: Final = int(ApiKey.PRODUCE)
_CONCURRENT: Final = int(ErrorCode.CONCURRENT_TRANSACTIONS)
_NOT_ENOUGH_REPLICAS: Final = int(ErrorCode.NOT_ENOUGH_REPLICAS)
_INVALID_STATE: Final = int(ErrorCode.INVALID_TXN_STATE)
_TWO_PRODUCERS: Final = int(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
_RETRIED: Final = frozenset(
    int(error)
    for error in (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)
_NAMED: Final = int(ProduceFlag.NAMED)
_UNPROVED: Final = int(ProduceFlag.UNPROVED)
_NOT_ADDED: Final = "Partition was not added to the transaction"

Producer = tuple[int, int]
"""Its id and epoch."""


class HeldProduce(Protocol):
    """A Produce request as this file sees it.

    `results` has None for what has no answer. `to_prove` holds the items that the leader has refused for want of a
    permit; `rounds` counts how often it has.
    """

    pending: Request
    request: ProduceRequest
    results: list[ProduceResult | None]
    to_prove: list[int]
    rounds: int
    said: dict[int, int]
    """Item → error of the coordinator. The leader appends the item nevertheless if the transaction is open there."""

    def fail_unproved(self, item: int, error: int, message: str | None) -> None:
        """Answer an item that is not placed."""
        ...


class _Asked(NamedTuple):
    """What was asked: for which items of which requests, under which name each partition, and whether they are placed
    whatever the answer is."""

    producer: Producer
    items: list[tuple[HeldProduce, list[int]]]
    names: dict[tuple[str | UUID, int], tuple[str, int]]
    is_placed_anyway: bool


class ProducesAgain(Protocol):
    """What this file needs of the handler."""

    def held(self, pending: Request, request: ProduceRequest) -> HeldProduce:
        """Return a request of which nothing is placed."""
        ...

    def place_again(self, produce: HeldProduce) -> None:
        """Place all items without a result."""
        ...

    def drop(self, pending: Request) -> None:
        """The session has ended: nobody waits for the answer."""
        ...

    def is_routed(self, wanted: ProducePartition, session: Session) -> bool:
        """Return whether the slot could place the batch now."""
        ...


class _Seen(NamedTuple):
    """The transactional batches of a request: whose they are, and which must be added to the transaction first."""

    producer: Producer | None
    is_mixed: bool
    to_add: list[int]


class TransactionalProduce:
    """The Produce requests of transactional producers of one network process."""

    __slots__ = ("_handler", "_questions", "_routes")

    def __init__(self, handler: ProducesAgain, routes: TopicRoutes, questions: TransactionQuestions) -> None:
        self._handler = handler
        self._routes = routes
        self._questions = questions

    def holds(self, pending: Request, request: ProduceRequest, transaction: SessionTransaction) -> bool:
        """Take a request that may not be placed now; False where it may."""
        if not transaction.held:
            seen = self._look(pending, request, transaction)
            if not seen.is_mixed and not seen.to_add:
                return False
        transaction.held.append(self._handler.held(pending, request))
        self._advance(pending.session, transaction)
        return True

    def not_permitted(self, produce: HeldProduce, transaction: SessionTransaction) -> None:
        """The leaders have answered the request, and refused `to_prove` for want of a permit."""
        session = produce.pending.session
        for item in produce.to_prove:
            wanted = produce.request.partitions[item]
            transaction.forget(wanted.topic, wanted.partition)
        said, produce.said = produce.said, {}
        for item in produce.to_prove:
            if item in said:
                self._fail(produce, item, said[item])
        produce.to_prove = [item for item in produce.to_prove if item not in said]
        produce.rounds += 1
        if produce.rounds > ROUNDS_MAX:
            given_up, produce.to_prove = produce.to_prove, []
            for item in given_up:
                produce.fail_unproved(item, _NOT_ENOUGH_REPLICAS, None)
        held = transaction.held
        held.append(produce)
        queue = session.queue
        if queue is not None and len(held) > 1:
            order = {request: number for number, request in enumerate(queue)}
            held.sort(key=lambda each: order.get(each.pending, -1))
        self._advance(session, transaction)

    def answered(self, session: Session, transaction: SessionTransaction) -> None:
        """A Produce request of the session was answered: a refused one may have waited for that."""
        if transaction.held:
            self._advance(session, transaction)

    def flags(self, pending: Request, request: ProduceRequest, transaction: SessionTransaction) -> int:
        """Return the `ProduceFlag`s of a request that is placed now: all of its batches are of one producer."""
        name, block = request.transactional_id, pending.block
        if name is None or block is None:
            return 0
        for wanted in request.partitions:
            producer = _producer_of(wanted, block.view)
            if producer is not None:
                return _NAMED if transaction.is_proved(name, producer[0]) else _NAMED | _UNPROVED
        return _NAMED

    def _look(self, pending: Request, request: ProduceRequest, transaction: SessionTransaction) -> _Seen:
        block = pending.block
        only: Producer | None = None
        to_add: list[int] = []
        if request.transactional_id is None or block is None:
            return _Seen(only, False, to_add)
        adds = request.version >= ADDS_FROM_VERSION
        if not adds and len(request.partitions) == 1:
            return _Seen(only, False, to_add)
        for item, wanted in enumerate(request.partitions):
            producer = _producer_of(wanted, block.view)
            if producer is None:
                continue
            if only is not None and producer != only:
                return _Seen(only, True, to_add)
            only = producer
            if (
                adds
                and not transaction.has_added(producer[0], producer[1], wanted.topic, wanted.partition)
                and self._handler.is_routed(wanted, pending.session)
            ):
                to_add.append(item)
        return _Seen(only, False, to_add)

    def _advance(self, session: Session, transaction: SessionTransaction) -> None:
        """Go on with the oldest request that waits, and with those behind it as far as nothing is to be asked."""
        if transaction.is_advancing:
            return
        transaction.is_advancing = True
        try:
            held = transaction.held
            while held and not transaction.is_asking:
                head: HeldProduce = held[0]
                if session.closed:
                    held.pop(0)
                    self._handler.drop(head.pending)
                elif head.to_prove:
                    if _has_placed(session, held):
                        return
                    self._ask_again(session, transaction)
                elif not self._ask_first(session, transaction, head):
                    held.pop(0)
                    self._handler.place_again(head)
        finally:
            transaction.is_advancing = False

    def _ask_first(self, session: Session, transaction: SessionTransaction, head: HeldProduce) -> bool:
        """Ask for what the session has not added yet; False where there is nothing to ask."""
        seen = self._look(head.pending, head.request, transaction)
        if seen.is_mixed:
            self._fail_all(head, _TWO_PRODUCERS)
            return False
        items = [item for item in seen.to_add if head.results[item] is None and item not in head.said]
        if not items:
            return False
        assert seen.producer is not None
        self._ask(session, transaction, seen.producer, [(head, items)], is_placed_anyway=True)
        return True

    def _ask_again(self, session: Session, transaction: SessionTransaction) -> None:
        """Ask for everything that the leaders have refused of the oldest request's producer."""
        head: HeldProduce = transaction.held[0]
        producer = self._producer(head)
        asked: list[tuple[HeldProduce, list[int]]] = []
        for each in transaction.held:
            if (
                each.to_prove
                and each.request.transactional_id == head.request.transactional_id
                and (each.request.version >= ADDS_FROM_VERSION) == (head.request.version >= ADDS_FROM_VERSION)
                and self._producer(each) == producer
            ):
                asked.append((each, each.to_prove))
                each.to_prove = []
        self._ask(session, transaction, producer, asked)

    def _producer(self, produce: HeldProduce) -> Producer:
        """The producer of a request whose batches were refused as transactional ones."""
        block = produce.pending.block
        assert block is not None
        producer = _producer_of(produce.request.partitions[produce.to_prove[0]], block.view)
        assert producer is not None
        return producer

    def _ask(
        self,
        session: Session,
        transaction: SessionTransaction,
        producer: Producer,
        asked: list[tuple[HeldProduce, list[int]]],
        *,
        is_placed_anyway: bool = False,
    ) -> None:
        request = asked[0][0].request
        assert request.transactional_id is not None
        names: dict[tuple[str | UUID, int], tuple[str, int]] = {}
        for produce, items in asked:
            for item in items:
                wanted = produce.request.partitions[item]
                topic = self._routes.of(wanted.topic)
                name = wanted.topic if topic is None else topic.image.name
                names[wanted.topic, wanted.partition] = str(name), wanted.partition
        transaction.is_asking = True
        self._questions.ask(
            session,
            TransactionOf(request.transactional_id, *producer),
            tuple(dict.fromkeys(names.values())),
            verify_only=request.version < ADDS_FROM_VERSION,
            done=partial(self._told, session, transaction, _Asked(producer, asked, names, is_placed_anyway)),
        )

    def _told(
        self,
        session: Session,
        transaction: SessionTransaction,
        asked: _Asked,
        errors: Mapping[tuple[str, int], int],
    ) -> None:
        """The coordinator has answered."""
        transaction.is_asking = False
        names = asked.names
        proved = [key for key, name in names.items() if not errors[name]]
        request = asked.items[0][0].request
        if proved:
            assert request.transactional_id is not None
            transaction.prove(request.transactional_id, asked.producer[0])
            if request.version >= ADDS_FROM_VERSION:
                transaction.add(*asked.producer, proved)
        for produce, items in asked.items:
            for item in items:
                wanted = produce.request.partitions[item]
                error = errors[names[wanted.topic, wanted.partition]]
                if error and asked.is_placed_anyway:
                    produce.said[item] = error
                elif error:
                    self._fail(produce, item, error)
        self._advance(session, transaction)

    @staticmethod
    def _fail(produce: HeldProduce, item: int, error: int) -> None:
        """Answer a batch with what the coordinator has said of its partition."""
        version = produce.request.version
        if error in _RETRIED or (error == _CONCURRENT and version < ADDS_FROM_VERSION):
            message = (
                "Unable to verify the partition has been added to the transaction. Underlying error:"
                f" {ErrorCode(error).name}"
            )
            produce.fail_unproved(item, _NOT_ENOUGH_REPLICAS, message)
            return
        told = told_to_producer(error, knows_fenced=False, knows_abortable=version >= ABORTABLE_FROM_VERSION)
        produce.fail_unproved(item, told, _NOT_ADDED if told == _INVALID_STATE else None)

    @staticmethod
    def _fail_all(produce: HeldProduce, error: int) -> None:
        for item, result in enumerate(produce.results):
            if result is None:
                produce.fail_unproved(item, error, None)


def _has_placed(session: Session, held: list[HeldProduce]) -> bool:
    """Whether a Produce request of the session is with a worker."""
    waiting = {each.pending for each in held}
    return any(
        request.answer is None and request.api_key == _PRODUCE and request not in waiting
        for request in session.queue or ()
    )


def is_transactional(wanted: ProducePartition, view: memoryview) -> bool:
    """Return whether the batch is a transactional one of a producer."""
    return _producer_of(wanted, view) is not None


def _producer_of(wanted: ProducePartition, view: memoryview) -> Producer | None:
    """Return whose the batch is; None of one that is not transactional, or of what is no batch."""
    if wanted.records_length < HEADER_BYTES:
        return None
    header = HEADER.unpack_from(view, wanted.records_position)
    if header[H_MAGIC] != MAGIC_V2 or header[H_PRODUCER_ID] < 0 or not header[H_ATTRIBUTES] & TRANSACTIONAL:
        return None
    return header[H_PRODUCER_ID], header[H_PRODUCER_EPOCH]
