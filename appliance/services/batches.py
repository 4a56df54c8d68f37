"""The batches of a read, with their records. Those of an aborted transaction have none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from appliance.errors import ApplianceError
from appliance.log.chunks import Batch
from appliance.log.transaction_index import AbortedTransaction
from appliance.partition_access.access import Read
from appliance.protocol.records.batch import H_ATTRIBUTES, H_BASE_OFFSET, H_PRODUCER_ID, TRANSACTIONAL
from appliance.protocol.records.record import Record, decode_records


class ReadBatch(NamedTuple):
    """`next_offset` is the one behind the batch."""

    records: list[Record]
    next_offset: int


def records_of(read: Read) -> Iterator[ReadBatch]:
    """Yield each batch. A control batch, one of an aborted transaction, or one that cannot be read, is empty."""
    for chunk in read.chunks:
        for batch in chunk.batches:
            records: list[Record] = []
            if not batch.is_control and not (read.aborted and _is_aborted(batch, read.aborted)):
                try:
                    records = decode_records(memoryview(chunk.data)[batch.position : batch.end])
                except ApplianceError:
                    records = []
            yield ReadBatch(records, batch.last_offset + 1)


def _is_aborted(batch: Batch, aborted: tuple[AbortedTransaction, ...]) -> bool:
    header = batch.header
    producer_id, offset = header[H_PRODUCER_ID], header[H_BASE_OFFSET]
    return bool(header[H_ATTRIBUTES] & TRANSACTIONAL) and any(
        each.producer_id == producer_id and each.first_offset <= offset <= each.last_offset
        for each in aborted
    )
