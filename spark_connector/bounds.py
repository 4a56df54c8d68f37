"""From times and transactions to offsets."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from appliance.log.sealed_segments import newest_snapshot
from appliance.protocol.columns.batch_headers import Batches
from appliance.protocol.records.batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from appliance.protocol.records.record import decode_records
from spark_connector.directory import UNKNOWN, Decided, Isolation, PartitionView
from spark_connector.errors import NotReadable
from spark_connector.planning import OffsetRange, plan
from spark_connector.scan import headers, scan

_SEARCH_BUFFER_BYTES: Final = 256 << 10


def end_offset(view: PartitionView, isolation: Isolation, *, durable: bool = False) -> int:
    """Return the offset below which a partition may be read now; `durable`: and will be there after a power cut.

    Raises:
        NotReadable: durable, where only Apache Kafka knows.
        StorageFault, ConnectorError: the last stable offset has to be found by reading, and that failed.
    """
    end = view.high_watermark
    if isolation is Isolation.READ_COMMITTED:
        end = view.last_stable_offset
        if end == UNKNOWN:
            end = last_stable_offset(view)
    if durable:
        if view.durable_offset == UNKNOWN:
            raise NotReadable(f"{view.directory}: nobody says how far the log is on the disk")
        end = min(end, view.durable_offset)
    return max(end, view.log_start_offset)


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
    """Below which every transaction is decided, where nobody says it.

    Found in the newest snapshot of the producers and in the headers of the batches behind it; where the directories
    remember an earlier look, in the headers of what has come since.

    Raises:
        As `scan`.
    """
    end, known = view.high_watermark, view.decided or Decided()
    if known.up_to == 0 or known.up_to > end or known.topic_id != view.topic_id:
        producers, start = newest_snapshot(Path(view.directory), end)
        firsts = {each.producer_id: each.transaction_first_offset for each in producers.entries()}
        open_since = {producer_id: first for producer_id, first in firsts.items() if first >= 0}
    else:
        start, open_since = known.up_to, dict(known.open_since)
    start = max(start, view.log_start_offset)
    if start < end:
        for task in plan([view], [OffsetRange(view.topic, view.partition, start, end)]):
            for batches in headers(task):
                _follow(batches[batches["attributes"] & TRANSACTIONAL != 0], open_since)
    known.topic_id, known.up_to, known.open_since = view.topic_id, end, open_since
    return min(open_since.values(), default=end)


def _follow(batches: Batches, open_since: dict[int, int]) -> None:
    """Transactions begin with their first batch, and end with their marker."""
    for batch in batches:
        if batch["attributes"] & CONTROL:
            open_since.pop(int(batch["producer_id"]), None)
        else:
            open_since.setdefault(int(batch["producer_id"]), int(batch["base_offset"]))
