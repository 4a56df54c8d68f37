"""A transaction as its last committed record says, and the transitions between two of them.

A `Transaction` is frozen. Each function returns the next one; nothing is changed until the caller has committed the
record that stands for it.

How ids and epochs go on, with the epoch that the client sees:

    InitProducerId                    epoch + 1; at 32,766 a new producer id with epoch 0
    EndTxn up to 4                    epoch stays
    EndTxn 5                          epoch + 1; at 32,766 the markers carry 32,767 and the next transaction has a new
                                      producer id with epoch 0
    fence (timeout, a successor)      epoch + 1, which the client never sees; 32,767 stays 32,767

32,767 is left out for clients so that a producer can always be fenced.

Source: `TransactionMetadata.java` of Apache Kafka 4.3; KIP-360, KIP-890.
"""

from __future__ import annotations

from typing import Final

import msgspec

from appliance.cluster import TopicPartition
from appliance.control.coordinator.transaction.transaction_state import EndKind, TransactionState
from appliance.protocol.errors import ErrorCode

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
EPOCH_MAX: Final = 32_767
LAST_CLIENT_EPOCH: Final = EPOCH_MAX - 1
"""The highest epoch that a client is given."""
TWO_PHASE_COMMIT_TIMEOUT_MS: Final = 2**31 - 1
"""The timeout of a transaction that an outside coordinator ends (KIP-939). It never times out."""

_NO_PARTITIONS: Final[frozenset[TopicPartition]] = frozenset()


class Transaction(msgspec.Struct, frozen=True):
    """What is known of a transactional id.

    `last_epoch` is the epoch that the producer had before its last InitProducerId; it lies in memory only, so a
    repeated InitProducerId is refused after a move of the coordinator, as by Kafka. `client_version` is the
    `transaction.version` that the client spoke at the last transition. Times are wall-clock ms; `started_ms` is when
    the first partition was added.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = _NO_PARTITIONS
    started_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    last_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no further epoch for a client."""
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    def timeout_left_ms(self, now_ms: int) -> int | None:
        """Return how much of an open transaction's timeout is left; None if nothing is open or it has no timeout."""
        if self.state is not TransactionState.ONGOING or self.timeout_ms == TWO_PHASE_COMMIT_TIMEOUT_MS:
            return None
        return min(max(self.started_ms + self.timeout_ms - now_ms, 0), self.timeout_ms)


def initialized(
    old: Transaction | None, producer_id: int, epoch: int, last_epoch: int, *, timeout_ms: int, now_ms: int
) -> Transaction:
    """Return the state after InitProducerId: Empty, with this id and epoch."""
    return Transaction(
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=timeout_ms,
        updated_ms=now_ms,
        last_epoch=last_epoch,
        previous_producer_id=NO_PRODUCER_ID if old is None else old.producer_id,
        client_version=0 if old is None else old.client_version,
    )


def with_partitions(
    old: Transaction, added: frozenset[TopicPartition], *, client_version: int, now_ms: int
) -> Transaction:
    """Return the state after partitions were added: Ongoing."""
    is_open = old.state is TransactionState.ONGOING
    return msgspec.structs.replace(
        old,
        state=TransactionState.ONGOING,
        partitions=old.partitions | added,
        started_ms=old.started_ms if is_open else now_ms,
        updated_ms=now_ms,
        previous_producer_id=old.producer_id,
        client_version=client_version,
    )


def ended(
    old: Transaction, *, commit: bool, client_version: int, next_producer_id: int, now_ms: int
) -> Transaction:
    """Return the state after EndTxn: PrepareCommit or PrepareAbort.

    `next_producer_id` is the id of the next transaction if version 2 has used up the epochs of this one, else -1. A
    transaction of version 2 may be aborted before a partition was added; it then starts where it ends.
    """
    epoch, last_epoch = old.producer_epoch, old.last_epoch
    if client_version >= 2:
        epoch, last_epoch = min(epoch + 1, EPOCH_MAX), epoch
    is_open = old.state is TransactionState.ONGOING
    return msgspec.structs.replace(
        old,
        state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
        producer_epoch=epoch,
        last_epoch=last_epoch,
        started_ms=old.started_ms if is_open else now_ms,
        updated_ms=now_ms,
        previous_producer_id=old.producer_id,
        next_producer_id=next_producer_id,
        client_version=client_version,
    )


def fenced(old: Transaction, *, server_version: int, now_ms: int) -> Transaction:
    """Return the state after an open transaction was taken from its producer: PrepareAbort, one epoch higher.

    The epoch is raised once with either version. `server_version` is the `transaction.version` of this broker, because
    no client speaks here.
    """
    return msgspec.structs.replace(
        old,
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=min(old.producer_epoch + 1, EPOCH_MAX),
        last_epoch=old.producer_epoch if server_version >= 2 else NO_EPOCH,
        updated_ms=now_ms,
        previous_producer_id=old.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        client_version=server_version,
    )


def completed(old: Transaction, *, now_ms: int) -> Transaction:
    """Return the state after every partition has its marker: CompleteCommit or CompleteAbort."""
    rotates = old.client_version >= 2 and old.next_producer_id != NO_PRODUCER_ID
    return msgspec.structs.replace(
        old,
        state=(
            TransactionState.COMPLETE_COMMIT
            if old.state is TransactionState.PREPARE_COMMIT
            else TransactionState.COMPLETE_ABORT
        ),
        producer_id=old.next_producer_id if rotates else old.producer_id,
        producer_epoch=0 if rotates else old.producer_epoch,
        partitions=_NO_PARTITIONS,
        updated_ms=now_ms,
        previous_producer_id=old.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def is_known(current: Transaction, expected: tuple[int, int]) -> bool:
    """Whether a client may raise the epoch of what it says that it has.

    Also right is the id before this one with its last epoch: the answer that carried the new id may have been lost.
    """
    producer_id, epoch = expected
    return producer_id == current.producer_id or (
        producer_id == current.previous_producer_id and epoch >= LAST_CLIENT_EPOCH
    )


def is_next(current: Transaction, producer_id: int, producer_epoch: int) -> bool:
    """Whether a client speaks with the id that the answer to its EndTxn carried, while the old one is being completed.

    Kafka answers INVALID_PRODUCER_ID_MAPPING here, which is fatal for the producer.
    """
    return (
        current.next_producer_id != NO_PRODUCER_ID
        and producer_id == current.next_producer_id
        and producer_epoch == 0
    )


def end_kind(
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
