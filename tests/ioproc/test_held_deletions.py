"""Each answer to DeleteRecords that waits for followers leaves once, by what ends its wait first."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from appliance.channels.control_channel import AssignedPartition
from appliance.channels.partition_table import PartitionTable, table_size_bytes
from appliance.channels.request_channel import ERROR, LOW_WATERMARK
from appliance.channels.roles import Role, RoleKind
from appliance.clock import ManualClock
from appliance.delayed.held_answers import Deadlines
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.held_deletions import HeldDeletions
from appliance.ioproc.partition import Partition
from appliance.ipc.agent import Timers
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.protocol.errors import ErrorCode
from tests.support.no_purgatory import NoPurgatory

REQUESTER, OTHER = Role(RoleKind.NETPROC, 0, 0), Role(RoleKind.NETPROC, 0, 1)


class Bench:
    """One partition whose replicas have the low watermark that the test says."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock(1_000)
        self.timers = Timers()
        self.deadlines = Deadlines(NoPurgatory(), self.timers.alarm)
        self.timers.alarm.action = lambda: self.deadlines.turn(self.clock.monotonic_ns())
        self.low_watermark = 0
        self.replies: list[tuple[Role, int, int]] = []
        self.held = HeldDeletions(
            self.deadlines, self.clock, low_watermark=lambda _: self.low_watermark, reply=self.reply
        )
        log = PartitionLog.open(path, settings=LogSettings(), clock=self.clock, topic_id=UUID(int=1))
        table = PartitionTable(memoryview(bytearray(table_size_bytes(1, 2))), slots=2)
        assigned = AssignedPartition("t", UUID(int=1), 0, 0, 1, 0, 0, (0, 1), (0, 1), {})
        self.partition = Partition(
            assigned, log, table=table, slot=0, min_insync_replicas=1, clock=ManualClock()
        )

    def reply(self, peer: Role, answer: Answer) -> None:
        self.replies.append((peer, answer[ERROR], answer[LOW_WATERMARK]))

    def hold(self, start: int, *, timeout_ms: int = 1000, peer: Role = REQUESTER) -> bool:
        answer = (4, 0, 0, 7, 0, 0, start, -1, start, 0, 0, 0, 0, 0)
        return self.held.hold(self.partition, peer, answer, timeout_ms=timeout_ms)

    def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms)
        self.timers.run_due(self.clock.monotonic_ns())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "t-0")


def test_what_all_have_done_already_is_not_held(bench: Bench) -> None:
    bench.low_watermark = 5
    assert not bench.hold(5)
    assert bench.held.statistics() == {"deletions": 0}


def test_each_is_answered_when_the_last_replica_has_come_as_far(bench: Bench) -> None:
    assert bench.hold(5)
    assert bench.hold(8, peer=OTHER)
    bench.low_watermark = 6
    bench.held.moved(bench.partition)
    assert bench.replies == [(REQUESTER, 0, 6)]
    bench.low_watermark = 9
    bench.held.moved(bench.partition)
    bench.held.moved(bench.partition)
    assert bench.replies == [(REQUESTER, 0, 6), (OTHER, 0, 9)]


def test_time_ends_the_wait_of_whom_it_is_over_for_and_of_nobody_else(bench: Bench) -> None:
    assert bench.hold(5, timeout_ms=1000)
    assert bench.hold(6, timeout_ms=200, peer=OTHER)
    bench.low_watermark = 2
    bench.pass_ms(300)
    assert bench.replies == [(OTHER, ErrorCode.REQUEST_TIMED_OUT, 2)]
    bench.pass_ms(800)
    assert bench.replies[1:] == [(REQUESTER, ErrorCode.REQUEST_TIMED_OUT, 2)]
    assert bench.held.statistics() == {"deletions": 0}


def test_who_leads_no_more_says_so(bench: Bench) -> None:
    assert bench.hold(5)
    bench.held.forget(bench.partition, int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    bench.held.forget(bench.partition, int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert bench.replies == [(REQUESTER, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


def test_a_requester_that_died_hears_nothing(bench: Bench) -> None:
    assert bench.hold(5)
    assert bench.hold(5, peer=OTHER)
    bench.held.drop_requester(REQUESTER)
    bench.low_watermark = 5
    bench.held.moved(bench.partition)
    assert bench.replies == [(OTHER, 0, 5)]
