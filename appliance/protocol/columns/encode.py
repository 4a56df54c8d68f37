"""Arrow columns to record batches: what is a column's type and content, and the pieces that the kernels take.

    table ── Layout.of ── check ──→ pieces, some megabytes each ── partitions ── BatchEncoder ──→ batches of a partition

Nothing of a table is encoded before all of it was checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from appliance.errors import ApplianceError
from appliance.protocol.columns import encode_kernel as kernel
from appliance.protocol.columns.arrow_types import (
    BYTES_WANTED,
    as_list,
    header_fields,
    is_bytes,
    is_headers,
    is_number,
    is_time,
)
from appliance.protocol.columns.compiled import has_compiler, machine_bytes
from appliance.protocol.columns.memory import take
from appliance.protocol.columns.stretches import stretches
from appliance.protocol.records import batch as b

BUFFER_BYTES: Final = 4 << 20
BATCHES_AT_ONCE: Final = 512

_SECONDS_MAX: Final = ((1 << 63) - 1) // 1000

_Longs = npt.NDArray[np.int64]
_NONE: Final = np.empty(0, np.int64)
_BROKEN: Final = "a column has offsets outside of its data: see pyarrow's Table.validate"
_NO_BYTES: Final = np.empty(0, np.uint8)


class UnfitColumns(ApplianceError):
    """A table that cannot become records: a column is missing, of another type, or holds what no record can.

    Args:
        reason: what is wrong.
        row: the first row that is wrong, counted from 0; None where it is the column.
    """

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason if row is None else f"row {row}: {reason}")
        self.reason = reason
        self.row = row


class Fields(NamedTuple):
    """Byte strings, by position: the n-th is `data[starts[n] : starts[n] + lengths[n]]`, null where that is -1."""

    data: npt.NDArray[np.uint8]
    starts: _Longs
    lengths: _Longs


NO_FIELDS: Final = Fields(_NO_BYTES, _NONE, _NONE)


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns become what; None: left out. Made by `of`, which has checked their types."""

    key: str | None
    value: str | None
    timestamp: str | None
    headers: str | None
    partition: str | None

    @classmethod
    def of(  # noqa: PLR0917
        cls,
        schema: pa.Schema,
        key: str | None,
        value: str | None,
        timestamp: str | None,
        headers: str | None,
        partition: str | None,
    ) -> Layout:
        """Raises:
        UnfitColumns: the table has no such column, or it has a type that cannot be sent.
        """
        for role, name, fits, wanted in (
            ("key", key, is_bytes, BYTES_WANTED),
            ("value", value, is_bytes, BYTES_WANTED),
            ("timestamp", timestamp, is_time, "timestamp or int64 (milliseconds since 1970)"),
            (
                "headers",
                headers,
                is_headers,
                "list<struct<key: string, value: binary>> or map<string, binary>",
            ),
            ("partition", partition, is_number, "an integer"),
        ):
            if name is None:
                continue
            found = schema.get_all_field_indices(name)
            if len(found) != 1:
                what = "two columns" if found else "no column"
                raise UnfitColumns(f"{role}: the table has {what} {name!r}; it has {', '.join(schema.names)}")
            kind = schema.field(found[0]).type
            if not fits(kind):
                hint = "; cast it first, for example to pa.string()" if wanted is BYTES_WANTED else ""
                raise UnfitColumns(f"{role}: column {name!r} is {kind}, and must be {wanted}{hint}")
        return cls(key, value, timestamp, headers, partition)

    @property
    def names(self) -> list[str]:
        """The columns that are read, each once."""
        all_of_them = (self.key, self.value, self.timestamp, self.headers, self.partition)
        return list(dict.fromkeys(name for name in all_of_them if name is not None))


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a table, ready for the kernels. `partitions` is None where no column says them."""

    rows: int
    keys: Fields
    values: Fields
    times_ms: _Longs
    header_firsts: _Longs
    header_names: Fields
    header_values: Fields
    partitions: _Longs | None

    def sizes(self) -> _Longs:
        """About what each record takes: its fields and a bound of the rest."""
        sizes = np.full(self.rows, kernel.RECORD_OVERHEAD_MAX, np.int64)
        for fields in (self.keys, self.values):
            if len(fields.lengths):
                sizes += fields.lengths.clip(0)
        if len(self.header_firsts):
            each = self.header_names.lengths + self.header_values.lengths.clip(0) + kernel.HEADER_OVERHEAD_MAX
            total = np.concatenate((_NONE, [0], np.cumsum(each)))
            sizes += total[self.header_firsts[1:]] - total[self.header_firsts[:-1]]
        return sizes


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A batch without its header: `room` has 61 bytes for it in front of the records."""

    room: memoryview
    count: int
    first_ms: int
    max_ms: int


def pieces(table: pa.Table, layout: Layout, *, now_ms: int, piece_bytes: int) -> Iterator[Piece]:
    """The rows of a table, in order, about `piece_bytes` at once. Chunks of a column are joined within a piece.

    Args:
        now_ms: the time of rows that have none.

    Raises:
        UnfitColumns: a value that no record can hold.
    """
    table = _plain(table.select(layout.names))
    for begin, end in stretches(table, piece_bytes):
        try:
            yield _piece(table.slice(begin, end - begin), layout, now_ms)
        except UnfitColumns as fault:
            if fault.row is None:
                raise
            raise UnfitColumns(fault.reason, begin + fault.row) from None


def _plain(table: pa.Table) -> pa.Table:
    """The same without extension types, and with dictionaries of large_binary: each is converted once, not by piece."""
    for index, field in enumerate(table.schema):
        column = table.column(index)
        plain = [_plain_array(chunk, field.name) for chunk in column.chunks]
        if any(new is not old for new, old in zip(plain, column.chunks, strict=True)):
            table = table.set_column(index, field.name, pa.chunked_array(plain))
    return table


def _plain_array(array: Any, name: str) -> Any:
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    if not pa.types.is_dictionary(array.type):
        return array
    return pa.DictionaryArray.from_arrays(array.indices, _cast(array.dictionary, pa.large_binary(), name))


def _piece(table: pa.Table, layout: Layout, now_ms: int) -> Piece:
    def fields(name: str | None) -> Fields:
        return NO_FIELDS if name is None else _fields(_joined(table.column(name), pa.large_binary(), name))

    partitions: _Longs | None = None
    if layout.partition is not None:
        column = _joined(table.column(layout.partition), pa.int64(), layout.partition)
        if column.null_count:
            row = int(pc.index(column.is_null(), True).as_py())
            raise UnfitColumns(f"partition: column {layout.partition!r} has nulls", row)
        partitions = np.ascontiguousarray(column.to_numpy(zero_copy_only=False), np.int64)
    firsts, names, contents = _NONE, NO_FIELDS, NO_FIELDS
    if layout.headers is not None:
        firsts, names, contents = _headers(table.column(layout.headers), layout.headers)
    return Piece(
        table.num_rows,
        fields(layout.key),
        fields(layout.value),
        _times_ms(table, layout.timestamp, now_ms),
        firsts,
        names,
        contents,
        partitions,
    )


def _joined(column: Any, kind: Any, name: str) -> Any:
    """One array of a column's chunks, as `kind`."""
    chunks = [_cast(chunk, kind, name) for chunk in column.chunks]
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else pa.array([], kind)


def _cast(array: Any, kind: Any, name: str) -> Any:
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        # Arrow cannot take views, and text of 32-bit offsets could be too much: the dictionary is converted first.
        return _cast(array.dictionary, kind, name).take(array.indices)
    if array.type.equals(kind):
        return array
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    if kind == pa.large_binary() and pa.types.is_string(array.type):
        array = array.cast(pa.binary())
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as fault:
        raise UnfitColumns(f"column {name!r} has a value that does not fit: {fault}") from None


def _fields(array: Any) -> Fields:
    """The fields of a large_binary array, where they lie."""
    count = len(array)
    if not count:
        return NO_FIELDS
    _, offsets, content = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + count + 1]
    lengths = np.diff(bounds)
    data = _NO_BYTES if content is None or not content.size else np.frombuffer(content, np.uint8)
    # Arrow checks no table that comes from a file or another process, and the kernels check no bound.
    if bounds[0] < 0 or bounds[-1] > len(data) or lengths.min() < 0:
        raise UnfitColumns(_BROKEN)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
    return Fields(data, bounds[:-1], lengths)


def _times_ms(table: pa.Table, name: str | None, now_ms: int) -> _Longs:
    if name is None:
        return np.full(table.num_rows, now_ms, np.int64)
    column = table.column(name)
    if pa.types.is_timestamp(column.type):
        try:
            # Seconds can be too many for milliseconds; finer units are cut, which a safe cast refuses.
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=column.type.unit == "s")
        except pa.ArrowInvalid:
            seconds = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            row = int(np.flatnonzero((seconds > _SECONDS_MAX) | (seconds < -_SECONDS_MAX))[0])
            reason = f"timestamp: column {name!r} has a time beyond 64 bits of milliseconds"
            raise UnfitColumns(reason, row) from None
    column = _joined(column, pa.int64(), name)
    if column.null_count:
        column = column.fill_null(now_ms)
    times_ms = column.to_numpy(zero_copy_only=False)
    if len(times_ms) and times_ms.min() < 0:
        row = int(np.flatnonzero(times_ms < 0)[0])
        raise UnfitColumns(f"timestamp: column {name!r} has a time before 1970", row)
    return np.ascontiguousarray(times_ms, np.int64)


def _headers(column: Any, name: str) -> tuple[_Longs, Fields, Fields]:
    """(where each row's headers begin, names, values), those of all rows one behind another."""
    if pa.types.is_null(column.type):
        return _NONE, NO_FIELDS, NO_FIELDS
    counts = []
    names, contents, nulls = [], [], []
    for chunk in column.chunks:
        counts.append(pc.list_value_length(as_list(chunk)).fill_null(0).to_numpy(zero_copy_only=False))
        entries = as_list(chunk).flatten()
        parts, (first, second) = entries.flatten(), header_fields(entries.type)
        nulls.append(entries.is_null())
        names.append(_cast(parts[first], pa.large_binary(), name))
        contents.append(_cast(parts[second], pa.large_binary(), name))
    firsts = np.zeros(len(column) + 1, np.int64)
    if counts:
        np.cumsum(np.concatenate(counts), out=firsts[1:])
    found = _fields(pa.concat_arrays(names)) if names else NO_FIELDS
    if firsts[-1] != len(found.lengths) or np.diff(firsts).min(initial=0) < 0:
        raise UnfitColumns(_BROKEN)
    if (found.lengths < 0).any():
        entry = int(np.flatnonzero(found.lengths < 0)[0])
        is_null = pa.concat_arrays(nulls)[entry].as_py()
        what = "a null among a record's headers" if is_null else "a header without a name"
        row = int(np.searchsorted(firsts, entry, side="right")) - 1
        raise UnfitColumns(f"headers: column {name!r} has {what}", row)
    return firsts, found, _fields(pa.concat_arrays(contents)) if contents else NO_FIELDS


class BatchEncoder:
    """Encodes the rows of pieces. For one thread.

    Args:
        batch_bytes: a batch with its header is no longer, but for one of a single record.
    """

    def __init__(self, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._machine = has_compiler()
        self._batches = np.empty(BATCHES_AT_ONCE * kernel.BATCH_FIELDS, np.int64)
        self._out = take(0)
        self._at = 0

    def batches(self, piece: Piece, order: _Longs, largest_bytes: int) -> Iterator[EncodedBatch]:
        """The rows `order` of a piece, as batches. `largest_bytes`: no record of these takes more."""
        given = [
            self._given(each)
            for each in (
                order,
                piece.times_ms,
                *piece.keys,
                *piece.values,
                piece.header_firsts,
                *piece.header_names,
                *piece.header_values,
            )
        ]
        row, end = 0, len(order)
        while row < end:
            out = self._out if self._machine else self._out.data
            batches = self._batches if self._machine else self._batches.data
            count, row = kernel.encode_rows(
                out, self._at, self._batch_bytes, given[0], row, end, *given[1:], batches
            )
            found = self._batches[: count * kernel.BATCH_FIELDS].reshape(count, kernel.BATCH_FIELDS).tolist()
            view = self._out.data
            for begin, stop, rows, first_ms, max_ms in found:
                self._at = stop
                yield EncodedBatch(view[begin:stop], rows, first_ms, max_ms)
            if row < end and count < BATCHES_AT_ONCE:
                room = max(BUFFER_BYTES, self._batch_bytes, largest_bytes + b.HEADER_BYTES)
                self._out, self._at = take(room), 0

    def _given(self, array: npt.NDArray[Any]) -> Any:
        if array.dtype == np.uint8:
            return machine_bytes(array.data) if self._machine else array.data
        if not self._machine:
            return array.tolist()
        # One type for numbers of whatever origin: a kernel is compiled once.
        view = np.ascontiguousarray(array, np.int64).view()
        view.flags.writeable = False
        return view


def key_partitions(keys: Fields, partitions: int) -> _Longs:
    """The partition that Kafka's default partitioner chooses for each key; -1 for null."""
    chosen = np.empty(len(keys.lengths), np.int64)
    if has_compiler():
        kernel.partitions_of_keys(
            machine_bytes(keys.data.data), _frozen(keys.starts), _frozen(keys.lengths), partitions, chosen
        )
    else:
        kernel.partitions_of_keys(
            keys.data.data, keys.starts.tolist(), keys.lengths.tolist(), partitions, chosen.data
        )
    return chosen


def by_partition(chosen: _Longs, partitions: int) -> list[tuple[int, _Longs]]:
    """The rows of each partition that has some, in their order."""
    if len(chosen) and (chosen == chosen[0]).all():
        return [(int(chosen[0]), np.arange(len(chosen), dtype=np.int64))]
    firsts = np.empty(partitions + 1, np.int64)
    order = np.empty(len(chosen), np.int64)
    kernel.rows_by_partition(chosen, firsts, order)
    return [
        (partition, order[firsts[partition] : firsts[partition + 1]])
        for partition in range(partitions)
        if firsts[partition] < firsts[partition + 1]
    ]


def _frozen(array: _Longs) -> _Longs:
    view = np.ascontiguousarray(array, np.int64).view()
    view.flags.writeable = False
    return view
