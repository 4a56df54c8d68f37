"""From batches to rows: decompression and the kernels, without Arrow and without Spark.

A stretch of rows is told by positions over one buffer: the chunk itself where batches are not compressed, else the
decompressed batches one behind another. Who wants bytes copies them from there (`arrow_columns` lets Arrow do it);
the positions rise from row to row, so one array of them serves as the offsets of an Arrow array.

    chunk ── compressed? ──→ groups of batches, about `GROUP_BYTES` each ── kernel ──→ Rows, Rows, …
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from appliance.errors import ApplianceError, RejectedRequest
from appliance.protocol.columns import record_kernel as kernel
from appliance.protocol.columns import record_steps as steps
from appliance.protocol.columns.batch_headers import Batches
from appliance.protocol.columns.chunk import Chunk
from appliance.protocol.columns.compiled import Buffer, Kernel, has_compiler, machine_bytes
from appliance.protocol.columns.decompression import Decompressed
from appliance.protocol.columns.memory import take_array
from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import DECOMPRESSED_BYTES_MAX

GROUP_BYTES: Final = 4 << 20
"""Decompressed batches are gathered up to about here before their records are looked for."""
_EVER_MS: Final = 1 << 62

_Longs = npt.NDArray[np.int64]
_Ints = npt.NDArray[np.int32]
_Flags = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of the records is asked for. Fields that are not are neither looked at nor filled.

    Attributes:
        key, value, headers: whether these columns are.
        from_ms, until_ms: timestamps, the second exclusive; records outside are left out.
    """

    key: bool = True
    value: bool = True
    headers: bool = True
    from_ms: int = -_EVER_MS
    until_ms: int = _EVER_MS

    @property
    def mask(self) -> int:
        """The same in the kernel's bits."""
        return self.key * kernel.KEY | self.value * kernel.VALUE | self.headers * kernel.HEADERS


@dataclass(frozen=True, slots=True)
class Fields:
    """Byte strings, by position: the n-th is `data[bounds[2n] : bounds[2n + 1]]`, or null where `nulls[n]` is true."""

    bounds: _Ints
    nulls: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of all rows one behind another; those of row n are `firsts[n]` to `firsts[n + 1]`."""

    firsts: _Ints
    names: Fields
    values: Fields


@dataclass(frozen=True, slots=True)
class Rows:
    """Some records, in the order of their offsets. Valid until the next are asked for.

    Attributes:
        data: the buffer that the fields' positions mean.
        offsets, timestamps_us, timestamp_types: one for each row; 0 is CreateTime, 1 LogAppendTime.
        keys, values, headers: None where they were not wanted.
    """

    data: Buffer
    offsets: _Longs
    timestamps_us: _Longs
    timestamp_types: _Ints
    keys: Fields | None
    values: Fields | None
    headers: Headers | None

    def __len__(self) -> int:
        return len(self.offsets)


class UndecodableBatch(ApplianceError):
    """A batch does not decode although its checksum holds.

    Args:
        path, position: where it lies; a chunk off the wire has no path.
        reason: what does not hold.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(path, position, reason)
        self.path = path
        self.position = position
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} at position {self.position}: {self.reason}"


class Decoder:
    """Decodes one scan's chunks, one after another.

    What rows tell stays as it is for good; the bytes that their positions mean, until the next rows are asked for.

    Args:
        wanted: which fields, which timestamps.
        compiled: whether by machine code; None: where there is numba.
        corrupt: batches that do not decode are told here, as (path, position, reason), and passed over; None: they
            are an error.
        error: what is raised then.
    """

    def __init__(
        self,
        wanted: Wanted,
        *,
        compiled: bool | None = None,
        corrupt: list[tuple[str, int, str]] | None = None,
        error: Callable[[str, int, str], ApplianceError] = UndecodableBatch,
    ) -> None:
        self._error = error
        self._wanted = wanted
        self._machine = has_compiler() if compiled is None else compiled
        self._corrupt = corrupt
        self._decompressed_bytes = Decompressed(DECOMPRESSED_BYTES_MAX)

    def rows(self, chunk: Chunk) -> Iterator[Rows]:
        """The records of a chunk that lie in its offsets and in the wanted timestamps, in order.

        Raises:
            UndecodableBatch, or what `error` makes: a batch does not decode although its checksum holds.
        """
        plain = (chunk.batches["attributes"] & b.CODEC_MASK) == 0
        turns = [0, *(np.flatnonzero(plain[1:] != plain[:-1]) + 1).tolist(), len(plain)]
        for begin, end in pairwise(turns):
            if begin == end:
                break
            if plain[begin]:
                yield from self._stretch(chunk, _in_place(chunk, begin, end))
                continue
            index = begin
            while index < end:
                stretch, index = self._decompressed(chunk, index, end)
                yield from self._stretch(chunk, stretch)

    def _decompressed(self, chunk: Chunk, index: int, end: int) -> tuple[_Stretch, int]:
        """The compressed batches from `index` on, as many as make a group, and where the next one begins."""
        view = chunk.data.data
        batches = chunk.batches
        codecs = (batches["attributes"][index:end] & b.CODEC_MASK).tolist()
        begins = (batches["position"][index:end] + b.HEADER_BYTES).tolist()
        ends = (batches["position"][index:end] + batches["length_bytes"][index:end]).tolist()
        taken: list[int] = []
        bounds = [0]
        into = self._decompressed_bytes
        into.clear()
        for codec, begin, stop in zip(codecs, begins, ends, strict=True):
            before = into.size_bytes
            try:
                into.append(codec, view[begin:stop])
            except RejectedRequest as fault:
                self._tell(chunk, index, fault.message)
            else:
                taken.append(index)
                bounds.append(into.size_bytes)
            index += 1
            # As many as make one batch of Arrow's: what goes beyond would be a small one of its own.
            if 2 * into.size_bytes - before > GROUP_BYTES:
                break
        positions = np.array(bounds, np.int64)
        data = into.data[: into.size_bytes]
        return _Stretch(data, batches[taken], positions[:-1], positions[1:]), index

    def _tell(self, chunk: Chunk, index: int, reason: str) -> None:
        position = int(chunk.batches["file_position"][index])
        if self._corrupt is None:
            raise self._error(chunk.path, position, reason)
        self._corrupt.append((chunk.path, position, reason))

    def _stretch(self, chunk: Chunk, stretch: _Stretch) -> Iterator[Rows]:
        batches, wanted, machine = stretch.batches, self._wanted, self._machine
        if not machine and len(batches) >= steps.BATCHES_MIN:
            found = _in_steps(stretch)
            if found is not None:
                yield from self._told(chunk, stretch, found)
                return
        # A lying count is found by the kernel before it writes; here it must only not ask for the room.
        most = (stretch.ends - stretch.begins) // kernel.RECORD_BYTES_MIN
        room = int(np.minimum(batches["records"].clip(0), most).sum())
        key_bounds = take_array(np.int32, 2 * room * wanted.key)
        value_bounds = take_array(np.int32, 2 * room * wanted.value)
        header_begins = take_array(np.int64, room * wanted.headers)
        header_counts = take_array(np.int32, room * wanted.headers)
        offsets = take_array(np.int64, room)
        timestamps_us = take_array(np.int64, room)
        timestamp_types = take_array(np.int32, room)
        nulls = take_array(np.uint8, room)
        data = machine_bytes(stretch.data) if machine else memoryview(stretch.data)
        given = [_given(array, machine=machine) for array in (stretch.begins, stretch.ends)]
        given += [_given(batches[name], machine=machine) for name in _HEADER_FIELDS]
        outputs = (offsets, timestamps_us, timestamp_types, key_bounds, value_bounds, nulls)
        filled = [_filled(array, machine=machine) for array in (*outputs, header_begins, header_counts)]
        bounds = (chunk.start, chunk.end, wanted.from_ms, wanted.until_ms, wanted.mask)
        run: Kernel = kernel.record_positions_compiled if machine else kernel.record_positions
        rows, first = 0, 0
        while True:
            rows, first, problem = run(data, *given, first, *bounds, *filled, rows)
            if problem == kernel.SOUND:
                break
            at = int(np.flatnonzero(chunk.batches["position"] == batches["position"][first])[0])
            self._tell(chunk, at, kernel.PROBLEMS[problem])
            first += 1
        if not rows:
            return
        key_nulls = (nulls[:rows] & kernel.NULL_KEY) != 0
        value_nulls = (nulls[:rows] & kernel.NULL_VALUE) != 0
        yield Rows(
            stretch.data,
            offsets[:rows],
            timestamps_us[:rows],
            timestamp_types[:rows],
            Fields(key_bounds[: 2 * rows], key_nulls) if wanted.key else None,
            Fields(value_bounds[: 2 * rows], value_nulls) if wanted.value else None,
            self._headers(stretch.data, header_begins[:rows], header_counts[:rows])
            if wanted.headers
            else None,
        )

    def _told(self, chunk: Chunk, stretch: _Stretch, found: steps.Found) -> Iterator[Rows]:
        """What numpy has found, none of it with headers, within the bounds."""
        wanted = self._wanted
        inside = (found.offsets >= chunk.start) & (found.offsets < chunk.end)
        inside &= (found.timestamps_ms >= wanted.from_ms) & (found.timestamps_ms < wanted.until_ms)
        if not inside.any():
            return
        nulls = found.nulls[inside]

        def fields(begins: _Longs, ends: _Longs, bit: int) -> Fields:
            bounds = np.empty(2 * len(nulls), np.int32)
            bounds[::2], bounds[1::2] = begins[inside], ends[inside]
            return Fields(bounds, (nulls & bit) != 0)

        nothing = Fields(np.empty(0, np.int32), np.empty(0, np.bool_))
        yield Rows(
            stretch.data,
            found.offsets[inside],
            found.timestamps_ms[inside] * 1000,
            found.appended[inside].astype(np.int32),
            fields(found.keys, found.key_ends, kernel.NULL_KEY) if wanted.key else None,
            fields(found.values, found.value_ends, kernel.NULL_VALUE) if wanted.value else None,
            Headers(np.zeros(len(nulls) + 1, np.int32), nothing, nothing) if wanted.headers else None,
        )

    def _headers(self, data: Buffer, begins: _Longs, counts: _Ints) -> Headers:
        machine = self._machine
        firsts = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=firsts[1:])
        room = int(firsts[-1])
        name_bounds = take_array(np.int32, 2 * room)
        value_bounds = take_array(np.int32, 2 * room)
        nulls = take_array(np.uint8, room)
        run: Kernel = kernel.header_positions_compiled if machine else kernel.header_positions
        if room:
            run(
                machine_bytes(data) if machine else memoryview(data),
                len(data),
                *(_filled(array, machine=machine) for array in (begins, counts)),
                len(counts),
                *(_filled(array, machine=machine) for array in (name_bounds, value_bounds, nulls)),
            )
        return Headers(
            firsts, Fields(name_bounds, np.zeros(room, np.bool_)), Fields(value_bounds, nulls != 0)
        )


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Batches whose records lie uncompressed in one buffer, those of the n-th from `begins[n]` to `ends[n]`."""

    data: Buffer
    batches: Batches
    begins: _Longs
    ends: _Longs


_HEADER_FIELDS: Final = ("base_offset", "base_timestamp_ms", "max_timestamp_ms", "attributes", "records")


def _in_place(chunk: Chunk, begin: int, end: int) -> _Stretch:
    batches = chunk.batches[begin:end]
    positions = batches["position"]
    return _Stretch(chunk.data.data, batches, positions + b.HEADER_BYTES, positions + batches["length_bytes"])


def _in_steps(stretch: _Stretch) -> steps.Found | None:
    fields = {name: stretch.batches[name].astype(np.int64) for name in _HEADER_FIELDS}
    return steps.find_records(
        machine_bytes(stretch.data),
        stretch.begins,
        stretch.ends,
        base_offsets=fields["base_offset"],
        base_timestamps_ms=fields["base_timestamp_ms"],
        max_timestamps_ms=fields["max_timestamp_ms"],
        attributes=fields["attributes"],
        counts=fields["records"],
    )


def _given(array: npt.NDArray[Any], *, machine: bool) -> Any:
    # Python reads a list of its own numbers fastest; machine code wants one type, whatever lies beside it in a batch.
    return np.ascontiguousarray(array, np.int64) if machine else array.tolist()


def _filled(array: npt.NDArray[Any], *, machine: bool) -> Any:
    return array if machine else array.data
