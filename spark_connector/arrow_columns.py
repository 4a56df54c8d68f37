"""Rows as Arrow record batches: at most 8,192 rows and about 4 MiB each, which costs a JVM least.

The bytes of a column are copied by machine code (`gather_kernel`), and without numba by Arrow, not by Python. There the
bounds of n fields, begin and end by turns, are the offsets of an array of 2n - 1 slots over the raw buffer: fields in
the even slots, in the odd ones what lies between them. `take` of the even slots lets Arrow's own loop gather them:

    data     ··key0···value0····key1···value1··        bounds  2 6 19 23
    slots      └0─┘└──────1────┘└2─┘                   take    0, 2

Nulls are not in the bounds; their bitmap is put over the gathered array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_connector.compiled import Buffer, has_compiler, machine_bytes
from spark_connector.decode import Fields, Headers, Rows
from spark_connector.memory import take

BATCH_ROWS: Final = 8192
BATCH_BYTES: Final = 4 << 20

_EVEN: Final = pa.array(np.arange(0, 2 * BATCH_ROWS, 2, dtype=np.int32))


class ArrowColumns:
    """Makes record batches of one partition's rows.

    Args:
        names: columns under the source's names, in any order and choice.
        schema: how they are called in the batches, and their types.
        topic, partition: what these two columns say.
    """

    def __init__(self, names: Sequence[str], schema: pa.Schema, *, topic: str, partition: int) -> None:
        self._schema = schema
        topics = pa.array([topic], pa.string()).take(pa.array(np.zeros(BATCH_ROWS, np.int32)))
        partitions = pa.array(np.full(BATCH_ROWS, partition, np.int32))
        makers: dict[str, Callable[[Rows, int, int], Any]] = {
            "key": lambda rows, begin, end: _binary(rows.data, rows.keys, begin, end),
            "value": lambda rows, begin, end: _binary(rows.data, rows.values, begin, end),
            "topic": lambda _, begin, end: topics.slice(0, end - begin),
            "partition": lambda _, begin, end: partitions.slice(0, end - begin),
            "offset": lambda rows, begin, end: pa.array(rows.offsets[begin:end]),
            "timestamp": _timestamps,
            "timestampType": lambda rows, begin, end: pa.array(rows.timestamp_types[begin:end]),
            "headers": self._headers,
        }
        self._makers = [makers[name] for name in names]
        self._header_type = schema.field(names.index("headers")).type if "headers" in names else None

    def batches(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        """The rows, in order, in batches of bounded size; a row that is larger has a batch of its own."""
        for begin, end in _stretches(rows):
            columns = [make(rows, begin, end) for make in self._makers]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _headers(self, rows: Rows, begin: int, end: int) -> Any:
        assert rows.headers is not None
        return _header_lists(rows.data, rows.headers, begin, end, self._header_type)


def _stretches(rows: Rows) -> Iterator[tuple[int, int]]:
    if len(rows.data) <= BATCH_BYTES:
        # All fields lie in these bytes, one behind another.
        for begin in range(0, len(rows), BATCH_ROWS):
            yield begin, min(begin + BATCH_ROWS, len(rows))
        return
    bounds = [fields.bounds for fields in (rows.keys, rows.values) if fields is not None]
    if rows.headers is not None:
        firsts = rows.headers.firsts
    sizes = np.zeros(len(rows), np.int64)
    for field_bounds in bounds:
        sizes += field_bounds[1::2] - field_bounds[::2]
    if rows.headers is not None and firsts[-1]:
        header_bytes = np.zeros(int(firsts[-1]) + 1, np.int64)
        for fields in (rows.headers.names, rows.headers.values):
            header_bytes[1:] += np.cumsum(fields.bounds[1::2] - fields.bounds[::2], dtype=np.int64)
        sizes += header_bytes[firsts[1:]] - header_bytes[firsts[:-1]]
    total = np.cumsum(sizes)
    begin = 0
    while begin < len(rows):
        before = int(total[begin - 1]) if begin else 0
        end = int(np.searchsorted(total, before + BATCH_BYTES, side="right"))
        end = min(max(end, begin + 1), begin + BATCH_ROWS, len(rows))
        yield begin, end
        begin = end


def _timestamps(rows: Rows, begin: int, end: int) -> Any:
    values = rows.timestamps_us[begin:end]
    return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), len(values), [None, pa.py_buffer(values)])


def _binary(data: Buffer, fields: Fields | None, begin: int, end: int) -> Any:
    assert fields is not None
    return _gathered(data, fields.bounds[2 * begin : 2 * end], fields.nulls[begin:end], pa.binary())


def _gathered(data: Buffer, bounds: npt.NDArray[np.int32], nulls: npt.NDArray[np.bool_], kind: Any) -> Any:
    """The fields at `bounds` as an Arrow array of their own memory."""
    count = len(nulls)
    if not count:
        return pa.array([], kind)
    if has_compiler():
        return _copied(data, bounds, nulls, kind)
    slots = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    even = _EVEN.slice(0, count) if count <= BATCH_ROWS else pa.array(np.arange(0, 2 * count, 2))
    gathered = slots.take(even)
    if not nulls.any():
        return gathered
    _, offsets, content = gathered.buffers()
    bitmap = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(kind, count, [bitmap, offsets, content], offset=gathered.offset)


def _copied(data: Buffer, bounds: npt.NDArray[np.int32], nulls: npt.NDArray[np.bool_], kind: Any) -> Any:
    from spark_connector.gather_kernel import gather_fields, lay_out

    count = len(nulls)
    offsets = np.empty(count + 1, np.int32)
    content = take(lay_out(bounds, offsets))
    gather_fields(machine_bytes(data), bounds, offsets, content)
    bitmap = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None
    return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(offsets), pa.py_buffer(content)])


def _header_lists(data: Buffer, headers: Headers, begin: int, end: int, kind: Any) -> Any:
    """A list of (key, value) for each row; null, as Spark's own Kafka source has it, for a row without headers."""
    firsts = headers.firsts[begin : end + 1]
    low, high = int(firsts[0]), int(firsts[-1])
    entries = kind.value_type
    structs = pa.StructArray.from_arrays(
        [
            _gathered(data, fields.bounds[2 * low : 2 * high], fields.nulls[low:high], field.type)
            for fields, field in zip((headers.names, headers.values), entries, strict=True)
        ],
        fields=list(entries),
    )
    empty = firsts[1:] == firsts[:-1]
    bitmap = pa.py_buffer(np.packbits(~empty, bitorder="little"))
    return pa.Array.from_buffers(
        kind, end - begin, [bitmap, pa.py_buffer(firsts - np.int32(low))], children=[structs]
    )
