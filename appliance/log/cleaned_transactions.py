"""What becomes of transactions while a log is compacted: whose batches go, and which markers may follow them.

| batch                                   | its records     | note                                                    |
|-----------------------------------------|-----------------|---------------------------------------------------------|
| of an aborted transaction               | go              | and the transaction still has a batch here              |
| of a committed or no transaction        | by their keys   |                                                         |
| commit marker, a batch was seen         | stays           |                                                         |
| commit marker, none was seen            | may go          | after `delete.retention.ms`, like a tombstone           |
| abort marker, a batch was seen          | stays           | the transaction goes into the new `.txnindex`           |
| abort marker, none was seen             | may go          | after `delete.retention.ms`                             |
| control batch without a record          | may go          | it was emptied before                                   |
| control batch of another type           | stays           |                                                         |

A marker outlives all batches of its transaction, the emptied ones too: a transactional batch without its marker would
be an open transaction to whoever reads the log anew. So a marker may go one cleaning after the last batch went.

Batches come in offset order. Source: `LogCleaner.scala`, CleanedTransactionMetadata; KIP-98, KIP-534.
"""

from __future__ import annotations

from collections.abc import Iterable

from appliance.log.segment_file import Header
from appliance.log.transaction_index import AbortedTransaction
from appliance.protocol.records.batch import (
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_PRODUCER_ID,
    TRANSACTIONAL,
)
from appliance.protocol.records.control import ControlType, control_type
from appliance.protocol.records.record import Record


class _Ongoing:
    """An aborted transaction between its first offset and its marker."""

    __slots__ = ("has_batch", "transaction")

    def __init__(self, transaction: AbortedTransaction) -> None:
        self.transaction = transaction
        self.has_batch = False


class CleanedTransactions:
    """Follows the transactions of the batches it is shown.

    Args:
        aborted: every aborted transaction that has a part, batch or marker, in what will be shown.
    """

    __slots__ = ("_aborted", "_committing", "_kept", "_ongoing")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._ongoing: dict[int, _Ongoing] = {}
        self._committing: set[int] = set()
        self._kept: list[AbortedTransaction] = []

    def is_aborted(self, header: Header) -> bool:
        """Shows a batch of records; whether they go because their transaction was aborted."""
        self._begin_up_to(header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA])
        if not header[H_ATTRIBUTES] & TRANSACTIONAL:
            return False
        transaction = self._ongoing.get(header[H_PRODUCER_ID])
        if transaction is None:
            self._committing.add(header[H_PRODUCER_ID])
            return False
        transaction.has_batch = True
        return True

    def may_go(self, header: Header, records: Iterable[Record]) -> bool:
        """Shows a control batch with its records; whether nothing needs it any more."""
        self._begin_up_to(header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA])
        for record in records:
            kind = control_type(record.key)
            if kind == ControlType.ABORT:
                return self._end_aborted(header[H_PRODUCER_ID])
            if kind == ControlType.COMMIT:
                if header[H_PRODUCER_ID] not in self._committing:
                    return True
                self._committing.remove(header[H_PRODUCER_ID])
            return False
        return True

    def _end_aborted(self, producer_id: int) -> bool:
        found = self._ongoing.pop(producer_id, None)
        if found is None or not found.has_batch:
            return True
        self._kept.append(found.transaction)
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._aborted and self._aborted[-1].first_offset <= offset:
            transaction = self._aborted.pop()
            self._ongoing.setdefault(transaction.producer_id, _Ongoing(transaction))

    def take_kept(self) -> list[AbortedTransaction]:
        """Aborted transactions whose markers were shown since the last call and stay: entries of the new index."""
        kept, self._kept = self._kept, []
        return kept
