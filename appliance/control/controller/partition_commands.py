"""What clients ask about leaders and places of partitions, from the question to the answer; and the balance of leaders,
which nobody has to ask for.

A reassignment is answered when the store has it. An election is answered when the new leaders lead and clients see
it, or after the deadline with REQUEST_TIMED_OUT; what was decided stays decided.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from appliance.channels.control_channel import (
    AlterReassignments,
    ElectLeaders,
    PartitionOutcome,
    PartitionOutcomes,
)
from appliance.config import BrokerSettings
from appliance.control.controller.alarms import Alarm, Alarms
from appliance.control.controller.cluster_state import ClusterState
from appliance.control.controller.elections import is_away, plan_balance, plan_elections
from appliance.control.controller.leadership import Leadership
from appliance.control.controller.reassignment import Decided, plan_reassignments
from appliance.errors import StorageFault
from appliance.protocol.errors import ErrorCode, code_for, message_for

ELECTION_TIMEOUT_MS = 5_000

_MS_PER_S = 1_000

_logger = logging.getLogger(__name__)

Answer = Callable[[bytes, int, PartitionOutcomes], None]


class _Asked(msgspec.Struct):
    """An election on its way."""

    sender: bytes
    number: int
    outcomes: list[PartitionOutcome]
    waiting: set[tuple[str, int]]
    alarm: Alarm | None = None


class PartitionCommands:
    """Single-threaded; belongs to the controller, which calls `settle` once a turn."""

    __slots__ = ("_alarms", "_answer", "_asked", "_balance_alarm", "_broker", "_leadership", "_state")

    def __init__(
        self,
        leadership: Leadership,
        state: ClusterState,
        *,
        broker: BrokerSettings,
        alarms: Alarms,
        answer: Answer,
    ) -> None:
        self._leadership = leadership
        self._state = state
        self._broker = broker
        self._alarms = alarms
        self._answer = answer
        self._asked: list[_Asked] = []
        self._balance_alarm: Alarm | None = None
        self._watch_balance()

    def reassign(self, sender: bytes, number: int, request: AlterReassignments) -> None:
        decided, outcomes = plan_reassignments(request, self._state.topics, self._leadership.slots)
        self._answer(sender, number, PartitionOutcomes(tuple(self._made(decided, outcomes))))

    def elect(self, sender: bytes, number: int, request: ElectLeaders) -> None:
        leadership = self._leadership
        decided, outcomes = plan_elections(
            request,
            self._state.topics,
            leadership.slots,
            failed=leadership.failed,
            leads_nothing=leadership.leads_nothing,
        )
        outcomes = self._made(decided, outcomes)
        waiting = {(name, each) for name, changed in decided.items() for each in changed}
        waiting -= {(each.topic, each.partition) for each in outcomes if each.error}
        asked = _Asked(sender, number, outcomes, waiting)
        self._asked.append(asked)
        if waiting:
            asked.alarm = self._alarms(ELECTION_TIMEOUT_MS, lambda: self._overdue(asked))

    def settle(self) -> None:
        """Answers elections whose leaders lead."""
        leadership = self._leadership
        for asked in list(self._asked):
            asked.waiting = {each for each in asked.waiting if not leadership.is_seen(*each)}
            if not asked.waiting:
                self._finish(asked)
        if self._balance_alarm is None:
            self._watch_balance()

    def _overdue(self, asked: _Asked) -> None:
        late = ErrorCode.REQUEST_TIMED_OUT
        asked.outcomes = [
            PartitionOutcome(each.topic, each.partition, int(late), late.message)
            if (each.topic, each.partition) in asked.waiting
            else each
            for each in asked.outcomes
        ]
        asked.alarm = None
        self._finish(asked)

    def _finish(self, asked: _Asked) -> None:
        if asked in self._asked:
            self._asked.remove(asked)
            if asked.alarm is not None:
                asked.alarm.cancel()
            self._answer(asked.sender, asked.number, PartitionOutcomes(tuple(asked.outcomes)))

    def _made(self, decided: Decided, outcomes: list[PartitionOutcome]) -> list[PartitionOutcome]:
        """Makes the changes; what is to be said of each partition after that."""
        if not decided:
            return outcomes
        try:
            self._leadership.change(decided)
        except StorageFault as fault:
            _logger.error("cannot continue moves of partitions: %s", fault)
            code, why = int(code_for(fault)), message_for(fault)
            return [
                each
                if each.error or self._is_made(decided, each)
                else PartitionOutcome(each.topic, each.partition, code, why)
                for each in outcomes
            ]
        return outcomes

    def _is_made(self, decided: Decided, outcome: PartitionOutcome) -> bool:
        after = decided.get(outcome.topic, {}).get(outcome.partition)
        return after is None or self._state.topics[outcome.topic].partitions[outcome.partition] == after

    # The balance of leaders

    def _watch_balance(self) -> None:
        """Looks again after the interval while any partition is away from its preferred leader, and only then."""
        if not self._broker.auto_leader_rebalance_enable or not self._leadership.news():
            return
        if any(is_away(each) for topic in self._state.topics.values() for each in topic.partitions):
            interval_ms = self._broker.leader_imbalance_check_interval_seconds * _MS_PER_S
            self._balance_alarm = self._alarms(interval_ms, self._balance)

    def _balance(self) -> None:
        self._balance_alarm = None
        decided = plan_balance(
            self._state.topics,
            self._leadership.slots,
            percentage_max=self._broker.leader_imbalance_per_broker_percentage,
            failed=self._leadership.failed,
        )
        self._leadership.expect_news()
        if not decided:
            return
        _logger.info("%d partitions return to their preferred leaders", sum(map(len, decided.values())))
        try:
            self._leadership.change(decided)
        except StorageFault as fault:
            _logger.error("cannot balance leaders: %s", fault)
