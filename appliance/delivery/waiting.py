"""A record that waits: how it lies in the internal topic of its level, and what is delivered of it.

It keeps its key, its value and its headers. One header is added, `__delayed`, with these fields in ASCII, in this order
and separated by commas:

    1 · topic id (hex) · partition · offset · due ms · timestamp ms · producer id · producer epoch · base sequence

`offset` is the one that the Produce answer named for the record; no record is there. The last three fields are those of
the batch in which it came, and -1 where its producer had none. A version other than 1 is not read.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from appliance.delivery.due import AT, CANCEL, DELAY, ID
from appliance.errors import ApplianceError
from appliance.protocol.records.record import Record

HEADER: Final = "__delayed"
TIMESTAMP: Final = "delivery.timestamp"
OFFSET: Final = "delivery.offset"
OVERHEAD_BYTES: Final = 256
"""What the added headers take at most."""

VERSION: Final = "1"
FIELDS: Final = 9
_REPLACED: Final = frozenset({AT, DELAY, HEADER, TIMESTAMP, OFFSET})


HANDED_BACK: Final = -2
"""In the place of the producer epoch: a consumer has handed the record back (`retries.handed_back`)."""


class NotWaiting(ApplianceError):
    """A record of an internal topic that no delayed record is."""


class Origin(NamedTuple):
    """The batch in which a record came: what recognizes the same batch when it is sent again.

    Of a record that was handed back it is a number that stands for the record, HANDED_BACK, and which time it was.
    """

    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1


class Waiting(NamedTuple):
    """A delayed record.

    `record` is as the producer sent it, `offset` the one that the producer was answered.
    """

    topic_id: UUID
    partition: int
    offset: int
    due_ms: int
    origin: Origin
    record: Record

    @property
    def delivery_id(self) -> bytes | None:
        """Return the id by which the record can be cancelled; None if it has none."""
        return _header(self.record, ID)

    @property
    def cancels(self) -> bytes | None:
        """Return the id of the records that this one cancels; None if it is one to deliver."""
        return _header(self.record, CANCEL)

    @property
    def delay_ms(self) -> int | None:
        """Return the delay that the producer asked for; None if it named a time."""
        if _header(self.record, AT) is not None:
            return None
        value = _header(self.record, DELAY)
        return int(value) if value is not None and value.isdigit() else None

    def to_record(self, now_ms: int) -> Record:
        """Return the record for the internal topic, with the time from which it waits there."""
        record = self.record
        added = (HEADER, self.fields())
        headers = tuple(each for each in record.headers if each[0] != HEADER)
        return Record(record.value, record.key, (*headers, added), now_ms)

    def fields(self) -> bytes:
        """Return the value of the header HEADER."""
        origin = self.origin
        fields = (
            VERSION,
            self.topic_id.hex,
            self.partition,
            self.offset,
            self.due_ms,
            self.record.timestamp_ms,
            origin.producer_id,
            origin.producer_epoch,
            origin.base_sequence,
        )
        return ",".join(map(str, fields)).encode()

    def to_deliver(self, now_ms: int) -> Record:
        """Return the record for the topic."""
        record = self.record
        headers = tuple(each for each in record.headers if each[0] not in _REPLACED)
        added = (
            (TIMESTAMP, str(record.timestamp_ms).encode()),
            (OFFSET, str(self.offset).encode()),
        )
        return Record(record.value, record.key, headers + added, now_ms)


def _header(record: Record, wanted: str) -> bytes | None:
    for name, value in record.headers:
        if name == wanted:
            return value
    return None


def waiting_of(record: Record) -> Waiting:
    """Return the delayed record that lies in an internal topic as `record`.

    Raises:
        NotWaiting: it has no such header, or one that is not understood.
    """
    for name, value in reversed(record.headers):
        if name == HEADER and value is not None:
            fields = value.decode("ascii", "replace").split(",")
            break
    else:
        raise NotWaiting(f"the record at offset {record.offset} has no header {HEADER}")
    try:
        if fields[0] != VERSION or len(fields) != FIELDS:
            raise ValueError(fields[0])
        topic_id = UUID(hex=fields[1])
        partition, offset, due, timestamp, producer_id, epoch, sequence = map(int, fields[2:])
    except ValueError:
        raise NotWaiting(
            f"the header {HEADER} of the record at offset {record.offset} is not understood"
        ) from None
    headers = tuple(each for each in record.headers if each[0] != HEADER)
    waiting = Waiting(
        topic_id,
        partition,
        offset,
        due,
        Origin(producer_id, epoch, sequence),
        Record(record.value, record.key, headers, timestamp),
    )
    delay_ms = waiting.delay_ms
    if delay_ms is None:
        return waiting
    # The clock can have been set back between the moment when the due time was computed and the one when the record was
    # stored. No more is left of a delay than all of it.
    return waiting._replace(due_ms=min(due, record.timestamp_ms + delay_ms))


def delay_partition(topic_id: UUID, partition: int, partitions: int) -> int:
    """Return which partition of the internal topics a partition of a topic uses; the same one on every level."""
    return (topic_id.int + partition) % partitions
