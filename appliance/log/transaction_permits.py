"""Who may open a transaction in one partition: what the transaction coordinator has said, in memory only.

    coordinator: permit(7, epoch 3)  ──→  [7: epoch 3]
    producer 7: first batch, epoch 3 ──→  appended; the permit is used up, and the open transaction admits the rest
    coordinator: marker of 7         ──→  appended; a permit that was left is taken away

Without a permit the first batch is refused as NOT_PERMITTED. Its network process asks the coordinator, which sends the
permit again if the partition belongs to the producer's open transaction. So a lost permit costs a question and no more:
permits go with the leadership, and the oldest one goes where a partition has PERMITS_MAX of them.

Permits and markers come over one ring, in the order of the coordinator's decisions. A permit of a transaction that has
ended is therefore never left, and a late batch of a dead producer cannot open a transaction that nobody will end.

A refused batch leaves its sequence number here. As long as nothing was appended, no higher one of the same epoch may be
first, because a partition that knows no batch of the producer takes any sequence number as its first. Else the lower
one, sent again, would be out of order for ever.

Apache Kafka has a guard object instead, made before the question and compared after it: `VerificationStateEntry.java`,
`UnifiedLog.maybeStartTransactionVerification` (KIP-890).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from appliance.errors import RejectedRequest
from appliance.protocol.errors import ErrorCode

PERMITS_MAX: Final = 10_000
"""Of one partition: about 2 MB."""


class Admission(Enum):
    """What lets a transactional batch of a client in.

    NOTHING: its request names no transactional id. OPEN: an open transaction does; nobody has said yet that the id is
    the producer's, so a permit does not. PERMIT: both do.
    """

    NOTHING = "nothing"
    OPEN = "open transaction"
    PERMIT = "permit"


class NotPermitted(RejectedRequest):
    """INVALID_TXN_STATE of a transactional batch whose producer has no transaction open, and no permit to open one."""

    def __init__(self, producer_id: int, epoch: int) -> None:
        super().__init__(
            ErrorCode.INVALID_TXN_STATE,
            f"producer {producer_id} has no transaction of epoch {epoch} open on this partition",
        )


class _Entry:
    """Of one producer. `lowest_sequence`: of batches that were refused, -1 where none was."""

    __slots__ = ("epoch", "is_permitted", "lowest_sequence")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.is_permitted = False
        self.lowest_sequence = -1


class TransactionPermits:
    """Those of one partition. All calls are O(1)."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def permit(self, producer_id: int, epoch: int) -> None:
        """The producer's transaction in this epoch includes the partition. An older epoch than the known one does not
        count."""
        entry = self._of(producer_id, epoch)
        if entry.epoch == epoch:
            entry.is_permitted = True

    def allows(self, producer_id: int, epoch: int) -> bool:
        entry = self._entries.get(producer_id)
        return entry is not None and entry.is_permitted and entry.epoch == epoch

    def refused(self, producer_id: int, epoch: int, sequence: int) -> None:
        """A batch was refused for want of a permit."""
        entry = self._of(producer_id, epoch)
        if entry.epoch == epoch and (entry.lowest_sequence < 0 or sequence < entry.lowest_sequence):
            entry.lowest_sequence = sequence

    def lowest_refused(self, producer_id: int, epoch: int) -> int:
        """Return the lowest sequence number that was refused, -1 where none was."""
        entry = self._entries.get(producer_id)
        return -1 if entry is None or entry.epoch != epoch else entry.lowest_sequence

    def appended(self, producer_id: int) -> None:
        """A batch of the producer's transaction is in the log: from now on that counts."""
        self._entries.pop(producer_id, None)

    def ended(self, producer_id: int, marker_epoch: int, *, transaction_version: int) -> None:
        """A marker is in the log. From version 2 on, refused batches of its epoch stay known: the next transaction has
        that epoch."""
        entry = self._entries.get(producer_id)
        if entry is None:
            return
        if transaction_version >= 2 and entry.epoch == marker_epoch and entry.lowest_sequence >= 0:
            entry.is_permitted = False
        else:
            del self._entries[producer_id]

    def _of(self, producer_id: int, epoch: int) -> _Entry:
        entries = self._entries
        entry = entries.get(producer_id)
        if entry is None:
            if len(entries) >= PERMITS_MAX:
                del entries[next(iter(entries))]
            entry = entries[producer_id] = _Entry(epoch)
        elif epoch > entry.epoch:
            entry.epoch = epoch
            entry.is_permitted = False
            entry.lowest_sequence = -1
        return entry
