"""The producers of one log: whether a batch may be appended, what is remembered of it, and the snapshots of that.

    check  ──→  append  ──→  take            a batch that is refused, or repeats another, is not appended
    roll, close ──→ take_snapshot            so that the next opening reads only the batches after it
    cut ──→ reload                           from the newest snapshot that is left, and the batches after it

What is known of each producer stands in `producer_state`. Source: `ProducerStateManager.java`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from appliance.errors import RejectedRequest
from appliance.log.producer_recall import recall
from appliance.log.producer_replay import replay
from appliance.log.producer_state import AppendOrigin, Producers, RememberedBatch
from appliance.log.segment import Segment
from appliance.log.segment_file import Header
from appliance.log.snapshots import Snapshots
from appliance.log.transaction_index import AbortedTransaction
from appliance.log.transaction_permits import Admission, NotPermitted, TransactionPermits
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import (
    CONTROL,
    H_ATTRIBUTES,
    H_BASE_SEQUENCE,
    H_BATCH_LENGTH,
    H_LAST_OFFSET_DELTA,
    H_MAGIC,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC_V2,
    NO_SEQUENCE,
    SEQUENCE_MAX,
    TRANSACTIONAL,
)
from appliance.protocol.records.control import EndTransactionMarker

_EXPIRY_CHECK_MS: Final = 600_000


def without_producer_id() -> RejectedRequest:
    """Return the refusal of a client's transactional batch that no producer has sent."""
    return RejectedRequest(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch without a producer id"
    )


def _without_transactional_id(producer_id: int) -> RejectedRequest:
    return RejectedRequest(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        f"a transactional batch of producer {producer_id} in a request without a transactional id",
    )


class LogProducers:
    """`state` is what is known of each; it is another object after `reload` and `begin_anew`.

    Of most logs nothing is: many producers say no id, and most partitions are silent. So it is made when there is one.
    """

    __slots__ = ("_known", "_next_expiry_ms", "_permits", "_snapshots")

    def __init__(self, state: Producers, snapshots: Snapshots, *, now_ms: int) -> None:
        self._known: Producers | None = None if state.is_blank else state
        self._permits: TransactionPermits | None = None
        self._snapshots = snapshots
        self._next_expiry_ms = now_ms + _EXPIRY_CHECK_MS

    def __len__(self) -> int:
        return 0 if self._known is None else len(self._known)

    @property
    def state(self) -> Producers:
        known = self._known
        if known is None:
            known = self._known = Producers()
        return known

    @property
    def first_open_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        return None if self._known is None else self._known.first_open_offset

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """As that of `Producers`."""
        return None if self._known is None else self._known.first_unstable_offset(high_watermark)

    @property
    def permits(self) -> TransactionPermits:
        """Who may open a transaction."""
        permits = self._permits
        if permits is None:
            permits = self._permits = TransactionPermits()
        return permits

    def check(
        self,
        header: Header,
        origin: AppendOrigin,
        *,
        transaction_verified: bool,
        transaction_version: int,
        admission: Admission,
    ) -> RememberedBatch | None:
        """Refuses a data batch that may not follow; the remembered batch that this one repeats, if it does.

        A batch that repeats one of a transaction that has ended is refused for want of a permit like any other.

        Raises:
            RejectedRequest: see `Producers.check_batch`; a client's transactional batch that nothing admits.
            NotPermitted: transactional, without an open transaction of this epoch and without a permit.
        """
        producer_id, epoch, sequence = (
            header[H_PRODUCER_ID],
            header[H_PRODUCER_EPOCH],
            header[H_BASE_SEQUENCE],
        )
        state = self.state
        is_clients = origin is AppendOrigin.CLIENT
        transactional = bool(header[H_ATTRIBUTES] & TRANSACTIONAL)
        if transactional and is_clients and admission is Admission.NOTHING:
            raise _without_transactional_id(producer_id)
        found: RememberedBatch | None = None
        if is_clients:
            found = state.duplicate_of(
                producer_id,
                epoch,
                first_sequence=sequence,
                last_sequence=(sequence + header[H_LAST_OFFSET_DELTA]) & SEQUENCE_MAX,
            )
        is_first = transactional and not state.in_transaction(producer_id, epoch)
        if is_first and not transaction_verified:
            # The sequence number of a batch that is in the log is not due, so it is not kept.
            self._check_permit(
                producer_id,
                epoch,
                sequence if is_clients and found is None else NO_SEQUENCE,
                admits=admission is Admission.PERMIT,
            )
        if found is not None:
            return found
        if is_first and is_clients:
            self._check_first(producer_id, epoch, sequence, transaction_version=transaction_version)
        state.check_batch(
            producer_id, epoch, first_sequence=sequence, transactional=transactional, origin=origin
        )
        return None

    def check_admission(
        self,
        batch: memoryview,
        rejected: RejectedRequest,
        *,
        transaction_verified: bool,
        admission: Admission,
    ) -> None:
        """Refuse a client's transactional batch that nothing admits, although it is wrong in itself too.

        Apache Kafka asks the transaction coordinator before it reads a batch, so a batch that is outside of its
        transaction and too large gets the error of the transaction. A batch that is admitted leaves its sequence number
        as a refused one does: the producer may send it again, and a later one must not be first.

        Args:
            rejected: what is wrong with the batch. A damaged one that is not admitted leaves no sequence number,
                because its epoch may be what is damaged.

        Raises:
            RejectedRequest, NotPermitted: as `check`.
        """
        if len(batch) < HEADER_BYTES:
            return
        header: Header = HEADER.unpack_from(batch)
        if (
            header[H_MAGIC] != MAGIC_V2
            or header[H_BATCH_LENGTH] + LOG_OVERHEAD != len(batch)
            or not header[H_ATTRIBUTES] & TRANSACTIONAL
        ):
            return
        producer_id, epoch, sequence = (
            header[H_PRODUCER_ID],
            header[H_PRODUCER_EPOCH],
            header[H_BASE_SEQUENCE],
        )
        if producer_id < 0:
            raise without_producer_id()
        if admission is Admission.NOTHING:
            raise _without_transactional_id(producer_id)
        state = self.state
        if state.in_transaction(producer_id, epoch):
            return
        last_sequence = (sequence + header[H_LAST_OFFSET_DELTA]) & SEQUENCE_MAX
        is_due = (
            sequence >= 0
            and state.duplicate_of(producer_id, epoch, first_sequence=sequence, last_sequence=last_sequence)
            is None
        )
        if not transaction_verified:
            is_sound = rejected.code is not ErrorCode.CORRUPT_MESSAGE
            self._check_permit(
                producer_id,
                epoch,
                sequence if is_due and is_sound else NO_SEQUENCE,
                admits=admission is Admission.PERMIT,
            )
        if is_due:
            self.permits.refused(producer_id, epoch, sequence)

    def _check_permit(self, producer_id: int, epoch: int, sequence: int, *, admits: bool) -> None:
        """Refuses a batch that would open a transaction, unless there is a permit and it `admits`.

        Source: `UnifiedLog.analyzeAndValidateProducerState`.
        """
        self.state.check_epoch(producer_id, epoch)
        permits = self._permits
        if admits and permits is not None and permits.allows(producer_id, epoch):
            return
        if sequence >= 0:
            self.permits.refused(producer_id, epoch, sequence)
        raise NotPermitted(producer_id, epoch)

    def _check_first(self, producer_id: int, epoch: int, sequence: int, *, transaction_version: int) -> None:
        """Refuses a client's first batch of a transaction that is out of order.

        Source: `ProducerAppendInfo.checkSequence`.
        """
        state = self.state
        state.check_epoch(producer_id, epoch)
        permits = self._permits
        if transaction_version >= 2 and sequence != 0 and not state.has_batches(producer_id):
            raise RejectedRequest(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id}, of whom nothing is known, sent sequence {sequence} first",
            )
        lowest = -1 if permits is None else permits.lowest_refused(producer_id, epoch)
        if 0 <= lowest < sequence:
            raise RejectedRequest(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} epoch {epoch} sent sequence {sequence}; {lowest}, refused before, is due",
            )

    def take(
        self,
        header: Header,
        marker: EndTransactionMarker | None,
        *,
        base_offset: int,
        max_timestamp_ms: int,
        transaction_version: int = 0,
    ) -> AbortedTransaction | None:
        """Remembers what was appended at `base_offset`; the transaction that it has aborted, for the index."""
        state = self.state
        if marker is None:
            if header[H_ATTRIBUTES] & CONTROL:
                return None
            sequence = header[H_BASE_SEQUENCE]
            if self._permits is not None and header[H_ATTRIBUTES] & TRANSACTIONAL:
                self._permits.appended(header[H_PRODUCER_ID])
            state.add_batch(
                header[H_PRODUCER_ID],
                header[H_PRODUCER_EPOCH],
                last_sequence=(sequence + header[H_LAST_OFFSET_DELTA]) & SEQUENCE_MAX
                if sequence >= 0
                else NO_SEQUENCE,
                last_offset=base_offset + header[H_LAST_OFFSET_DELTA],
                offset_delta=header[H_LAST_OFFSET_DELTA],
                timestamp_ms=max_timestamp_ms,
                transactional=bool(header[H_ATTRIBUTES] & TRANSACTIONAL),
            )
            return None
        if self._permits is not None:
            self._permits.ended(
                header[H_PRODUCER_ID], header[H_PRODUCER_EPOCH], transaction_version=transaction_version
            )
        completed = state.add_marker(
            header[H_PRODUCER_ID],
            header[H_PRODUCER_EPOCH],
            marker=marker,
            offset=base_offset,
            timestamp_ms=max_timestamp_ms,
        )
        return None if completed is None or completed.committed else state.aborted(completed)

    def expire(self, now_ms: int, *, expiration_ms: int) -> None:
        """Forgets producers that were silent for `producer.id.expiration.ms`."""
        if self._known is not None:
            self._known.expire(now_ms, expiration_ms=expiration_ms)

    def take_snapshot(self, offset: int, *, now_ms: int, expiration_ms: int) -> Path | None:
        """Writes the state as of `offset`, the log end; None if there is one, or if it failed (`Snapshots.take`)."""
        if now_ms >= self._next_expiry_ms:
            self._next_expiry_ms = now_ms + _EXPIRY_CHECK_MS
            self.expire(now_ms, expiration_ms=expiration_ms)
        return self._snapshots.take(self._known or Producers(), offset)

    def reload(self, segments: Iterable[Segment], log_start: int, log_end: int) -> None:
        """The log was cut: what is left of it says who its producers are.

        Raises:
            StorageFault, CorruptFile: it cannot be read.
        """
        left = list(segments)
        self._permits = None
        self._snapshots.drop_outside(log_start, log_end)
        self._known, start = self._snapshots.load_newest(log_start)
        recall(self._known, left, start)
        replay(self._known, left, start)

    def begin_anew(self, offset: int) -> None:
        """Nothing is left of the log, which goes on at `offset`.

        Raises:
            StorageFault: snapshots of before could not be removed.
        """
        self._known = self._permits = None
        self._snapshots.newest = offset
        self._snapshots.drop_outside(offset, offset)
