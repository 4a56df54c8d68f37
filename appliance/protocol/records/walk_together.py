"""The record walk of many records at once, which takes numpy. What it proves: `walk`.

    few      up to 48 records where sizes vary are walked field by field, as in `walk`; compiled, all of them
    run      where records repeat one size and layout, each byte that fixes the layout is compared for all of
             them at once, as a column of a matrix: if the length bytes at p + k·S equal those at p for every
             k < m, then the chain of records does step p, p+S, …, p+m·S, and equal inner lengths divide each
             record alike; timestamps and offsets are read from their columns (about 0.05 µs a record)
    steps    where sizes vary, a loop reads nothing but each record's length, since a record's start is known
             only from the one before; its other fields are then gathered for many records at once (0.25 µs)

Chunks hold down the memory of the gathers, however many tiny records a batch has.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from appliance.protocol.records.errors import InvalidRecords
from appliance.protocol.records.varint import (
    VARINT_BYTES_MAX,
    VARLONG_BYTES_MAX,
    Buffer,
    read_varint,
    read_varlong,
    varint_at,
)
from appliance.protocol.records.walk_fields import (
    DELTA_MAX,
    DELTA_MIN,
    IS_COMPILED,
    Walked,
    walk_fields,
    walk_header_fields,
)

_Bytes = npt.NDArray[np.uint8]
_Longs = npt.NDArray[np.int64]

CHUNK_RECORDS: Final = 16 * 1024
_FEW_OF_MANY_SIZES: Final = 48
RUN_MIN: Final = 8
_STEPS_FIRST: Final = 512
_WIDTH_FIRST: Final = 512
_HEADER_ROUNDS_TOGETHER: Final = 32


def walk_together(data: Buffer, at: int, end: int, count: int) -> Walked:
    """Walks the `count` uncompressed records that begin at `at`.

    Raises:
        InvalidRecords: the records do not add up.
    """
    array: _Bytes = np.frombuffer(data, np.uint8)
    low, high = DELTA_MAX, DELTA_MIN
    keyless = False
    raw: bytes | None = None
    index = 0
    runs = Runs()
    steps = _STEPS_FIRST
    while index < count:
        run: Walked | None = None
        if wanted := runs.wanted(min(count - index, _same_width(index))):
            run = _walk_run(array, data, at, end, index=index, wanted=wanted)
        runs.found(0 if run is None else run[1])
        if run is None:
            # Sizes vary here: go on without for a while, longer each time a run was sought in vain.
            some = min(count - index, steps)
            steps = min(steps * 8, CHUNK_RECORDS)
            if IS_COMPILED or count - index <= _FEW_OF_MANY_SIZES:
                run = walk_fields(data, at, end, some, index)
            else:
                if raw is None:
                    raw = bytes(data)
                starts = step(raw, at, end, some)
                summary = _check_fields(array, np.array(starts, np.int64), index)
                run = (starts[-1], len(starts) - 1, *summary)
        at, records, run_low, run_high, run_keyless = run
        index += records
        low = min(low, run_low)
        high = max(high, run_high)
        keyless = keyless or run_keyless
    return at, count, low, high, keyless


class Runs:
    """Among how many records a run of one size is sought: few at first, more after each that was as long as could be.

    A run is found by copying bytes of all the records that it is sought among. So a shorter one is followed by a
    stretch without: else records made for it would cost as much as all that come after them, again and again.
    """

    __slots__ = ("_sought", "_width")

    def __init__(self) -> None:
        self._width: int = _WIDTH_FIRST
        self._sought: int = 0

    def wanted(self, left: int) -> int:
        """Of `left` records; 0 where no run is to be sought."""
        self._sought = min(left, self._width) if left >= RUN_MIN else 0
        return self._sought

    def found(self, records: int) -> None:
        """How long it was."""
        if not records:
            self._width = _WIDTH_FIRST
        elif records < self._sought:
            self._width = 0
        else:
            self._width = min(self._width * 8, CHUNK_RECORDS)


def _same_width(index: int) -> int:
    """How many offsets from `index` on are written in as many bytes: 0 to 63 in one, 64 to 8191 in two, and so on."""
    bound: int = 1 << 6
    while bound <= index:
        bound <<= 7
    return bound - index


def _walk_run(array: _Bytes, data: Buffer, at: int, end: int, *, index: int, wanted: int) -> Walked | None:
    """Walks a run of records that share size and layout; None where there is none worth the call.

    Every byte that fixes the layout (lengths, headers count) must equal the first record's, so the layout
    that was read for the first record holds for all; what may differ, timestamp and offset, is then read in
    columns.
    """
    length, body = varint_at(data, at, end)
    stride = body - at + length
    count = min(wanted, (end - at) // stride) if length > 0 else 0
    if count < RUN_MIN or data[at + stride] != data[at]:
        return None
    # The fields of the first record: where each one begins.
    offset_at: int = body + 1 + read_varlong(bytes(data[body + 1 : body + 1 + VARLONG_BYTES_MAX]), 0)[1]
    key_at = varint_at(data, offset_at, end)[1]
    key_length, key_bytes_at = varint_at(data, key_at, end)
    value_at = key_bytes_at + max(key_length, 0)
    value_length, value_bytes_at = varint_at(data, value_at, end)
    headers_at = value_bytes_at + max(value_length, 0)
    if min(key_length, value_length) < -1 or headers_at + 1 != at + stride or data[headers_at] != 0:
        return None
    for place in (
        *range(at, body),
        *range(key_at, key_bytes_at),
        *range(value_at, value_bytes_at),
        headers_at,
    ):
        if count < RUN_MIN:
            return None
        column = _column(array, place, stride, count)
        count -= len(column.lstrip(column[:1]))
    if count < RUN_MIN:
        return None
    for place, expected in enumerate(_offset_columns(index, count, key_at - offset_at), offset_at):
        if _column(array, place, stride, count) != expected:
            return None
    deltas = _timestamp_deltas([_column(array, place, stride, count) for place in range(body + 1, offset_at)])
    if deltas is None:
        return None
    return at + count * stride, count, *deltas, key_length < 0


def _column(array: _Bytes, at: int, stride: int, count: int) -> bytes:
    """One byte of each record of a run. As bytes, since comparing those is ten times cheaper than an array."""
    return array[at : at + stride * (count - 1) + 1 : stride].tobytes()


def _offset_columns(index: int, count: int, length_bytes: int) -> tuple[bytes, ...]:
    """The varint bytes of the offset deltas index, index + 1, …, a column for each of their bytes."""
    if length_bytes <= len(_OFFSETS):
        return tuple(column[index : index + count] for column in _OFFSETS[length_bytes - 1])
    return _encode_offsets(index, count, length_bytes)


def _encode_offsets(index: int, count: int, length_bytes: int) -> tuple[bytes, ...]:
    bits = np.arange(index << 1, (index + count) << 1, 2, dtype=np.int64)
    last = length_bytes - 1
    return tuple(
        (bits >> 7 * byte & 0x7F | (0x80 if byte < last else 0)).astype(np.uint8).tobytes()
        for byte in range(length_bytes)
    )


_OFFSETS: Final = (_encode_offsets(0, 1 << 6, 1), _encode_offsets(0, 1 << 13, 2))


def _timestamp_deltas(columns: list[bytes]) -> tuple[int, int] | None:
    """Lowest and highest timestamp delta of a run; None if the deltas are not equally many bytes."""
    if all(not column.lstrip(column[:1]) for column in columns):
        delta, used = read_varlong(bytes(column[0] for column in columns), 0)
        return (delta, delta) if used == len(columns) else None
    bits = np.zeros(len(columns[0]), np.int64)
    for number, column in enumerate(columns):
        byte = np.frombuffer(column, np.uint8)
        if number + 1 < len(columns):
            if int(byte.min()) < 0x80:
                return None
        elif not column.isascii():
            return None
        bits |= (byte & 0x7F).astype(np.int64) << 7 * number
    deltas = _unzigzag(bits)
    return int(deltas.min()), int(deltas.max())


def step(data: bytes, at: int, end: int, wanted: int) -> list[int]:
    """Goes on by nothing but lengths: where the next records start, and where the last of them stops."""
    starts = [at]
    add = starts.append
    try:
        for _ in range(wanted):
            byte = data[at]
            if byte < 0x80:
                at += 1 + (byte >> 1)
            else:
                second = data[at + 1]
                if second < 0x80:
                    at += 2 + (second << 6 | (byte & 0x7F) >> 1)
                else:
                    length, at = read_varint(data, at)
                    if length < 0:
                        raise InvalidRecords(f"a record has a length of {length} bytes")
                    at += length
            add(at)
    except IndexError:
        at = end + 1
    if at > end:
        raise InvalidRecords("a record runs over the end of its batch")
    return starts


def _check_fields(array: _Bytes, starts: _Longs, first: int) -> tuple[int, int, bool]:
    """Checks every field of the records that begin at `starts`, all but the last, where the last one stops.

    Returns (lowest, highest timestamp delta in ms, whether any record has no key).
    """
    stops = starts[1:]
    count = len(stops)
    try:
        lengths, at = varints(array, starts[:-1], VARINT_BYTES_MAX)
        if int(lengths[lengths.argmin()]) < 0:
            raise InvalidRecords("a record has a negative length")
        deltas, at = varints(array, at + 1, VARLONG_BYTES_MAX)
        offsets, at = varints(array, at, VARINT_BYTES_MAX)
        if not (offsets == np.arange(first, first + count)).all():
            raise InvalidRecords("the offset deltas of a batch are not 0, 1, 2, …")
        keyless = False
        keys = array[at].tobytes()
        if keys == b"\x01" * count:
            keyless = True
            at = at + 1
        else:
            key_lengths, at = varints(array, at, VARINT_BYTES_MAX)
            keyless = int(key_lengths.min()) < 0
            at = skip(at, key_lengths, nullable=True)
        value_lengths, at = varints(array, at, VARINT_BYTES_MAX)
        at = skip(at, value_lengths, nullable=True)
        if array[at].any():
            header_counts, at = varints(array, at, VARINT_BYTES_MAX)
            _skip_headers(array, at, header_counts, stops)
        else:
            at = at + 1
    except IndexError:
        raise InvalidRecords("the fields of a record run over the end of its batch") from None
    if not (at == stops).all():
        raise InvalidRecords("the fields of a record do not end where the record ends")
    return int(deltas.min()), int(deltas.max()), keyless


def varints(array: _Bytes, at: _Longs, bytes_max: int) -> tuple[_Longs, _Longs]:
    """The integers at many positions, and the positions after them."""
    byte = array[at]
    if byte.tobytes().isascii():
        return _unzigzag(byte.astype(np.int64)), at + 1
    more = byte >> 7
    after = at + more
    second = array[after]
    after += 1
    bits = (byte & 0x7F).astype(np.int64)
    # Where there is no second byte, `second` is the first one again, and times zero.
    bits += (second & 0x7F).astype(np.int64) * more << 7
    more &= second >> 7
    if more.any():
        longer = more.nonzero()[0]
        for shift in range(14, 7 * bytes_max, 7):
            byte = array[after[longer]]
            bits[longer] |= (byte & 0x7F).astype(np.int64) << shift
            after[longer] += 1
            longer = longer[byte >= 0x80]
            if not longer.size:
                break
        else:
            raise InvalidRecords(f"a variable-length integer runs over {bytes_max} bytes")
        if bytes_max == VARINT_BYTES_MAX:
            bits &= 0xFFFFFFFF  # what is beyond is dropped, as by `read_varint`
    return _unzigzag(bits), after


def _unzigzag(bits: _Longs) -> _Longs:
    if not (bits & 1).any() and int(bits.min()) >= 0:
        return bits >> 1
    # The shift must not drag a sign along: a varlong may use all 64 bits.
    return (bits.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(bits & 1)


def skip(at: _Longs, lengths: _Longs, *, nullable: bool) -> _Longs:
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
        some = left.nonzero()[0]
        if len(some) < RUN_MIN:
            break
        lengths, after = varints(array, at[some], VARINT_BYTES_MAX)
        after = skip(after, lengths, nullable=False)
        lengths, after = varints(array, after, VARINT_BYTES_MAX)
        at[some] = skip(after, lengths, nullable=True)
        left[some] -= 1
    for record in left.nonzero()[0].tolist():
        begin, stop = int(at[record]), int(stops[record])
        headers = array[begin:stop].tobytes()
        at[record] = begin + walk_header_fields(headers, 0, stop - begin, int(left[record]))
