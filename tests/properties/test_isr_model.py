"""One partition under random lives of its slots: leaders, ISRs, reassignments; and what its followers have copied.

The model keeps a log for each slot: a list of (epoch, record). A follower that fetches first drops what its leader
does not have, then copies. A record is acknowledged when everybody in the ISR has it. So what is held against every
history: an acknowledged record is in the log of each member of the ISR, so of every leader to come, until somebody asks
for an unclean election.
"""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.cluster import NO_LEADER, PartitionImage
from appliance.control.controller.partition_changes import (
    cancelled,
    preferred,
    reassigned_to,
    reviewed,
    unclean,
    with_isr,
    without_storage,
)
from appliance.control.controller.slot_states import HalfState, SlotStates
from appliance.errors import RejectedRequest

SLOTS = (0, 1, 2, 3)
WORKERS = 2
slots_of = st.sampled_from(SLOTS)
processes_of = st.integers(0, WORKERS)
targets = st.lists(slots_of, min_size=1, max_size=4, unique=True).map(tuple)

Log = list[tuple[int, int]]


class OnePartition(RuleBasedStateMachine):
    """The partition begins on slots 0, 1 and 2."""

    def __init__(self) -> None:
        super().__init__()
        self.states = SlotStates(SLOTS, workers=WORKERS, present=())
        for slot in SLOTS:
            for process in self.states.processes(slot):
                self.states.up(process)
        self.slots = self.states.of(UUID(int=0), 0)
        self.partition = PartitionImage(0, 0, 1, 0, 0, (0, 1, 2), (0, 1, 2))
        self.logs: dict[int, Log] = {slot: [] for slot in SLOTS}
        self.acked: Log = []
        self.leader_of: dict[int, int] = {0: 0}
        self.records = 0
        self.min_insync = 1

    @initialize(min_insync=st.integers(1, 3))
    def topic_is_set(self, min_insync: int) -> None:
        self.min_insync = min_insync

    # What changes the partition

    def become(self, after: PartitionImage | None) -> None:
        before = self.partition
        if after is None:
            return
        assert after.partition_epoch == before.partition_epoch + 1
        assert after.leader_epoch - before.leader_epoch in (0, 1)
        if after.leader != before.leader:
            assert after.leader_epoch == before.leader_epoch + 1
        if after.leader != NO_LEADER:
            assert self.leader_of.setdefault(after.leader_epoch, after.leader) == after.leader
        for slot in set(before.replicas) - set(after.replicas):
            self.logs[slot] = []
        self.partition = after

    def review(self) -> None:
        self.become(reviewed(self.partition, self.slots, min_insync=self.min_insync))

    @rule(slot=slots_of, process=processes_of)
    def process_dies(self, slot: int, process: int) -> None:
        self.states.down(self.states.processes(slot)[process])
        self.review()

    @rule(slot=slots_of, process=processes_of)
    def process_does_not_come_back(self, slot: int, process: int) -> None:
        self.states.overdue(self.states.processes(slot)[process], HalfState.DOWN)
        self.review()

    @rule(slot=slots_of, process=processes_of)
    def process_comes(self, slot: int, process: int) -> None:
        self.states.up(self.states.processes(slot)[process])
        self.review()

    @rule(slot=slots_of)
    def storage_fails(self, slot: int) -> None:
        if slot in self.partition.replicas:
            self.become(without_storage(self.partition, slot, self.slots))
            if slot not in self.partition.isr:
                self.logs[slot] = []

    @rule(stopped=st.sets(slots_of, max_size=3))
    def operator_stops(self, stopped: set[int]) -> None:
        self.states.stopped = frozenset(stopped)
        self.review()

    @rule(wanted=targets)
    def client_reassigns(self, wanted: tuple[int, ...]) -> None:
        with suppress(RejectedRequest):
            self.become(reassigned_to(self.partition, wanted, self.slots))
            self.review()

    @rule()
    def client_calls_back(self) -> None:
        with suppress(RejectedRequest):
            self.become(cancelled(self.partition, self.slots))
            self.review()

    @rule()
    def client_asks_for_the_preferred_leader(self) -> None:
        with suppress(RejectedRequest):
            self.become(preferred(self.partition, self.slots))

    @precondition(lambda self: self.partition.leader == NO_LEADER)
    @rule()
    def operator_asks_for_an_unclean_leader(self) -> None:
        with suppress(RejectedRequest):
            before = self.partition
            self.become(unclean(self.partition, self.slots))
            if self.partition.leader not in before.isr:
                kept = self.common(self.partition.leader)
                self.acked = [each for each in self.acked if each in kept]

    # What leaders and followers do

    def leads(self) -> bool:
        return self.partition.leader != NO_LEADER and self.slots.may_lead(self.partition.leader)

    def common(self, slot: int) -> Log:
        """The beginning that the slot's log shares with the leader's."""
        shared: Log = []
        for mine, leaders in zip(self.logs[slot], self.logs[self.partition.leader], strict=False):
            if mine != leaders:
                break
            shared.append(mine)
        return shared

    @precondition(lambda self: self.leads())
    @rule()
    def leader_appends(self) -> None:
        self.records += 1
        self.logs[self.partition.leader].append((self.partition.leader_epoch, self.records))
        self.acknowledge()

    @precondition(lambda self: self.leads())
    @rule(slot=slots_of, most=st.integers(0, 2))
    def follower_fetches(self, slot: int, most: int) -> None:
        if slot == self.partition.leader or slot not in self.partition.replicas:
            return
        if self.slots.may_follow(slot):
            shared = self.common(slot)
            leaders = self.logs[self.partition.leader]
            self.logs[slot] = shared + leaders[len(shared) : len(shared) + most]
            self.acknowledge()

    def acknowledge(self) -> None:
        everywhere = min(len(self.common(slot)) for slot in self.partition.isr)
        leaders = self.logs[self.partition.leader]
        if everywhere > len(self.acked):
            self.acked = leaders[:everywhere]

    @precondition(lambda self: self.leads())
    @rule(wanted=st.sets(slots_of), late=st.booleans())
    def leader_proposes(self, wanted: set[int], late: bool) -> None:
        leader = self.partition.leader
        joins = {slot for slot in wanted if len(self.common(slot)) >= len(self.acked)}
        asked = tuple({*joins, leader})
        with suppress(RejectedRequest):
            self.become(
                with_isr(
                    self.partition,
                    asked,
                    self.slots,
                    proposer=leader,
                    leader_epoch=self.partition.leader_epoch,
                    partition_epoch=self.partition.partition_epoch - late,
                )
            )
            assert not late, "a proposal about another state was accepted"
        if self.leads():
            self.acknowledge()

    # What always holds

    @invariant()
    def the_isr_is_part_of_the_replicas_and_never_empty(self) -> None:
        assert self.partition.isr
        assert set(self.partition.isr) <= set(self.partition.replicas)
        assert len(set(self.partition.replicas)) == len(self.partition.replicas)
        assert not set(self.partition.adding) & set(self.partition.removing)

    @invariant()
    def the_leader_is_in_sync(self) -> None:
        assert self.partition.leader in {NO_LEADER, *self.partition.isr}

    @invariant()
    def what_was_acknowledged_is_with_everybody_in_sync(self) -> None:
        for slot in self.partition.isr:
            assert self.logs[slot][: len(self.acked)] == self.acked, (slot, self.partition)

    @invariant()
    def a_second_look_finds_nothing_to_do(self) -> None:
        once = reviewed(self.partition, self.slots, min_insync=self.min_insync) or self.partition
        assert reviewed(once, self.slots, min_insync=self.min_insync) is None


OnePartition.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestOnePartition = OnePartition.TestCase
