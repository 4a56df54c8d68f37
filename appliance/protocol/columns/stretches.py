"""How many rows of a table become one piece: about so many bytes as they have when each row has its own.

In a dictionary or a view many rows can be the same bytes. A column of 124 KB can be 100 MB of records, so its size in
memory says nothing of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from appliance.protocol.columns.arrow_types import as_list, is_list, is_view

PIECE_ROWS: Final = 1 << 18

_Longs = npt.NDArray[np.int64]
_NONE: Final = np.empty(0, np.int64)


def stretches(table: pa.Table, piece_bytes: int) -> Iterator[tuple[int, int]]:
    """The bounds of each piece: about `piece_bytes` bytes, one row at least and at most PIECE_ROWS."""
    rows = table.num_rows
    if not rows:
        return
    step = int(min(max(1, piece_bytes * rows // max(1, table.nbytes)), PIECE_ROWS))
    sharing = [column for column in table.columns if _may_share(column.type)]
    plain = table.select([n for n, column in enumerate(table.columns) if not _may_share(column.type)])
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        parts = _parts(sharing, begin, end, piece_bytes) if sharing else [(begin, end)]
        for first, last in parts:
            yield from _halves(plain, first, last, piece_bytes)


def _halves(table: pa.Table, begin: int, end: int, piece_bytes: int) -> Iterator[tuple[int, int]]:
    """The rows from `begin` to `end`, halved where they are more: some rows may be much larger than the average."""
    if end - begin > 1 and table.slice(begin, end - begin).nbytes > 2 * piece_bytes:
        middle = (begin + end) // 2
        yield from _halves(table, begin, middle, piece_bytes)
        yield from _halves(table, middle, end, piece_bytes)
    else:
        yield begin, end


def _parts(sharing: list[Any], begin: int, end: int, piece_bytes: int) -> Iterator[tuple[int, int]]:
    """The rows from `begin` to `end` in parts of about `piece_bytes`, counted as each row has its own bytes."""
    sizes = np.zeros(end - begin, np.int64)
    for column in sharing:
        sizes += np.concatenate([_row_bytes(chunk) for chunk in column.slice(begin, end - begin).chunks])
    ends = np.cumsum(sizes)
    at, before = 0, 0
    while at < len(ends):
        stop = max(at + 1, int(np.searchsorted(ends, before + piece_bytes, side="right")))
        yield begin + at, begin + stop
        at, before = stop, int(ends[stop - 1])


def _may_share(kind: Any) -> bool:
    """Whether many rows of such a column can be the same bytes in memory, so that its size there says little."""
    if pa.types.is_map(kind):
        return _may_share(kind.key_type) or _may_share(kind.item_type)
    if is_list(kind):
        return any(_may_share(field.type) for field in kind.value_type)
    return bool(pa.types.is_dictionary(kind) or is_view(kind))


def _row_bytes(array: Any) -> _Longs:
    """How many bytes of text or binary each row has; 0 for a null."""
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_map(kind) or is_list(kind):
        lists = as_list(array)
        counts = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
        firsts = np.concatenate((_NONE, [0], np.cumsum(counts, dtype=np.int64)))
        each = sum((_row_bytes(part) for part in lists.flatten().flatten()), np.zeros(firsts[-1], np.int64))
        total = np.concatenate((_NONE, [0], np.cumsum(each)))
        return np.asarray(total[firsts[1:]] - total[firsts[:-1]])
    if pa.types.is_dictionary(kind):
        lengths = np.append(_row_bytes(array.dictionary), 0)
        none = len(lengths) - 1
        return np.asarray(lengths[array.indices.cast(pa.int64()).fill_null(none).to_numpy()])
    if is_view(kind):
        # A view begins with the length of its field.
        lengths = np.frombuffer(array.buffers()[1], np.int32)[::4][array.offset : array.offset + len(array)]
        lengths = lengths.astype(np.int64)
        if array.null_count:
            lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
        return lengths
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.int64)
    lengths = pc.binary_length(array).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(lengths)
