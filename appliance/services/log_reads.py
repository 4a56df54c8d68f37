"""Bounded reads of one log, as steps of an errand.

A log that cannot be read now gives no batch; the next round goes on.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple

from appliance.errors import ApplianceError
from appliance.message_audit.runs import Header
from appliance.partition_access.access import Read
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import (
    H_BASE_OFFSET,
    H_BATCH_LENGTH,
    H_LAST_OFFSET_DELTA,
    LOG_OVERHEAD,
)
from appliance.protocol.records.record import Record, decode_records
from appliance.services.errand import Reading, Step

HEADERS_BYTES: Final = 64 << 20
RECORDS_BYTES: Final = 1 << 20
"""Of how much of a log a step reads the headers of batches, or whole batches. More of them at once take longer, because
they do not fit a processor's cache."""

_OUT_OF_RANGE: Final = int(ErrorCode.OFFSET_OUT_OF_RANGE)


class ReadBatch:
    """A batch, `data[position:end]`, and its header."""

    __slots__ = ("_records", "bytes_end", "data", "end", "header", "is_unread", "position")

    def __init__(self, header: Header, data: bytes, position: int, bytes_end: int) -> None:
        self.header = header
        self.data = data
        self.position = position
        self.bytes_end = bytes_end
        self.end = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
        self.is_unread = False
        self._records: list[Record] | None = None

    @property
    def view(self) -> memoryview:
        """The bytes of the batch."""
        return memoryview(self.data)[self.position : self.bytes_end]

    @property
    def records(self) -> list[Record]:
        """The records; none if the batch cannot be decoded: then `is_unread`."""
        if self._records is None:
            try:
                self._records = decode_records(self.view)
            except ApplianceError:
                self._records = []
                self.is_unread = True
        return self._records

    @property
    def first(self) -> int:
        return self.header[H_BASE_OFFSET]


def end_of(header: Header) -> int:
    """Return the offset behind the last record of a batch."""
    return header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1


def within(headers: Sequence[Header], end: int, left_bytes: int, *, is_first: bool) -> tuple[int, int]:
    """Return the end of those batches that fit into `left_bytes`, at most `end`, and what is left of the bytes.

    Args:
        is_first: the first batch counts, even if it is larger.
    """
    for header in headers:
        if header[H_BASE_OFFSET] >= end:
            break
        left_bytes -= header[H_BATCH_LENGTH] + LOG_OVERHEAD
        if left_bytes < 0 and not is_first:
            return min(end, header[H_BASE_OFFSET]), 0
        is_first = False
    return end, max(left_bytes, 0)


class Stretch(NamedTuple):
    """What a read has found. `log_start` is above the offset if retention has removed what was asked for.

    `headers` of all batches, in order; `batches` are the same ones, unless only headers were read.
    """

    headers: Sequence[Header]
    batches: Sequence[ReadBatch]
    log_start: int

    def below(self, limit: int) -> Stretch:
        """Return the batches that end at or below an offset."""
        count = len(self.headers)
        while count and end_of(self.headers[count - 1]) > limit:
            count -= 1
        if count == len(self.headers):
            return self
        return Stretch(self.headers[:count], self.batches[:count], self.log_start)


def read_stretch(
    place: LogPlace, offset: int, *, headers_only: bool, bytes_max: int | None = None
) -> Generator[Step, Any, Stretch]:
    """Read once, from `offset` on: of at most `bytes_max`, or one batch."""
    if bytes_max is None:
        bytes_max = HEADERS_BYTES if headers_only else RECORDS_BYTES
    read: Read = yield Reading(place, offset, bytes_max, headers_only)
    if read.error == _OUT_OF_RANGE and read.log_start > offset:
        return Stretch((), (), read.log_start)
    if read.error or read.replaced:
        return Stretch((), (), -1)
    if headers_only:
        headers = read.headers
        # A read begins with the batch that has the offset, which the index may not point at exactly.
        before = 0
        while before < len(headers) and end_of(headers[before]) <= offset:
            before += 1
        return Stretch(headers[before:] if before else headers, (), read.log_start)
    batches = [
        ReadBatch(batch.header, chunk.data, batch.position, batch.end)
        for chunk in read.chunks
        for batch in chunk.batches
        if end_of(batch.header) > offset
    ]
    return Stretch([each.header for each in batches], batches, read.log_start)
