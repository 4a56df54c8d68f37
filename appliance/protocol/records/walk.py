"""The record walk: proves that a batch holds the records it declares, and makes a value of none of them.

What is proved of [position, end): it is exactly `count` records; the lengths inside of every record add up to
that record's own length; offset deltas are 0, 1, 2, …. Learnt on the way: the smallest and largest timestamp
delta, and whether some record has no key. A reader of the log may then trust the batch.

A Python loop over every field costs about 1 µs a record, more than all the rest of an append. So few records, up to
`FEW`, are walked field by field; more of them are walked together (`walk_together`), by numpy, which a process loads
with its first batch of many: a start has none, and most processes never do (decision 0053).
"""

from __future__ import annotations

from typing import Final, TypeAlias

from appliance.protocol.records.errors import InvalidRecords
from appliance.protocol.records.varint import read_varint, read_varlong

Buffer = bytes | bytearray | memoryview

FEW: Final = 20
NO_DELTA_YET: Final = 1 << 63


RecordsSummary: TypeAlias = tuple[int, int, bool]
"""What the walk learnt: smallest and largest timestamp delta, in ms against the batch's base timestamp, and whether
some record has no key. A plain tuple: compiled, it is made of nothing, where one with names costs as much as the walk
of a record."""

Walked: TypeAlias = tuple[int, int, int, int, bool]
"""What one stretch of records came to: the position after it, how many they were, and their summary."""


def check_records(data: Buffer, position: int, end: int, count: int) -> RecordsSummary:
    """Walks the `count` > 0 uncompressed records in `data[position:end]`. Linear in bytes at worst.

    Raises:
        InvalidRecords: the records do not add up.
    """
    # Seven bytes are the least a record takes: a lying count is found before anything is made for it.
    if count * 7 > end - position:
        raise InvalidRecords(f"{count} records cannot lie in {end - position} bytes")
    if count <= FEW:
        walked = walk_fields(data, position, end, count, 0)
    else:
        from appliance.protocol.records.walk_together import walk_together

        walked = walk_together(data, position, end, count)
    if walked[0] != end:
        raise InvalidRecords(f"{end - walked[0]} bytes are left after the last of {count} records")
    return walked[2], walked[3], walked[4]


def walk_fields(  # noqa: PLR0912 - one branch a varint: calls would double its cost
    data: Buffer, at: int, end: int, count: int, first: int
) -> Walked:
    """Walks the records `first`, `first + 1`, … that begin at `at`, one after another."""
    low, high = NO_DELTA_YET, -NO_DELTA_YET
    keyless = False
    try:
        for index in range(first, first + count):
            length, at = read_varint(data, at)
            stop = at + length
            if length < 0 or stop > end:
                raise InvalidRecords(
                    f"record {index} has a length of {length} bytes that does not fit its batch"
                )
            byte = data[at + 1]
            if byte < 0x80:
                delta = (byte >> 1) ^ -(byte & 1)
                at += 2
            else:
                delta, at = read_varlong(data, at + 1)
            low = delta if delta < low else low
            high = delta if delta > high else high
            byte = data[at]
            if byte < 0x80:
                offset_delta = (byte >> 1) ^ -(byte & 1)
                at += 1
            else:
                offset_delta, at = read_varint(data, at)
            if offset_delta != index:
                raise InvalidRecords(f"record {index} has an offset delta of {offset_delta}")
            byte = data[at]
            if byte == 1:
                keyless = True
                at += 1
            else:
                length, at = read_varint(data, at)
                at += checked(length, index)
            byte = data[at]
            if byte == 1:
                at += 1
            else:
                length, at = read_varint(data, at)
                at += checked(length, index)
            if data[at] == 0:
                at += 1
            else:
                at = _walk_headers(data, at, stop, index)
            if at != stop:
                raise InvalidRecords(f"the fields of record {index} end {stop - at} bytes away from its end")
    except IndexError:
        raise InvalidRecords("the last record runs over the end of its batch") from None
    return at, count, low, high, keyless


def checked(length: int, index: int) -> int:
    """The length of a field of record `index`, which is not negative."""
    if length < 0:
        raise InvalidRecords(f"record {index} has a field of {length} bytes")
    return length


def _walk_headers(data: Buffer, at: int, stop: int, index: int) -> int:
    count, at = read_varint(data, at)
    if not 0 <= count <= stop - at:
        raise InvalidRecords(f"record {index} declares {count} headers")
    return walk_header_fields(data, at, stop, count)


def walk_header_fields(data: Buffer, at: int, stop: int, count: int) -> int:
    """Steps over `count` record headers; the position after them, or one beyond `stop`."""
    for _ in range(count):
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
