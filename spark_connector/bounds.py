"""From times and epochs to offsets."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from appliance.errors import ApplianceError
from appliance.log.leader_epochs import UNDEFINED_EPOCH, LeaderEpochs
from appliance.protocol.records.batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from appliance.protocol.records.record import decode_records
from spark_connector.directory import PartitionView
from spark_connector.planning import OffsetRange, plan
from spark_connector.scan import headers, scan

_SEARCH_BUFFER_BYTES: Final = 256 << 10


def offset_for_timestamp(view: PartitionView, timestamp_ms: int, *, end: int) -> int | None:
    """The first offset below `end` whose record is of `timestamp_ms` or later; None if there is none.

    As Kafka's ListOffsets: by the time indexes to a batch, then record by record. Control records do not count.

    Raises:
        As `scan`.
    """
    wanted = OffsetRange(view.topic, view.partition, view.log_start_offset, end)
    tasks = plan([view], [wanted], timestamps_ms=(timestamp_ms, None))
    for task in tasks:
        for chunk in scan(task, buffer_bytes=_SEARCH_BUFFER_BYTES):
            for batch in chunk.batches:
                position, length_bytes = int(batch["position"]), int(batch["length_bytes"])
                first = max(int(batch["base_offset"]), view.log_start_offset)
                if int(batch["attributes"]) & LOG_APPEND_TIME:
                    return first if first < end else None
                for record in decode_records(chunk.data.data[position : position + length_bytes]):
                    if record.timestamp_ms >= timestamp_ms and record.offset >= first:
                        return record.offset if record.offset < end else None
    return None


def last_stable_offset(view: PartitionView) -> int:
    """Below which every transaction is decided, where nobody says it: found in the headers of the whole log.

    Raises:
        As `scan`.
    """
    open_since: dict[int, int] = {}
    end = view.high_watermark
    if view.log_start_offset >= end:
        return end
    for task in plan([view], [OffsetRange(view.topic, view.partition, view.log_start_offset, end)]):
        for batches in headers(task):
            for batch in batches[batches["attributes"] & TRANSACTIONAL != 0]:
                if batch["attributes"] & CONTROL:
                    open_since.pop(int(batch["producer_id"]), None)
                else:
                    open_since.setdefault(int(batch["producer_id"]), int(batch["base_offset"]))
    return min(open_since.values(), default=end)


def epoch_of(view: PartitionView, offset: int) -> int:
    """The leader epoch under which `offset` was, or would be, written; -1 where that is not known."""
    epochs = _epochs(view)
    return UNDEFINED_EPOCH if epochs is None else epochs.epoch_of(offset)


def epoch_end(view: PartitionView, epoch: int) -> int:
    """Where the leader epoch `epoch` ended: what a reader has seen of it beyond that was cut. -1: not known."""
    epochs = _epochs(view)
    if epochs is None:
        return -1
    return epochs.end_offset(epoch, log_end_offset=max(view.log_end_offset, view.high_watermark))[1]


def _epochs(view: PartitionView) -> LeaderEpochs | None:
    try:
        return LeaderEpochs.load(Path(view.directory))
    except ApplianceError:
        return None
