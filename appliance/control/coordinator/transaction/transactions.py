"""All transactional ids of the coordinator: requests in, effects out.

    transactions = Transactions(settings, clock, producer_ids, partition_of=…)
    carry_out(transactions.initialize(transactional_id, …, then=answer))   # an Append; committed, it answers
    carry_out(transactions.end(transactional_id, …, then=answer))          # later WriteMarkers and an Append
    carry_out(transactions.abort_timed_out())                              # when next_deadline_ns() has come

An id has at most one transition under way. Until its record is committed the id answers CONCURRENT_TRANSACTIONS, and
nothing of the transition is visible: a crash before the commit changes nothing that a client has seen.

    EndTxn ──→ Append(Prepare…) ──committed──→ answer, WriteMarkers ──all partitions have it──→ Append(Complete…)
                       └ failed ──→ error answer, the transaction is still Ongoing

A partition of `__transaction_state` is taken over by `replay` of each of its records in order, then `loaded`, which
sends the markers of decided transactions again; `unload` gives it away. The caller asks its gate before it calls.

Timeouts run on the monotonic clock, so a jump of the wall clock aborts nothing. Only what is replayed is measured by
the wall clock, from the start that its record names.

Source: `TransactionCoordinator.scala`, `TransactionStateManager.scala` of Apache Kafka 4.3; KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol, TypeAlias

import msgspec

from appliance.clock import NS_PER_MS, Clock
from appliance.cluster import TopicPartition
from appliance.control.coordinator.transaction.effects import (
    After,
    Append,
    Marker,
    TransactionEffects,
    WriteMarkers,
)
from appliance.control.coordinator.transaction.transaction import (
    LAST_CLIENT_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
    completed,
    end_kind,
    ended,
    fenced,
    initialized,
    is_known,
    is_next,
    with_partitions,
)
from appliance.control.coordinator.transaction.transaction_book import (
    RETRY_MAX_MS,
    RETRY_MS,
    Entry,
    LogPartition,
    TransactionBook,
)
from appliance.control.coordinator.transaction.transaction_record import tombstone, transaction_record
from appliance.control.coordinator.transaction.transaction_state import (
    END,
    PREPARED,
    STATES,
    EndKind,
    Initialize,
    TransactionState,
)
from appliance.journal import RateLimited
from appliance.protocol.errors import ErrorCode

AnsweredWithId: TypeAlias = Callable[[ErrorCode, int, int], TransactionEffects]
"""(error, producer id, epoch) → the answer to InitProducerId or EndTxn."""
Answered: TypeAlias = Callable[[ErrorCode], TransactionEffects]
"""Error → the answer to AddPartitionsToTxn."""

RESERVED_BYTES: Final = 64
"""Kept free where partitions are added, because the records of the decision and of the end hold more fields."""
EXPIRED_PER_CALL: Final = 1_000
"""Ids that `expire` forgets in one call, so that one batch of tombstones stays small."""
EXPIRED_CHARACTERS_PER_CALL: Final = 100_000
"""The same for ids of many thousand characters: with three bytes for each, the batch stays well below 1 MiB."""
ABORTED_PER_CALL: Final = 100
"""Transactions that `abort_timed_out` looks at in one call: some milliseconds of work."""

_logger = logging.getLogger(__name__)

_APPEND_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


class TransactionSettings(msgspec.Struct, frozen=True):
    """`server_version` is this broker's `transaction.version`; `ids_max` bounds the transactional ids in memory."""

    timeout_max_ms: int
    id_expiration_ms: int
    ids_max: int
    server_version: int = 2


class ProducerIds(Protocol):
    """The ids that the controller has lent this process."""

    def take(self) -> int | None:
        """Return an id that nobody has had, or None while a new block is on its way."""
        ...


class Transactions:
    """Args:
    partition_of: transactional id → partition of `__transaction_state`.

    `settled` is called with each id that has no transition under way any more, and owes no markers. `refused_ids`
    counts the new ids that were refused, because there were too many.
    """

    __slots__ = (
        "_book",
        "_clock",
        "_complain",
        "_ids",
        "_settings",
        "_tell",
        "refused_ids",
        "settled",
        "timed_out",
    )

    def __init__(
        self,
        settings: TransactionSettings,
        clock: Clock,
        producer_ids: ProducerIds,
        *,
        partition_of: Callable[[str], int],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._ids = producer_ids
        self._book = TransactionBook(clock, partition_of)
        self.settled: Callable[[str], None] | None = None
        self.refused_ids = self.timed_out = 0
        # Clients can have as many transactions time out as they like.
        self._complain = RateLimited(_logger.warning, clock)
        self._tell = RateLimited(_logger.info, clock)

    def __len__(self) -> int:
        return len(self._book)

    # ── the log ───────────────────────────────────────────────────────────────────────────────────────────

    def replay(self, partition: int, transactional_id: str, transaction: Transaction | None) -> None:
        """Take a committed record of the partition's log; None is a tombstone. The last one of an id counts."""
        log = self._book.log(partition)
        entry = log.entries.get(transactional_id)
        if entry is None:
            if transaction is None:
                return
            entry = self._book.new(log, transactional_id)
        self._book.put(entry, transaction)
        if transaction is None:
            self._book.remove(log, entry)

    def loaded(self, partition: int, leader_epoch: int) -> TransactionEffects:
        """Serve the partition from now on. Markers of decided transactions are sent again, all of them."""
        log = self._book.log(partition)
        log.epoch = leader_epoch
        effects: TransactionEffects = []
        for entry in log.entries.values():
            if entry.current is not None and entry.current.state in PREPARED:
                effects.append(self._markers(partition, log, entry, entry.current))
        return effects

    def unload(self, partition: int) -> None:
        """Forget the partition. Effects that are under way for it come to nothing."""
        self._book.forget(partition)

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────

    def may_initialize(self, transactional_id: str, timeout_ms: int) -> bool:
        """Return whether the request is valid by itself. Only then it matters who coordinates the id."""
        return bool(transactional_id) and 0 < timeout_ms <= self._settings.timeout_max_ms

    def initialize(
        self,
        transactional_id: str,
        *,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        then: AnsweredWithId,
    ) -> TransactionEffects:
        """Serve InitProducerId: give the producer an id and an epoch that fence its predecessor.

        `expected` is (producer id, epoch) as the client has them, if it wants its epoch raised (KIP-360). An open
        transaction is aborted first and answers CONCURRENT_TRANSACTIONS; the client asks again.
        """
        if not self.may_initialize(transactional_id, timeout_ms):
            error = ErrorCode.INVALID_TRANSACTION_TIMEOUT if transactional_id else ErrorCode.INVALID_REQUEST
            return then(error, NO_PRODUCER_ID, NO_EPOCH)
        partition, log, entry = self._book.find(transactional_id)
        current = None if entry is None else entry.current
        if entry is None:
            if len(self) >= self._settings.ids_max:
                self.refused_ids += 1
                return then(ErrorCode.POLICY_VIOLATION, NO_PRODUCER_ID, NO_EPOCH)
        elif entry.is_in_transition:
            return then(ErrorCode.CONCURRENT_TRANSACTIONS, NO_PRODUCER_ID, NO_EPOCH)
        if current is not None:
            if expected is not None and not is_known(current, expected):
                return then(ErrorCode.PRODUCER_FENCED, NO_PRODUCER_ID, NO_EPOCH)
            if STATES[current.state].initialize is Initialize.FENCE:
                assert entry is not None
                return self._fence(partition, log, entry, current, _ask_again(then))
        planned = self._initialized(current, timeout_ms=timeout_ms, expected=expected)
        if isinstance(planned, ErrorCode):
            return then(planned, NO_PRODUCER_ID, NO_EPOCH)
        if entry is None:
            entry = self._book.new(log, transactional_id)

        def answered(error: ErrorCode) -> TransactionEffects:
            if error:
                return then(error, NO_PRODUCER_ID, NO_EPOCH)
            return then(error, planned.producer_id, planned.producer_epoch)

        return [self._append(partition, log, entry, planned, answered)]

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        client_version: int,
        then: Answered,
    ) -> TransactionEffects:
        """Serve AddPartitionsToTxn and AddOffsetsToTxn: the producer may write to these partitions."""
        if not transactional_id:
            return then(ErrorCode.INVALID_REQUEST)
        partition, log, entry = self._book.find(transactional_id)
        if entry is not None and entry.is_in_transition:
            # Before the ids are compared: a client of version 2 has the next id since its EndTxn was answered.
            return then(ErrorCode.CONCURRENT_TRANSACTIONS)
        if entry is None or entry.current is None or entry.current.producer_id != producer_id:
            return then(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        current = entry.current
        if current.producer_epoch != producer_epoch:
            return then(ErrorCode.PRODUCER_FENCED)
        refusal = STATES[current.state].add
        if refusal or (current.state is TransactionState.ONGOING and partitions <= current.partitions):
            return then(refusal)
        planned = with_partitions(
            current, partitions, client_version=client_version, now_ms=self._clock.now_ms()
        )
        return [self._append(partition, log, entry, planned, then, reserved_bytes=RESERVED_BYTES)]

    def verify_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Say of each partition whether it belongs to the producer's open transaction (KIP-890).

        A transition that waits for its record is not looked at, because the append checks once more.
        """
        found = self._verified(transactional_id, producer_id, producer_epoch)
        if isinstance(found, ErrorCode):
            return dict.fromkeys(partitions, found)
        return {
            each: ErrorCode.NONE if each in found.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for each in partitions
        }

    def _verified(
        self, transactional_id: str, producer_id: int, producer_epoch: int
    ) -> ErrorCode | Transaction:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        _, _, entry = self._book.find(transactional_id)
        if entry is None or entry.current is None or entry.current.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if entry.current.producer_epoch != producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        if entry.current.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return entry.current

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        client_version: int,
        then: AnsweredWithId,
    ) -> TransactionEffects:
        """Serve EndTxn: decide, answer as soon as the decision is committed, then end it in all partitions.

        The answer to version 2 carries the id and epoch of the producer's next transaction.
        """
        if not transactional_id:
            return then(ErrorCode.INVALID_REQUEST, NO_PRODUCER_ID, NO_EPOCH)
        partition, log, entry = self._book.find(transactional_id)
        if entry is None or entry.current is None:
            error = ErrorCode.CONCURRENT_TRANSACTIONS if entry else ErrorCode.INVALID_PRODUCER_ID_MAPPING
            return then(error, NO_PRODUCER_ID, NO_EPOCH)
        current = entry.current
        if is_next(current, producer_id, producer_epoch):
            return then(ErrorCode.CONCURRENT_TRANSACTIONS, NO_PRODUCER_ID, NO_EPOCH)
        kind = end_kind(current, producer_id, producer_epoch, client_version)
        if isinstance(kind, ErrorCode):
            return then(kind, NO_PRODUCER_ID, NO_EPOCH)
        if entry.is_moving:
            return then(ErrorCode.CONCURRENT_TRANSACTIONS, NO_PRODUCER_ID, NO_EPOCH)
        answer = STATES[current.state].end[kind][0 if commit else 1]
        if answer is not END:
            if answer is ErrorCode.NONE and kind is EndKind.V2_RETRY:
                return then(answer, current.producer_id, current.producer_epoch)
            return then(answer, NO_PRODUCER_ID, NO_EPOCH)
        needs_id = kind is EndKind.V2 and current.is_exhausted
        next_producer_id = self._ids.take() if needs_id else NO_PRODUCER_ID
        if next_producer_id is None:
            return then(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NO_PRODUCER_ID, NO_EPOCH)
        planned = ended(
            current,
            commit=commit,
            client_version=client_version,
            next_producer_id=next_producer_id,
            now_ms=self._clock.now_ms(),
        )

        def decided(error: ErrorCode) -> TransactionEffects:
            if error:
                return then(error, NO_PRODUCER_ID, NO_EPOCH)
            after = completed(planned, now_ms=planned.updated_ms)
            answer = (
                then(error, NO_PRODUCER_ID, NO_EPOCH)
                if kind is EndKind.V1
                else then(error, after.producer_id, after.producer_epoch)
            )
            return [*answer, self._markers(partition, log, entry, planned)]

        return [self._append(partition, log, entry, planned, decided)]

    def get(self, transactional_id: str) -> Transaction | None:
        """Return what is committed of the id."""
        _, _, entry = self._book.find(transactional_id)
        return None if entry is None else entry.current

    def apply(self, partition: int, transactional_id: str, transaction: Transaction | None) -> None:
        """Take a record that was committed while the partition is served. Those of our own transitions take effect when
        their append ends, with what the record does not hold."""
        log = self._book.known(partition)
        entry = None if log is None else log.entries.get(transactional_id)
        if entry is None or not entry.is_moving:
            self.replay(partition, transactional_id, transaction)

    def ids(self, partition: int) -> list[str]:
        """Return the ids of a partition, as they are now."""
        log = self._book.known(partition)
        return [] if log is None else list(log.entries)

    def __iter__(self) -> Iterator[tuple[str, Transaction]]:
        """Return each id with what is committed of it. Ids must not come or go meanwhile."""
        return iter(self._book)

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def open(self) -> int:
        """How many transactions are open that can time out."""
        return self._book.open

    def next_deadline_ns(self) -> int | None:
        """Return when (monotonic ns) the first open transaction times out; None if none does."""
        return self._book.next_deadline_ns()

    def abort_timed_out(self) -> TransactionEffects:
        """Fence the producers of transactions that are open for longer than their timeout, and abort these.

        At most ABORTED_PER_CALL of them: call again while `next_deadline_ns` has passed.
        """
        now_ns = self._clock.monotonic_ns()
        effects: TransactionEffects = []
        for _ in range(ABORTED_PER_CALL):
            transactional_id = self._book.first_due(now_ns)
            if transactional_id is None:
                break
            partition, log, entry = self._book.find(transactional_id)
            assert entry is not None
            assert entry.current is not None
            if log.epoch < 0 or entry.is_moving:
                # Another transition is under way, or the log is being replayed: look again a little later.
                self._book.keep_deadline(entry, now_ns + RETRY_MS * NS_PER_MS)
                continue
            self._book.drop_deadline(entry)
            effects += self._fence(partition, log, entry, entry.current, self._timed_out(entry))
        return effects

    def _timed_out(self, entry: Entry) -> Answered:
        def answered(error: ErrorCode) -> TransactionEffects:
            if error:
                self._complain(
                    f"transactional id {entry.transactional_id}: its transaction timed out and cannot be aborted yet:"
                    f" {error.name}"
                )
                if entry.current is not None:
                    pause_ms = entry.abort_pause_ms
                    entry.abort_pause_ms = min(2 * pause_ms, RETRY_MAX_MS)
                    self._book.keep_deadline(entry, self._clock.monotonic_ns() + pause_ms * NS_PER_MS)
            else:
                self.timed_out += 1
                self._tell(
                    f"transactional id {entry.transactional_id}: its transaction timed out and is aborted; its"
                    " producer is fenced"
                )
            return []

        return answered

    def expire(self) -> TransactionEffects:
        """Forget ids without a transaction that nobody has used for `id_expiration_ms`, some of them per partition."""
        effects: TransactionEffects = []
        for partition in self._book.partitions():
            effects += self.expire_in(partition)
        return effects

    def expire_in(self, partition: int) -> TransactionEffects:
        """Forget such ids of one partition, at most EXPIRED_PER_CALL; nothing where there are none."""
        log = self._book.known(partition)
        if log is None or log.epoch < 0:
            return []
        before_ms = self._clock.now_ms() - self._settings.id_expiration_ms
        old: list[Entry] = []
        left_characters = EXPIRED_CHARACTERS_PER_CALL
        for entry in log.entries.values():
            if not entry.is_unused_since(before_ms):
                continue
            old.append(entry)
            left_characters -= len(entry.transactional_id)
            if len(old) == EXPIRED_PER_CALL or left_characters <= 0:
                break
        return [self._forget(partition, log, old)] if old else []

    # ── transitions ───────────────────────────────────────────────────────────────────────────────────────

    def _initialized(
        self, current: Transaction | None, *, timeout_ms: int, expected: tuple[int, int] | None
    ) -> Transaction | ErrorCode:
        """The state with the next epoch, or an error."""
        next_epoch = partial(initialized, current, timeout_ms=timeout_ms, now_ms=self._clock.now_ms())
        last_epoch = NO_EPOCH
        if current is not None:
            epoch = current.producer_epoch
            if expected is not None and expected[1] != epoch:
                if expected[1] != current.last_epoch:
                    return ErrorCode.PRODUCER_FENCED
                if epoch <= LAST_CLIENT_EPOCH:
                    # The answer to the first try was lost. The epoch was raised then.
                    return next_epoch(current.producer_id, epoch, current.last_epoch)
            elif expected is not None:
                last_epoch = epoch
            if not current.is_exhausted:
                return next_epoch(current.producer_id, epoch + 1, last_epoch)
        producer_id = self._ids.take()
        if producer_id is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return next_epoch(producer_id, 0, last_epoch)

    def _fence(
        self,
        partition: int,
        log: LogPartition,
        entry: Entry,
        current: Transaction,
        then: Answered,
    ) -> TransactionEffects:
        planned = fenced(current, server_version=self._settings.server_version, now_ms=self._clock.now_ms())

        def decided(error: ErrorCode) -> TransactionEffects:
            return then(error) if error else [*then(error), self._markers(partition, log, entry, planned)]

        return [self._append(partition, log, entry, planned, decided)]

    def _markers(
        self, partition: int, log: LogPartition, entry: Entry, decision: Transaction
    ) -> WriteMarkers:
        def marked() -> TransactionEffects:
            if log.entries.get(entry.transactional_id) is not entry or entry.current is not decision:
                return []
            planned = completed(decision, now_ms=self._clock.now_ms())
            return [self._append(partition, log, entry, planned, again)]

        pause_ms = RETRY_MS

        def again(error: ErrorCode) -> TransactionEffects:
            nonlocal pause_ms
            if not error:
                return []
            after = After(pause_ms, marked)
            pause_ms = min(2 * pause_ms, RETRY_MAX_MS)
            return [after]

        marker = Marker(
            producer_id=decision.producer_id,
            producer_epoch=decision.producer_epoch,
            commit=decision.state is TransactionState.PREPARE_COMMIT,
            coordinator_epoch=log.epoch,
            transaction_version=decision.client_version,
        )
        return WriteMarkers(partition, marker, decision.partitions, marked)

    def _append(
        self,
        partition: int,
        log: LogPartition,
        entry: Entry,
        planned: Transaction,
        then: Callable[[ErrorCode], TransactionEffects],
        *,
        reserved_bytes: int = 0,
    ) -> Append:
        """The record of a transition. When it is committed, `planned` is what holds."""
        entry.is_moving = True

        def ended(error_code: int) -> TransactionEffects:
            if log.entries.get(entry.transactional_id) is not entry:
                return then(ErrorCode.NOT_COORDINATOR)
            entry.is_moving = False
            if error_code:
                if entry.current is None:
                    self._book.remove(log, entry)
                error = ErrorCode(error_code)
                effects = then(_APPEND_ERRORS.get(error, error))
            else:
                self._book.put(entry, planned)
                effects = then(ErrorCode.NONE)
            self._settle(entry)
            return effects

        record = transaction_record(
            entry.transactional_id, planned, server_version=self._settings.server_version
        )
        return Append(partition, (record,), ended, reserved_bytes)

    def _forget(self, partition: int, log: LogPartition, old: list[Entry]) -> Append:
        for entry in old:
            entry.is_moving = True

        def ended(error_code: int) -> TransactionEffects:
            for entry in old:
                if log.entries.get(entry.transactional_id) is entry:
                    entry.is_moving = False
                    if not error_code:
                        self._book.put(entry, None)
                        self._book.remove(log, entry)
                    self._settle(entry)
            return []

        return Append(partition, tuple(tombstone(entry.transactional_id) for entry in old), ended)

    def _settle(self, entry: Entry) -> None:
        """Say that the id takes requests again, if it does."""
        if self.settled is not None and not entry.is_in_transition:
            self.settled(entry.transactional_id)


def _ask_again(then: AnsweredWithId) -> Answered:
    """An open transaction was in the way and is being aborted: the client has to come again."""
    return lambda error: then(error or ErrorCode.CONCURRENT_TRANSACTIONS, NO_PRODUCER_ID, NO_EPOCH)
