"""Records to bytes and bytes to records: what is done for each record, in one loop for a whole batch.

A record's bytes are drawn in `appliance.protocol.records.record`. Compiled by mypyc (`setup.py` of this
distribution) a record costs about 0.03 µs to encode; interpreted the result is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from librt.strings import BytesWriter

from appliance.protocol.records.errors import InvalidRecords
from appliance_client.errors import IllegalStateError

if TYPE_CHECKING:
    from mypy_extensions import i64, u8

Headers = tuple[tuple[str, bytes | None], ...]

NO_HEADERS: Final[Headers] = ()

RECORD_OVERHEAD_BYTES: Final = 21
"""The most that a record takes beside key, value and headers: seven varints and a byte, as Kafka estimates it."""


class Unsent:
    """Records of a batch that is being filled, as columns. Times are in milliseconds since 1970."""

    __slots__ = ("headers", "keys", "times_ms", "values")

    def __init__(self) -> None:
        self.times_ms: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: dict[int, Headers] = {}


def _put_varint(out: BytesWriter, value: i64) -> None:
    # `append` takes a u8 without making an object, and mypyc makes an int a u8, but no i64.
    byte: u8
    low: int
    bits: i64 = (value << 1) ^ (value >> 63)
    if bits >= 0:
        while bits > 0x7F:
            low = bits & 0x7F | 0x80
            byte = low
            out.append(byte)
            bits >>= 7
        low = bits
        byte = low
        out.append(byte)
        return
    # The highest bit is set: the shift must not drag it along.
    low = bits & 0x7F | 0x80
    byte = low
    out.append(byte)
    bits = (bits >> 7) & 0x01FF_FFFF_FFFF_FFFF
    while bits > 0x7F:
        low = bits & 0x7F | 0x80
        byte = low
        out.append(byte)
        bits >>= 7
    low = bits
    byte = low
    out.append(byte)


def _varint_bytes(value: i64) -> i64:
    bits: i64 = (value << 1) ^ (value >> 63)
    if bits < 0:
        return 10
    size: i64 = 1
    while bits > 0x7F:
        bits >>= 7
        size += 1
    return size


def encode_records(records: Unsent) -> bytes:
    """Encode all records; timestamp deltas are against the first one's time, offset deltas count from 0."""
    out = BytesWriter()
    base_ms: i64 = records.times_ms[0]
    values = records.values
    keys = records.keys
    headers_of = records.headers
    has_headers = len(headers_of) > 0
    index: i64 = 0
    for time_ms in records.times_ms:
        this_ms: i64 = time_ms
        delta: i64 = this_ms - base_ms
        key = keys[index]
        value = values[index]
        key_bytes: i64 = -1 if key is None else len(key)
        value_bytes: i64 = -1 if value is None else len(value)
        length: i64 = 1 + _varint_bytes(delta) + _varint_bytes(index)
        length += _varint_bytes(key_bytes) + _varint_bytes(value_bytes)
        if key_bytes > 0:
            length += key_bytes
        if value_bytes > 0:
            length += value_bytes
        if has_headers and index in headers_of:
            tail = _headers(headers_of[index])
            length += len(tail)
        else:
            tail = b"\0"
            length += 1
        _put_varint(out, length)
        zero: u8 = 0
        out.append(zero)
        _put_varint(out, delta)
        _put_varint(out, index)
        _put_varint(out, key_bytes)
        if key is not None:
            out.write(key)
        _put_varint(out, value_bytes)
        if value is not None:
            out.write(value)
        out.write(tail)
        index += 1  # noqa: SIM113 - a native counter, where enumerate makes objects
    return out.getvalue()


def _headers(headers: Headers) -> bytes:
    out = BytesWriter()
    _put_varint(out, len(headers))
    for name, value in headers:
        raw = name.encode("utf-8", "surrogateescape")
        _put_varint(out, len(raw))
        out.write(raw)
        if value is None:
            _put_varint(out, -1)
        else:
            _put_varint(out, len(value))
            out.write(value)
    return out.getvalue()


class ConsumerRecord:
    """One record as it was read. `timestamp` is in milliseconds since 1970, -1 for none.

    `timestamp_type` is 0 for the time its producer gave it (CreateTime), 1 for the broker's (LogAppendTime).
    `key` and `value` are None for null; with a deserializer they are what that returned.
    """

    source: Any
    """Where it is handed back; only with the option retry.topics. So has `raw`: (key, value) as bytes."""
    raw: tuple[Any, Any]

    __slots__ = (
        "headers",
        "key",
        "leader_epoch",
        "offset",
        "partition",
        "raw",
        "source",
        "timestamp",
        "timestamp_type",
        "topic",
        "value",
    )

    def __init__(  # noqa: PLR0917 - made for each record, by position
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        timestamp_type: int,
        key: Any,  # bytes or None; with a deserializer what that returned
        value: Any,
        headers: Headers,
        leader_epoch: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.headers = headers
        self.leader_epoch = leader_epoch

    def retry(self, reason: Any = "") -> Any:
        """Hand the record back: the broker delivers it to the group again, after a delay that grows each time.

        Returns when the broker has it; in asyncio it is to be awaited. `reason` is a text or the exception that was
        raised. Commit as if the record had been processed.

        Raises:
            IllegalStateError: the consumer has no retry.topics.
            ClientError: the broker refuses the record, for example because retries are disabled.
        """
        return self._hand_back(reason, False)

    def dead(self, reason: Any = "") -> Any:
        """Hand the record back for good: it goes to the dead-letter topic of the group. As `retry` otherwise."""
        return self._hand_back(reason, True)

    def _hand_back(self, reason: Any, is_dead: bool) -> Any:
        source = getattr(self, "source", None)
        if source is None:
            raise IllegalStateError("a record can be handed back if its consumer has retry.topics=true")
        return source.hand_back(self, reason, is_dead)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it for another process, which cannot hand it back: the consumer is here."""
        return ConsumerRecord, (
            self.topic,
            self.partition,
            self.offset,
            self.timestamp,
            self.timestamp_type,
            self.key,
            self.value,
            self.headers,
            self.leader_epoch,
        )

    def __repr__(self) -> str:
        return (
            f"ConsumerRecord({self.topic}-{self.partition}@{self.offset}, timestamp={self.timestamp}, "
            f"key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )


def _varint_at(data: bytes, at: i64) -> tuple[i64, i64]:
    """A signed value and the position after it. Raises IndexError where the data ends inside of it."""
    byte: i64 = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    bits: i64 = byte & 0x7F
    shift: i64 = 7
    while True:
        byte = data[at]
        at += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise InvalidRecords("a variable-length integer runs over 10 bytes")
    return ((bits >> 1) & 0x7FFF_FFFF_FFFF_FFFF) ^ -(bits & 1), at


def decode_records(  # noqa: PLR0917 - called for each batch, by position
    data: bytes,
    count: int,
    topic: str,
    partition: int,
    base_offset: int,
    base_ms: int,
    append_ms: int,
    first_offset: int,
    leader_epoch: int,
) -> list[ConsumerRecord]:
    """The records of one uncompressed batch from `first_offset` on.

    Args:
        data: what follows the header of the batch.
        append_ms: the time that all records carry (LogAppendTime), or -1 where each has its own.

    Raises:
        InvalidRecords: they do not add up.
    """
    records: list[ConsumerRecord] = []
    at: i64 = 0
    size: i64 = len(data)
    left: i64 = count
    first: i64 = first_offset
    offset_base: i64 = base_offset
    time_base: i64 = base_ms
    appended: i64 = append_ms
    time_type = 1 if append_ms >= 0 else 0
    try:
        while left > 0:
            left -= 1
            length, at = _varint_at(data, at)
            stop: i64 = at + length
            if length < 0 or stop > size:
                raise InvalidRecords(f"a record length of {length} bytes does not fit its batch")
            delta, at = _varint_at(data, at + 1)
            offset_delta, at = _varint_at(data, at)
            offset: i64 = offset_base + offset_delta
            if offset < first:
                at = stop
                continue
            key: bytes | None = None
            value: bytes | None = None
            length, at = _varint_at(data, at)
            if length >= 0:
                key = data[at : at + length]
                at += length
            length, at = _varint_at(data, at)
            if length >= 0:
                value = data[at : at + length]
                at += length
            headers = NO_HEADERS
            if data[at] == 0:
                at += 1
            else:
                headers, at = _read_headers(data, at, stop)
            if at != stop:
                raise InvalidRecords(f"a record's fields end {stop - at} bytes away from its end")
            records.append(
                ConsumerRecord(
                    topic,
                    partition,
                    offset,
                    appended if time_type else time_base + delta,
                    time_type,
                    key,
                    value,
                    headers,
                    leader_epoch,
                )
            )
    except IndexError:
        raise InvalidRecords("the fields of a record run over the end of its batch") from None
    if at != size:
        raise InvalidRecords(f"{size - at} bytes are left after the last of {count} records")
    return records


def _read_headers(data: bytes, at: i64, stop: i64) -> tuple[Headers, i64]:
    count, at = _varint_at(data, at)
    if count < 0 or count > stop - at:
        raise InvalidRecords(f"a headers count of {count} does not fit its record")
    headers: list[tuple[str, bytes | None]] = []
    while count > 0:
        count -= 1
        length, at = _varint_at(data, at)
        if length < 0:
            raise InvalidRecords("a record header has no name")
        name = data[at : at + length].decode("utf-8", "surrogateescape")
        length, at = _varint_at(data, at + length)
        if length < 0:
            headers.append((name, None))
        else:
            headers.append((name, data[at : at + length]))
            at += length
    return tuple(headers), at


_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 of a key (`Utils.murmur2`), unsigned."""
    length: i64 = len(data)
    m: i64 = _M
    h: i64 = (_SEED ^ length) & 0xFFFF_FFFF
    at: i64 = 0
    k: i64 = 0
    byte: i64 = 0
    while at + 4 <= length:
        k = data[at]
        byte = data[at + 1]
        k |= byte << 8
        byte = data[at + 2]
        k |= byte << 16
        byte = data[at + 3]
        k |= byte << 24
        k = (k * m) & 0xFFFF_FFFF
        k ^= k >> 24
        k = (k * m) & 0xFFFF_FFFF
        h = (h * m) & 0xFFFF_FFFF
        h ^= k
        at += 4
    left: i64 = length - at
    if left > 2:
        byte = data[at + 2]
        h ^= byte << 16
    if left > 1:
        byte = data[at + 1]
        h ^= byte << 8
    if left > 0:
        byte = data[at]
        h ^= byte
        h = (h * m) & 0xFFFF_FFFF
    h ^= h >> 13
    h = (h * m) & 0xFFFF_FFFF
    h ^= h >> 15
    return h


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition that Kafka's default partitioner chooses for a key."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions
