"""What stays of each batch when a log is compacted, and the bytes of it.

| a record                                                             | stays                              |
|----------------------------------------------------------------------|------------------------------------|
| beyond what the offset map has seen                                  | yes                                |
| of an aborted transaction; without a key                             | no                                 |
| with a later record of its key in the map                            | no                                 |
| the last of its key, with a value                                    | yes                                |
| the last of its key, a tombstone                                     | until the batch's delete horizon   |

| a batch                                            | becomes                                              |
|----------------------------------------------------|------------------------------------------------------|
| all records stay                                   | itself, copied as bytes                              |
| all stay, a tombstone among them, no horizon yet   | written anew, horizon: now + `delete.retention.ms`   |
| some records stay                                  | written anew: same offsets, sequence and codec       |
| none stays; last of its producer or of the round   | an empty header: sequence and offset are not lost    |
| none stays otherwise                               | nothing                                              |
| a marker that may go                               | first gets a horizon, and goes when that is over     |

The delete horizon is the base timestamp of a batch with attribute bit 6 (KIP-534): its records' timestamp deltas are
against it, so those records, and only those, are encoded anew.
Source: `LogCleaner.scala` (cleanInto), `MemoryRecords.java` (filterTo).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from appliance.errors import CorruptFile
from appliance.log.chunks import Batch, Chunk
from appliance.log.cleaned_transactions import CleanedTransactions
from appliance.log.groups import Group, gather
from appliance.log.offset_map import OffsetMap, hash_keys
from appliance.log.sealed_segments import LastBatch
from appliance.log.segment_file import Header
from appliance.protocol.records.batch import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_BASE_SEQUENCE,
    H_BASE_TIMESTAMP,
    H_LAST_OFFSET_DELTA,
    H_MAX_TIMESTAMP,
    H_PARTITION_LEADER_EPOCH,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
    H_RECORDS_COUNT,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    TRANSACTIONAL,
)
from appliance.protocol.records.columns import RecordColumns
from appliance.protocol.records.compression import Codec, compress
from appliance.protocol.records.errors import BatchFault
from appliance.protocol.records.record import decode_records, frame_batch
from appliance.protocol.records.varint import write_varint

_Mask = npt.NDArray[np.bool_]


class Retained(NamedTuple):
    """A batch as it goes into the cleaned segment. `is_new` where its bytes are not those that were read."""

    content: bytes | memoryview
    last_offset: int
    max_timestamp_ms: int
    records: int
    is_new: bool


class _Verdict(Enum):
    FILTER = "records stay by their keys"
    DISCARD = "no record stays"
    KEEP = "stays as it is"
    SET_HORIZON = "stays, and may go later"


class BatchFilter:
    """The rules with one cleaning's numbers in them. Batches come in offset order.

    Args:
        last_batches: producer id → its last batch in the part of the log that may be cleaned.
        round_end: the first offset that this cleaning leaves alone.
        now_ms: when the cleaning began.
    """

    __slots__ = (
        "_decompressed_bytes_max",
        "_delete_retention_ms",
        "_last_batches",
        "_map",
        "_now_ms",
        "_round_end",
        "_transactions",
        "keyless",
        "records_read",
    )

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        *,
        last_batches: Mapping[int, LastBatch],
        round_end: int,
        now_ms: int,
        delete_retention_ms: int,
        decompressed_bytes_max: int,
    ) -> None:
        self._map = offsets
        self._transactions = transactions
        self._last_batches = last_batches
        self._round_end = round_end
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        self._decompressed_bytes_max = decompressed_bytes_max
        self.keyless = 0
        self.records_read = 0

    def retained(self, chunk: Chunk, path: Path) -> Iterator[Retained]:
        """What stays of a chunk's batches, in order.

        Raises:
            CorruptFile: a batch does not decompress or parse.
        """
        verdicts = [self._verdict(chunk.data, batch, path) for batch in chunk.batches]
        by_keys = [
            batch
            for batch, verdict in zip(chunk.batches, verdicts, strict=True)
            if verdict is _Verdict.FILTER
        ]
        filtered = (
            kept
            for group in gather(
                chunk.data, by_keys, path=path, decompressed_bytes_max=self._decompressed_bytes_max
            )
            for kept in self._filter(chunk.data, group, path)
        )
        for batch, verdict in zip(chunk.batches, verdicts, strict=True):
            self.records_read += batch.header[H_RECORDS_COUNT]
            kept: Retained | None = None
            if verdict is _Verdict.FILTER:
                kept = next(filtered)
            elif verdict is _Verdict.KEEP:
                kept = _as_it_is(chunk.data, batch)
            elif verdict is _Verdict.SET_HORIZON:
                kept = self._with_horizon(chunk.data, batch, path)
            if kept is None and self._must_not_vanish(batch.header):
                kept = _emptied(batch.header)
            if kept is not None:
                yield kept

    def _verdict(self, data: bytes, batch: Batch, path: Path) -> _Verdict:
        header = batch.header
        if not header[H_ATTRIBUTES] & CONTROL:
            return _Verdict.DISCARD if self._transactions.is_aborted(header) else _Verdict.FILTER
        try:
            records = decode_records(data, batch.position)
            if not self._transactions.may_go(header, records):
                return _Verdict.KEEP
        except BatchFault as fault:
            raise CorruptFile(
                f"{path}: the control batch of offset {header[H_BASE_OFFSET]}: {fault}"
            ) from fault
        if not records:
            return _Verdict.DISCARD
        if not header[H_ATTRIBUTES] & DELETE_HORIZON:
            return _Verdict.SET_HORIZON
        return _Verdict.DISCARD if header[H_BASE_TIMESTAMP] <= self._now_ms else _Verdict.KEEP

    def _must_not_vanish(self, header: Header) -> bool:
        last = self._last_batches.get(header[H_PRODUCER_ID]) if header[H_PRODUCER_ID] >= 0 else None
        if last is not None:
            if last.data_offset < 0:
                if header[H_ATTRIBUTES] & CONTROL and header[H_PRODUCER_EPOCH] == last.epoch:
                    return True
            elif header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] == last.data_offset:
                return True
        return header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1 == self._round_end

    # Records

    def _filter(self, source: bytes, group: Group, path: Path) -> Iterator[Retained | None]:
        count = len(group.starts)
        stays = np.empty(count, np.bool_)
        is_tombstone = np.empty(count, np.bool_)
        timestamp_deltas_ms = np.empty(count, np.int64)
        offsets_at = np.empty(count, np.int64)
        bodies_at = np.empty(count, np.int64)
        first = np.array(group.first, np.int64)
        bases = group.bases()
        over = np.array(
            [
                bool(batch.header[H_ATTRIBUTES] & DELETE_HORIZON)
                and batch.header[H_BASE_TIMESTAMP] <= self._now_ms
                for batch in group.batches
            ],
            np.bool_,
        )
        horizon_over = over[group.numbers()]
        try:
            for at, columns in group.columns():
                piece = slice(at, at + len(columns.starts))
                is_tombstone[piece] = columns.value_lengths < 0
                timestamp_deltas_ms[piece] = columns.timestamp_deltas_ms
                offsets_at[piece] = columns.offsets_at
                bodies_at[piece] = columns.bodies_at
                offsets = bases[piece] + columns.offset_deltas
                stays[piece] = self._stays(group.data, columns, offsets)
        except BatchFault as fault:
            raise CorruptFile(
                f"{path}: after offset {group.batches[0].header[H_BASE_OFFSET]}: {fault}"
            ) from fault
        beyond = bases > self._map.latest_offset
        stays &= ~(is_tombstone & horizon_over) | beyond
        is_tombstone &= stays
        kept_before = np.concatenate(([0], np.cumsum(stays)))
        kept_counts = np.diff(kept_before[first]).tolist()
        has_tombstone = np.diff(np.concatenate(([0], np.cumsum(is_tombstone)))[first]).astype(bool).tolist()
        for number, batch in enumerate(group.batches):
            header, kept = batch.header, kept_counts[number]
            if not kept:
                yield None
                continue
            needs_horizon = has_tombstone[number] and not header[H_ATTRIBUTES] & DELETE_HORIZON
            if kept == header[H_RECORDS_COUNT] and not needs_horizon:
                yield _as_it_is(source, batch)
                continue
            places = group.first[number] + np.flatnonzero(
                stays[group.first[number] : group.first[number + 1]]
            )
            deltas_ms = timestamp_deltas_ms[places]
            if needs_horizon:
                horizon_ms = self._now_ms + self._delete_retention_ms
                payload = _moved(
                    group.data,
                    bodies_at[places].tolist(),
                    offsets_at[places].tolist(),
                    stops=group.stops[places].tolist(),
                    deltas_ms=(deltas_ms + (header[H_BASE_TIMESTAMP] - horizon_ms)).tolist(),
                )
            else:
                horizon_ms = NO_TIMESTAMP
                payload = _joined(group, places)
            yield _rebuilt(
                header,
                payload,
                records=kept,
                max_timestamp_ms=header[H_MAX_TIMESTAMP]
                if header[H_ATTRIBUTES] & LOG_APPEND_TIME
                else header[H_BASE_TIMESTAMP] + int(deltas_ms.max()),
                horizon_ms=horizon_ms,
            )

    def _stays(self, data: bytes, columns: RecordColumns, offsets: npt.NDArray[np.int64]) -> _Mask:
        """Which records are the last of their keys, or beyond what is known of keys."""
        stays: _Mask = offsets > self._map.latest_offset
        if stays.all():
            return stays
        keyed = columns.key_lengths >= 0
        starts = columns.keys_at[keyed]
        hashes = hash_keys(data, starts.tolist(), (starts + columns.key_lengths[keyed]).tolist())
        self.keyless += int(np.count_nonzero(~(keyed | stays)))
        stays[keyed] |= offsets[keyed] >= self._map.get(*hashes)
        return stays

    def _with_horizon(self, data: bytes, batch: Batch, path: Path) -> Retained:
        """A marker that may go later: its one record, against the horizon."""
        header = batch.header
        horizon_ms = self._now_ms + self._delete_retention_ms
        group = next(gather(data, [batch], path=path, decompressed_bytes_max=self._decompressed_bytes_max))
        _, columns = next(group.columns())
        payload = _moved(
            group.data,
            columns.bodies_at.tolist(),
            columns.offsets_at.tolist(),
            stops=columns.stops.tolist(),
            deltas_ms=(columns.timestamp_deltas_ms + (header[H_BASE_TIMESTAMP] - horizon_ms)).tolist(),
        )
        return _rebuilt(
            header,
            payload,
            records=header[H_RECORDS_COUNT],
            max_timestamp_ms=header[H_MAX_TIMESTAMP],
            horizon_ms=horizon_ms,
        )


def _as_it_is(data: bytes, batch: Batch) -> Retained:
    content = memoryview(data)[batch.position : batch.end]
    return Retained(
        content, batch.last_offset, batch.header[H_MAX_TIMESTAMP], batch.header[H_RECORDS_COUNT], False
    )


def _emptied(header: Header) -> Retained:
    content = frame_batch(
        b"",
        count=0,
        base_offset=header[H_BASE_OFFSET],
        last_offset_delta=header[H_LAST_OFFSET_DELTA],
        leader_epoch=header[H_PARTITION_LEADER_EPOCH],
        attributes=header[H_ATTRIBUTES] & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL),
        base_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=header[H_MAX_TIMESTAMP],
        producer_id=header[H_PRODUCER_ID],
        producer_epoch=header[H_PRODUCER_EPOCH],
        base_sequence=header[H_BASE_SEQUENCE],
    )
    return Retained(
        content,
        header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA],
        header[H_MAX_TIMESTAMP],
        0,
        header[H_RECORDS_COUNT] != 0,
    )


def _rebuilt(
    header: Header, payload: bytes, *, records: int, max_timestamp_ms: int, horizon_ms: int
) -> Retained:
    attributes = header[H_ATTRIBUTES] if horizon_ms == NO_TIMESTAMP else header[H_ATTRIBUTES] | DELETE_HORIZON
    content = frame_batch(
        compress(Codec(attributes & CODEC_MASK), payload),
        count=records,
        base_offset=header[H_BASE_OFFSET],
        last_offset_delta=header[H_LAST_OFFSET_DELTA],
        leader_epoch=header[H_PARTITION_LEADER_EPOCH],
        attributes=attributes,
        base_timestamp_ms=header[H_BASE_TIMESTAMP] if horizon_ms == NO_TIMESTAMP else horizon_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=header[H_PRODUCER_ID],
        producer_epoch=header[H_PRODUCER_EPOCH],
        base_sequence=header[H_BASE_SEQUENCE],
    )
    return Retained(
        content, header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA], max_timestamp_ms, records, True
    )


def _joined(group: Group, places: npt.NDArray[np.int64]) -> bytes:
    """The records at `places` as they are, neighbours in one slice."""
    breaks = np.flatnonzero(np.diff(places) != 1)
    firsts = np.concatenate((places[:1], places[breaks + 1]))
    lasts = np.concatenate((places[breaks], places[-1:]))
    data = group.data
    return b"".join(
        [
            data[start:stop]
            for start, stop in zip(group.starts[firsts].tolist(), group.stops[lasts].tolist(), strict=True)
        ]
    )


def _moved(
    data: bytes,
    bodies_at: Sequence[int],
    offsets_at: Sequence[int],
    *,
    stops: Sequence[int],
    deltas_ms: Sequence[int],
) -> bytes:
    """Records with other timestamp deltas; what comes before and after these is as it was."""
    out = bytearray()
    for body, offset_at, stop, delta_ms in zip(bodies_at, offsets_at, stops, deltas_ms, strict=True):
        record = bytearray(data[body : body + 1])
        write_varint(record, delta_ms)
        record += data[offset_at:stop]
        write_varint(out, len(record))
        out += record
    return bytes(out)
