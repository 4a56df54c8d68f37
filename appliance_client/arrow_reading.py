"""Fetched batches into Arrow: what both faces of the consumer do in `poll_arrow`. Needs pyarrow and numpy.

    begin ─▶ whole batches of some partitions, taken out of `fetching` ─▶ table ─▶ positions go on

Decoding holds no lock, so that the next fetches are sent meanwhile. Positions go on when all is decoded. Deserializers
are not called. Decoding ends early at `DECODED_BYTES_MAX`, and before a batch that is corrupt. What was not decoded is
put back, and comes with the next call: a corrupt batch is an error when nothing was decoded before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from appliance.protocol.columns.arrow_arrays import gathered, header_lists
from appliance.protocol.columns.batch_headers import walk_headers
from appliance.protocol.columns.chunk import Chunk as Batches
from appliance.protocol.columns.decode import Decoder, Rows, UndecodableBatch, Wanted
from appliance.protocol.records import batch as b
from appliance_client.decoding import is_hidden
from appliance_client.errors import CorruptRecordsError, OptionError
from appliance_client.fetching import CHUNKS_MAX, Fetching
from appliance_client.reading import Chunk, Reading
from appliance_client.values import TopicPartition

HEADERS_TYPE: Final = pa.list_(pa.struct([pa.field("key", pa.string(), False), ("value", pa.binary())]))
SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), False),
        pa.field("partition", pa.int32(), False),
        pa.field("offset", pa.int64(), False),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("timestamp_type", pa.int8(), False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""What `poll_arrow` returns. `timestamp` is null where a record has none, `headers` where it has none."""

TAKEN_BYTES_MAX: Final = 64 << 20
"""About so many bytes as fetched become one table."""
DECODED_BYTES_MAX: Final = 64 << 20
"""One table takes no further batches beyond this: a fetched megabyte can become a thousand."""
_EVER: Final = (1 << 63) - 1

Fetched = npt.NDArray[np.void]


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """The schema of some columns.

    Raises:
        OptionError: one is not known, or there is none: a table without columns has no rows either.
    """
    if columns is None:
        return SCHEMA
    if isinstance(columns, str):
        raise OptionError(f"columns is {columns!r}: a list of names")
    if not columns:
        raise OptionError("columns: name one at least")
    unknown = [name for name in columns if name not in SCHEMA.names]
    if unknown or len(set(columns)) != len(columns):
        raise OptionError(
            f"columns: each of {', '.join(SCHEMA.names)} at most once, not {', '.join(columns)}"
        )
    return pa.schema([SCHEMA.field(name) for name in columns])


def prepare() -> None:
    """Load what `begin` needs, which takes long once in a process: numba, and a kernel out of its cache."""
    walk_headers(bytes(b.HEADER_BYTES))


@dataclass(slots=True)
class Taken:
    """Batches of a partition that were taken out of `fetching`."""

    reading: Reading
    generation: int
    chunk: Chunk
    since: tuple[int, deque[tuple[int, int]], set[int]]
    """The chunk's state before, to put it back as it was."""
    position: int
    batches: Fetched
    """All of them; `shown` says which have records for us."""
    shown: npt.NDArray[np.bool_]
    data: memoryview
    first_at: int
    next_offset: int = 0
    epoch: int = -1
    cut_at: int | None = None
    """Where the chunk goes on, when not all of its records are handed out: at the begin of a batch."""
    is_decoded: bool = False
    made: list[pa.RecordBatch] = field(default_factory=list)


class ColumnsReader:
    """Makes tables for one consumer. For one thread at a time.

    Args:
        ends: where reading ends before the partition does, by partition.
    """

    def __init__(self, fetching: Fetching, lock: Any, *, check_crcs: bool) -> None:
        self._fetching = fetching
        fetching.for_columns = True
        self._lock = lock
        self._check_crcs = check_crcs
        self.ends: Mapping[TopicPartition, int] = {}

    # ── with the lock held ───────────────────────────────────────────────────────────────────────────────

    def begin(self, records_max: int | None) -> list[Taken]:
        """Take out what was fetched; at most about `records_max` records, and `TAKEN_BYTES_MAX`."""
        taken: list[Taken] = []
        left = _EVER if records_max is None else records_max
        left_bytes = TAKEN_BYTES_MAX
        for reading in self._fetching.in_turn():
            position = reading.position
            # With more than two, some were put back. Two stay, so that no others are fetched meanwhile: else what waits
            # would grow with each call.
            most = (
                max(1, len(reading.chunks) - CHUNKS_MAX) if len(reading.chunks) > CHUNKS_MAX else CHUNKS_MAX
            )
            while reading.has_records and position is not None and left > 0 and left_bytes > 0 and most > 0:
                found = self._take(reading, position, left)
                if found is None:
                    break
                taken.append(found)
                most -= 1
                left -= int(found.batches["records"][found.shown].sum())
                left_bytes -= len(found.data)
                position = found.next_offset
        return taken

    def _take(self, reading: Reading, position: int, most: int) -> Taken | None:
        if reading.ready_at < len(reading.ready):
            # `poll` has handed out some of a batch: it is decoded again, from the position on.
            reading.chunks[0].at = reading.chunks[0].before
        reading.ready, reading.ready_at = [], 0
        while reading.chunks and reading.chunks[0].at >= reading.chunks[0].end:
            reading.chunks.popleft()
        if not reading.chunks:
            return None
        chunk = reading.chunks[0]
        data = chunk.records[chunk.at : chunk.end]
        batches = walk_headers(data).batches
        since = (chunk.at, deque(chunk.aborted), set(chunk.aborting))
        shown = np.ones(len(batches), np.bool_)
        if chunk.aborted or chunk.aborting or (batches["attributes"] & b.CONTROL).any():
            count = self._hide(chunk, batches, shown, most)
        else:
            counts = np.cumsum(batches["records"], dtype=np.int64)
            count = min(int(np.searchsorted(counts, most)) + 1, len(batches))
            chunk.at += int(batches["length_bytes"][:count].sum())
        batches, shown = batches[:count], shown[:count]
        if chunk.at >= chunk.end:
            reading.chunks.popleft()
        return Taken(
            reading,
            reading.generation,
            chunk,
            since,
            position,
            batches,
            shown,
            data,
            since[0],
            int(batches["last_offset"][-1]) + 1,
            int(batches["leader_epoch"][-1]),
        )

    def _hide(self, chunk: Chunk, batches: Fetched, shown: npt.NDArray[np.bool_], most: int) -> int:
        """Go behind so many batches that `most` records of them are for us, and say which are; how many batches."""
        count = 0
        for index in range(len(batches)):
            attributes, records = int(batches["attributes"][index]), int(batches["records"][index])
            if chunk.aborted or chunk.aborting or attributes & b.CONTROL:
                header = b.BatchHeader(*b.HEADER.unpack_from(chunk.records, chunk.at))
                shown[index] = not is_hidden(chunk, header, self._fetching.isolation)
            chunk.at += int(batches["length_bytes"][index])
            count += records * bool(shown[index])
            if count >= most:
                return index + 1
        return len(batches)

    def _is_current(self, taken: Taken) -> bool:
        reading = taken.reading
        return (
            reading.generation == taken.generation and self._fetching.readings.get(reading.place) is reading
        )

    def put_back(self, all_taken: list[Taken]) -> None:
        """As if nothing had been taken."""
        for taken in reversed(all_taken):
            if not self._is_current(taken):
                continue
            chunk = taken.chunk
            chunk.at, chunk.aborted, chunk.aborting = taken.since
            chunks = taken.reading.chunks
            if not chunks or chunks[0] is not chunk:
                chunks.appendleft(chunk)

    def hand_out(self, all_taken: list[Taken], schema: pa.Schema) -> pa.Table:
        """The table of what was decoded; positions go on. The rest is put back."""
        self.put_back([taken for taken in all_taken if not taken.is_decoded])
        all_taken = [taken for taken in all_taken if taken.is_decoded]
        for taken in all_taken:
            if not self._is_current(taken):
                taken.made.clear()
                continue
            taken.reading.position = max(taken.next_offset, taken.position)
            taken.reading.position_epoch = taken.epoch
            if taken.cut_at is not None:
                chunk, chunks = taken.chunk, taken.reading.chunks
                self._go_back(taken, taken.cut_at)
                if not chunks or chunks[0] is not chunk:
                    chunks.appendleft(chunk)
        return pa.Table.from_batches([each for taken in all_taken for each in taken.made], schema)

    def _go_back(self, taken: Taken, position: int) -> None:
        """Have the chunk stand at `position`, also among its aborted transactions."""
        chunk = taken.chunk
        if any(taken.since[1:]):
            chunk.at, chunk.aborted, chunk.aborting = taken.since
            while chunk.at < position:
                header = b.BatchHeader(*b.HEADER.unpack_from(chunk.records, chunk.at))
                is_hidden(chunk, header, self._fetching.isolation)
                chunk.at += header.size_bytes
        chunk.at = position

    # ── without ──────────────────────────────────────────────────────────────────────────────────────────

    def table(
        self, all_taken: list[Taken], records_max: int | None, columns: Sequence[str] | None
    ) -> pa.Table:
        """The records of what was taken out, and the positions behind them.

        Raises:
            CorruptRecordsError: the first batch does not hold. Nothing has moved.
        """
        schema = schema_of(columns)
        try:
            self.decode(all_taken, records_max, schema)
        except BaseException:
            with self._lock:
                self.put_back(all_taken)
            raise
        with self._lock:
            return self.hand_out(all_taken, schema)

    def decode(self, all_taken: list[Taken], records_max: int | None, schema: pa.Schema) -> None:
        """Fill the `made` of each. Touches nothing else of the consumer, so that any thread may do it.

        Raises:
            CorruptRecordsError: a batch does not hold, and there are no records before it.
        """
        topics = sorted({taken.reading.place.topic for taken in all_taken})
        left = _EVER if records_max is None else records_max
        left_bytes = DECODED_BYTES_MAX
        for taken in all_taken:
            try:
                self._decode(taken, schema, topics, left, left_bytes)
            except CorruptRecordsError as fault:
                fault.partition = taken.reading.place
                if left_bytes == DECODED_BYTES_MAX:
                    raise
                return
            taken.is_decoded = True
            left -= sum(each.num_rows for each in taken.made)
            left_bytes -= sum(each.nbytes for each in taken.made)
            if left_bytes <= 0:
                return

    def _decode(self, taken: Taken, schema: pa.Schema, topics: list[str], most: int, most_bytes: int) -> None:
        """Fill `taken.made`, and say where its chunk goes on if that is not behind it."""
        batches = taken.batches[taken.shown]
        if not len(batches):
            return
        sound = len(batches)
        if self._check_crcs and not taken.chunk.is_checked:
            sound = self._sound(taken, batches)
        try:
            self._fill(taken, batches, sound, schema, topics, most, most_bytes)
        except UndecodableBatch as fault:
            at = int(np.searchsorted(batches["position"], fault.position))
            if not at:
                place = taken.reading.place
                name = f"{place.topic}-{place.partition}@{int(batches['base_offset'][0])}"
                raise CorruptRecordsError(f"{name}: {fault.reason}") from None
            taken.made.clear()
            self._fill(taken, batches, at, schema, topics, most, most_bytes)

    def _fill(  # noqa: PLR0917
        self,
        taken: Taken,
        batches: Fetched,
        sound: int,
        schema: pa.Schema,
        topics: list[str],
        most: int,
        most_bytes: int,
    ) -> None:
        """Decode the first `sound` of the batches."""
        place = taken.reading.place
        names = schema.names
        decoder = Decoder(Wanted(key="key" in names, value="value" in names, headers="headers" in names))
        data = np.frombuffer(taken.data, np.uint8)
        end = self.ends.get(place, _EVER)
        chunk = Batches(data, batches[:sound], taken.position, end, f"{place.topic}-{place.partition}", 0)
        stop, count, size_bytes = sound, 0, 0
        for rows in decoder.rows(chunk):
            kept = min(len(rows), most - count)
            if kept:
                taken.made.append(_record_batch(rows, kept, schema, place, topics))
                count += kept
                size_bytes += taken.made[-1].nbytes
            if kept < len(rows):
                taken.next_offset = int(rows.offsets[kept])
                taken.cut_at = taken.first_at + int(batches["position"][sound - 1])
                return
            if size_bytes > most_bytes:
                stop = int(np.searchsorted(batches["last_offset"][:sound], rows.offsets[-1])) + 1
                break
        if stop < len(batches):
            taken.next_offset = int(batches["last_offset"][stop - 1]) + 1
            taken.epoch = int(batches["leader_epoch"][stop - 1])
            taken.cut_at = taken.first_at + int(batches["position"][stop])

    def _sound(self, taken: Taken, batches: Fetched) -> int:
        """How many batches there are before the first whose checksum fails.

        Raises:
            CorruptRecordsError: it is the first one.
        """
        ends = (batches["position"] + batches["length_bytes"]).tolist()
        for index, (begin, end) in enumerate(zip(batches["position"].tolist(), ends, strict=True)):
            if not b.crc_holds(taken.data[begin:end]):
                if index:
                    return index
                place = taken.reading.place
                name = f"{place.topic}-{place.partition}@{int(batches['base_offset'][0])}"
                raise CorruptRecordsError(f"{name}: checksum fails")
        return len(batches)


def _record_batch(
    rows: Rows, count: int, schema: pa.Schema, place: TopicPartition, topics: list[str]
) -> pa.RecordBatch:
    columns = []
    for name in schema.names:
        column: Any
        if name == "topic":
            numbers = pa.array(np.full(count, topics.index(place.topic), np.int32))
            column = pa.DictionaryArray.from_arrays(numbers, pa.array(topics, pa.string()))
        elif name == "partition":
            column = pa.array(np.full(count, place.partition, np.int32))
        elif name == "offset":
            column = pa.array(rows.offsets[:count])
        elif name == "timestamp":
            column = _times(rows.timestamps_us[:count])
        elif name == "timestamp_type":
            column = pa.array(rows.timestamp_types[:count].astype(np.int8))
        elif name == "headers":
            assert rows.headers is not None
            column = _headers(header_lists(rows.data, rows.headers, 0, count, HEADERS_TYPE))
        else:
            fields = rows.keys if name == "key" else rows.values
            assert fields is not None
            column = gathered(rows.data, fields.bounds[: 2 * count], fields.nulls[:count], pa.binary())
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _times(times_us: npt.NDArray[np.int64]) -> pa.Array:
    times_ms = times_us // 1000
    none = times_ms == -1
    bitmap = pa.py_buffer(np.packbits(~none, bitorder="little")) if none.any() else None
    return pa.Array.from_buffers(
        SCHEMA.field("timestamp").type, len(times_ms), [bitmap, pa.py_buffer(times_ms)]
    )


def _headers(lists: pa.Array) -> pa.Array:
    """The same, where every name is text. Other programs trust that text in Arrow is UTF-8; a producer may lie."""
    entries = lists.values
    names = entries.field(0)
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        repaired = [raw.decode("utf-8", "replace") for raw in names.cast(pa.binary()).to_pylist()]
        fields = list(HEADERS_TYPE.value_type)
        entries = pa.StructArray.from_arrays(
            [pa.array(repaired, pa.string()), entries.field(1)], fields=fields
        )
        bitmap, offsets = lists.buffers()[:2]
        return pa.Array.from_buffers(HEADERS_TYPE, len(lists), [bitmap, offsets], children=[entries])
    return lists
