"""Delayed records as they lie in internal topics, read without a `Record` for any of them.

    record in a log = length · attributes · timestamp delta · offset delta · tail
    tail            = key · value · headers

A delivery needs the tail with other headers, and never the key or the value. So a `Stored` has the bytes of its
record, and the fields by which it is delivered. `waiting.py` says what these mean; it is the slow way, for those who
look at one record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from appliance.delivery.due import AT, CANCEL, DELAY, ID
from appliance.delivery.waiting import FIELDS, HEADER, OFFSET, TIMESTAMP, VERSION, Origin, Waiting, waiting_of
from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import DECOMPRESSED_BYTES_MAX, decompress
from appliance.protocol.records.errors import InvalidRecords
from appliance.protocol.records.record import decode_one, frame_batch, record_beginning
from appliance.protocol.records.varint import read_varint, read_varlong, varint_bytes

if TYPE_CHECKING:
    from mypy_extensions import i64

TOPICS_MAX: Final = 10_000
"""Topic ids that are kept parsed."""

_HEADER: Final = HEADER.encode()
_AT: Final = AT.encode()
_DELAY: Final = DELAY.encode()
_ID: Final = ID.encode()
_CANCEL: Final = CANCEL.encode()
_TIMESTAMP: Final = TIMESTAMP.encode()
_OFFSET: Final = OFFSET.encode()
_VERSION: Final = VERSION.encode()
_ADDED_HEADER: Final = varint_bytes(len(_HEADER)) + _HEADER
_ADDED_TIMESTAMP: Final = varint_bytes(len(_TIMESTAMP)) + _TIMESTAMP
_ADDED_OFFSET: Final = varint_bytes(len(_OFFSET)) + _OFFSET
"""Names of headers that are added, with their lengths."""
_NAME_MIN: Final = 9
_NAME_MAX: Final = 18
"""Lengths of the names above: other headers are passed over."""
_COMMA: Final = 0x2C
_MINUS: Final = 0x2D
_ZERO: Final = 0x30
_NINE: Final = 0x39
_DIGITS_MAX: Final = 18
_topic_ids: Final[dict[bytes, UUID]] = {}
_NO_ORIGIN: Final = Origin()


class Fields:
    """The fields of the last header HEADER that was read (`waiting.py`).

    Of the records of a batch, the beginning and the end of it are the same bytes. They are parsed once, so all these
    records share the values, too. In between are three numbers, which are read in place.
    """

    __slots__ = (
        "_beginning",
        "_end",
        "due_ms",
        "offset",
        "origin",
        "partition",
        "timestamp_ms",
        "topic_id",
    )

    def __init__(self) -> None:
        self._beginning = b""
        self._end = b""
        self.topic_id = UUID(int=0)
        self.partition = 0
        self.offset = 0
        self.due_ms = 0
        self.timestamp_ms = 0
        self.origin = Origin()

    def read(self, said: bytes) -> bool:
        """Read the value of a header; return whether it is understood."""
        at: i64 = len(self._beginning)
        if at and said[:at] == self._beginning:
            offset, at = _decimal(said, at)
            due_ms, at = _decimal(said, at)
            timestamp_ms, at = _decimal(said, at)
            if at > 0 and said[at:] == self._end:
                self.offset, self.due_ms, self.timestamp_ms = offset, due_ms, timestamp_ms
                return True
        return self._read_each(said)

    def _read_each(self, said: bytes) -> bool:
        fields = said.split(b",")
        if len(fields) != FIELDS or fields[0] != _VERSION:
            return False
        try:
            topic_id = _topic_ids.get(fields[1])
            if topic_id is None:
                topic_id = UUID(hex=fields[1].decode("ascii"))
                if len(_topic_ids) >= TOPICS_MAX:
                    _topic_ids.clear()
                _topic_ids[fields[1]] = topic_id
            partition, offset, due_ms, timestamp_ms = map(int, fields[2:6])
            origin = Origin(int(fields[6]), int(fields[7]), int(fields[8]))
        except ValueError:
            return False
        self.topic_id = topic_id
        self.partition, self.offset, self.due_ms, self.timestamp_ms = partition, offset, due_ms, timestamp_ms
        self.origin = origin
        self._beginning = b",".join(fields[:3]) + b","
        self._end = b",".join(fields[6:])
        return True


def _decimal(said: bytes, at: i64) -> tuple[i64, i64]:
    """Return the number at `at`, and where what is behind its comma begins; 0 there if it is not plain."""
    size: i64 = len(said)
    is_negative = 0 < at < size and said[at] == _MINUS
    if is_negative:
        at += 1
    value: i64 = 0
    digits: i64 = 0
    while 0 < at < size and digits <= _DIGITS_MAX:
        digit: i64 = said[at]
        at += 1
        if digit == _COMMA:
            if not digits:
                break
            return (-value if is_negative else value), at
        if digit < _ZERO or digit > _NINE:
            break
        value = value * 10 + digit - _ZERO
        digits += 1
    return 0, 0


_fields: Final = Fields()


class Stored:
    """A delayed record in an internal topic: where it is delivered, when, and by what it is recognized.

    `at` is its offset in the internal topic, `offset` the one that its producer was answered. `stored_ms` is when it
    was stored. `delay_ms` is None if its producer named a time.
    """

    __slots__ = (
        "at",
        "cancels",
        "delay_ms",
        "delivery_id",
        "due_ms",
        "header",
        "offset",
        "origin",
        "partition",
        "raw",
        "stored_ms",
        "tail_at",
        "timestamp_ms",
        "topic_id",
    )

    def __init__(  # noqa: PLR0917 - one for each record: keywords cost more
        self,
        header: b.BatchHeader,
        raw: bytes,
        tail_at: int,
        at: int,
        stored_ms: int,
        fields: Fields,
    ) -> None:
        self.header = header
        self.raw = raw
        self.tail_at = tail_at
        self.at = at
        self.stored_ms = stored_ms
        self.topic_id = fields.topic_id
        self.partition = fields.partition
        self.offset = fields.offset
        self.due_ms = fields.due_ms
        self.timestamp_ms = fields.timestamp_ms
        self.origin = fields.origin
        self.delivery_id: bytes | None = None
        self.cancels: bytes | None = None
        self.delay_ms: int | None = None

    @property
    def size_bytes(self) -> int:
        """Return how long the record is."""
        return len(self.raw)

    def waiting(self) -> Waiting:
        """Return the record with its key, value and headers."""
        return waiting_of(decode_one(self.raw, 0, self.header))

    def to_deliver(self) -> bytes:
        """Return the tail for the topic: without the headers that say when, and with where it comes from."""
        parts = self._kept(2, to_deliver=True)
        timestamp, offset = b"%d" % self.timestamp_ms, b"%d" % self.offset
        parts += (
            *(_ADDED_TIMESTAMP, varint_bytes(len(timestamp)), timestamp),
            *(_ADDED_OFFSET, varint_bytes(len(offset)), offset),
        )
        return b"".join(parts)

    def to_wait(self, due_ms: int) -> bytes:
        """Return the tail for another level. There it has no origin: it would look like one that was sent again."""
        fields = b"%b,%b,%d,%d,%d,%d,%d,%d,%d" % (
            _VERSION,
            self.topic_id.hex.encode(),
            self.partition,
            self.offset,
            due_ms,
            self.timestamp_ms,
            *_NO_ORIGIN,
        )
        parts = self._kept(1, to_deliver=False)
        parts += (_ADDED_HEADER, varint_bytes(len(fields)), fields)
        return b"".join(parts)

    def _kept(self, added: i64, *, to_deliver: bool) -> list[bytes]:
        """Return the parts of the tail that stay: key and value, the number of headers, and stretches of headers.

        Args:
            added: so many headers come behind.
        """
        raw = self.raw
        at: i64 = self.tail_at
        length, at = read_varint(raw, at)
        if length > 0:
            at += length
        length, at = read_varint(raw, at)
        if length > 0:
            at += length
        parts = [raw[self.tail_at : at], b""]
        count, at = read_varint(raw, at)
        left: i64 = count
        kept: i64 = count + added
        start: i64 = at
        while left > 0:
            left -= 1
            header_at: i64 = at
            length, name_at = read_varint(raw, at)
            value_length, at = read_varint(raw, name_at + length)
            if value_length > 0:
                at += value_length
            if length < _NAME_MIN or length > _NAME_MAX:
                continue
            name = raw[name_at : name_at + length]
            if name == _HEADER or (to_deliver and name in (_AT, _DELAY, _TIMESTAMP, _OFFSET)):
                if start < header_at:
                    parts.append(raw[start:header_at])
                start = at
                kept -= 1
        if start < at:
            parts.append(raw[start:at])
        parts[1] = varint_bytes(kept)
        return parts


def read_stored(
    batch: memoryview, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> tuple[list[Stored], int]:
    """Return the delayed records of a batch, and how many of its records are none.

    Raises:
        ApplianceError: the batch cannot be read.
    """
    header = b.read_header(batch)
    payload = batch[b.RECORDS : header.size_bytes]
    data = bytes(decompress(header.codec, payload, decompressed_bytes_max) if header.codec else payload)
    found: list[Stored] = []
    at: i64 = 0
    unread = 0
    for _ in range(header.records_count):
        length, body = read_varint(data, at)
        end: i64 = body + length
        if length < 0 or end > len(data):
            raise InvalidRecords(f"a record length of {length} bytes does not fit its batch")
        stored = one_stored(data[at:end], header)
        if stored is None:
            unread += 1
        else:
            found.append(stored)
        at = end
    if at != len(data):
        raise InvalidRecords(f"{len(data) - at} bytes are left after the last record")
    return found, unread


def one_stored(raw: bytes, header: b.BatchHeader) -> Stored | None:
    """Return the delayed record with these bytes; None if it is none.

    Raises:
        InvalidRecords: its fields do not add up.
    """
    size: i64 = len(raw)
    length, at = read_varint(raw, 0)
    stamp, at = read_varlong(raw, at + 1)
    delta, at = read_varint(raw, at)
    tail_at = at
    length, at = read_varint(raw, at)
    at += max(length, 0)
    length, at = read_varint(raw, at)
    at += max(length, 0)
    count, at = read_varint(raw, at)
    said: bytes | None = None
    times: bytes | None = None
    delay: bytes | None = None
    name_of: bytes | None = None
    cancels: bytes | None = None
    has_time = has_delay = has_id = has_cancel = False
    left: i64 = count
    while left > 0:
        left -= 1
        length, at = read_varint(raw, at)
        name = raw[at : at + length] if _NAME_MIN <= length <= _NAME_MAX else b""
        at += length
        length, at = read_varint(raw, at)
        value = raw[at : at + length] if name and length >= 0 else None
        at += max(length, 0)
        if not name:
            continue
        if name == _HEADER:
            said = value if value is not None else said
        elif name == _AT and not has_time:
            times, has_time = value, True
        elif name == _DELAY and not has_delay:
            delay, has_delay = value, True
        elif name == _ID and not has_id:
            name_of, has_id = value, True
        elif name == _CANCEL and not has_cancel:
            cancels, has_cancel = value, True
    if at != size:
        raise InvalidRecords(f"a record's fields end {size - at} bytes away from its declared end")
    if said is None:
        return None
    fields = _fields
    if not fields.read(said):
        return None
    stored_ms = header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms + stamp
    stored = Stored(header, raw, tail_at, header.base_offset + delta, stored_ms, fields)
    stored.delivery_id = name_of
    stored.cancels = cancels
    if times is None and delay is not None and delay.isdigit():
        stored.delay_ms = int(delay)
        stored.due_ms = min(stored.due_ms, stored_ms + stored.delay_ms)  # as in waiting_of
    return stored


def batch_of(
    tails: list[bytes],
    *,
    now_ms: int,
    leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> bytes:
    """Return a batch of records with these tails, all of them with the timestamp `now_ms`."""
    parts: list[bytes] = []
    for number, tail in enumerate(tails):
        beginning = record_beginning(number)
        parts.append(varint_bytes(len(beginning) + len(tail)))
        parts.append(beginning)
        parts.append(tail)
    return frame_batch(
        b"".join(parts),
        count=len(tails),
        leader_epoch=leader_epoch,
        base_timestamp_ms=now_ms,
        max_timestamp_ms=now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
