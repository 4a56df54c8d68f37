"""Records as columns: the fields of thousands of records at once, where they lie, without a value for any of them.

    starts ─┐                ┌─ offsets_at   ┌─ keys_at        ┌─ values_at        stops ─┐
            ▼                ▼               ▼                 ▼                          ▼
            length·attributes·timestamp·offset·key length·key·value length·value·headers │

For those who decide over records and then move their bytes: the cleaner. Records of many batches may stand in one set
of columns; each has its own start and stop in one buffer. What is proved is what is used: that the fields up to the
value lie inside of the record. Headers are not looked at.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from appliance.protocol.records.errors import InvalidRecords
from appliance.protocol.records.varint import VARINT_BYTES_MAX, VARLONG_BYTES_MAX, read_varint
from appliance.protocol.records.walk_together import CHUNK_RECORDS, RUN_MIN, Runs, skip, step, varints

Longs = npt.NDArray[np.int64]


class RecordColumns(NamedTuple):
    """Positions are indexes into the buffer. Lengths are -1 for null."""

    starts: Longs
    stops: Longs
    bodies_at: Longs
    timestamp_deltas_ms: Longs
    offsets_at: Longs
    offset_deltas: Longs
    keys_at: Longs
    key_lengths: Longs
    values_at: Longs
    value_lengths: Longs


def record_bounds(data: bytes, position: int, end: int, count: int) -> Longs:
    """Where the `count` > 0 records in data[position:end] begin, and at last where the last one stops.

    Raises:
        InvalidRecords: they are not exactly `count`.
    """
    if count * 7 > end - position:
        raise InvalidRecords(f"{count} records do not fit in {end - position} bytes")
    pieces: list[Longs] = []
    at, left = position, count
    runs = Runs()
    while left:
        wanted = runs.wanted(left)
        run = _run(data, at, end, wanted) if wanted else None
        runs.found(0 if run is None else len(run) - 1)
        if run is None:
            run = np.array(step(data, at, end, min(left, CHUNK_RECORDS)), np.int64)
        pieces.append(run[:-1])
        at = int(run[-1])
        left -= len(run) - 1
    if at != end:
        raise InvalidRecords(f"{end - at} bytes are left after the last of {count} records")
    pieces.append(np.array([at], np.int64))
    return np.concatenate(pieces)


def _run(data: bytes, at: int, end: int, wanted: int) -> Longs | None:
    """The bounds of a run of records of one size: equal length bytes, one stride apart, chain them all."""
    length, body = read_varint(data, at)
    stride = body - at + length
    if length <= 0:
        return None
    count = min(wanted, (end - at) // stride)
    for place in range(at, body):
        if count < RUN_MIN:
            return None
        column = data[place : place + stride * (count - 1) + 1 : stride]
        count -= len(column.lstrip(column[:1]))
    return np.arange(at, at + stride * count + 1, stride, dtype=np.int64) if count >= RUN_MIN else None


def record_columns(data: bytes, starts: Longs, stops: Longs) -> RecordColumns:
    """The columns of the records that lie in data[start:stop] each; at least one.

    Raises:
        InvalidRecords: the fields of a record run over its end.
    """
    array = np.frombuffer(data, np.uint8)
    try:
        _, bodies_at = varints(array, starts, VARINT_BYTES_MAX)
        timestamp_deltas_ms, offsets_at = varints(array, bodies_at + 1, VARLONG_BYTES_MAX)
        offset_deltas, at = varints(array, offsets_at, VARINT_BYTES_MAX)
        key_lengths, keys_at = varints(array, at, VARINT_BYTES_MAX)
        at = skip(keys_at, key_lengths, nullable=True)
        value_lengths, values_at = varints(array, at, VARINT_BYTES_MAX)
        at = skip(values_at, value_lengths, nullable=True)
    except IndexError:
        raise InvalidRecords("the fields of a record run over the end of its batch") from None
    if not (at < stops).all():
        raise InvalidRecords("the fields of a record do not end before the record ends")
    return RecordColumns(
        starts,
        stops,
        bodies_at,
        timestamp_deltas_ms,
        offsets_at,
        offset_deltas,
        keys_at,
        key_lengths,
        values_at,
        value_lengths,
    )
