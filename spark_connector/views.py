"""Tables about a topic that are answered from headers and indexes: no record is decoded, no checksum looked at.

    batches        one row for each batch in the asked offsets; `rows` is how many records a query of the same options
                   would give of it, so `sum(rows)` is an exact count
    segments       one row for each segment's file, deleted ones that can still be read among them
    transactions   one row for each aborted transaction
    partitions     one row for each partition: how far it can be read

A count reads a few dozen bytes of every batch: of a GB some 15 ms where batches are a MB large, 100 ms where they are
16 KiB, and counting rows takes a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from appliance.protocol.columns.batch_headers import Batches
from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import Codec
from spark_connector.arrow_schema import TIMESTAMP
from spark_connector.batch_query import plan_batch, shared
from spark_connector.constraints import Constraints
from spark_connector.directory import Directories, Isolation, PartitionView
from spark_connector.options import Options, View
from spark_connector.planning import OffsetRange, ScanRange, plan
from spark_connector.scan import headers
from spark_connector.segments import aborted_transactions, segments

_PLACE: Final = [("topic", pa.string()), ("partition", pa.int32())]

BATCHES: Final = pa.schema(
    [
        *_PLACE,
        ("baseOffset", pa.int64()),
        ("lastOffset", pa.int64()),
        ("records", pa.int32()),
        ("rows", pa.int64()),
        ("sizeBytes", pa.int32()),
        ("compression", pa.string()),
        ("timestampType", pa.int32()),
        ("baseTimestamp", TIMESTAMP),
        ("maxTimestamp", TIMESTAMP),
        ("leaderEpoch", pa.int32()),
        ("producerId", pa.int64()),
        ("producerEpoch", pa.int32()),
        ("baseSequence", pa.int32()),
        ("isTransactional", pa.bool_()),
        ("isControl", pa.bool_()),
        ("isAborted", pa.bool_()),
        ("segment", pa.int64()),
        ("filePosition", pa.int64()),
    ]
)
SEGMENTS: Final = pa.schema(
    [
        *_PLACE,
        ("baseOffset", pa.int64()),
        ("path", pa.string()),
        ("sizeBytes", pa.int64()),
        ("modified", TIMESTAMP),
        ("isActive", pa.bool_()),
        ("isDeleted", pa.bool_()),
    ]
)
TRANSACTIONS: Final = pa.schema(
    [
        *_PLACE,
        ("producerId", pa.int64()),
        ("firstOffset", pa.int64()),
        ("lastOffset", pa.int64()),
        ("lastStableOffset", pa.int64()),
    ]
)
PARTITIONS: Final = pa.schema(
    [
        *_PLACE,
        ("topicId", pa.string()),
        ("leaderEpoch", pa.int32()),
        ("logStartOffset", pa.int64()),
        ("highWatermark", pa.int64()),
        ("lastStableOffset", pa.int64()),
        ("durableOffset", pa.int64()),
        ("logEndOffset", pa.int64()),
        ("segments", pa.int32()),
        ("sizeBytes", pa.int64()),
        ("directory", pa.string()),
        ("isLive", pa.bool_()),
    ]
)
SCHEMAS: Final = {
    View.BATCHES: BATCHES,
    View.SEGMENTS: SEGMENTS,
    View.TRANSACTIONS: TRANSACTIONS,
    View.PARTITIONS: PARTITIONS,
}

_CODEC_NAMES: Final = pa.array([codec.name.lower() for codec in Codec] + ["unknown"] * 3, pa.string())
_SATURATED_MS: Final = (1 << 63) // 1000 - 1


@dataclass(frozen=True, slots=True)
class ViewTask:
    """What one task tells: the batches of some ranges, or facts about some partitions."""

    view: View
    scans: tuple[ScanRange, ...] = ()
    partitions: tuple[tuple[PartitionView, int, int], ...] = ()
    """Each with the first offset that is asked for and the one after the last."""


def plan_view(options: Options, constraints: Constraints | None = None) -> list[ViewTask]:
    """The tasks of a view.

    Raises:
        As `plan_batch`.
    """
    # Between records of one batch nothing is cut: it would be told twice.
    options = replace(options, max_records_per_partition=None)
    planned = plan_batch(options, constraints)
    if options.view is View.BATCHES:
        return [ViewTask(View.BATCHES, group) for group in shared(planned.tasks, options)]
    if planned.lease is not None:
        planned.lease.release()  # what is told of a partition reads no segment
    asked = [
        (replace(view, seen=None), each.start, each.end)
        for view, each in zip(planned.views, planned.ranges, strict=True)
    ]
    return [ViewTask(options.view, partitions=tuple(asked))] if asked else []


def read_view(task: ViewTask, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in some of the view's columns, under the names and types of `schema`."""
    for found in _read(task):
        yield pa.RecordBatch.from_arrays([found.column(name) for name in columns], schema=schema)


def _read(task: ViewTask) -> Iterator[pa.RecordBatch]:
    if task.view is View.BATCHES:
        for scan in task.scans:
            for found in headers(scan):
                yield _batches(scan, found)
        return
    rows = [row for each in task.partitions for row in _ROWS[task.view](*each)]
    yield pa.RecordBatch.from_pylist(rows, SCHEMAS[task.view])


def count_records(options: Options) -> int:
    """How many records a query of these options gives, by headers alone.

    Raises:
        As `plan_batch` and `scan`.
    """
    planned = plan_batch(options)
    try:
        return sum(int(_counts(task, found).sum()) for task in planned.tasks for found in headers(task))
    finally:
        if planned.lease is not None:
            planned.lease.release()


def _counts(task: ScanRange, batches: Batches) -> npt.NDArray[np.int64]:
    """Of each batch, how many records a query of the task gives."""
    first, last = batches["base_offset"], batches["last_offset"]
    counts = batches["records"].astype(np.int64)
    hidden = (batches["attributes"] & b.CONTROL) != 0
    if task.isolation is Isolation.READ_COMMITTED:
        hidden |= batches["aborted"] != 0
    counts[hidden] = 0
    for index in np.flatnonzero(~hidden & ((first < task.start) | (last >= task.end))):
        begin, end = max(int(first[index]), task.start), min(int(last[index]) + 1, task.end)
        dense = int(last[index]) - int(first[index]) + 1 == counts[index]
        counts[index] = end - begin if dense else _count_decoded(task, begin, end)
    return counts


def _count_decoded(task: ScanRange, begin: int, end: int) -> int:
    """A batch that compaction has made holes in, and that a bound cuts: only its records say how many lie inside."""
    view = Directories(task.homes).partition(task.topic, task.partition)
    wanted = OffsetRange(task.topic, task.partition, begin, end)
    pieces = plan([view], [wanted], isolation=task.isolation, lease=task.lease)
    # Hardly ever needed, and brings numba, which takes longer to load than all else here.
    from spark_connector.record_batches import record_batches

    return sum(batch.num_rows for piece in pieces for batch in record_batches(piece, ("offset",)))


def _batches(task: ScanRange, batches: Batches) -> pa.RecordBatch:
    count = len(batches)
    attributes = batches["attributes"]
    columns = {
        "topic": pa.array([task.topic] * count, pa.string()),
        "partition": pa.array(np.full(count, task.partition, np.int32)),
        "baseOffset": _column(batches, "base_offset"),
        "lastOffset": _column(batches, "last_offset"),
        "records": _column(batches, "records"),
        "rows": pa.array(_counts(task, batches)),
        "sizeBytes": _column(batches, "length_bytes"),
        "compression": _CODEC_NAMES.take(pa.array((attributes & b.CODEC_MASK).astype(np.int32))),
        "timestampType": pa.array(((attributes & b.LOG_APPEND_TIME) != 0).astype(np.int32)),
        "baseTimestamp": _times(batches["base_timestamp_ms"]),
        "maxTimestamp": _times(batches["max_timestamp_ms"]),
        "leaderEpoch": _column(batches, "leader_epoch"),
        "producerId": _column(batches, "producer_id"),
        "producerEpoch": pa.array(batches["producer_epoch"].astype(np.int32)),
        "baseSequence": _column(batches, "base_sequence"),
        "isTransactional": pa.array((attributes & b.TRANSACTIONAL) != 0),
        "isControl": pa.array((attributes & b.CONTROL) != 0),
        "isAborted": pa.array(batches["aborted"] != 0),
        "segment": _column(batches, "segment_base_offset"),
        "filePosition": _column(batches, "file_position"),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in BATCHES.names], schema=BATCHES)


def _column(batches: Batches, name: str) -> Any:
    return pa.array(np.ascontiguousarray(batches[name]))


def _times(milliseconds: npt.NDArray[np.int64]) -> Any:
    microseconds = np.clip(milliseconds, -_SATURATED_MS, _SATURATED_MS) * 1000
    return pa.array(microseconds, pa.int64()).cast(TIMESTAMP)


def _segment_rows(view: PartitionView, _start: int, _end: int) -> Iterator[dict[str, Any]]:
    for each in segments(view.directory):
        yield {
            **_place(view),
            "baseOffset": each.base_offset,
            "path": each.path,
            "sizeBytes": each.size_bytes,
            "modified": each.modified_ms * 1000,
            "isActive": each.is_active,
            "isDeleted": each.is_deleted,
        }


def _transaction_rows(view: PartitionView, start: int, end: int) -> Iterator[dict[str, Any]]:
    for each in aborted_transactions(view.directory, start=start, end=end):
        yield {
            **_place(view),
            "producerId": each.producer_id,
            "firstOffset": each.first_offset,
            "lastOffset": each.last_offset,
            "lastStableOffset": each.last_stable_offset,
        }


def _partition_rows(view: PartitionView, _start: int, _end: int) -> Iterator[dict[str, Any]]:
    found = [each for each in segments(view.directory) if not each.is_deleted]
    yield {
        **_place(view),
        "topicId": str(view.topic_id) if view.topic_id else None,
        "leaderEpoch": view.leader_epoch,
        "logStartOffset": view.log_start_offset,
        "highWatermark": view.high_watermark,
        "lastStableOffset": _known(view.last_stable_offset),
        "durableOffset": _known(view.durable_offset),
        "logEndOffset": _known(view.log_end_offset),
        "segments": len(found),
        "sizeBytes": sum(each.size_bytes for each in found),
        "directory": str(Path(view.directory)),
        "isLive": view.is_live,
    }


def _place(view: PartitionView) -> dict[str, Any]:
    return {"topic": view.topic, "partition": view.partition}


def _known(offset: int) -> int | None:
    return offset if offset >= 0 else None


_ROWS: Final[dict[View, Callable[[PartitionView, int, int], Iterator[dict[str, Any]]]]] = {
    View.SEGMENTS: _segment_rows,
    View.TRANSACTIONS: _transaction_rows,
    View.PARTITIONS: _partition_rows,
}
