"""Bounded reads of one log, as steps of an errand.

A log that cannot be read now gives no batch; the next round goes on.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final, NamedTuple

from appliance.errors import ApplianceError
from appliance.message_audit.batches import Header
from appliance.partition_access.access import Read
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import H_BASE_OFFSET, H_LAST_OFFSET_DELTA
from appliance.protocol.records.record import Record, decode_records
from appliance.services.errand import Reading, Step

HEADERS_BYTES: Final = 64 << 20
RECORDS_BYTES: Final = 1 << 20
"""Of how much of a log a step reads the headers of batches, or whole batches."""

_OUT_OF_RANGE: Final = int(ErrorCode.OFFSET_OUT_OF_RANGE)


class ReadBatch:
    """A batch: its header, and its bytes unless only headers were read."""

    __slots__ = ("_records", "data", "header", "is_unread")

    def __init__(self, header: Header, data: memoryview | None = None) -> None:
        self.header = header
        self.data = data
        self.is_unread = False
        self._records: list[Record] | None = None

    @property
    def records(self) -> list[Record]:
        """The records; none if only headers were read, or if the batch cannot be decoded: then `is_unread`."""
        if self._records is None:
            self._records = []
            if self.data is not None:
                try:
                    self._records = decode_records(self.data)
                except ApplianceError:
                    self.is_unread = True
        return self._records

    @property
    def first(self) -> int:
        return self.header[H_BASE_OFFSET]

    @property
    def end(self) -> int:
        return self.header[H_BASE_OFFSET] + self.header[H_LAST_OFFSET_DELTA] + 1


class Stretch(NamedTuple):
    """Batches that a read has found. `log_start` is above the offset if retention has removed what was asked for."""

    batches: list[ReadBatch]
    log_start: int
    is_failed: bool = False


def read_stretch(
    place: LogPlace, offset: int, *, headers_only: bool, bytes_max: int = HEADERS_BYTES
) -> Generator[Step, Any, Stretch]:
    """Read once, from `offset` on: of at most `bytes_max`, or one batch."""
    read: Read = yield Reading(
        place, offset, min(bytes_max, HEADERS_BYTES if headers_only else RECORDS_BYTES), headers_only
    )
    if read.error == _OUT_OF_RANGE and read.log_start > offset:
        return Stretch([], read.log_start)
    if read.error or read.replaced:
        return Stretch([], -1, is_failed=True)
    return Stretch([each for each in batches_of(read) if each.end > offset], read.log_start)


def batches_of(read: Read) -> Iterator[ReadBatch]:
    """Return the batches of an answer."""
    for header in read.headers:
        yield ReadBatch(header)
    for chunk in read.chunks:
        view = memoryview(chunk.data)
        for batch in chunk.batches:
            yield ReadBatch(batch.header, view[batch.position : batch.end])
