"""Fields by position as Arrow arrays, which have their own memory.

The bytes of a column are copied by machine code (`gather_kernel`), and without numba by Arrow, not by Python. There the
bounds of n fields, begin and end by turns, are the offsets of an array of 2n - 1 slots over the raw buffer: fields in
the even slots, in the odd ones what lies between them. `take` of the even slots lets Arrow's own loop gather them:

    data     ··key0···value0····key1···value1··        bounds  2 6 19 23
    slots      └0─┘└──────1────┘└2─┘                   take    0, 2

Nulls are not in the bounds; their bitmap is put over the gathered array.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from appliance.protocol.columns.compiled import Buffer, has_compiler, machine_bytes
from appliance.protocol.columns.decode import Headers
from appliance.protocol.columns.memory import take

EVEN_ROWS: Final = 8192
"""Of so many fields the slots to take are written down once."""
_EVEN: Final = pa.array(np.arange(0, 2 * EVEN_ROWS, 2, dtype=np.int32))


def gathered(data: Buffer, bounds: npt.NDArray[np.int32], nulls: npt.NDArray[np.bool_], kind: Any) -> Any:
    """The fields at `bounds` as an Arrow array of their own memory."""
    count = len(nulls)
    if not count:
        return pa.array([], kind)
    if has_compiler():
        return _copied(data, bounds, nulls, kind)
    slots = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    even = _EVEN.slice(0, count) if count <= EVEN_ROWS else pa.array(np.arange(0, 2 * count, 2))
    gathered = slots.take(even)
    if not nulls.any():
        return gathered
    _, offsets, content = gathered.buffers()
    bitmap = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(kind, count, [bitmap, offsets, content], offset=gathered.offset)


def _copied(data: Buffer, bounds: npt.NDArray[np.int32], nulls: npt.NDArray[np.bool_], kind: Any) -> Any:
    from appliance.protocol.columns.gather_kernel import gather_fields, lay_out

    count = len(nulls)
    offsets = np.empty(count + 1, np.int32)
    content = take(lay_out(bounds, offsets))
    gather_fields(machine_bytes(data), bounds, offsets, content)
    bitmap = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None
    return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(offsets), pa.py_buffer(content)])


def header_lists(data: Buffer, headers: Headers, begin: int, end: int, kind: Any) -> Any:
    """A list of (key, value) for each row; null, as Spark's own Kafka source has it, for a row without headers."""
    firsts = headers.firsts[begin : end + 1]
    low, high = int(firsts[0]), int(firsts[-1])
    entries = kind.value_type
    structs = pa.StructArray.from_arrays(
        [
            gathered(data, fields.bounds[2 * low : 2 * high], fields.nulls[low:high], field.type)
            for fields, field in zip((headers.names, headers.values), entries, strict=True)
        ],
        fields=list(entries),
    )
    empty = firsts[1:] == firsts[:-1]
    bitmap = pa.py_buffer(np.packbits(~empty, bitorder="little"))
    return pa.Array.from_buffers(
        kind, end - begin, [bitmap, pa.py_buffer(firsts - np.int32(low))], children=[structs]
    )
