"""Where the records of many batches lie: the kernels behind `decode`, compiled by numba or run by Python.

    record = length varint · attributes int8 · timestamp delta varlong · offset delta varint
             · key length varint (-1 = null) · key · value length varint (-1 = null) · value
             · headers count varint · { key length varint · key utf-8 · value length varint (-1 = null) · value }*

Nothing is copied here: of each record its offset, its timestamp, and where key and value begin and end are written
down. No byte is read outside of [begin, end) of the record's own batch, whatever its lengths say: each is held
against what is left before it is followed.

The arithmetic is what both readers of this file do alike. No number passes 63 bits on its way: a zig-zag value is
put together as magnitude and sign, and timestamps are held within `TIMESTAMP_MS_MAX`.

Source: `clients/.../common/record/DefaultRecord.java`.
"""

from __future__ import annotations

from typing import Any, Final

from appliance.protocol.columns.compiled import compiled, step

KEY: Final = 1
VALUE: Final = 2
HEADERS: Final = 4

NULL_KEY: Final = 1
NULL_VALUE: Final = 2

SOUND: Final = 0
BAD_COUNT: Final = 1
BAD_LENGTH: Final = 2
BAD_NUMBER: Final = 3
BAD_FIELD: Final = 4
BAD_HEADERS: Final = 5
BAD_END: Final = 6
BYTES_LEFT: Final = 7

PROBLEMS: Final = {
    BAD_COUNT: "more records are declared than its bytes can hold",
    BAD_LENGTH: "a record's length does not fit its batch",
    BAD_NUMBER: "a record ends inside of a variable-length integer, or one runs over its width",
    BAD_FIELD: "a key or value does not fit its record",
    BAD_HEADERS: "the headers do not fit their record",
    BAD_END: "a record's fields end elsewhere than its length says",
    BYTES_LEFT: "bytes are left after its last record",
}

RECORD_BYTES_MIN: Final = 7
TIMESTAMP_MS_MAX: Final = (1 << 63) // 1000 - 1
"""What microseconds in 64 bits can say, both ways; timestamps beyond are told as this."""
_DELTA_MAX: Final = 1 << 61
_LOG_APPEND_TIME: Final = 8
_INT32_BITS: Final = 31
_INT64_BITS: Final = 63
_BAD: Final = -1


@step
def _number(data: Any, at: int, end: int, bits: int) -> Any:
    """The zig-zag number at `at` and the position after it; that is `_BAD` where there is none.

    As in Java, bits beyond the type's width are dropped, and a number has no more bytes than its type needs.
    """
    if at >= end:
        return 0, _BAD
    byte = data[at] & 0xFF
    at += 1
    magnitude = (byte & 0x7F) >> 1
    negative = byte & 1
    shift = 6
    while byte >= 0x80:
        if at >= end or shift >= bits:
            return 0, _BAD
        byte = data[at] & 0xFF
        at += 1
        part = byte & 0x7F
        if shift + 7 > bits:
            part &= (1 << (bits - shift)) - 1
        magnitude |= part << shift
        shift += 7
    if negative:
        return -1 - magnitude, at
    return magnitude, at


@step
def _field(data: Any, at: int, end: int) -> Any:
    """Length (-1: null) and begin of the bytes field at `at`; the begin is `_BAD` where it does not fit."""
    length, at = _number(data, at, end, _INT32_BITS)
    if at == _BAD or length < -1 or length > end - at:
        return 0, _BAD
    return length, at


@step
def _sound_headers(data: Any, at: int, end: int, count: int) -> Any:
    for _ in range(count):
        length, at = _field(data, at, end)
        if at == _BAD or length < 0:
            return False
        at += length
        length, at = _field(data, at, end)
        if at == _BAD:
            return False
        at += max(length, 0)
    return at == end


@step
def _within(value: int, most: int) -> Any:
    return min(max(value, -most), most)


def record_positions(  # noqa: PLR0912, PLR0915, PLR0917 - one pass over bytes, in the words of machine code
    data: Any,
    begins: Any,
    ends: Any,
    base_offsets: Any,
    base_timestamps_ms: Any,
    max_timestamps_ms: Any,
    attributes: Any,
    counts: Any,
    first: int,
    offset_from: int,
    offset_until: int,
    from_ms: int,
    until_ms: int,
    wanted: int,
    offsets: Any,
    timestamps_us: Any,
    timestamp_types: Any,
    key_bounds: Any,
    value_bounds: Any,
    nulls: Any,
    header_begins: Any,
    header_counts: Any,
    row: int,
) -> Any:
    """Writes down the records of the batches from `first` on that lie in the asked offsets and timestamps.

    Returns (rows, batch, problem): the rows filled so far, and the batch that does not decode with the number of its
    problem; or the count of batches and `SOUND`. Of a batch with a problem no row is kept.
    """
    for batch in range(first, len(begins)):
        at = begins[batch]
        batch_end = ends[batch]
        count = counts[batch]
        before = row
        if count < 0 or count * RECORD_BYTES_MIN > batch_end - at:
            return before, batch, BAD_COUNT
        base_offset = base_offsets[batch]
        base_ms = _within(base_timestamps_ms[batch], _DELTA_MAX)
        appended = (attributes[batch] & _LOG_APPEND_TIME) != 0
        appended_ms = _within(max_timestamps_ms[batch], TIMESTAMP_MS_MAX)
        for _ in range(count):
            length, at = _number(data, at, batch_end, _INT32_BITS)
            if at == _BAD:
                return before, batch, BAD_NUMBER
            if length < 1 or length > batch_end - at:
                return before, batch, BAD_LENGTH
            end = at + length
            delta_ms, at = _number(data, at + 1, end, _INT64_BITS)
            if at == _BAD:
                return before, batch, BAD_NUMBER
            offset_delta, at = _number(data, at, end, _INT32_BITS)
            if at == _BAD:
                return before, batch, BAD_NUMBER
            offset = base_offset + offset_delta
            timestamp_ms = _within(base_ms + _within(delta_ms, _DELTA_MAX), TIMESTAMP_MS_MAX)
            if appended:
                timestamp_ms = appended_ms
            length, at = _field(data, at, end)
            if at == _BAD:
                return before, batch, BAD_FIELD
            key_begin = at
            key_end = at + max(length, 0)
            null = NULL_KEY if length < 0 else 0
            length, at = _field(data, key_end, end)
            if at == _BAD:
                return before, batch, BAD_FIELD
            value_end = at + max(length, 0)
            null |= NULL_VALUE if length < 0 else 0
            headers, header_begin = _number(data, value_end, end, _INT32_BITS)
            if header_begin == _BAD:
                return before, batch, BAD_NUMBER
            if headers < 0 or headers * 2 > end - header_begin:
                return before, batch, BAD_HEADERS
            if headers == 0 and header_begin != end:
                return before, batch, BAD_END
            if headers > 0 and not _sound_headers(data, header_begin, end, headers):
                return before, batch, BAD_HEADERS
            if offset_from <= offset < offset_until and from_ms <= timestamp_ms < until_ms:
                offsets[row] = offset
                timestamps_us[row] = timestamp_ms * 1000
                timestamp_types[row] = 1 if appended else 0
                nulls[row] = null
                if wanted & KEY:
                    key_bounds[2 * row] = key_begin
                    key_bounds[2 * row + 1] = key_end
                if wanted & VALUE:
                    value_bounds[2 * row] = at
                    value_bounds[2 * row + 1] = value_end
                if wanted & HEADERS:
                    header_begins[row] = header_begin
                    header_counts[row] = headers
                row += 1
            at = end
        if at != batch_end:
            return before, batch, BYTES_LEFT
    return row, len(begins), SOUND


def header_positions(  # noqa: PLR0917 - machine code takes arguments by position
    data: Any,
    end: int,
    header_begins: Any,
    header_counts: Any,
    rows: int,
    name_bounds: Any,
    value_bounds: Any,
    nulls: Any,
) -> Any:
    """Where the headers of `rows` records lie, which `record_positions` has found sound; their number."""
    index = 0
    for row in range(rows):
        at = header_begins[row]
        for _ in range(header_counts[row]):
            length, at = _field(data, at, end)
            name_bounds[2 * index] = at
            name_bounds[2 * index + 1] = at + length
            length, at = _field(data, at + length, end)
            nulls[index] = 1 if length < 0 else 0
            value_bounds[2 * index] = at
            value_bounds[2 * index + 1] = at + max(length, 0)
            at += max(length, 0)
            index += 1
    return index


record_positions_compiled = compiled(record_positions)
header_positions_compiled = compiled(header_positions)
