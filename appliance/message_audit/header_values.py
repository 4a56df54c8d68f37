"""Steps over the records of a batch and takes two headers of each, offset and time. Keys and values are not read.

Compiled, a record of 1 KiB with both headers costs about 0.5 µs, where decoding it costs 6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from appliance.protocol.records.errors import InvalidRecords
from appliance.protocol.records.varint import read_varint, read_varlong

if TYPE_CHECKING:
    from mypy_extensions import i64

HeaderValues: TypeAlias = tuple[int, int, bytes | None, bytes | None]
"""Offset delta, timestamp delta in ms, and the values of the two headers; None where a record has no such header."""


def header_values(
    data: bytes, at: i64, end: i64, count: i64, *, first_name: bytes, second_name: bytes
) -> list[HeaderValues]:
    """Return what each of the `count` uncompressed records in `data[at:end]` has. The first header of a name counts.

    Raises:
        InvalidRecords: the records do not add up.
    """
    found: list[HeaderValues] = []
    try:
        while count > 0:
            count -= 1
            length, at = read_varint(data, at)
            stop: i64 = at + length
            if length < 0 or stop > end:
                raise InvalidRecords("a record is longer than what is left of its batch")
            delta_ms, at = read_varlong(data, at + 1)
            delta, at = read_varint(data, at)
            length, at = read_varint(data, at)
            if length > 0:
                at += length
            length, at = read_varint(data, at)
            if length > 0:
                at += length
            if at >= stop:
                raise InvalidRecords("the fields of a record run over its end")
            one, other, at = _two_headers(data, at, stop, first_name, second_name)
            if at != stop:
                raise InvalidRecords("the headers of a record do not end with it")
            found.append((delta, delta_ms, one, other))
    except IndexError:
        raise InvalidRecords("the fields of a record run over the end of its batch") from None
    return found


def _two_headers(
    data: bytes, at: i64, stop: i64, first_name: bytes, second_name: bytes
) -> tuple[bytes | None, bytes | None, i64]:
    """Return the values of two headers, and the position after all of them."""
    one: bytes | None = None
    other: bytes | None = None
    headers, at = read_varint(data, at)
    while headers > 0:
        headers -= 1
        length, at = read_varint(data, at)
        if length < 0 or at + length > stop:
            raise InvalidRecords("a record header has no name, or one that does not fit")
        name_at: i64 = at
        name_end: i64 = at + length
        length, at = read_varint(data, name_end)
        value_end: i64 = at
        if length > 0:
            value_end += length
        if value_end > stop:
            raise InvalidRecords("a record header is longer than its record")
        if length >= 0 and (one is None or other is None):
            name = data[name_at:name_end]
            if one is None and name == first_name:
                one = data[at:value_end]
            elif other is None and name == second_name:
                other = data[at:value_end]
        at = value_end
    return one, other, at
