"""The batches of a read, with their records. Those of an aborted transaction have none."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from appliance.delivery.stored import Stored, one_stored, read_stored
from appliance.errors import ApplianceError
from appliance.log.chunks import Batch
from appliance.log.transaction_index import AbortedTransaction
from appliance.partition_access.access import Read
from appliance.protocol.records.batch import (
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_PRODUCER_ID,
    RECORDS,
    TRANSACTIONAL,
    read_header,
)
from appliance.protocol.records.record import Record, decode_records
from appliance.protocol.records.varint import read_varint


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


class StoredBatch(NamedTuple):
    """`next_offset` is the one behind the batch; `unread`: how many records are no delayed ones."""

    records: list[Stored]
    next_offset: int
    unread: int


def stored_of(read: Read) -> Iterator[StoredBatch]:
    """Yield the delayed records of each batch; none for a batch that has none, as `records_of`."""
    for chunk in read.chunks:
        for batch in chunk.batches:
            records: list[Stored] = []
            unread = 0
            if not batch.is_control and not (read.aborted and _is_aborted(batch, read.aborted)):
                with suppress(ApplianceError):
                    records, unread = read_stored(memoryview(chunk.data)[batch.position : batch.end])
            yield StoredBatch(records, batch.last_offset + 1, unread)


def wanted_of(read: Read, offsets: list[int]) -> tuple[list[Stored], int]:
    """Return the delayed records at these ascending offsets, and the offset behind the last batch that was read.

    A batch must not be compressed, as those of the internal topics are not. One that cannot be read has no records.
    """
    found: list[Stored] = []
    end = 0
    for chunk in read.chunks:
        for batch in chunk.batches:
            end = batch.last_offset + 1
            first = bisect_left(offsets, batch.header[H_BASE_OFFSET])
            wanted = offsets[first : bisect_left(offsets, end, first)]
            if wanted and not batch.is_control:
                with suppress(ApplianceError):
                    found += _some_of(memoryview(chunk.data)[batch.position : batch.end], wanted)
    return found, end


def _some_of(batch: memoryview, wanted: list[int]) -> list[Stored]:
    header = read_header(batch)
    data, at, number = bytes(batch[RECORDS:]), 0, 0
    found = []
    for offset in wanted:
        length, body = read_varint(data, at)
        while number < offset - header.base_offset:
            at = body + length
            length, body = read_varint(data, at)
            number += 1
        stored = one_stored(data[at : body + length], header)
        if stored is not None:
            found.append(stored)
    return found


def _is_aborted(batch: Batch, aborted: tuple[AbortedTransaction, ...]) -> bool:
    header = batch.header
    producer_id, offset = header[H_PRODUCER_ID], header[H_BASE_OFFSET]
    return bool(header[H_ATTRIBUTES] & TRANSACTIONAL) and any(
        each.producer_id == producer_id and each.first_offset <= offset <= each.last_offset
        for each in aborted
    )
