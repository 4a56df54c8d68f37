"""Segments that were rolled are flushed soon, all at once, and one round after the other."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.ipc.agent import Timers
from appliance.log.checkpoint import read_offsets
from appliance.log.file_names import RECOVERY_POINTS
from appliance.log.log_directory import LogDirectory
from appliance.log.shares import FOLLOWERS, LEADERS, Share
from appliance.partition_host.rolled_flush import FLUSH_ROLLED_MS, RolledFlush
from tests.log.batches import NOW_MS, batch_of

ORDERS = TopicPartition("orders", 0)


class Rounds:
    """A worker's timers, and what is begun."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW_MS)
        self.timers = Timers()
        self.begun = 0
        self.is_busy = False
        self.flush = RolledFlush(self.timers, self.clock, begin=self.begin)

    def begin(self) -> bool:
        self.begun += not self.is_busy
        return not self.is_busy

    def pass_ms(self, span_ms: int) -> None:
        self.clock.advance(span_ms)
        self.timers.run_due(self.clock.monotonic_ns())


def test_what_rolls_together_goes_in_one_round() -> None:
    rounds = Rounds()
    for _ in range(3):
        rounds.flush.rolled()
    rounds.pass_ms(FLUSH_ROLLED_MS - 1)
    assert rounds.begun == 0
    rounds.pass_ms(1)
    assert rounds.begun == 1
    assert not rounds.timers.any  # nothing wakes who has nothing to do


def test_a_round_waits_for_the_one_before() -> None:
    rounds = Rounds()
    rounds.is_busy = True
    rounds.flush.rolled()
    rounds.pass_ms(FLUSH_ROLLED_MS)
    assert rounds.begun == 0
    rounds.is_busy = False
    rounds.pass_ms(FLUSH_ROLLED_MS)
    assert rounds.begun == 1


def test_a_roll_says_that_a_flush_is_due_and_the_flush_moves_the_recovery_point(tmp_path: Path) -> None:
    rounds = Rounds()
    directory = LogDirectory.open(tmp_path, node_id=0, cluster_id="c1", clock=rounds.clock)
    directory.flushes.on_due = rounds.flush.rolled
    log = directory.open_partition(ORDERS, UUID(int=7))
    for _ in range(3):
        log.append(batch_of(), leader_epoch=0)
    assert not rounds.timers.any
    log.roll()
    rounds.pass_ms(FLUSH_ROLLED_MS)
    assert rounds.begun == 1
    directory.flush_task({})()
    assert read_offsets(tmp_path / RECOVERY_POINTS) == {ORDERS: 3}
    directory.close()


def test_a_log_that_was_taken_over_is_flushed_by_the_next_checkpoint_and_not_before(tmp_path: Path) -> None:
    rounds = Rounds()

    def half(which: Share) -> LogDirectory:
        return LogDirectory.open(tmp_path, node_id=0, cluster_id="c1", clock=rounds.clock, share=which)

    followers, leaders = half(FOLLOWERS), half(LEADERS)
    leaders.flushes.on_due = rounds.flush.rolled
    followers.open_partition(ORDERS, UUID(int=7)).append(batch_of(), leader_epoch=0)
    followers.hand_over(ORDERS)
    leaders.open_partition(ORDERS, UUID(int=7), closed=True)
    assert len(leaders.flushes) == 1
    assert not rounds.timers.any
    leaders.abandon()
    followers.abandon()
