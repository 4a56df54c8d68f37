"""Tables into batches of partitions: what both faces of the producer do in `send_arrow`. Needs pyarrow and numpy.

    table ── checked ──→ pieces ── partitions ──→ encoded batches ── compressed ──→ accumulator

Serializers are not called: columns of bytes and text are sent as they are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from appliance.protocol.columns.encode import (
    BatchEncoder,
    EncodedBatch,
    Layout,
    Piece,
    UnfitColumns,
    by_partition,
    key_partitions,
    pieces,
)
from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import compress
from appliance_client.arrow_tables import Frame
from appliance_client.errors import (
    IllegalStateError,
    RecordTooLargeError,
    SerializationError,
)
from appliance_client.network import Topic
from appliance_client.producer import checked_partition

PIECE_BYTES: Final = 8 << 20
PIECE_BYTES_MAX: Final = 64 << 20
SAME_NAME: Final = "*"
"""The default of a column: the one of this name, where the table has it."""

Encoded = tuple[int, Any, Any, int, list[int]]
"""Partition, payload, the room in front of and with the payload or None, records, first and largest time."""

_Longs = npt.NDArray[np.int64]


class ColumnsToSend:
    """One call's table. Made by the caller's thread, checked wholly before anything is sent.

    Args:
        pipeline: the producer's `ProducerPipeline`.
        partition: a partition, a column of partitions, or None for the partitioner.

    Raises:
        SerializationError: a column is missing, or of a type or with a value that cannot be sent.
        RecordTooLargeError: a row is larger than max.request.size or buffer.memory.

    Errors about one row have it in `row` and at the begin of their text.
    """

    def __init__(  # noqa: PLR0917
        self,
        pipeline: Any,
        table: Any,
        key: str | None,
        value: str | None,
        timestamp: str | None,
        headers: str | None,
        partition: int | str | None,
    ) -> None:
        if pipeline.options.interceptors:
            raise IllegalStateError("interceptors see records; send_arrow has none. Use send")
        pipeline.check_transaction()
        self._pipeline = pipeline
        self._options = pipeline.options
        frame = Frame(table)
        self._partition: Any = None if isinstance(partition, str) else partition
        names = frame.names
        roles = {"key": key, "value": value, "timestamp": timestamp, "headers": headers}
        for role, name in roles.items():
            if name == SAME_NAME:
                roles[role] = role if role in names else None
        if value == SAME_NAME and roles["value"] is None:
            raise SerializationError(
                f"value: the table has no column 'value'; name one of {', '.join(names)}, or None"
            )
        column = partition if isinstance(partition, str) else None
        self._table = frame.table(name for name in (*roles.values(), column) if name is not None)
        try:
            self._layout = Layout.of(
                self._table.schema,
                roles["key"],
                roles["value"],
                roles["timestamp"],
                roles["headers"],
                column,
            )
        except UnfitColumns as fault:
            raise SerializationError(str(fault)) from None
        if not self._layout.names:
            raise SerializationError("neither key nor value nor any other column is to be sent")

    def check(self, topic: Topic) -> None:
        """Look at every row. Nothing is kept of it, so that a large table is not in memory twice."""
        most = min(self._options.max_request_size, self._options.buffer_memory)
        count = len(topic.leaders)
        if self._partition is not None:
            self._partition = checked_partition(topic, self._partition)
        row = 0
        for piece in self._pieces():
            largest = int(piece.sizes().max())
            if largest > most:
                at = row + int(np.flatnonzero(piece.sizes() > most)[0])
                fault = RecordTooLargeError(
                    f"row {at} makes a record of about {int(piece.sizes()[at - row])} bytes; max.request.size is "
                    f"{self._options.max_request_size}, buffer.memory {self._options.buffer_memory}"
                )
                fault.row = at
                raise fault
            if piece.partitions is not None:
                wrong = np.flatnonzero((piece.partitions < 0) | (piece.partitions >= count))
                if len(wrong):
                    at = int(wrong[0])
                    named = int(piece.partitions[at])
                    reason = f"{topic.name} has partitions 0 to {count - 1}, not {named}"
                    raise _unfit(f"row {row + at}: {reason}", row + at)
            row += piece.rows

    def encoded(self, topic: Topic) -> Iterator[list[Encoded]]:
        """The batches, those of a piece together."""
        encoder = BatchEncoder(max(1, self._options.batch_size))
        codec, level = self._options.codec, self._options.compression_level
        for piece in self._pieces():
            sizes = piece.sizes()
            largest = int(sizes.max())
            done: list[Encoded] = []
            for partition, order in by_partition(self._chosen(piece, sizes, topic), len(topic.leaders)):
                for batch in encoder.batches(piece, order, largest):
                    payload: Any = batch.room[b.HEADER_BYTES :]
                    room: Any = batch.room
                    if codec:
                        payload, room = compress(codec, payload, level), None
                    done.append((partition, payload, room, batch.count, _times(batch)))
            yield done

    def _pieces(self) -> Iterator[Piece]:
        wished = max(PIECE_BYTES, self._options.batch_size)
        piece_bytes = min(wished, max(1, self._options.buffer_memory // 2), PIECE_BYTES_MAX)
        try:
            yield from pieces(
                self._table, self._layout, now_ms=int(time.time() * 1000), piece_bytes=piece_bytes
            )
        except UnfitColumns as fault:
            raise _unfit(str(fault), fault.row) from None
        except pa.ArrowException as fault:
            raise SerializationError(f"the table cannot be sent: {fault}") from None

    def _chosen(self, piece: Piece, sizes: _Longs, topic: Topic) -> _Longs:
        """The partition of each row."""
        if self._partition is not None:
            return np.full(piece.rows, self._partition, np.int64)
        if piece.partitions is not None:
            return piece.partitions
        pipeline = self._pipeline
        if pipeline.by_murmur2 and len(piece.keys.lengths):
            chosen = key_partitions(piece.keys, len(topic.leaders))
        else:
            chosen = np.full(piece.rows, -1, np.int64)
        without = np.flatnonzero(chosen < 0)
        if not len(without):
            return chosen
        if pipeline.sticky is not None:
            self._stick(chosen, without, sizes[without], topic)
            return chosen
        for index in without.tolist():
            # A partitioner of the application's, or one that chooses for each record.
            chosen[index] = pipeline.partition(topic, _key(piece, index))
        return chosen

    def _stick(self, chosen: _Longs, rows: _Longs, sizes: _Longs, topic: Topic) -> None:
        """The same partition for about a batch, then another one: as for single records, but for many at once."""
        sticky = self._pipeline.sticky
        ends = np.cumsum(sizes)
        begin, before = 0, 0
        while begin < len(rows):
            partition = sticky(topic.name, None, len(topic.leaders), topic.available)
            end = int(np.searchsorted(ends, before + sticky.left(topic.name), side="left")) + 1
            end = min(end, len(rows))
            chosen[rows[begin:end]] = partition
            sticky.used(topic.name, int(ends[end - 1]) - before)
            begin, before = end, int(ends[end - 1])


def _unfit(text: str, row: int | None) -> SerializationError:
    fault = SerializationError(text)
    fault.row = row
    return fault


def _times(batch: EncodedBatch) -> list[int]:
    return [batch.first_ms, batch.max_ms]


def _key(piece: Piece, index: int) -> bytes | None:
    data, starts, lengths = piece.keys
    if not len(lengths) or lengths[index] < 0:
        return None
    return data[starts[index] : starts[index] + lengths[index]].tobytes()
