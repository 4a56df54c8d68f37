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
from appliance.protocol.records.record import decode_one, frame_batch
from appliance.protocol.records.varint import read_varint, read_varlong, write_varint

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
_REPLACED: Final = frozenset({_AT, _DELAY, _TIMESTAMP, _OFFSET})
_VERSION: Final = VERSION.encode()
_NAME_MIN: Final = 9
_NAME_MAX: Final = 18
"""Lengths of the names above: other headers are passed over."""
_topic_ids: Final[dict[bytes, UUID]] = {}
_NO_ORIGIN: Final = Origin()


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
        fields: list[bytes],
        topic_id: UUID,
        origin: Origin,
    ) -> None:
        self.header = header
        self.raw = raw
        self.tail_at = tail_at
        self.at = at
        self.stored_ms = stored_ms
        self.topic_id = topic_id
        self.partition = int(fields[2])
        self.offset = int(fields[3])
        self.due_ms = int(fields[4])
        self.timestamp_ms = int(fields[5])
        self.origin = origin
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
        kept, count = self._kept(to_deliver=True)
        out = bytearray(kept[0])
        write_varint(out, count + 2)
        out += kept[1]
        _write_header(out, _TIMESTAMP, b"%d" % self.timestamp_ms)
        _write_header(out, _OFFSET, b"%d" % self.offset)
        return bytes(out)

    def to_wait(self, due_ms: int) -> bytes:
        """Return the tail for another level. There it has no origin: it would look like one that was sent again."""
        kept, count = self._kept(to_deliver=False)
        out = bytearray(kept[0])
        write_varint(out, count + 1)
        out += kept[1]
        fields = b"%b,%b,%d,%d,%d,%d,%d,%d,%d" % (
            _VERSION,
            self.topic_id.hex.encode(),
            self.partition,
            self.offset,
            due_ms,
            self.timestamp_ms,
            *_NO_ORIGIN,
        )
        _write_header(out, _HEADER, fields)
        return bytes(out)

    def _kept(self, *, to_deliver: bool) -> tuple[tuple[bytes, bytes], int]:
        """Return ((key and value, headers that stay), number of these headers)."""
        raw = self.raw
        at: i64 = self.tail_at
        length, at = read_varint(raw, at)
        at += max(length, 0)
        length, at = read_varint(raw, at)
        at += max(length, 0)
        fields = raw[self.tail_at : at]
        count, at = read_varint(raw, at)
        left: i64 = count
        kept = 0
        headers = bytearray()
        while left > 0:
            left -= 1
            start: i64 = at
            length, at = read_varint(raw, at)
            name = raw[at : at + length] if _NAME_MIN <= length <= _NAME_MAX else b""
            at += length
            length, at = read_varint(raw, at)
            at += max(length, 0)
            if name == _HEADER or (to_deliver and name in _REPLACED):
                continue
            headers += raw[start:at]
            kept += 1
        return (fields, bytes(headers)), kept


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


def one_stored(  # noqa: PLR0912, PLR0915 - one pass over the bytes of each record
    raw: bytes, header: b.BatchHeader
) -> Stored | None:
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
    fields = said.split(b",")
    if len(fields) != FIELDS or fields[0] != _VERSION:
        return None
    try:
        topic_id = _topic_ids.get(fields[1])
        if topic_id is None:
            topic_id = UUID(hex=fields[1].decode("ascii"))
            if len(_topic_ids) >= TOPICS_MAX:
                _topic_ids.clear()
            _topic_ids[fields[1]] = topic_id
        origin = Origin(int(fields[6]), int(fields[7]), int(fields[8]))
        stored_ms = header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms + stamp
        stored = Stored(header, raw, tail_at, header.base_offset + delta, stored_ms, fields, topic_id, origin)
    except ValueError:
        return None
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
    out = bytearray()
    for number, tail in enumerate(tails):
        write_varint(out, len(tail) + 2 + _varint_bytes(number))
        out += b"\0\0"
        write_varint(out, number)
        out += tail
    return frame_batch(
        bytes(out),
        count=len(tails),
        leader_epoch=leader_epoch,
        base_timestamp_ms=now_ms,
        max_timestamp_ms=now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def _varint_bytes(number: i64) -> i64:
    """Return how long a number from 0 is as a varint."""
    size: i64 = 1
    bits: i64 = number << 1
    while bits > 0x7F:
        size += 1
        bits >>= 7
    return size


def _write_header(out: bytearray, name: bytes, value: bytes) -> None:
    write_varint(out, len(name))
    out += name
    write_varint(out, len(value))
    out += value
