"""Proposals to the controller: an answer counts for its question, and what still seems right is asked again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from appliance.channels.control_channel import AlteredPartition, AlteredPartitions, AlterPartitions
from appliance.channels.controller_link import ControllerLink
from appliance.channels.partition_table import SLOT_DAMAGE_FOUND
from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.ioproc.isr_changes import AGAIN_MS, IsrChanges
from appliance.ioproc.partition import Partition
from appliance.ioproc.replication import Replication
from appliance.ipc.agent import Timers
from appliance.partition_host.listener import PartitionListener
from appliance.protocol.errors import ErrorCode
from tests.ioproc.test_replication import INCARNATION, Led


class Line:
    """What is said to the controller; the test answers."""

    def __init__(self) -> None:
        self.asked: list[AlterPartitions] = []

    def ask(self, body: AlterPartitions) -> int:
        self.asked.append(body)
        return len(self.asked)


class Leading:
    """What of a partition a proposal needs: the rest of it has a log."""

    incarnation = INCARNATION
    row = 1
    high_watermark = 10

    def __init__(self, replication: Replication) -> None:
        self.log = SimpleNamespace(topic_id=None, log_end_offset=10)
        self.topic_partition = TopicPartition("t", 0)
        self.replication = replication
        self.isr = replication.isr


class Proposing(PartitionListener[Partition]):
    def __init__(self) -> None:
        self.led = Led(isr=(0, 1))
        self.led.follower(1, 10)
        self.led.follower(2, 10)
        self.partition = cast(Partition, cast(Any, Leading(self.led.replication)))
        self.clock = ManualClock(0)
        self.timers = Timers(self.clock.monotonic_ns)
        self.line = Line()
        self.damaged: list[int] = []
        self.changes = IsrChanges(
            cast(ControllerLink, cast(Any, self.line)),
            self.timers,
            self.clock,
            slot=0,
            lag_ms=1000,
            listener=self,
        )
        self.changes.open({self.partition.topic_partition: self.partition})

    def log_damaged(self, partition: Partition, offset: int) -> None:
        self.damaged.append(offset)

    def propose(self) -> None:
        self.changes.follower_moved(self.partition)
        self.changes.send()

    def answer(self, number: int, isr: tuple[int, ...], partition_epoch: int, error: int = 0) -> None:
        told = AlteredPartition("t", 0, INCARNATION, error, 0, 5, partition_epoch, isr)
        self.changes.answered(number, AlteredPartitions(1, (told,)))

    def isr(self) -> tuple[int, ...]:
        return self.led.replication.isr


def test_a_follower_that_has_caught_up_is_proposed_once() -> None:
    proposing = Proposing()
    proposing.propose()
    proposing.propose()
    assert [each.partitions[0].isr for each in proposing.line.asked] == [(0, 1, 2)]
    proposing.answer(1, (0, 1, 2), 4)
    assert proposing.isr() == (0, 1, 2)


def test_the_answer_to_an_older_question_leaves_the_later_one_under_way() -> None:
    proposing = Proposing()
    proposing.propose()
    proposing.changes.ask_again()  # another controller
    assert len(proposing.line.asked) == 2
    proposing.answer(1, (0, 1), 3, int(ErrorCode.INVALID_UPDATE_VERSION))
    assert proposing.led.replication.wanted == (0, 1, 2)
    proposing.answer(2, (0, 1, 2), 4)
    assert proposing.isr() == (0, 1, 2)


def test_a_proposal_about_an_older_state_is_made_anew_about_the_one_that_was_told() -> None:
    proposing = Proposing()
    proposing.propose()
    proposing.answer(1, (0, 1), 7, int(ErrorCode.INVALID_UPDATE_VERSION))
    proposing.changes.send()
    assert proposing.line.asked[-1].partitions[0].partition_epoch == 7
    proposing.answer(2, (0, 1, 2), 8)
    assert proposing.isr() == (0, 1, 2)


def test_a_refused_proposal_is_tried_again_on_a_host_at_rest() -> None:
    proposing = Proposing()
    proposing.propose()
    proposing.answer(1, (0, 1), 3, int(ErrorCode.INELIGIBLE_REPLICA))
    assert len(proposing.line.asked) == 1
    proposing.clock.advance(AGAIN_MS)
    proposing.timers.run_due(proposing.clock.monotonic_ns())
    assert len(proposing.line.asked) == 2


def test_what_a_follower_says_of_damage_in_the_log_is_heard_once() -> None:
    proposing = Proposing()
    table = proposing.led.table
    table.cells[table.slot_at(1, 2) + SLOT_DAMAGE_FOUND] = 41
    proposing.led.follower(2, 0)  # out of sync, and behind
    proposing.propose()
    proposing.propose()
    assert proposing.damaged == [40]
