"""The record walk, field by field: what `walk` takes for few or small records. What it proves: `walk`.

Fields are read from bytes, which compiled code reaches without making objects. So records are copied a stretch at a
time, and the copy is most of what large ones cost (decision 0072).
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Final, TypeAlias

from appliance.protocol.records.errors import InvalidRecords
from appliance.protocol.records.varint import (
    VARINT_BYTES_MAX,
    VARLONG_BYTES_MAX,
    Buffer,
    read_varint,
    read_varlong,
    varint_at,
)

if TYPE_CHECKING:
    from mypy_extensions import i64

IS_COMPILED: Final = not isinstance(read_varint, FunctionType)
STRETCH_BYTES: Final = 16 * 1024

# A record's own length and what stands before its key: five varints at most, of which one is long, and a byte.
_HEAD_BYTES: Final = 4 * VARINT_BYTES_MAX + VARLONG_BYTES_MAX + 1

DELTA_MAX: Final = (1 << 63) - 1
DELTA_MIN: Final = -(1 << 63)


Walked: TypeAlias = tuple[int, int, int, int, bool]
"""What one stretch of records came to: the position after it, how many they were, and their summary."""


def walk_fields(data: Buffer, at: int, end: int, count: int, first: int) -> Walked:
    """Walks the records `first`, `first + 1`, … that begin at `at`, one after another.

    Raises:
        InvalidRecords: the records do not add up.
    """
    if end - at <= STRETCH_BYTES:
        used, records, low, high, keyless = _walk_stretch(bytes(data[at:end]), count, first, False)
        if records < count:
            raise InvalidRecords(f"record {first + records} is longer than what is left of its batch")
        return at + used, count, low, high, keyless
    return _walk_stretches(data, at, end, count, first)


def _walk_stretches(data: Buffer, at: int, end: int, count: int, first: int) -> Walked:
    low, high, keyless = DELTA_MAX, DELTA_MIN, False
    walks_large = count == 1
    done = 0
    while done < count:
        records = 0
        if not walks_large:
            stretch = bytes(data[at : min(at + STRETCH_BYTES, end)])
            used, records, stretch_low, stretch_high, stretch_keyless = _walk_stretch(
                stretch, count - done, first + done, at + len(stretch) < end
            )
        if not records:
            used, stretch_low, stretch_high, stretch_keyless = _walk_large(data, at, end, first + done)
            records = 1
        walks_large = used > STRETCH_BYTES  # the next one may be
        at += used
        done += records
        low = min(low, stretch_low)
        high = max(high, stretch_high)
        keyless = keyless or stretch_keyless
    return at, count, low, high, keyless


def _walk_stretch(  # noqa: PLR0912, PLR0915 - calls would double its cost where nothing is compiled
    data: bytes, count: i64, first: i64, goes_on: bool
) -> Walked:
    """Walks at most `count` of the records that lie in `data` whole. `goes_on`: the last of them may be cut.

    What most records have is read in place, for a call is dear: lengths of a record and of its value in two bytes,
    deltas in one, and offset deltas in two as well.
    """
    low: i64 = DELTA_MAX
    high: i64 = DELTA_MIN
    keyless = False
    begin: i64 = 0
    size: i64 = len(data)
    begin_max: i64 = size - VARINT_BYTES_MAX if goes_on else size
    index: i64 = first
    last: i64 = first + count
    try:
        while index < last and begin <= begin_max:
            byte: i64 = data[begin]
            second: i64 = data[begin + 1]
            if byte >= 0x80 and second < 0x80:
                byte = byte & 0x7F | second << 7
                length: i64 = (byte >> 1) ^ -(byte & 1)
                at: i64 = begin + 2
            else:
                length, at = read_varint(data, begin)
            if length < 0:
                raise InvalidRecords(f"record {index} has a length of {length} bytes")
            stop: i64 = at + length
            if stop > size:
                break
            byte = data[at + 1]
            if byte < 0x80:
                delta: i64 = (byte >> 1) ^ -(byte & 1)
                at += 2
            else:
                delta, at = read_varlong(data, at + 1)
            low = delta if delta < low else low
            high = delta if delta > high else high
            byte = data[at]
            if byte < 0x80:
                offset_delta: i64 = (byte >> 1) ^ -(byte & 1)
                at += 1
            else:
                second = data[at + 1]
                if second < 0x80:
                    byte = byte & 0x7F | second << 7
                    offset_delta = (byte >> 1) ^ -(byte & 1)
                    at += 2
                else:
                    offset_delta, at = read_varint(data, at)
            if offset_delta != index:
                raise InvalidRecords(f"record {index} has an offset delta of {offset_delta}")
            if data[at] == 1:
                keyless = True
                at += 1
            else:
                length, at = read_varint(data, at)
                keyless = keyless or length < 0  # null may be written in more than one byte
                at += _field_bytes(length, index)
            byte = data[at]
            second = data[at + 1]
            if byte == 1:
                at += 1
            elif byte >= 0x80 and second < 0x80 and not byte & 1:
                at += 2 + ((byte & 0x7F | second << 7) >> 1)
            else:
                length, at = read_varint(data, at)
                at += _field_bytes(length, index)
            if data[at] == 0:
                at += 1
            else:
                at = _walk_headers(data, at, stop, index)
            if at != stop:
                raise InvalidRecords(f"the fields of record {index} end {stop - at} bytes away from its end")
            begin = stop
            index += 1
    except IndexError:
        raise InvalidRecords("the fields of a record run over the end of its batch") from None
    return begin, index - first, low, high, keyless


def _walk_large(data: Buffer, at: int, end: int, index: int) -> tuple[int, int, int, bool]:
    """Walks one record that no stretch holds, of which nothing is copied but its numbers and its headers.

    Returns (its size in bytes, its timestamp delta twice, whether it has no key).
    """
    head = bytes(data[at : at + _HEAD_BYTES])
    length, here = read_varint(head, 0)
    stop = at + here + length
    if length < 0 or stop > end:
        raise InvalidRecords(f"record {index} has a length of {length} bytes that does not fit its batch")
    delta, here = read_varlong(head, here + 1)
    offset_delta, here = read_varint(head, here)
    if offset_delta != index:
        raise InvalidRecords(f"record {index} has an offset delta of {offset_delta}")
    length, here = read_varint(head, here)
    keyless = length < 0
    position = at + here + _field_bytes(length, index)
    length, position = varint_at(data, position, stop)
    position += _field_bytes(length, index)
    headers_bytes = stop - position
    count, headers_at = varint_at(data, position, stop)
    if count < 0 or 2 * count > headers_bytes or (count == 0 and headers_at != stop):
        raise InvalidRecords(
            f"record {index} declares {count} headers, which do not fit in {headers_bytes} bytes"
        )
    headers = bytes(data[position:stop])
    if len(headers) < headers_bytes or _walk_headers(headers, 0, headers_bytes, index) != headers_bytes:
        raise InvalidRecords(f"the headers of record {index} do not end with it")
    return stop - at, delta, delta, keyless


def _field_bytes(length: i64, index: i64) -> i64:
    """How many bytes a key or a value of that length takes, which is -1 for null."""
    if length < -1:
        raise InvalidRecords(f"record {index} has a field of {length} bytes")
    if length > 0:  # as an expression, compiled, it would make an object of either
        return length
    return 0


def _walk_headers(data: bytes, at: i64, stop: i64, index: i64) -> i64:
    count, at = read_varint(data, at)
    if count < 0 or count > stop - at:
        raise InvalidRecords(f"record {index} declares {count} headers")
    return walk_header_fields(data, at, stop, count)


def walk_header_fields(data: bytes, at: i64, stop: i64, count: i64) -> i64:
    """Steps over `count` record headers; the position after them, or one beyond `stop`."""
    while count > 0:
        count -= 1
        length, at = read_varint(data, at)
        if length < 0:
            raise InvalidRecords("a record header has no name")
        length, at = read_varint(data, at + length)
        if length < -1:
            raise InvalidRecords(f"a record header has a value of {length} bytes")
        if length > 0:
            at += length
        if at > stop:
            break
    return at
