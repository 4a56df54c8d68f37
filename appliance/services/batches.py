"""The batches of a read, with their records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from appliance.errors import ApplianceError
from appliance.partition_access.access import Read
from appliance.protocol.records.record import Record, decode_records


class ReadBatch(NamedTuple):
    """`next_offset` is the one behind the batch."""

    records: list[Record]
    next_offset: int


def records_of(read: Read) -> Iterator[ReadBatch]:
    """Yield each batch. A control batch, or one that cannot be read, has no records here."""
    for chunk in read.chunks:
        for batch in chunk.batches:
            records: list[Record] = []
            if not batch.is_control:
                try:
                    records = decode_records(memoryview(chunk.data)[batch.position : batch.end])
                except ApplianceError:
                    records = []
            yield ReadBatch(records, batch.last_offset + 1)
