"""Logs on the disk as an owner leaves them, and their records as the connector reads them. No broker, no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from appliance.clock import ManualClock
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.log.partition_state import Mode, PartitionState, StateFile
from appliance.protocol.records.record import Record, decode_records
from spark_connector.bounds import end_offset
from spark_connector.directory import Directories, Isolation
from spark_connector.planning import OffsetRange, ScanRange, plan
from spark_connector.scan import scan
from tests.log.batches import NOW_MS, batch_of

SMALL_SEGMENTS = LogSettings(segment_bytes=1200, index_interval_bytes=200)
TOPIC_ID = UUID(int=7)


def make_log(
    home: Path, name: str = "orders-0", *, settings: LogSettings = SMALL_SEGMENTS
) -> tuple[PartitionLog, StateFile]:
    """An empty log in `<home>/<name>`, and its state file."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "meta.properties").write_text("version=1\n")
    log = PartitionLog.open(home / name, settings=settings, clock=ManualClock(NOW_MS), topic_id=TOPIC_ID)
    return log, StateFile(log.directory, UUID(int=1))


def publish(
    log: PartitionLog,
    state_file: StateFile,
    *,
    leads: bool = True,
    high_watermark: int | None = None,
    leader_epoch: int = 0,
) -> PartitionState:
    """What the owner says of the log now."""
    log.write_due_epochs()
    base, size_bytes = log.active_segment
    end = log.log_end_offset if high_watermark is None else high_watermark
    return state_file.publish(
        PartitionState(
            topic_id=TOPIC_ID,
            leader_epoch=leader_epoch,
            log_start=log.log_start_offset,
            high_watermark=end,
            last_stable=log.stable_offset(end),
            log_end=log.log_end_offset,
            durable=log.recovery_point,
            active_base=base,
            active_bytes=size_bytes,
            leads=leads,
            mode=Mode.RUNNING,
            written_ms=NOW_MS,
        )
    )


def filled(home: Path, *, batches: int = 60, records: int = 3) -> tuple[PartitionLog, StateFile]:
    """A log of several segments, published."""
    log, state_file = make_log(home)
    for number in range(batches):
        values = [b"value-%d-%d" % (number, each) for each in range(records)]
        log.append(batch_of(values, timestamp_ms=NOW_MS + number), leader_epoch=0)
    publish(log, state_file)
    return log, state_file


def tasks_of(
    home: Path,
    start: int | None = None,
    end: int | None = None,
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    split_bytes: int = 1 << 26,
    max_records: int | None = None,
) -> list[ScanRange]:
    """The plan for a range of `orders-0`; all of it by default."""
    view = Directories([home]).partition("orders", 0)
    wanted = OffsetRange(
        "orders",
        0,
        view.log_start_offset if start is None else start,
        end_offset(view, isolation) if end is None else end,
    )
    return plan([view], [wanted], isolation=isolation, split_bytes=split_bytes, max_records=max_records)


def read(tasks: Sequence[ScanRange], *, buffer_bytes: int = 4096, skip: bool = False) -> list[Record]:
    """Every record of the tasks, in order."""
    found = []
    for task in tasks:
        for chunk in scan(task, buffer_bytes=buffer_bytes, on_corrupt="skip" if skip else "fail"):
            for batch in chunk.batches:
                at, length_bytes = int(batch["position"]), int(batch["length_bytes"])
                records = decode_records(chunk.data.data[at : at + length_bytes])
                found += [each for each in records if chunk.start <= each.offset < chunk.end]
    return found
