"""The records of an internal log, into the book of offsets: what a replay does, quickly.

Nearly all of them are offsets, and of those nearly all in a topic of whose group there was one before. So keys are not
parsed: partitions are read out of the ends of all of them at once, and what stands before leads to its place in the
book by one look into a dictionary.

A commit of many partitions has left as many records one after another that differ in partition and value alone. Such a
stretch goes into the book as one row:

    record     0     1     2     3     4     5     6
    key        g t 0 g t 1 g t 2 h t 0 h t 1 h t 1 h u 7      without its partition the same as of the record before,
    value      42 B  42 B  42 B  42 B  42 B  42 B  42 B       its value as long, and its partition higher
    stretches  ├───────────────┤ ├─────────┤ ├───┤ ├───┤
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from appliance.control.coordinator.offsets.offset_book import Replay
from appliance.control.coordinator.runtime.record_block import RecordBlock
from appliance.protocol.records.columns import Longs, RecordColumns
from appliance.protocol.records.offset_records import KEY_TYPE_BYTES, OFFSET_KEYS, PARTITION_BYTES

ROW_MIN: Final = 8
"""Records of a stretch that are worth a row: fewer are put in one by one."""
COMPARED_BYTES_MAX: Final = 512
"""Of a key: one longer ends a stretch, or it would be paid for by all records beside it."""
_WORD_BYTES: Final = 8
Octets = npt.NDArray[np.uint8]


class _Records(NamedTuple):
    """Records in columns, with what ends the key of an offset: the partition, which begins at `cuts`.

    Of any other key that is something, which leads nowhere.
    """

    data: bytes
    octets: Octets
    columns: RecordColumns
    cuts: Longs
    partitions: npt.NDArray[np.int32]


def replay_block(block: RecordBlock, replay: Replay, other: Callable[[bytes, bytes | None], None]) -> None:
    """Take in every record of the block, in log order.

    `other` gets those that are no offsets. Records whose key has no type say nothing here.

    Raises:
        CorruptFile, InvalidRecords: its records do not add up, or a key does not parse.
    """
    if block.is_transactional:
        _replay_pending(block, replay, other)
        return
    group = block.group
    octets = np.frombuffer(group.data, np.uint8)
    for _, columns in group.columns():
        cuts = columns.keys_at + columns.key_lengths - PARTITION_BYTES
        partitions = np.zeros(len(cuts), np.int64)
        for place in range(PARTITION_BYTES):
            partitions = (partitions << 8) + octets.take(cuts + place, mode="clip")
        records = _Records(group.data, octets, columns, cuts, partitions.astype(np.int32))
        done = 0
        for first, end in _stretches(records):
            _replay_each(records, slice(done, first), replay, other)
            _replay_row(records, first, end, replay)
            done = end
        _replay_each(records, slice(done, None), replay, other)


def _replay_pending(block: RecordBlock, replay: Replay, other: Callable[[bytes, bytes | None], None]) -> None:
    """The records of a transaction whose end is not near: few, since it is open now or was when its chunk ended."""
    for _, record in block.each():
        if record.key[:KEY_TYPE_BYTES] in OFFSET_KEYS:
            replay.put_pending(block.producer_id, record.key, record.value)
        elif len(record.key) >= KEY_TYPE_BYTES:
            other(record.key, record.value)


def _stretches(records: _Records) -> list[tuple[int, int]]:
    """(first record, the one after the last) of the stretches of offsets that are worth a row."""
    _, octets, columns, cuts, partitions = records
    keys_at, lengths = columns.keys_at, cuts - columns.keys_at
    if len(octets) < _WORD_BYTES or len(cuts) < ROW_MIN:
        return []
    goes_on = (
        (lengths[1:] == lengths[:-1])
        & (lengths[1:] <= COMPARED_BYTES_MAX)
        & (columns.value_lengths[1:] == columns.value_lengths[:-1])
        & (partitions[1:] > partitions[:-1])
    )
    # Eight bytes of each key at a time, at any place; the last eight overlap what was compared before.
    words = np.ndarray((len(octets) - _WORD_BYTES + 1,), np.uint64, octets.data, 0, (1,))
    for at in range(0, min(int(lengths.max(initial=0)), COMPARED_BYTES_MAX), _WORD_BYTES):
        found = words.take(keys_at + np.maximum(np.minimum(at, lengths - _WORD_BYTES), 0), mode="clip")
        goes_on &= found[1:] == found[:-1]
    ends = np.append(np.flatnonzero(~goes_on) + 1, len(cuts))
    firsts = np.concatenate([[0], ends[:-1]])
    kinds = (octets.take(keys_at, mode="clip").astype(np.int64) << 8) + octets.take(keys_at + 1, mode="clip")
    is_row = (
        (ends - firsts >= ROW_MIN)
        & (lengths[firsts] >= _WORD_BYTES)
        & (columns.value_lengths[firsts] > 0)
        & (kinds[firsts] < len(OFFSET_KEYS))
    )
    return list(zip(firsts[is_row].tolist(), ends[is_row].tolist(), strict=True))


def _replay_row(records: _Records, first: int, end: int, replay: Replay) -> None:
    data, octets, columns, cuts, partitions = records
    key = data[columns.keys_at[first] : cuts[first] + PARTITION_BYTES]
    width = int(columns.value_lengths[first])
    windows = np.ndarray((len(octets) - width + 1, width), np.uint8, octets.data, 0, (1, 1))
    values = windows[columns.values_at[first:end]].tobytes()
    replay.put_row(key, array("i", partitions[first:end].tobytes()), values)


def _replay_each(
    records: _Records, some: slice, replay: Replay, other: Callable[[bytes, bytes | None], None]
) -> None:
    data, places, columns = records.data, replay.places, records.columns
    values_at = columns.values_at[some]
    for key, cut, partition, value, value_end in zip(
        columns.keys_at[some].tolist(),
        records.cuts[some].tolist(),
        records.partitions[some].tolist(),
        values_at.tolist(),
        (values_at + columns.value_lengths[some]).tolist(),
        strict=True,
    ):
        offsets = places.get(data[key:cut])
        if offsets is not None:
            if value_end >= value:
                offsets[partition] = data[value:value_end]
            else:
                offsets.pop(partition, None)
            continue
        whole = data[key : cut + PARTITION_BYTES]
        content = data[value:value_end] if value_end >= value else None
        if whole[:KEY_TYPE_BYTES] in OFFSET_KEYS:
            replay.put(whole, content)
        elif len(whole) >= KEY_TYPE_BYTES:
            other(whole, content)
