"""Requests of transactions: from their shapes to what `transaction/` makes of them, and to the answer.

    request ─→ gate (is the id's partition led by that slot, and loaded?) ─→ Transactions ─→ effects
                                               CONCURRENT_TRANSACTIONS ─→ held, asked again when the id has settled
    partitions added ─→ permits to their owners ─→ the answer

Versions differ in how they say an error: PRODUCER_FENCED is INVALID_PRODUCER_EPOCH before InitProducerId 4 and before 2
of the others; TRANSACTION_ABORTABLE is INVALID_TXN_STATE where a version does not have it.

Source: `KafkaApis.scala`, `TransactionCoordinator.scala` of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from appliance.clock import Clock
from appliance.cluster import CONSUMER_OFFSETS, TopicPartition
from appliance.control.coordinator.group.topic_regex import compiled_regex
from appliance.control.coordinator.pieces import Steps
from appliance.control.coordinator.request_queue import Reply
from appliance.control.coordinator.topics import ImageTopics
from appliance.control.coordinator.transaction.effects import TransactionEffects
from appliance.control.coordinator.transaction.transaction import Transaction
from appliance.control.coordinator.transaction.transaction_state import STATES, TransactionState
from appliance.control.coordinator.transaction_machines import TransactionMachines
from appliance.errors import RejectedRequest
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from appliance.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from appliance.protocol.apis.describe_transactions import (
    DescribedTransaction,
    DescribedTransactionTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from appliance.protocol.apis.end_txn import EndTxnRequest, EndTxnResponse
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from appliance.protocol.apis.list_transactions import (
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition

NO_ID: Final = -1
BATCHED_SINCE: Final = 4
"""AddPartitionsToTxn names transactions in an array, and speaks for `transaction.version` 2."""
END_BUMPS_SINCE: Final = 5
"""EndTxn belongs to `transaction.version` 2."""
ABORTABLE_SINCE: Final = 5
"""AddPartitionsToTxn may answer TRANSACTION_ABORTABLE."""
_FENCED_SINCE: Final[Mapping[int, int]] = {
    int(ApiKey.INIT_PRODUCER_ID): 4,
    int(ApiKey.ADD_PARTITIONS_TO_TXN): 2,
    int(ApiKey.ADD_OFFSETS_TO_TXN): 2,
    int(ApiKey.END_TXN): 2,
}
_NAMES: Final = {row.name: state for state, row in STATES.items()}
_UNWRITTEN: Final = frozenset({"Dead", "PrepareEpochFence"})
"""States of Kafka that no id is ever seen in here: a filter by them is right, and finds nothing."""

Added = Callable[[dict[TopicPartition, ErrorCode]], None]


class Responder(Protocol):
    """Answers requests."""

    def respond(self, reply: Reply, response: Any) -> None:
        """Answer a request."""
        ...

    def answer_in_pieces(
        self, replies: list[Reply], elements: Iterator[Any], make: Callable[[tuple[Any, ...]], Any]
    ) -> None:
        """Answer requests that ask the same, in slices of time."""
        ...


class TransactionRequests:
    """`servants`: what serves each API."""

    __slots__ = ("_clock", "_machines", "_responder", "_topics", "servants")

    def __init__(
        self, machines: TransactionMachines, topics: ImageTopics, responder: Responder, clock: Clock
    ) -> None:
        self._machines = machines
        self._topics = topics
        self._responder = responder
        self._clock = clock
        self.servants: Mapping[int, Callable[[Any, Reply], None]] = {
            int(ApiKey.INIT_PRODUCER_ID): self._initialize,
            int(ApiKey.ADD_PARTITIONS_TO_TXN): self._add_partitions,
            int(ApiKey.ADD_OFFSETS_TO_TXN): self._add_offsets,
            int(ApiKey.END_TXN): self._end,
            int(ApiKey.DESCRIBE_TRANSACTIONS): self._describe,
            int(ApiKey.LIST_TRANSACTIONS): self._list,
        }

    def in_pieces(self, request: Any, reply: Reply) -> Steps[None]:
        """Serve a long request, which was decoded in pieces."""
        yield None
        self.servants[reply.header.api_key](request, reply)

    # InitProducerId

    def _initialize(self, request: InitProducerIdRequest, reply: Reply) -> None:
        transactional_id = request.transactional_id or ""
        has_half = (request.producer_id == NO_ID) != (request.producer_epoch == NO_ID)
        expected = None if request.producer_id == NO_ID else (request.producer_id, request.producer_epoch)

        def tell(error: ErrorCode, producer_id: int, epoch: int) -> None:
            told = _told(reply, error)
            self._responder.respond(reply, InitProducerIdResponse(told, producer_id, epoch))

        def ask(*, is_last: bool) -> None:
            error = self._machines.gate(transactional_id, reply.slot)
            if error:
                tell(ErrorCode(error), NO_ID, NO_ID)
                return

            def then(error: ErrorCode, producer_id: int, epoch: int) -> TransactionEffects:
                may_pass = error in (
                    ErrorCode.CONCURRENT_TRANSACTIONS,
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                )
                if may_pass and not is_last:
                    self._machines.hold(transactional_id, lambda is_over: ask(is_last=is_over))
                else:
                    tell(error, producer_id, epoch)
                return []

            self._machines.carry_out(
                self._machines.transactions.initialize(
                    transactional_id,
                    timeout_ms=request.transaction_timeout_ms,
                    expected=expected,
                    then=then,
                )
            )

        if has_half or not transactional_id:
            tell(ErrorCode.INVALID_REQUEST, NO_ID, NO_ID)
        else:
            ask(is_last=False)

    # AddPartitionsToTxn, AddOffsetsToTxn

    def _add_partitions(self, request: AddPartitionsToTxnRequest, reply: Reply) -> None:
        version = reply.header.version
        if version < BATCHED_SINCE:

            def added(errors: dict[TopicPartition, ErrorCode]) -> None:
                told = _topic_results(request.topics, errors, reply)
                self._responder.respond(reply, AddPartitionsToTxnResponse(results_by_topic=told))

            self._add_of(
                AddPartitionsToTxnTransaction(
                    request.transactional_id,
                    request.producer_id,
                    request.producer_epoch,
                    topics=request.topics,
                ),
                reply,
                added,
                client_version=0,
            )
            return
        results: list[AddPartitionsToTxnResult | None] = [None] * len(request.transactions)
        left = len(results)
        if not left:
            self._responder.respond(reply, AddPartitionsToTxnResponse())
            return

        def added_at(at: int, errors: dict[TopicPartition, ErrorCode]) -> None:
            nonlocal left
            wanted = request.transactions[at]
            results[at] = AddPartitionsToTxnResult(
                wanted.transactional_id, _topic_results(wanted.topics, errors, reply)
            )
            left -= 1
            if not left:
                told = tuple(result for result in results if result is not None)
                self._responder.respond(reply, AddPartitionsToTxnResponse(results_by_transaction=told))

        for at, wanted in enumerate(request.transactions):

            def added_here(errors: dict[TopicPartition, ErrorCode], at: int = at) -> None:
                added_at(at, errors)

            self._add_of(wanted, reply, added_here, client_version=2)

    def _add_of(
        self,
        wanted: AddPartitionsToTxnTransaction,
        reply: Reply,
        added: Added,
        *,
        client_version: int,
    ) -> None:
        partitions = frozenset(
            TopicPartition(topic.name, number) for topic in wanted.topics for number in topic.partitions
        )
        if wanted.verify_only:
            self._verify(wanted, partitions, reply, added)
            return
        unknown = frozenset(each for each in partitions if not self._exists(each))
        if unknown:
            added(
                {
                    each: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    if each in unknown
                    else ErrorCode.OPERATION_NOT_ATTEMPTED
                    for each in partitions
                }
            )
            return
        self._add(
            wanted.transactional_id,
            wanted.producer_id,
            wanted.producer_epoch,
            partitions,
            lambda error: added(dict.fromkeys(partitions, error)),
            slot=reply.slot,
            client_version=client_version,
        )

    def _exists(self, partition: TopicPartition) -> bool:
        topic = self._topics.by_name(partition.topic)
        return topic is not None and 0 <= partition.partition < topic.partitions

    def _verify(
        self,
        wanted: AddPartitionsToTxnTransaction,
        partitions: frozenset[TopicPartition],
        reply: Reply,
        added: Added,
    ) -> None:
        """The permits are sent again: an owner has asked because it has none, as after its death."""
        error = self._machines.gate(wanted.transactional_id, reply.slot)
        if error:
            added(dict.fromkeys(partitions, ErrorCode(error)))
            return
        errors = self._machines.transactions.verify_partitions(
            wanted.transactional_id, wanted.producer_id, wanted.producer_epoch, partitions
        )
        right = [each for each, error in errors.items() if not error]
        self._machines.markers.permit(wanted.producer_id, wanted.producer_epoch, right, lambda: added(errors))

    def _add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        tell: Callable[[ErrorCode], None],
        *,
        slot: int,
        client_version: int,
    ) -> None:
        machines = self._machines

        def ask(*, is_last: bool) -> None:
            error = machines.gate(transactional_id, slot)
            if error:
                tell(ErrorCode(error))
                return

            def then(error: ErrorCode) -> TransactionEffects:
                if not error:
                    machines.markers.permit(
                        producer_id, producer_epoch, partitions, lambda: tell(ErrorCode.NONE)
                    )
                elif error is ErrorCode.CONCURRENT_TRANSACTIONS and not is_last:
                    machines.hold(transactional_id, lambda is_over: ask(is_last=is_over))
                else:
                    tell(error)
                return []

            machines.carry_out(
                machines.transactions.add_partitions(
                    transactional_id,
                    producer_id,
                    producer_epoch,
                    partitions,
                    client_version=client_version,
                    then=then,
                )
            )

        ask(is_last=False)

    def _add_offsets(self, request: AddOffsetsToTxnRequest, reply: Reply) -> None:
        def tell(error: ErrorCode) -> None:
            self._responder.respond(reply, AddOffsetsToTxnResponse(_told(reply, error)))

        topic = self._topics.by_name(CONSUMER_OFFSETS)
        if topic is None:
            tell(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        partition = TopicPartition(CONSUMER_OFFSETS, group_partition(request.group_id, topic.partitions))
        self._add(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            frozenset({partition}),
            tell,
            slot=reply.slot,
            client_version=0,
        )

    # EndTxn

    def _end(self, request: EndTxnRequest, reply: Reply) -> None:
        bumps = reply.header.version >= END_BUMPS_SINCE
        machines = self._machines

        def tell(error: ErrorCode, producer_id: int, epoch: int) -> None:
            self._responder.respond(reply, EndTxnResponse(_told(reply, error), producer_id, epoch))

        def ask(*, is_last: bool) -> None:
            error = machines.gate(request.transactional_id, reply.slot)
            if error:
                tell(ErrorCode(error), NO_ID, NO_ID)
                return

            def then(error: ErrorCode, producer_id: int, epoch: int) -> TransactionEffects:
                if error is ErrorCode.CONCURRENT_TRANSACTIONS and not is_last:
                    machines.hold(request.transactional_id, lambda is_over: ask(is_last=is_over))
                else:
                    tell(error, producer_id, epoch)
                return []

            machines.carry_out(
                machines.transactions.end(
                    request.transactional_id,
                    request.producer_id,
                    request.producer_epoch,
                    commit=request.committed,
                    client_version=2 if bumps else 0,
                    then=then,
                )
            )

        ask(is_last=False)

    # What administrators ask

    def _describe(self, request: DescribeTransactionsRequest, reply: Reply) -> None:
        elements = (self._described(each, reply.slot) for each in request.transactional_ids)
        self._responder.answer_in_pieces([reply], elements, DescribeTransactionsResponse)

    def _described(self, transactional_id: str, slot: int) -> DescribedTransaction:
        if not transactional_id:
            return DescribedTransaction(transactional_id, ErrorCode.INVALID_REQUEST)
        error = self._machines.gate(transactional_id, slot)
        if error:
            return DescribedTransaction(transactional_id, error)
        found = self._machines.transactions.get(transactional_id)
        if found is None:
            return DescribedTransaction(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        topics: dict[str, list[int]] = {}
        for each in sorted(found.partitions):
            topics.setdefault(each.topic, []).append(each.partition)
        return DescribedTransaction(
            transactional_id,
            ErrorCode.NONE,
            STATES[found.state].name,
            found.timeout_ms,
            found.started_ms,
            found.producer_id,
            found.producer_epoch,
            tuple(DescribedTransactionTopic(topic, tuple(numbers)) for topic, numbers in topics.items()),
        )

    def _list(self, request: ListTransactionsRequest, reply: Reply) -> None:
        machines = self._machines
        if machines.is_loading:
            self._responder.respond(reply, ListTransactionsResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return
        pattern = request.transactional_id_pattern
        try:
            expression = compiled_regex(pattern) if pattern else None
        except RejectedRequest as rejected:
            self._responder.respond(reply, ListTransactionsResponse(int(rejected.code)))
            return
        unknown = tuple(
            each for each in request.state_filters if each not in _NAMES and each not in _UNWRITTEN
        )
        states = frozenset(_NAMES[each] for each in request.state_filters if each in _NAMES)
        producer_ids = frozenset(request.producer_id_filters)
        now_ms = self._clock.now_ms()

        def is_wanted(transactional_id: str, found: Transaction) -> bool:
            return (
                (not request.state_filters or found.state in states)
                and (not producer_ids or found.producer_id in producer_ids)
                and (
                    request.duration_filter < 0
                    or (_is_open(found) and now_ms - found.started_ms > request.duration_filter)
                )
                and (expression is None or expression.fullmatch(transactional_id) is not None)
                and machines.leads(transactional_id, reply.slot)
            )

        def elements() -> Iterator[ListedTransaction]:
            for transactional_id in machines.transactions.names():
                found = machines.transactions.get(transactional_id)
                if found is not None and is_wanted(transactional_id, found):
                    yield ListedTransaction(transactional_id, found.producer_id, STATES[found.state].name)

        self._responder.answer_in_pieces(
            [reply], elements(), lambda some: ListTransactionsResponse(ErrorCode.NONE, unknown, some)
        )


def _is_open(found: Transaction) -> bool:
    return found.state is not TransactionState.EMPTY and found.started_ms >= 0


def _told(reply: Reply, error: ErrorCode) -> ErrorCode:
    """The error as the request's version says it."""
    header = reply.header
    if error is ErrorCode.PRODUCER_FENCED and header.version < _FENCED_SINCE.get(header.api_key, 0):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if (
        error is ErrorCode.TRANSACTION_ABORTABLE
        and header.api_key == ApiKey.ADD_PARTITIONS_TO_TXN
        and header.version < ABORTABLE_SINCE
    ):
        return ErrorCode.INVALID_TXN_STATE
    return error


def _topic_results(
    topics: tuple[AddPartitionsToTxnTopic, ...], errors: dict[TopicPartition, ErrorCode], reply: Reply
) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    return tuple(
        AddPartitionsToTxnTopicResult(
            topic.name,
            tuple(
                AddPartitionsToTxnPartitionResult(
                    number, _told(reply, errors[TopicPartition(topic.name, number)])
                )
                for number in topic.partitions
            ),
        )
        for topic in topics
    )
