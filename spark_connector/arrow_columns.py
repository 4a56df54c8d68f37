"""Rows as Arrow record batches: at most 8,192 rows and about 4 MiB each, which costs a JVM least. How bytes
are copied: `appliance.protocol.columns.arrow_arrays`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from appliance.protocol.columns.arrow_arrays import gathered, header_lists
from appliance.protocol.columns.compiled import Buffer
from appliance.protocol.columns.decode import Fields, Rows

BATCH_ROWS: Final = 8192
BATCH_BYTES: Final = 4 << 20


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
        return header_lists(rows.data, rows.headers, begin, end, self._header_type)


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
    return gathered(data, fields.bounds[2 * begin : 2 * end], fields.nulls[begin:end], pa.binary())
