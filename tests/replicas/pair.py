"""A leader's log and its follower's, with the partition table between them; the test is both duty cycles."""

from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

import msgspec

from appliance.channels.control_channel import AssignedPartition
from appliance.channels.partition_table import (
    ISR_BITS,
    LOG_START,
    SERVING_EPOCH,
    SERVING_EPOCH_START,
    SERVING_INCARNATION,
    SLOT_FOLLOWED_EPOCH,
    SLOT_LOG_END,
    WATERMARK_INCARNATION,
    PartitionTable,
    table_size_bytes,
)
from appliance.clock import ManualClock
from appliance.log.config import LogSettings
from appliance.log.file_names import LOG
from appliance.log.partition_log import PartitionLog
from appliance.replicas.follower import Follower
from appliance.replicas.leader_log import ReadBuffer
from tests.log.batches import NOW_MS, batch_of

TOPIC_ID = UUID(int=9)
INCARNATION = 3
ROW = 1
SMALL_SEGMENTS = LogSettings(segment_bytes=2000, index_interval_bytes=200)


class Pair:
    """Slot 0 leads, slot 1 follows; the test is both of their duty cycles."""

    def __init__(self, path: Path, settings: LogSettings = SMALL_SEGMENTS) -> None:
        self.path = path
        self.settings = settings
        self.table = PartitionTable(memoryview(bytearray(table_size_bytes(2, 2))), slots=2)
        self.leader = self.open(0)
        self.epoch = 0
        self.buffer = ReadBuffer()
        self.assigned = AssignedPartition("t", TOPIC_ID, 0, ROW, INCARNATION, 0, 0, (0, 1), (0, 1), {})
        self.follower = self.follow(self.assigned)
        self.serve()

    def follow(self, assigned: AssignedPartition) -> Follower:
        return Follower(
            assigned,
            self.open(1),
            table=self.table,
            slot=1,
            directories_of=lambda slot: [self.path / f"slot-{slot}"],
        )

    def reopen_follower(self, isr: tuple[int, ...]) -> None:
        """Its next life, with the controller's word who is in sync."""
        self.table.cells[self.table.at(ROW) + ISR_BITS] = sum(1 << slot for slot in isr)
        self.follower = self.follow(msgspec.structs.replace(self.assigned, leader_epoch=self.epoch, isr=isr))

    def open(self, slot: int) -> PartitionLog:
        return PartitionLog.open(
            self.path / f"slot-{slot}" / "t-0",
            settings=self.settings,
            clock=ManualClock(NOW_MS),
            topic_id=TOPIC_ID,
        )

    def serve(self) -> None:
        """The leader begins with its epoch."""
        self.leader.assign_epoch(self.epoch, self.leader.log_end_offset)
        cells, at = self.table.cells, self.table.at(ROW)
        cells[at + SERVING_EPOCH_START] = self.leader.leader_epochs.latest_start
        cells[at + SERVING_EPOCH] = self.epoch
        cells[at + SERVING_INCARNATION] = cells[at + WATERMARK_INCARNATION] = INCARNATION
        self.publish()

    def publish(self) -> None:
        cells = self.table.cells
        cells[self.table.slot_at(ROW, 0) + SLOT_LOG_END] = self.leader.log_end_offset
        cells[self.table.at(ROW) + LOG_START] = self.leader.log_start_offset

    def append(self, count: int, *, size: int = 100) -> None:
        for _ in range(count):
            self.leader.append(batch_of([random.randbytes(size)]), leader_epoch=self.epoch)
        self.publish()

    def elect(self) -> None:
        """Slot 0 leads anew, under the next epoch."""
        self.epoch += 1
        self.follower.follow(0, self.epoch)
        self.serve()

    def catch_up(self) -> None:
        for _ in range(1000):
            if self.follower.look(self.buffer, now_ms=NOW_MS, budget_bytes=1 << 20):
                return
        raise AssertionError("the follower does not come to an end")

    def files(self, slot: int) -> dict[str, bytes]:
        paths = (self.path / f"slot-{slot}" / "t-0").glob(f"*{LOG}")
        return {path.name: path.read_bytes().rstrip(b"\0") for path in paths}

    def followed_epoch(self) -> int:
        return self.table.cells[self.table.slot_at(ROW, 1) + SLOT_FOLLOWED_EPOCH]
