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
from sortedcontainers import SortedList

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
    ended,
    fenced,
    initialized,
    with_partitions,
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

RETRY_MS: Final = 20
RETRY_MAX_MS: Final = 1_000
"""After a record could not be written that nobody waits for: the pause before the next try doubles up to here."""
RESERVED_BYTES: Final = 64
"""Kept free where partitions are added, because the records of the decision and of the end hold more fields."""
NO_DEADLINE: Final = -1

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


class _Entry:
    """A transactional id. `current` is None until its first record is committed."""

    __slots__ = ("abort_pause_ms", "current", "deadline_ns", "is_moving", "transactional_id")

    def __init__(self, transactional_id: str, current: Transaction | None) -> None:
        self.transactional_id = transactional_id
        self.current = current
        self.is_moving = False
        """A transition waits for its record."""
        self.deadline_ns = NO_DEADLINE
        self.abort_pause_ms = RETRY_MS
        """Before the next try, if the abort of the timed out transaction cannot be written."""

    @property
    def is_in_transition(self) -> bool:
        """Whether a transition waits for its record, or a decision for its markers: until then no other one begins."""
        return self.is_moving or (self.current is not None and self.current.state in PREPARED)


class _LogPartition:
    """The ids of one partition of `__transaction_state`. `epoch` is that of its leader; -1 while it is replayed."""

    __slots__ = ("entries", "epoch")

    def __init__(self) -> None:
        self.entries: dict[str, _Entry] = {}
        self.epoch = -1


class Transactions:
    """Args:
    partition_of: transactional id → partition of `__transaction_state`.

    `settled` is called with each id that has no transition under way any more, and owes no markers. `refused_ids`
    counts the new ids that were refused, because there were too many.
    """

    __slots__ = (
        "_clock",
        "_complain",
        "_count",
        "_deadlines",
        "_ids",
        "_logs",
        "_partition_of",
        "_settings",
        "_tell",
        "refused_ids",
        "settled",
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
        self._partition_of = partition_of
        self._logs: dict[int, _LogPartition] = {}
        self._count = 0  # of all partitions: asked for each new id
        self.settled: Callable[[str], None] | None = None
        self.refused_ids = 0
        # Clients can have as many transactions time out as they like.
        self._complain = RateLimited(_logger.warning, clock)
        self._tell = RateLimited(_logger.info, clock)
        # (monotonic deadline ns, transactional id) of each open transaction that can time out
        self._deadlines: SortedList[tuple[int, str]] = SortedList()

    def __len__(self) -> int:
        return self._count

    # ── the log ───────────────────────────────────────────────────────────────────────────────────────────

    def replay(self, partition: int, transactional_id: str, transaction: Transaction | None) -> None:
        """Take a committed record of the partition's log; None is a tombstone. The last one of an id counts."""
        log = self._logs.setdefault(partition, _LogPartition())
        entry = log.entries.get(transactional_id)
        if entry is None:
            if transaction is None:
                return
            entry = self._new(log, transactional_id)
        self._set(entry, transaction)
        if transaction is None:
            self._remove(log, entry)

    def loaded(self, partition: int, leader_epoch: int) -> TransactionEffects:
        """Serve the partition from now on. Markers of decided transactions are sent again, all of them."""
        log = self._logs.setdefault(partition, _LogPartition())
        log.epoch = leader_epoch
        effects: TransactionEffects = []
        for entry in log.entries.values():
            if entry.current is not None and entry.current.state in PREPARED:
                effects.append(self._markers(partition, log, entry, entry.current))
        return effects

    def unload(self, partition: int) -> None:
        """Forget the partition. Effects that are under way for it come to nothing."""
        log = self._logs.pop(partition, None)
        if log is None:
            return
        for entry in log.entries.values():
            self._set(entry, None)
        self._count -= len(log.entries)
        log.entries.clear()  # effects that are under way look here for their entry

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
        partition, log, entry = self._find(transactional_id)
        current = None if entry is None else entry.current
        if entry is None:
            if len(self) >= self._settings.ids_max:
                self.refused_ids += 1
                return then(ErrorCode.POLICY_VIOLATION, NO_PRODUCER_ID, NO_EPOCH)
        elif entry.is_in_transition:
            return then(ErrorCode.CONCURRENT_TRANSACTIONS, NO_PRODUCER_ID, NO_EPOCH)
        if current is not None:
            if expected is not None and not _is_known(current, expected):
                return then(ErrorCode.PRODUCER_FENCED, NO_PRODUCER_ID, NO_EPOCH)
            if STATES[current.state].initialize is Initialize.FENCE:
                assert entry is not None
                return self._fence(partition, log, entry, current, _ask_again(then))
        planned = self._initialized(current, timeout_ms=timeout_ms, expected=expected)
        if isinstance(planned, ErrorCode):
            return then(planned, NO_PRODUCER_ID, NO_EPOCH)
        if entry is None:
            entry = self._new(log, transactional_id)

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
        partition, log, entry = self._find(transactional_id)
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
        _, _, entry = self._find(transactional_id)
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
        partition, log, entry = self._find(transactional_id)
        if entry is None or entry.current is None:
            error = ErrorCode.CONCURRENT_TRANSACTIONS if entry else ErrorCode.INVALID_PRODUCER_ID_MAPPING
            return then(error, NO_PRODUCER_ID, NO_EPOCH)
        current = entry.current
        if _is_next(current, producer_id, producer_epoch):
            return then(ErrorCode.CONCURRENT_TRANSACTIONS, NO_PRODUCER_ID, NO_EPOCH)
        kind = _end_kind(current, producer_id, producer_epoch, client_version)
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
        _, _, entry = self._find(transactional_id)
        return None if entry is None else entry.current

    def apply(self, partition: int, transactional_id: str, transaction: Transaction | None) -> None:
        """Take a record that was committed while the partition is served. Those of our own transitions take effect when
        their append ends, with what the record does not hold."""
        log = self._logs.get(partition)
        entry = None if log is None else log.entries.get(transactional_id)
        if entry is None or not entry.is_moving:
            self.replay(partition, transactional_id, transaction)

    def ids(self, partition: int) -> list[str]:
        """Return the ids of a partition, as they are now."""
        log = self._logs.get(partition)
        return [] if log is None else list(log.entries)

    def __iter__(self) -> Iterator[tuple[str, Transaction]]:
        """Yield each id with what is committed of it. Ids must not come or go meanwhile."""
        for log in self._logs.values():
            for entry in log.entries.values():
                if entry.current is not None:
                    yield entry.transactional_id, entry.current

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────

    def next_deadline_ns(self) -> int | None:
        """Return when (monotonic ns) the first open transaction times out; None if none does."""
        return self._deadlines[0][0] if self._deadlines else None

    def abort_timed_out(self) -> TransactionEffects:
        """Fence the producers of transactions that are open for longer than their timeout, and abort these.

        At most ABORTED_PER_CALL of them: call again while `next_deadline_ns` has passed.
        """
        now_ns = self._clock.monotonic_ns()
        effects: TransactionEffects = []
        for _ in range(ABORTED_PER_CALL):
            if not self._deadlines or self._deadlines[0][0] > now_ns:
                break
            _, transactional_id = self._deadlines[0]
            partition, log, entry = self._find(transactional_id)
            assert entry is not None
            assert entry.current is not None
            if log.epoch < 0 or entry.is_moving:
                # Another transition is under way, or the log is being replayed: look again a little later.
                self._deadlines.pop(0)
                entry.deadline_ns = now_ns + RETRY_MS * NS_PER_MS
                self._deadlines.add((entry.deadline_ns, transactional_id))
                continue
            self._drop_deadline(entry)
            effects += self._fence(partition, log, entry, entry.current, self._timed_out(entry))
        return effects

    def _timed_out(self, entry: _Entry) -> Answered:
        def answered(error: ErrorCode) -> TransactionEffects:
            if error:
                self._complain(
                    f"transactional id {entry.transactional_id}: its transaction timed out and cannot be aborted yet:"
                    f" {error.name}"
                )
                if entry.current is not None:
                    pause_ms = entry.abort_pause_ms
                    entry.abort_pause_ms = min(2 * pause_ms, RETRY_MAX_MS)
                    self._keep_deadline(entry, self._clock.monotonic_ns() + pause_ms * NS_PER_MS)
            else:
                self._tell(
                    f"transactional id {entry.transactional_id}: its transaction timed out and is aborted; its"
                    " producer is fenced"
                )
            return []

        return answered

    def expire(self) -> TransactionEffects:
        """Forget ids without a transaction that nobody has used for `id_expiration_ms`, some of them per partition."""
        effects: TransactionEffects = []
        for partition in list(self._logs):
            effects += self.expire_in(partition)
        return effects

    def expire_in(self, partition: int) -> TransactionEffects:
        """Forget such ids of one partition, at most EXPIRED_PER_CALL; nothing where there are none."""
        log = self._logs.get(partition)
        if log is None or log.epoch < 0:
            return []
        before_ms = self._clock.now_ms() - self._settings.id_expiration_ms
        old: list[_Entry] = []
        left_characters = EXPIRED_CHARACTERS_PER_CALL
        for entry in log.entries.values():
            if not _is_old(entry, before_ms):
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
        log: _LogPartition,
        entry: _Entry,
        current: Transaction,
        then: Answered,
    ) -> TransactionEffects:
        planned = fenced(current, server_version=self._settings.server_version, now_ms=self._clock.now_ms())

        def decided(error: ErrorCode) -> TransactionEffects:
            return then(error) if error else [*then(error), self._markers(partition, log, entry, planned)]

        return [self._append(partition, log, entry, planned, decided)]

    def _markers(
        self, partition: int, log: _LogPartition, entry: _Entry, decision: Transaction
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
        log: _LogPartition,
        entry: _Entry,
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
                    self._remove(log, entry)
                error = ErrorCode(error_code)
                effects = then(_APPEND_ERRORS.get(error, error))
            else:
                self._set(entry, planned)
                effects = then(ErrorCode.NONE)
            self._settle(entry)
            return effects

        record = transaction_record(
            entry.transactional_id, planned, server_version=self._settings.server_version
        )
        return Append(partition, (record,), ended, reserved_bytes)

    def _forget(self, partition: int, log: _LogPartition, old: list[_Entry]) -> Append:
        for entry in old:
            entry.is_moving = True

        def ended(error_code: int) -> TransactionEffects:
            for entry in old:
                if log.entries.get(entry.transactional_id) is entry:
                    entry.is_moving = False
                    if not error_code:
                        self._set(entry, None)
                        self._remove(log, entry)
                    self._settle(entry)
            return []

        return Append(partition, tuple(tombstone(entry.transactional_id) for entry in old), ended)

    def _set(self, entry: _Entry, transaction: Transaction | None) -> None:
        """Let the id be in this state, and watch over the timeout of an open transaction."""
        before, entry.current = entry.current, transaction
        entry.abort_pause_ms = RETRY_MS
        if transaction is None or transaction.timeout_left_ms(0) is None:
            self._drop_deadline(entry)
        elif (
            entry.deadline_ns == NO_DEADLINE or before is None or before.started_ms != transaction.started_ms
        ):
            left_ms = transaction.timeout_left_ms(self._clock.now_ms())
            assert left_ms is not None
            self._keep_deadline(entry, self._clock.monotonic_ns() + left_ms * NS_PER_MS)

    def _settle(self, entry: _Entry) -> None:
        """Say that the id takes requests again, if it does."""
        if self.settled is not None and not entry.is_in_transition:
            self.settled(entry.transactional_id)

    def _keep_deadline(self, entry: _Entry, deadline_ns: int) -> None:
        self._drop_deadline(entry)
        entry.deadline_ns = deadline_ns
        self._deadlines.add((deadline_ns, entry.transactional_id))

    def _drop_deadline(self, entry: _Entry) -> None:
        if entry.deadline_ns != NO_DEADLINE:
            self._deadlines.remove((entry.deadline_ns, entry.transactional_id))
            entry.deadline_ns = NO_DEADLINE

    def _new(self, log: _LogPartition, transactional_id: str) -> _Entry:
        entry = log.entries[transactional_id] = _Entry(transactional_id, None)
        self._count += 1
        return entry

    def _remove(self, log: _LogPartition, entry: _Entry) -> None:
        del log.entries[entry.transactional_id]
        self._count -= 1

    def _find(self, transactional_id: str) -> tuple[int, _LogPartition, _Entry | None]:
        partition = self._partition_of(transactional_id)
        log = self._logs.get(partition)
        if log is None:
            log = self._logs[partition] = _LogPartition()
        return partition, log, log.entries.get(transactional_id)


def _is_known(current: Transaction, expected: tuple[int, int]) -> bool:
    """Whether a client may raise the epoch of what it says that it has.

    Also right is the id before this one with its last epoch: the answer that carried the new id may have been lost.
    """
    producer_id, epoch = expected
    return producer_id == current.producer_id or (
        producer_id == current.previous_producer_id and epoch >= LAST_CLIENT_EPOCH
    )


def _is_next(current: Transaction, producer_id: int, producer_epoch: int) -> bool:
    """Whether a client speaks with the id that the answer to its EndTxn carried, while the old one is being completed.

    Kafka answers INVALID_PRODUCER_ID_MAPPING here, which is fatal for the producer.
    """
    return (
        current.next_producer_id != NO_PRODUCER_ID
        and producer_id == current.next_producer_id
        and producer_epoch == 0
    )


def _end_kind(
    current: Transaction, producer_id: int, producer_epoch: int, client_version: int
) -> EndKind | ErrorCode:
    if client_version < 2:
        if current.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return EndKind.V1 if producer_epoch == current.producer_epoch else ErrorCode.PRODUCER_FENCED
    is_overflowed = (
        current.previous_producer_id == producer_id
        and producer_epoch == LAST_CLIENT_EPOCH
        and current.producer_epoch == 0
    )
    if current.producer_id != producer_id and not is_overflowed:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if is_overflowed or current.producer_epoch == producer_epoch + 1:
        return EndKind.V2_RETRY
    return EndKind.V2 if producer_epoch == current.producer_epoch else ErrorCode.PRODUCER_FENCED


def _is_old(entry: _Entry, before_ms: int) -> bool:
    current = entry.current
    return (
        current is not None
        and not entry.is_in_transition
        and current.state is not TransactionState.ONGOING
        and current.updated_ms <= before_ms
    )


def _ask_again(then: AnsweredWithId) -> Answered:
    """An open transaction was in the way and is being aborted: the client has to come again."""
    return lambda error: then(error or ErrorCode.CONCURRENT_TRANSACTIONS, NO_PRODUCER_ID, NO_EPOCH)
