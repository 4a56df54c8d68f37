"""Steps over the records of a batch and finds those that may be traced. Of the others it makes no value.

    length · attributes · timestamp delta · offset delta · key length · key · value length · value · headers count · …
                                            └ without a key ┘          └ CRC-32 ┘ trace.sample         └ traceparent

Compiled, a record costs 0.1 µs, and 0.3 µs with `trace.sample`, whatever its size. A `traceparent` of the usual length
that is not sampled shows that in its last digit. So it begins no decoding: senders that follow the W3C write one into
every record.

Lengths are held against the record's end before they are followed: a batch may have been damaged since it was proved.
"""

from __future__ import annotations

from binascii import crc32
from typing import TYPE_CHECKING, Final

from appliance.protocol.records.errors import InvalidRecords
from appliance.protocol.records.varint import read_varint

if TYPE_CHECKING:
    from mypy_extensions import i64

NAME: Final = b"traceparent"
ORIGIN_NAMES: Final = (b"retry.offset", b"__dlq.errors.offset")
"""Of a retried record or a dead letter: where it was first decides, if it has no key."""
USUAL_BYTES: Final = 55
"""Of a `traceparent` of version 00. Its last byte is the low digit of the flags; the lowest bit of it is `sampled`."""


def candidates(  # noqa: PLR0912, PLR0915 - calls would double its cost where nothing is compiled
    data: bytes, at: i64, end: i64, count: i64, *, first: i64, sample: i64
) -> list[int]:
    """Return where the records begin that have a `traceparent` which may be sampled, or that `sample` may choose.

    Args:
        data: its bytes [at, end) are the uncompressed records.
        count: so many records are there.
        first: offset of the batch.
        sample: one in so many keys, and one in so many offsets of records without a key. 0: none.

    Raises:
        InvalidRecords: the records do not add up.
    """
    found: list[int] = []
    try:
        while count > 0:
            count -= 1
            begin: i64 = at
            byte: i64 = data[at]
            second: i64 = data[at + 1]
            if byte >= 0x80 and second < 0x80 and not byte & 1:
                length: i64 = (byte & 0x7F | second << 7) >> 1
                at += 2
            else:
                length, at = read_varint(data, at)
            stop: i64 = at + length
            if length < 0 or stop > end:
                raise InvalidRecords("a record is longer than what is left of its batch")
            at += 1
            while data[at] >= 0x80:
                at += 1
            at += 1
            byte = data[at]
            if byte < 0x80:
                delta: i64 = (byte >> 1) ^ -(byte & 1)
                at += 1
            else:
                delta, at = read_varint(data, at)
            byte = data[at]
            if byte < 0x80:
                length = (byte >> 1) ^ -(byte & 1)
                at += 1
            else:
                length, at = read_varint(data, at)
            key_at: i64 = at
            is_keyless = length < 0
            if length > 0:
                at += length
            if at > stop:
                raise InvalidRecords("a key is longer than its record")
            if sample > 0:
                if is_keyless:
                    if (first + delta) % sample == 0:
                        found.append(begin)
                        at = stop
                        continue
                else:
                    checksum: i64 = crc32(data[key_at:at])
                    if checksum % sample == 0:
                        found.append(begin)
                        at = stop
                        continue
            byte = data[at]
            second = data[at + 1]
            if byte >= 0x80 and second < 0x80 and not byte & 1:
                at += 2 + ((byte & 0x7F | second << 7) >> 1)
            else:
                length, at = read_varint(data, at)
                if length > 0:
                    at += length
            if at < stop and data[at] != 0 and _may_be_traced(data, at, stop, is_keyless and sample > 0):
                found.append(begin)
            at = stop
    except IndexError:
        raise InvalidRecords("the fields of a record run over the end of its batch") from None
    return found


def _may_be_traced(data: bytes, at: i64, stop: i64, by_origin: bool) -> bool:
    """Return whether the headers have a `traceparent` that may be sampled, or (`by_origin`) an offset of before."""
    count, at = read_varint(data, at)
    while count > 0:
        count -= 1
        length, at = read_varint(data, at)
        if length < 0:
            raise InvalidRecords("a record header has no name")
        is_context = length == len(NAME) and data[at : at + length] == NAME
        if by_origin and data[at : at + length] in ORIGIN_NAMES:
            return True
        length, at = read_varint(data, at + length)
        if at + length > stop:
            raise InvalidRecords("a record header is longer than its record")
        if is_context and (length != USUAL_BYTES or _is_odd(data[at + length - 1])):
            return True
        if length > 0:
            at += length
    return False


def _is_odd(digit: i64) -> bool:
    """Return whether a hex digit has its lowest bit: 1, 3, … 9, and the letters b, d and f, whose codes are even."""
    if digit <= 0x39:
        return digit & 1 == 1
    return digit & 1 == 0
