"""The high watermark waits for all that may be in sync, and for nobody's bytes of another epoch."""

from __future__ import annotations

from uuid import uuid4

import msgspec

from appliance.channels.control_channel import AlteredPartition, AssignedPartition
from appliance.channels.partition_table import (
    HIGH_WATERMARK,
    LOG_START,
    SLOT_FOLLOWED_EPOCH,
    SLOT_FOLLOWED_INCARNATION,
    SLOT_LOG_END,
    SLOT_LOG_START,
    PartitionTable,
    table_size_bytes,
)
from appliance.ioproc.replication import Replication

INCARNATION = 77


class Led:
    """A partition that slot 0 leads, and 1 and 2 follow."""

    def __init__(self, isr: tuple[int, ...] = (0, 1, 2), *, epoch: int = 5, log_end: int = 0) -> None:
        self.table = PartitionTable(memoryview(bytearray(table_size_bytes(2, 3))), slots=3)
        self.assigned = AssignedPartition(
            topic="t",
            topic_id=uuid4(),
            partition=0,
            row=1,
            incarnation=INCARNATION,
            leader=0,
            leader_epoch=epoch,
            replicas=(0, 1, 2),
            isr=isr,
            configs={},
            partition_epoch=3,
        )
        self.replication = Replication(self.assigned, table=self.table, slot=0, log_end=log_end, now_ms=0)

    def follower(self, slot: int, end: int, *, epoch: int = 5, incarnation: int = INCARNATION) -> None:
        cells, at = self.table.cells, self.table.slot_at(1, slot)
        cells[at + SLOT_LOG_END] = end
        cells[at + SLOT_FOLLOWED_INCARNATION] = incarnation
        cells[at + SLOT_FOLLOWED_EPOCH] = epoch

    def high_watermark(self, log_end: int) -> int:
        found = self.replication.high_watermark(log_end)
        self.table.cells[self.table.at(1) + HIGH_WATERMARK] = found
        return found

    def outcome(self, isr: tuple[int, ...], partition_epoch: int, error: int = 0) -> AlteredPartition:
        return AlteredPartition("t", 0, INCARNATION, error, 0, 5, partition_epoch, isr)


def test_the_high_watermark_is_the_least_of_the_in_sync() -> None:
    led = Led()
    led.follower(1, 30)
    led.follower(2, 20)
    assert led.high_watermark(40) == 20
    led.follower(2, 50)
    assert led.high_watermark(40) == 30


def test_bytes_of_another_epoch_or_incarnation_count_for_nothing() -> None:
    led = Led()
    led.follower(1, 30)
    led.follower(2, 30, epoch=4)
    assert led.high_watermark(40) == 0
    led.follower(2, 30, incarnation=INCARNATION - 1)
    assert led.high_watermark(40) == 0
    led.follower(2, 30)
    assert led.high_watermark(40) == 30


def test_a_copy_that_begins_later_than_the_log_has_not_caught_up() -> None:
    led = Led(isr=(0,))
    cells, at = led.table.cells, led.table.slot_at(1, 1)
    cells[led.table.at(1) + LOG_START] = 10
    led.follower(1, 50)
    for start in (11, 50):
        cells[at + SLOT_LOG_START] = start
        assert led.replication.caught_up(50) is None
    for start in (0, 10):
        cells[at + SLOT_LOG_START] = start
        assert led.replication.caught_up(50) == (0, 1)


def test_the_high_watermark_never_falls() -> None:
    led = Led()
    led.follower(1, 30)
    led.follower(2, 30)
    assert led.high_watermark(30) == 30
    led.follower(1, 10)
    assert led.high_watermark(30) == 30


def test_a_shrink_that_is_not_answered_changes_no_high_watermark() -> None:
    led = Led()
    led.follower(1, 40)
    led.follower(2, 10)
    led.replication.want((0, 1))
    assert led.high_watermark(40) == 10
    led.replication.answered(led.outcome((0, 1), 4))
    assert led.high_watermark(40) == 40


def test_an_expansion_is_waited_for_before_it_is_answered() -> None:
    led = Led(isr=(0, 1))
    led.follower(1, 40)
    led.follower(2, 20)
    led.replication.want((0, 1, 2))
    assert led.high_watermark(40) == 20


def test_a_refused_change_leaves_the_isr_that_was_told() -> None:
    led = Led()
    led.follower(1, 40)
    led.follower(2, 10)
    led.replication.want((0, 1))
    led.replication.answered(led.outcome((0, 1, 2), 3, error=107))
    assert led.replication.isr == (0, 1, 2)
    assert led.replication.wanted is None
    assert led.high_watermark(40) == 10


def test_a_follower_joins_at_the_high_watermark_and_not_before_the_epoch_s_start() -> None:
    led = Led(isr=(0, 1), log_end=25)
    led.follower(2, 24)
    assert led.replication.caught_up(20) is None
    led.follower(2, 25)
    assert led.replication.caught_up(20) == (0, 1, 2)
    assert led.replication.caught_up(26) is None


def test_only_who_was_late_for_the_whole_time_falls_behind() -> None:
    led = Led()
    led.follower(1, 100)
    led.follower(2, 50)
    assert led.replication.fallen_behind(0, 0, 500, lag_ms=1000, log_end=100) is None
    # At 600 the log ended at 100; 2 has it now, so it was in step then.
    led.follower(1, 150)
    led.follower(2, 100)
    assert led.replication.fallen_behind(100, 600, 1500, lag_ms=1000, log_end=150) is None
    assert led.replication.fallen_behind(150, 1500, 1700, lag_ms=1000, log_end=150) == (0, 1)


def test_an_older_assignment_changes_nothing() -> None:
    led = Led()
    led.replication.answered(led.outcome((0, 1), 4))
    led.replication.take(msgspec.structs.replace(led.assigned, partition_epoch=3), log_end=0, now_ms=0)
    assert led.replication.isr == (0, 1)
    led.replication.take(
        msgspec.structs.replace(led.assigned, partition_epoch=5, isr=(0,)), log_end=0, now_ms=0
    )
    assert len(led.replication.isr) == 1


def test_the_same_state_again_leaves_a_proposal_under_way() -> None:
    led = Led(isr=(0, 1))
    led.follower(1, 40)
    led.follower(2, 20)
    led.replication.want((0, 1, 2))
    led.replication.take(led.assigned, log_end=40, now_ms=0)
    assert led.high_watermark(40) == 20
    led.replication.take(msgspec.structs.replace(led.assigned, partition_epoch=4), log_end=40, now_ms=0)
    assert led.replication.wanted is None
    assert led.high_watermark(40) == 40
