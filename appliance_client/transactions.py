"""Transactions of a producer: KIP-98 (V1) and KIP-890 (V2), over the one machine below.

    UNINITIALIZED ──init──▶ INITIALIZING ──▶ READY ◀──────────────────────────────┐
                                               │ begin                            │
                                               ▼                                  │
                                         IN_TRANSACTION ──commit──▶ COMMITTING ───┤
                                               │ error                            │
                                               ▼                                  │
                                         ABORTABLE_ERROR ──abort──▶ ABORTING ─────┘
                                               (abort is allowed from IN_TRANSACTION, too)
    FATAL_ERROR      from everywhere; nothing but close is left

| step | V1 | V2 (`transaction.version` 2) |
|---|---|---|
| first record of a partition | AddPartitionsToTxn, then Produce up to 11 | Produce 12 |
| offsets | AddOffsetsToTxn, then TxnOffsetCommit up to 4 | TxnOffsetCommit 5 |
| end | EndTxn up to 4; after an abortable error InitProducerId raises the epoch | EndTxn 5 answers id and epoch |

What a transaction speaks is decided when it begins, by the features that the brokers finalized.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnRequest
from appliance.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from appliance.protocol.apis.end_txn import EndTxnRequest
from appliance.protocol.apis.find_coordinator import GROUP, TRANSACTION
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest
from appliance.protocol.apis.txn_offset_commit import (
    TxnOffsetCommitPartition,
    TxnOffsetCommitRequest,
    TxnOffsetCommitTopic,
)
from appliance.protocol.errors import ErrorCode
from appliance_client.accumulator import Batch, PartitionQueue
from appliance_client.errors import (
    AbortableError,
    AuthenticationError,
    ClientError,
    FatalTransactionError,
    IllegalStateError,
    ProducerFencedError,
    TimedOutError,
    TransactionAbortedError,
    TransactionError,
    TransportError,
    error_of,
)
from appliance_client.network import Network
from appliance_client.options import ProducerOptions
from appliance_client.scheduling import Scheduler
from appliance_client.values import GroupMetadata, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from appliance_client.sender import Sender

V2_LEVEL: Final = 2
FIRST_ADD_RETRY_S: Final = 0.02
"""CONCURRENT_TRANSACTIONS after a commit means that its markers are still being written: soon over, as in Java."""


class State(Enum):
    """Where the producer is; the drawing is at the top of the file."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


MAY_GO_TO: Final[Mapping[State, tuple[State, ...]]] = {
    State.UNINITIALIZED: (State.INITIALIZING,),
    State.INITIALIZING: (State.READY, State.UNINITIALIZED),
    State.READY: (State.IN_TRANSACTION,),
    State.IN_TRANSACTION: (State.COMMITTING, State.ABORTING, State.ABORTABLE_ERROR),
    State.COMMITTING: (State.READY, State.ABORTABLE_ERROR),
    State.ABORTABLE_ERROR: (State.ABORTING,),
    State.ABORTING: (State.READY,),
    State.FATAL_ERROR: (),
}

_FENCED: Final = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
_FATAL: Final = (
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
)
_LOST_COORDINATOR: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_PARTITION_IS_LATE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.CONCURRENT_TRANSACTIONS)


class Transactions:
    """The transaction of one producer. `sender` has its id, epoch and batches."""

    def __init__(
        self, options: ProducerOptions, scheduler: Scheduler, network: Network, sender: Sender
    ) -> None:
        self.state = State.UNINITIALIZED
        self.is_v2 = False
        self.error: TransactionError | None = None
        self._options = options
        self._scheduler = scheduler
        self._network = network
        self._sender = sender
        self._coordinators: dict[tuple[str, int], int] = {}
        self._added: set[tuple[str, int]] = set()
        self._adding: dict[tuple[str, int], None] = {}
        self._adds = False
        self._has_offsets = False
        self._must_bump = False

    def _go(self, state: State) -> None:
        if state is not State.FATAL_ERROR and state not in MAY_GO_TO[self.state]:
            raise IllegalStateError(f"not allowed: the producer is {self.state.value}")
        self.state = state

    def _id(self) -> str:
        if self._options.transactional_id is None:
            raise IllegalStateError("the producer has no transactional.id")
        return self._options.transactional_id

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    # ── what the application calls ───────────────────────────────────────────────────────────────────────

    async def init(self) -> None:
        """InitProducerId: end what an earlier producer of this id left, and fence that producer."""
        self._id()
        self._go(State.INITIALIZING)
        try:
            await self._init_producer_id(-1, -1, self._options.max_block_ms / 1000)
        except TransactionError:
            raise
        except BaseException:  # cancelled, too
            if self.state is State.INITIALIZING:
                self._go(State.UNINITIALIZED)
            raise
        self._go(State.READY)

    def begin(self) -> None:
        """Begin a transaction; no broker is asked."""
        self._id()
        if self.state is State.FATAL_ERROR:
            self._raise_error()
        self._go(State.IN_TRANSACTION)
        self.is_v2 = self._network.features.get("transaction.version", 0) >= V2_LEVEL

    def check_send(self) -> None:
        """Raise where a record cannot be sent now."""
        if self.state is not State.IN_TRANSACTION:
            self._raise_error()
            raise IllegalStateError(f"a record needs a transaction; the producer is {self.state.value}")

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        """Commit a group's offsets with the transaction."""
        self.check_send()
        if not offsets:
            return
        deadline_s = self._scheduler.now_s + self._options.max_block_ms / 1000
        self._has_offsets = True
        if not self.is_v2:
            await self._until_done(
                TRANSACTION,
                self._id(),
                ApiKey.ADD_OFFSETS_TO_TXN,
                lambda: AddOffsetsToTxnRequest(
                    self._id(), self._sender.producer_id, self._sender.producer_epoch, group.group_id
                ),
                deadline_s,
            )
        topics: dict[str, list[TxnOffsetCommitPartition]] = {}
        for place, offset in offsets.items():
            topics.setdefault(place.topic, []).append(
                TxnOffsetCommitPartition(
                    place.partition, offset.offset, offset.metadata or "", offset.leader_epoch
                )
            )
        listed = tuple(TxnOffsetCommitTopic(name, tuple(parts)) for name, parts in topics.items())
        await self._until_done(
            GROUP,
            group.group_id,
            ApiKey.TXN_OFFSET_COMMIT,
            lambda: TxnOffsetCommitRequest(
                self._id(),
                group.group_id,
                self._sender.producer_id,
                self._sender.producer_epoch,
                listed,
                generation_id=group.generation_id,
                member_id=group.member_id,
                group_instance_id=group.group_instance_id,
            ),
            deadline_s,
            version_max=5 if self.is_v2 else 4,
        )

    async def commit(self) -> None:
        """Flush, then commit. Where a record failed the transaction can only be aborted."""
        if self.state in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
            self._raise_error()
        if self.state is State.COMMITTING:  # the last commit ran out of time: go on with it
            await self._end(committed=True)
            return
        if self.state is not State.IN_TRANSACTION:
            raise IllegalStateError(f"nothing to commit: the producer is {self.state.value}")
        await self._sender.flush()
        self._raise_error()
        self._go(State.COMMITTING)
        await self._end(committed=True)

    async def abort(self) -> None:
        """Drop what is not sent, then abort."""
        if self.state is State.FATAL_ERROR:
            self._raise_error()
        if self.state is not State.ABORTING:  # else the last abort ran out of time: go on with it
            self._go(State.ABORTING)
        dropped = TransactionAbortedError("the transaction was aborted")
        first = self._sender.fail_all(dropped, unsent_only=True)
        await self._sender.idle()
        second = self._sender.fail_all(dropped, unsent_only=True)
        self._must_bump = self._must_bump or first or second
        self.error = None
        await self._end(committed=False)

    # ── what the sender asks ─────────────────────────────────────────────────────────────────────────────

    def may_send(self, queue: PartitionQueue) -> bool:
        """Whether a batch of this partition may leave; V1 adds the partition to the transaction first."""
        if self.state not in (State.IN_TRANSACTION, State.COMMITTING):
            return False
        place = (queue.topic, queue.partition)
        if place in self._added:
            return True
        if self.is_v2:
            self._added.add(place)
            return True
        self._adding[place] = None
        if not self._adds:
            self._adds = True
            self._scheduler.spawn(self._add_partitions())
        return False

    def judge(self, queue: PartitionQueue, batch: Batch, error: BaseException, *, retriable: bool) -> bool:
        """Whether to send a batch again. Where it failed for good, so has the transaction."""
        code = getattr(error, "code", -1)
        if self.state is State.ABORTING:
            # It may have been written: the epoch must be raised, so that it cannot join a later transaction.
            self._must_bump = True
            return False
        if retriable and self.state in (State.IN_TRANSACTION, State.COMMITTING):
            return True
        if code == ErrorCode.PRODUCER_FENCED:
            self._die(ProducerFencedError(str(error), code))
        elif code in (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            self._die(FatalTransactionError(str(error), code))
        else:
            self._must_bump = True
            self._abortable(f"{queue.topic}-{queue.partition}: {error}", code)
        return False

    def _abortable(self, message: str, code: int) -> AbortableError:
        error = AbortableError(f"abort the transaction: {message}", code)
        if self.state in (State.IN_TRANSACTION, State.COMMITTING):
            self.state = State.ABORTABLE_ERROR
            self.error = error
            self._must_bump = True
            self._sender.fail_all(error, unsent_only=True)
        return error

    def _die(self, error: FatalTransactionError) -> FatalTransactionError:
        if self.state is not State.FATAL_ERROR:
            self.state = State.FATAL_ERROR
            self.error = error
            self._sender.fail_all(error, unsent_only=True)
        return error

    # ── conversations ────────────────────────────────────────────────────────────────────────────────────

    async def _add_partitions(self) -> None:
        deadline_s = self._scheduler.now_s + self._options.delivery_timeout_ms / 1000
        try:
            while self._adding and self.state in (State.IN_TRANSACTION, State.COMMITTING):
                places = list(self._adding)
                topics: dict[str, list[int]] = {}
                for topic, partition in places:
                    topics.setdefault(topic, []).append(partition)
                request = AddPartitionsToTxnRequest(
                    transactional_id=self._id(),
                    producer_id=self._sender.producer_id,
                    producer_epoch=self._sender.producer_epoch,
                    topics=tuple(
                        AddPartitionsToTxnTopic(name, tuple(parts)) for name, parts in topics.items()
                    ),
                )
                await self._until_done(
                    TRANSACTION,
                    self._id(),
                    ApiKey.ADD_PARTITIONS_TO_TXN,
                    lambda request=request: request,
                    deadline_s,
                    version_max=3,
                )
                self._added.update(places)
                for place in places:
                    self._adding.pop(place, None)
        except ClientError as error:
            if self.error is None:
                self._abortable(str(error), error.code)
        finally:
            self._adds = False
        self._sender.touch()

    async def _end(self, *, committed: bool) -> None:
        """EndTxn, where a broker knows of the transaction, and what it takes to begin the next one."""
        must_end = bool(self._added or self._has_offsets)
        # Aborting a transaction of which a produce may have arrived must be said with V2, too.
        must_bump = self._must_bump
        answer = None
        if must_end:
            answer = await self._until_done(
                TRANSACTION,
                self._id(),
                ApiKey.END_TXN,
                lambda: EndTxnRequest(
                    self._id(), self._sender.producer_id, self._sender.producer_epoch, committed
                ),
                self._scheduler.now_s + self._options.max_block_ms / 1000,
                version_max=5 if self.is_v2 else 4,
            )
        self._added.clear()
        self._adding.clear()
        self._has_offsets = False
        self.error = None
        if answer is not None and self.is_v2 and answer.producer_id >= 0:
            self._sender.use_id(answer.producer_id, answer.producer_epoch)
        elif must_bump:
            await self._init_producer_id(
                self._sender.producer_id, self._sender.producer_epoch, self._options.max_block_ms / 1000
            )
        # Not before: where that ran out of time, the next call still has to do it.
        self._must_bump = False
        self._go(State.READY)

    async def _init_producer_id(self, producer_id: int, epoch: int, timeout_s: float) -> None:
        answer = await self._until_done(
            TRANSACTION,
            self._id(),
            ApiKey.INIT_PRODUCER_ID,
            lambda: InitProducerIdRequest(
                self._id(), self._options.transaction_timeout_ms, producer_id, epoch
            ),
            self._scheduler.now_s + timeout_s,
        )
        self._sender.use_id(answer.producer_id, answer.producer_epoch)

    async def _until_done(
        self,
        kind: int,
        key: str,
        api: ApiKey,
        request: Any,
        deadline_s: float,
        *,
        version_max: int | None = None,
    ) -> Any:
        """Ask a coordinator again and again until it has done it.

        Raises:
            TimedOutError: not done at `deadline_s`; the same call may be made again.
            AbortableError, FatalTransactionError: it will not be done.
        """
        attempt = 0
        while True:
            code, message = 0, ""
            try:
                node_id = await self._coordinator(key, kind, deadline_s)
                answer = await self._network.call(node_id, api, request(), version_max=version_max)
                code = _code_of(answer)
            except AuthenticationError:
                raise
            except TransportError as lost:
                self._coordinators.pop((key, kind), None)
                message = str(lost)
            else:
                if not code:
                    return answer
                if code in _LOST_COORDINATOR:
                    self._coordinators.pop((key, kind), None)
                error = error_of(code)
                message = str(error)
                if not (error.retriable or code in _PARTITION_IS_LATE):
                    raise self._refused(code, message)
            wait_s = self._network.backoff_s(attempt)
            if code == ErrorCode.CONCURRENT_TRANSACTIONS:
                wait_s = min(wait_s, FIRST_ADD_RETRY_S)
            attempt += 1
            if self._scheduler.now_s + wait_s > deadline_s:
                raise TimedOutError(f"{api.title}: {message}")
            await self._scheduler.sleep(wait_s)

    def _refused(self, code: int, message: str) -> ClientError:
        if code in _FENCED:
            return self._die(ProducerFencedError(message, code))
        if self.state is State.INITIALIZING and code not in _FATAL:
            return error_of(code)
        if code in _FATAL:
            return self._die(FatalTransactionError(message, code))
        if self.state is State.ABORTING:
            return self._die(FatalTransactionError(message, code))
        self._must_bump = True
        return self._abortable(message, code)

    async def _coordinator(self, key: str, kind: int, deadline_s: float) -> int:
        known = self._coordinators.get((key, kind))
        if known is None:
            known = await self._network.find_coordinator(key, kind, deadline_s)
            self._coordinators[(key, kind)] = known
        return known


def _code_of(answer: Any) -> int:
    """The worst error of an answer: its own, or that of a topic's partition that says what is wrong."""
    codes: list[int] = [getattr(answer, "error_code", 0)]
    for topic in getattr(answer, "results_by_topic", ()):
        codes += [each.partition_error_code for each in topic.results_by_partition]
    for topic in getattr(answer, "topics", ()):
        codes += [each.error_code for each in topic.partitions]
    wrong = [code for code in codes if code and code != ErrorCode.OPERATION_NOT_ATTEMPTED]
    hopeless = [code for code in wrong if not error_of(code).retriable]
    return (hopeless or wrong or [0])[0]
