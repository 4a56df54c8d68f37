"""Requests of transactions: their checks in Kafka's order, and the answers by version.

    InitProducerId 0-5         half of an expected id and epoch: INVALID_REQUEST; empty id; timeout; gate; `initialize`
    AddPartitionsToTxn 0-5     a partition of an internal topic: TOPIC_AUTHORIZATION_FAILED; one that is not there:
                               UNKNOWN_TOPIC_OR_PARTITION; then OPERATION_NOT_ATTEMPTED for the others; gate;
                               `add_partitions`, or `verify_partitions`, or both; permits
    AddOffsetsToTxn 0-4        gate; `add_partitions` with the group's partition of `__consumer_offsets`; permit
    EndTxn 0-5                 gate; `end`
    DescribeTransactions 0     empty id: INVALID_REQUEST; gate; unknown: TRANSACTIONAL_ID_NOT_FOUND
    ListTransactions 0-2       a partition that loads: COORDINATOR_LOAD_IN_PROGRESS; pattern: INVALID_REGULAR_EXPRESSION

The gate is NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE. An answer that a version does
not know is said as one that it knows: PRODUCER_FENCED is INVALID_PRODUCER_EPOCH for InitProducerId before 4 and for
AddPartitions, AddOffsets and EndTxn before 2; TRANSACTION_ABORTABLE is INVALID_TXN_STATE before AddPartitionsToTxn 5.

A request that meets a transition under way would be answered CONCURRENT_TRANSACTIONS, and its client would wait at
least 20 ms. The transition takes less here, so the request is held until the id is settled (`held_requests`), and is
then served as if it had come then. At most HELD_MAX are held; more are answered at once. InitProducerId that finds an
open transaction is held in the same way while that is aborted, and where the next block of producer ids is on its way.
EndTxn before version 5 is not held: all transactions of its producer have the same epoch, so one that came late would
end the transaction that began while it was held.

Internal topics take part in no transaction, as in Kafka. From AddPartitionsToTxn 4 on, which brokers speak, and here
network processes, `__consumer_offsets` does: TxnOffsetCommit 5 adds it that way.

A network process that has delayed records of a transaction names their partition of `__delayed_transactions` beside the
partition to which they were produced, in a request that only verifies. If the transaction has the latter, the former is
added in the same step. So a late request never adds to a transaction that began after its own had ended.

AddPartitionsToTxn is answered when the owners of the partitions have answered the permits for them (decision 0095).

Left out: InitProducerId 6, which Kafka 4.3 does not serve either: two-phase commit (KIP-939) comes with it.

Source: `KafkaApis.scala`, `TransactionCoordinator.scala`, `TransactionStateManager.scala` of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from appliance.clock import Clock
from appliance.cluster import CONSUMER_OFFSETS, DELAYED_TRANSACTIONS, TopicPartition, is_internal
from appliance.control.coordinator.group.topic_regex import fullmatcher
from appliance.control.coordinator.held_requests import HeldRequests
from appliance.control.coordinator.marker_writer import MarkerWriter
from appliance.control.coordinator.pieces import PIECE, Steps
from appliance.control.coordinator.request_queue import Reply
from appliance.control.coordinator.topics import ImageTopics
from appliance.control.coordinator.transaction import add_offsets_to_txn, add_partitions_to_txn, end_txn
from appliance.control.coordinator.transaction.add_partitions_to_txn import MANY_TRANSACTIONS_SINCE, Errors
from appliance.control.coordinator.transaction.describe_transactions import described
from appliance.control.coordinator.transaction.effects import TransactionEffects
from appliance.control.coordinator.transaction.list_transactions import Filter, unknown_states
from appliance.control.coordinator.transaction.transaction import NO_EPOCH, NO_PRODUCER_ID
from appliance.control.coordinator.transaction.transaction_state import TransactionState
from appliance.control.coordinator.transaction_machines import TransactionMachines
from appliance.errors import RejectedRequest
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnRequest
from appliance.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTransaction,
)
from appliance.protocol.apis.describe_transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from appliance.protocol.apis.end_txn import EndTxnRequest
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from appliance.protocol.apis.list_transactions import (
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from appliance.protocol.coordinator_errors import told_to_producer
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition

LONG_ANSWER: Final = 64
"""An answer about more partitions is encoded in pieces."""
INIT_FENCED_SINCE: Final = 4
RAISES_EPOCH_SINCE: Final = 2
"""The `transaction.version` from which on each transaction of a producer has an epoch of its own."""

_NONE: Final = int(ErrorCode.NONE)
_INVALID_REQUEST: Final = int(ErrorCode.INVALID_REQUEST)
_UNKNOWN: Final = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_NOT_ALLOWED: Final = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_NOT_ATTEMPTED: Final = int(ErrorCode.OPERATION_NOT_ATTEMPTED)
_NOT_AVAILABLE: Final = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
_LOADING: Final = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
_WORTH_HOLDING: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


class Answers(Protocol):
    """Where answers go: the coordinator."""

    def respond(self, reply: Any, response: Any) -> None: ...

    def respond_long(self, reply: Any, response: Any) -> None:
        """Encode a long answer in pieces, after other work."""
        ...

    def answer_in_pieces(
        self, replies: list[Any], elements: Iterator[Any], make: Callable[[tuple[Any, ...]], Any]
    ) -> None: ...


class TransactionRequests:
    """`servants` serve short requests, `servants_in_pieces` long ones: by API, as `Coordinator` has them.

    Args:
        offsets_partitions: how many partitions `__consumer_offsets` will have, while it does not exist.
        later: (delay ms, action) → the action is called then.
    """

    def __init__(
        self,
        machines: TransactionMachines,
        markers: MarkerWriter,
        topics: ImageTopics,
        *,
        offsets_partitions: int,
        answers: Answers,
        later: Callable[[int, Callable[[], None]], object],
        clock: Clock,
    ) -> None:
        self._machines = machines
        self._transactions = machines.transactions
        self._markers = markers
        self._topics = topics
        self._offsets_partitions = offsets_partitions
        self._answers = answers
        self._clock = clock
        self._held = HeldRequests(later, clock)
        machines.transactions.settled = self._held.settled
        machines.ids.refilled = self._held.refilled
        self.servants: Mapping[int, Callable[[Any, Reply], None]] = {
            int(ApiKey.INIT_PRODUCER_ID): self._initialize,
            int(ApiKey.ADD_PARTITIONS_TO_TXN): self._add_partitions,
            int(ApiKey.ADD_OFFSETS_TO_TXN): self._add_offsets,
            int(ApiKey.END_TXN): self._end,
            int(ApiKey.DESCRIBE_TRANSACTIONS): self._describe,
            int(ApiKey.LIST_TRANSACTIONS): self._list,
        }
        self.servants_in_pieces: Mapping[int, Callable[[Any, Reply], Steps[None]]] = {
            **{api: _in_one_piece(servant) for api, servant in self.servants.items()},
            int(ApiKey.ADD_PARTITIONS_TO_TXN): self._add_partitions_in_pieces,
        }

    # InitProducerId

    def _initialize(self, request: InitProducerIdRequest, reply: Reply) -> None:
        has_half = (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH)
        transactional_id = request.transactional_id
        if has_half or transactional_id is None:
            self._initialized(reply, _INVALID_REQUEST)
            return
        name = transactional_id
        expected = (
            None if request.producer_id == NO_PRODUCER_ID else (request.producer_id, request.producer_epoch)
        )

        def serve(until_ns: int) -> None:
            if self._transactions.may_initialize(name, request.transaction_timeout_ms):
                gate = self._machines.gate(name, reply.slot)
                if gate:
                    self._initialized(reply, gate)
                    return

            def then(error: ErrorCode, producer_id: int, epoch: int) -> TransactionEffects:
                if error not in _WORTH_HOLDING or not self._held.hold(name, until_ns, serve):
                    self._initialized(reply, error, producer_id, epoch)
                return []

            effects = self._transactions.initialize(
                name, timeout_ms=request.transaction_timeout_ms, expected=expected, then=then
            )
            self._machines.carry_out(effects)

        serve(self._held.until_ns())

    def _initialized(
        self, reply: Reply, error: int, producer_id: int = NO_PRODUCER_ID, epoch: int = NO_EPOCH
    ) -> None:
        error = told_to_producer(error, knows_fenced=reply.header.version >= INIT_FENCED_SINCE)
        self._answers.respond(reply, InitProducerIdResponse(error, producer_id, epoch))

    # AddPartitionsToTxn

    def _add_partitions(self, request: AddPartitionsToTxnRequest, reply: Reply) -> None:
        for _ in self._add_partitions_in_pieces(request, reply):
            pass

    def _add_partitions_in_pieces(self, request: AddPartitionsToTxnRequest, reply: Reply) -> Steps[None]:
        """Look the partitions up in pieces; adding them is one step for each transaction."""
        version = reply.header.version
        is_many = version >= MANY_TRANSACTIONS_SINCE
        transactions: Sequence[AddPartitionsToTxnTransaction] = (
            request.transactions
            if is_many
            else (
                AddPartitionsToTxnTransaction(
                    request.transactional_id,
                    request.producer_id,
                    request.producer_epoch,
                    False,
                    request.topics,
                ),
            )
        )
        addition = _Addition(self, transactions, reply)
        for number, transaction in enumerate(transactions):
            partitions: set[TopicPartition] = set()
            wrong: dict[TopicPartition, int] = {}
            is_unknown = False
            looked_at = 0
            for topic in transaction.topics:
                refused = _is_refused(topic.name, is_many=is_many) and not transaction.verify_only
                for index in topic.partitions:
                    partition = TopicPartition(topic.name, index)
                    partitions.add(partition)
                    if refused:
                        wrong[partition] = _NOT_ALLOWED
                    elif not self._topics.has(partition):
                        wrong[partition] = _UNKNOWN
                        is_unknown = True
                    looked_at += 1
                    if not looked_at % PIECE:
                        yield None
            if is_unknown and not self._machines.has_image:
                # Who coordinates the id is not known, nor which topics there are.
                addition.ended(number, dict.fromkeys(partitions, _NOT_AVAILABLE))
            elif wrong:
                addition.ended(number, {each: wrong.get(each, _NOT_ATTEMPTED) for each in partitions})
            elif transaction.verify_only:
                self._verify(transaction, frozenset(partitions), addition, number)
            else:
                self._add(
                    transaction.transactional_id,
                    transaction.producer_id,
                    transaction.producer_epoch,
                    frozenset(partitions),
                    reply=reply,
                    client_version=2 if is_many else 0,
                    told=addition.of_all(number, frozenset(partitions)),
                )
            yield None
        if not transactions:
            self._answers.respond(reply, AddPartitionsToTxnResponse())

    def _add(
        self,
        name: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        reply: Reply,
        client_version: int | None,
        told: Callable[[int], None],
        beside: frozenset[TopicPartition] = frozenset(),
    ) -> None:
        """Add the partitions and permit the producer to write there; `told` gets the error of all.

        Args:
            client_version: None leaves that of the transaction.
            beside: the transaction must have these already.
        """

        def serve(until_ns: int) -> None:
            refused = self._machines.gate(name, reply.slot) if name else 0
            if not refused and beside:
                verified = self._transactions.verify_partitions(name, producer_id, producer_epoch, beside)
                refused = next(filter(None, verified.values()), 0)
            if refused:
                told(refused)
                return
            current = self._transactions.get(name)
            version = client_version
            if version is None:
                version = 0 if current is None else current.client_version

            def then(error: ErrorCode) -> TransactionEffects:
                if not error:
                    self._permit(name, producer_id, producer_epoch, partitions, lambda: told(_NONE))
                elif error not in _WORTH_HOLDING or not self._held.hold(name, until_ns, serve):
                    told(error)
                return []

            effects = self._transactions.add_partitions(
                name, producer_id, producer_epoch, partitions, client_version=version, then=then
            )
            self._machines.carry_out(effects)

        serve(self._held.until_ns())

    def _verify(
        self,
        transaction: AddPartitionsToTxnTransaction,
        partitions: frozenset[TopicPartition],
        addition: _Addition,
        number: int,
    ) -> None:
        name, producer_id, epoch = (
            transaction.transactional_id,
            transaction.producer_id,
            transaction.producer_epoch,
        )
        delayed = frozenset(each for each in partitions if each.topic == DELAYED_TRANSACTIONS)
        if delayed:
            self._add(
                name,
                producer_id,
                epoch,
                delayed,
                reply=addition.reply,
                client_version=None,
                told=addition.of_all(number, partitions),
                beside=partitions - delayed,
            )
            return
        gate = self._machines.gate(name, addition.reply.slot) if name else 0
        if gate:
            addition.ended(number, dict.fromkeys(partitions, gate))
            return
        errors = {
            each: int(error)
            for each, error in self._transactions.verify_partitions(
                name, producer_id, epoch, partitions
            ).items()
        }
        verified = frozenset(each for each, error in errors.items() if not error)
        self._permit(name, producer_id, epoch, verified, lambda: addition.ended(number, errors))

    def _permit(
        self,
        name: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        then: Callable[[], None],
    ) -> None:
        transactions = self._transactions

        def is_valid(partition: TopicPartition) -> bool:
            """The transaction may have been decided while its permit waited for room on a ring."""
            current = transactions.get(name)
            return (
                current is not None
                and current.state is TransactionState.ONGOING
                and current.producer_id == producer_id
                and current.producer_epoch == producer_epoch
                and partition in current.partitions
            )

        self._markers.permit(producer_id, producer_epoch, partitions, is_valid=is_valid, then=then)

    def added(
        self, reply: Reply, transactions: Sequence[AddPartitionsToTxnTransaction], errors: Sequence[Errors]
    ) -> None:
        """Answer AddPartitionsToTxn: `errors` has those of each transaction."""
        response = add_partitions_to_txn.response_of(transactions, errors, reply.header.version)
        self._respond(reply, response, sum(map(len, errors)))

    # AddOffsetsToTxn

    def _add_offsets(self, request: AddOffsetsToTxnRequest, reply: Reply) -> None:
        def told(error: int) -> None:
            self._answers.respond(reply, add_offsets_to_txn.response_of(error, reply.header.version))

        offsets = self._topics.by_name(CONSUMER_OFFSETS)
        # A client of version 1 asks for the group's coordinator afterwards. That creates the topic, with as many
        # partitions as the option says.
        partitions = self._offsets_partitions if offsets is None else offsets.partitions
        partition = TopicPartition(CONSUMER_OFFSETS, group_partition(request.group_id, partitions))
        self._add(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            frozenset((partition,)),
            reply=reply,
            client_version=0,
            told=told,
        )

    # EndTxn

    def _end(self, request: EndTxnRequest, reply: Reply) -> None:
        name = request.transactional_id
        version = reply.header.version
        client_version = end_txn.client_version(version)

        def answer(error: int, producer_id: int = NO_PRODUCER_ID, epoch: int = NO_EPOCH) -> None:
            self._answers.respond(reply, end_txn.response_of(error, producer_id, epoch, version))

        def serve(until_ns: int) -> None:
            gate = self._machines.gate(name, reply.slot) if name else 0
            if gate:
                answer(gate)
                return

            def then(error: ErrorCode, producer_id: int, epoch: int) -> TransactionEffects:
                may_hold = client_version >= RAISES_EPOCH_SINCE and error in _WORTH_HOLDING
                if not may_hold or not self._held.hold(name, until_ns, serve):
                    answer(error, producer_id, epoch)
                return []

            effects = self._transactions.end(
                name,
                request.producer_id,
                request.producer_epoch,
                commit=request.committed,
                client_version=client_version,
                then=then,
            )
            self._machines.carry_out(effects)

        serve(self._held.until_ns())

    # DescribeTransactions, ListTransactions

    def _describe(self, request: DescribeTransactionsRequest, reply: Reply) -> None:
        elements = (self._described(name, reply.slot) for name in request.transactional_ids)
        self._answers.answer_in_pieces([reply], elements, DescribeTransactionsResponse)

    def _described(self, name: str, slot: int) -> DescribedTransaction:
        error = self._machines.gate(name, slot) if name else _INVALID_REQUEST
        if error:
            return DescribedTransaction(name, error)
        return described(name, self._transactions.get(name))

    def _list(self, request: ListTransactionsRequest, reply: Reply) -> None:
        shards = self._machines.shards
        if shards is not None and shards.is_loading:
            self._answers.respond(reply, ListTransactionsResponse(_LOADING))
            return
        matches: Callable[[str], bool] | None = None
        if request.transactional_id_pattern:
            try:
                matches = fullmatcher(request.transactional_id_pattern)
            except RejectedRequest:
                error = int(ErrorCode.INVALID_REGULAR_EXPRESSION)
                self._answers.respond(reply, ListTransactionsResponse(error))
                return
        unknown = unknown_states(request)
        self._answers.answer_in_pieces(
            [reply],
            self._listed(Filter(request, matches, self._clock.now_ms()), reply.slot),
            lambda elements: ListTransactionsResponse(
                unknown_state_filters=unknown, transaction_states=elements
            ),
        )

    def _listed(self, wanted: Filter, slot: int) -> Iterator[ListedTransaction]:
        """The ids that the client's slot coordinates and its filters let through."""
        transactions, shards = self._transactions, self._machines.shards
        for number in range(len(self._machines.by_partition)):
            if shards is None or number >= len(shards.shards):
                return
            place = shards.shards[number].place
            if place is None or place.leader != slot:
                continue
            for name in transactions.ids(number):
                current = transactions.get(name)
                listed = None if current is None else wanted.listed(name, current)
                if listed is not None:
                    yield listed

    # Answers

    def _respond(self, reply: Reply, response: Any, elements: int) -> None:
        if elements > LONG_ANSWER:
            self._answers.respond_long(reply, response)
        else:
            self._answers.respond(reply, response)

    # Held requests

    @property
    def has_work(self) -> bool:
        """Whether `turn` has something to do."""
        return self._held.has_work

    def turn(self) -> None:
        """Serve the held requests whose ids are settled."""
        self._held.turn()

    def statistics(self) -> dict[str, int]:
        return {"held": len(self._held)}


class _Addition:
    """An AddPartitionsToTxn under way: it is answered when each of its transactions has its errors."""

    __slots__ = ("_errors", "_left", "_requests", "_transactions", "reply")

    def __init__(
        self,
        requests: TransactionRequests,
        transactions: Sequence[AddPartitionsToTxnTransaction],
        reply: Reply,
    ) -> None:
        self._requests = requests
        self._transactions = transactions
        self._errors: list[Errors] = [{}] * len(transactions)
        self._left = len(transactions)
        self.reply = reply

    def of_all(self, number: int, partitions: frozenset[TopicPartition]) -> Callable[[int], None]:
        """Return what takes the error of all partitions of one transaction."""
        return lambda error: self.ended(number, dict.fromkeys(partitions, error))

    def ended(self, number: int, errors: Errors) -> None:
        self._errors[number] = errors
        self._left -= 1
        if not self._left:
            self._requests.added(self.reply, self._transactions, self._errors)


def _in_one_piece(servant: Callable[[Any, Reply], None]) -> Callable[[Any, Reply], Steps[None]]:
    def steps(request: Any, reply: Reply) -> Steps[None]:
        servant(request, reply)
        yield None

    return steps


def _is_refused(topic: str, *, is_many: bool) -> bool:
    """Whether no transaction can have this topic. `is_many`: a broker asks, and not a client."""
    return is_internal(topic) and not (is_many and topic == CONSUMER_OFFSETS)
