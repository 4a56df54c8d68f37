"""The record walk: proves that a batch holds the records it declares, and makes a value of none of them.

What is proved of [position, end): it is exactly `count` records; the lengths inside of every record add up to
that record's own length; offset deltas are 0, 1, 2, …. Learnt on the way: the smallest and largest timestamp
delta, and whether some record has no key. A reader of the log may then trust the batch.

A Python loop over every field costs about 1 µs a record, more than all the rest of an append. So:

    few      up to `FEW` records are walked field by field
    run      where records repeat one size and layout, each byte that fixes the layout is compared for all of
             them at once, as a column of a matrix: if the length bytes at p + k·S equal those at p for every
             k < m, then the chain of records does step p, p+S, …, p+m·S, and equal inner lengths divide each
             record alike; timestamps and offsets are read from their columns (about 0.05 µs a record)
    steps    where sizes vary, a loop reads nothing but each record's length, since a record's start is known
             only from the one before; its other fields are then gathered for many records at once (0.25 µs)

Chunks hold down the memory of the gathers, however many tiny records a batch has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from appliance.protocol.records.errors import InvalidRecords
from appliance.protocol.records.varint import (
    VARINT_BYTES_MAX,
    VARLONG_BYTES_MAX,
    read_varint,
    read_varlong,
)

Buffer = bytes | bytearray | memoryview
_Bytes = npt.NDArray[np.uint8]
_Longs = npt.NDArray[np.int64]

FEW = 32
CHUNK_RECORDS = 16 * 1024
_STEPS_FIRST = 512
_HEADER_ROUNDS_TOGETHER = 4
_NO_DELTA_YET = 1 << 63


class RecordsSummary(NamedTuple):
    """What the walk learnt. Deltas are milliseconds against the batch's base timestamp."""

    min_timestamp_delta_ms: int
    max_timestamp_delta_ms: int
    keyless: bool


class _Walked(NamedTuple):
    """What one stretch of records came to: the position after it, how many they were, and their summary."""

    at: int
    records: int
    low: int
    high: int
    keyless: bool


def check_records(data: Buffer, position: int, end: int, count: int) -> RecordsSummary:
    """Walks the `count` > 0 uncompressed records in `data[position:end]`. Linear in bytes at worst.

    Raises:
        InvalidRecords: the records do not add up.
    """
    # Seven bytes are the least a record takes: a lying count is found before anything is made for it.
    if count * 7 > end - position:
        raise InvalidRecords(f"{count} records cannot lie in {end - position} bytes")
    if count <= FEW:
        at, low, high, keyless = _walk_fields(data, position, end, count)
    else:
        at, low, high, keyless = _walk_together(data, position, end, count)
    if at != end:
        raise InvalidRecords(f"{end - at} bytes are left after the last of {count} records")
    return RecordsSummary(low, high, keyless)


def _walk_fields(  # noqa: PLR0912 - one branch a varint: calls would double its cost
    data: Buffer, at: int, end: int, count: int
) -> tuple[int, int, int, bool]:
    low, high = _NO_DELTA_YET, -_NO_DELTA_YET
    keyless = False
    try:
        for index in range(count):
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
                at += _checked(length, index)
            byte = data[at]
            if byte == 1:
                at += 1
            else:
                length, at = read_varint(data, at)
                at += _checked(length, index)
            if data[at] == 0:
                at += 1
            else:
                at = _walk_headers(data, at, stop, index)
            if at != stop:
                raise InvalidRecords(f"the fields of record {index} end {stop - at} bytes away from its end")
    except IndexError:
        raise InvalidRecords("the last record runs over the end of its batch") from None
    return at, low, high, keyless


def _checked(length: int, index: int) -> int:
    if length < 0:
        raise InvalidRecords(f"record {index} has a field of {length} bytes")
    return length


def _walk_headers(data: Buffer, at: int, stop: int, index: int) -> int:
    count, at = read_varint(data, at)
    if not 0 <= count <= stop - at:
        raise InvalidRecords(f"record {index} declares {count} headers")
    return _walk_header_fields(data, at, stop, count)


def _walk_header_fields(data: Buffer, at: int, stop: int, count: int) -> int:
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


def _walk_together(data: Buffer, at: int, end: int, count: int) -> tuple[int, int, int, bool]:
    array: _Bytes = np.frombuffer(data, np.uint8)
    low, high = _NO_DELTA_YET, -_NO_DELTA_YET
    keyless = False
    index = 0
    steps = _STEPS_FIRST
    while index < count:
        wanted = min(count - index, CHUNK_RECORDS)
        run = _walk_run(array, data, at, end, index=index, wanted=wanted)
        if run is None:
            # Sizes vary here: step for a while, longer each time a run was sought in vain.
            bodies, stops = _step(data, at, end, min(wanted, steps))
            run = _Walked(int(stops[-1]), len(stops), *_check_fields(array, bodies, stops, index))
            steps = min(steps * 8, CHUNK_RECORDS)
        at = run.at
        index += run.records
        low = min(low, run.low)
        high = max(high, run.high)
        keyless = keyless or run.keyless
    return at, low, high, keyless


def _walk_run(array: _Bytes, data: Buffer, at: int, end: int, *, index: int, wanted: int) -> _Walked | None:
    """Walks a run of records that share size and layout; None where there is none worth the call.

    Every byte that fixes the layout (lengths, headers count) must equal the first record's, so the layout
    that was read for the first record holds for all; what may differ, timestamp and offset, is then read in
    columns.
    """
    length, body = read_varint(data, at)
    stride = body - at + length
    count = min(wanted, (end - at) // stride) if length > 0 else 0
    if count < FEW:
        return None
    rows: _Bytes = array[at : at + count * stride].reshape(count, stride)
    # The fields of the first record: where each one begins, relative to the record.
    offset_at = read_varlong(data, body + 1)[1]
    key_at = read_varint(data, offset_at)[1]
    key_length, key_bytes_at = read_varint(data, key_at)
    value_at = key_bytes_at + max(key_length, 0)
    value_length, value_bytes_at = read_varint(data, value_at)
    headers_at = value_bytes_at + max(value_length, 0)
    if min(key_length, value_length) < -1 or headers_at + 1 != at + stride or data[headers_at] != 0:
        return None
    # Offsets of one run are written in equally many bytes: 0..63 in one, 64..8191 in two, and so on.
    count = min(count, (1 << 7 * (key_at - offset_at) - 1) - index)
    if count < FEW:
        return None
    rows = rows[:count]
    for first, last in (
        (at, body),
        (key_at, key_bytes_at),
        (value_at, value_bytes_at),
        (headers_at, at + stride),
    ):
        for column in range(first - at, last - at):
            same = rows[:, column] == rows[0, column]
            if not same.all():
                count = int(same.argmin())
                if count < FEW:
                    return None
                rows = rows[:count]
    for column, expected in enumerate(_offset_columns(index, count, key_at - offset_at), offset_at - at):
        if not np.array_equal(rows[:, column], expected):
            return None
    deltas = _timestamp_columns(rows, body + 1 - at, offset_at - at)
    if deltas is None:
        return None
    return _Walked(at + count * stride, count, *deltas, key_length < 0)


def _offset_columns(index: int, count: int, length_bytes: int) -> list[_Bytes]:
    """The varint bytes of the offset deltas index, index + 1, …, a column for each of their bytes."""
    bits = np.arange(index << 1, (index + count) << 1, 2, dtype=np.uint32)
    last = length_bytes - 1
    return [
        (bits >> np.uint32(7 * byte) & np.uint32(0x7F) | np.uint32(0x80 if byte < last else 0)).astype(
            np.uint8
        )
        for byte in range(length_bytes)
    ]


def _timestamp_columns(rows: _Bytes, first: int, stop: int) -> tuple[int, int] | None:
    """Lowest and highest timestamp delta of a run; None if the deltas are not equally many bytes."""
    bits = np.zeros(len(rows), np.int64)
    for column in range(first, stop):
        byte = rows[:, column]
        if column + 1 < stop:
            if int(byte.min()) < 0x80:
                return None
        elif int(byte.max()) >= 0x80:
            return None
        bits |= (byte & 0x7F).astype(np.int64) << 7 * (column - first)
    deltas = _unzigzag(bits)
    return int(deltas.min()), int(deltas.max())


def _step(data: Buffer, at: int, end: int, wanted: int) -> tuple[_Longs, _Longs]:
    """Goes through the next records by nothing but their lengths: where each one's body begins and stops."""
    bodies: list[int] = []
    stops: list[int] = []
    add_body = bodies.append
    add_stop = stops.append
    try:
        for _ in range(wanted):
            byte = data[at]
            if byte < 0x80:
                at += 1
            else:
                second = data[at + 1]
                if second < 0x80:
                    byte = byte & 0x7F | second << 7
                    at += 2
                else:
                    length, at = read_varint(data, at)
                    byte = _checked(length, len(stops)) << 1
            if byte & 1:
                raise InvalidRecords("a record has a negative length")
            add_body(at)
            at += byte >> 1
            add_stop(at)
    except IndexError:
        at = end + 1
    if at > end:
        raise InvalidRecords("a record runs over the end of its batch")
    return np.array(bodies, np.int64), np.array(stops, np.int64)


def _check_fields(array: _Bytes, bodies: _Longs, stops: _Longs, first: int) -> tuple[int, int, bool]:
    """Checks every field of many records; (lowest, highest timestamp delta, whether any has no key)."""
    try:
        deltas, at = _varints(array, bodies + 1, VARLONG_BYTES_MAX)
        offsets, at = _varints(array, at, VARINT_BYTES_MAX)
        if not np.array_equal(offsets, np.arange(first, first + len(stops))):
            raise InvalidRecords("the offset deltas of a batch are not 0, 1, 2, …")
        key_lengths, at = _varints(array, at, VARINT_BYTES_MAX)
        keyless = int(key_lengths.min()) < 0
        at = _skip(at, key_lengths, nullable=True)
        value_lengths, at = _varints(array, at, VARINT_BYTES_MAX)
        at = _skip(at, value_lengths, nullable=True)
        header_counts, at = _varints(array, at, VARINT_BYTES_MAX)
        if header_counts.any():
            _skip_headers(array, at, header_counts, stops)
    except IndexError:
        raise InvalidRecords("the fields of a record run over the end of its batch") from None
    if not np.array_equal(at, stops):
        raise InvalidRecords("the fields of a record do not end where the record ends")
    return int(deltas.min()), int(deltas.max()), keyless


def _varints(array: _Bytes, at: _Longs, bytes_max: int) -> tuple[_Longs, _Longs]:
    """The integers at many positions, and the positions after them."""
    byte = array[at]
    bits = byte.astype(np.int64)
    after = at + 1
    if int(byte.max()) >= 0x80:
        bits &= 0x7F
        longer = np.flatnonzero(byte >= 0x80)
        for shift in range(7, 7 * bytes_max, 7):
            byte = array[after[longer]]
            bits[longer] |= (byte & 0x7F).astype(np.int64) << shift
            after[longer] += 1
            longer = longer[byte >= 0x80]
            if not longer.size:
                break
        else:
            raise InvalidRecords(f"a variable-length integer runs over {bytes_max} bytes")
    return _unzigzag(bits), after


def _unzigzag(bits: _Longs) -> _Longs:
    # The shift must not drag a sign along: a varlong may use all 64 bits.
    return (bits.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(bits & 1)


def _skip(at: _Longs, lengths: _Longs, *, nullable: bool) -> _Longs:
    lowest = int(lengths.min())
    if lowest < 0:
        if lowest < -1 or not nullable:
            raise InvalidRecords(f"a field has a length of {lowest} bytes")
        return at + np.maximum(lengths, 0)
    return at + lengths


def _skip_headers(array: _Bytes, at: _Longs, counts: _Longs, stops: _Longs) -> None:
    """Moves `at` over all record headers, in place: some rounds together, the rest one by one."""
    if int(counts.min()) < 0 or bool((counts > stops - at).any()):
        raise InvalidRecords("a record declares more headers than it has bytes")
    left = counts.copy()
    for _ in range(_HEADER_ROUNDS_TOGETHER):
        some = np.flatnonzero(left)
        if not some.size:
            return
        lengths, after = _varints(array, at[some], VARINT_BYTES_MAX)
        after = _skip(after, lengths, nullable=False)
        lengths, after = _varints(array, after, VARINT_BYTES_MAX)
        at[some] = _skip(after, lengths, nullable=True)
        left[some] -= 1
    data = array.data
    for record in np.flatnonzero(left).tolist():
        at[record] = _walk_header_fields(data, int(at[record]), int(stops[record]), int(left[record]))
