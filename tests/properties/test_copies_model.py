"""No copy of a partition is ever open in two processes, and in the end each is where it should be.

Random leaders, stopped slots and reassignments; processes that die, come back and answer late; controllers that die at
any step and are followed by one that knows the store and the image only, while old orders are still on their way.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from appliance.channels.partition_table import PartitionTable, table_size_bytes
from appliance.channels.roles import Role, owner_of, replica_of, workers_of
from appliance.cluster import NO_LEADER, PartitionImage, TopicImage
from appliance.control.controller.cluster_state import ClusterState
from appliance.control.controller.copies import Copies, Order
from appliance.control.controller.partition_rows import PartitionRows
from appliance.control.controller.slot_states import SlotStates

SLOTS = (0, 1, 2)
TOPIC_ID = UUID(int=1)
WORKERS = 2
PARTITIONS = 3
slots_of = st.sampled_from(SLOTS)
partitions_of = st.integers(0, PARTITIONS - 1)


def processes_of(slot: int) -> tuple[Role, ...]:
    return (*workers_of(slot, workers=WORKERS), replica_of(slot))


def owner(slot: int, partition: int) -> Role:
    return owner_of(slot, TOPIC_ID, partition, workers=WORKERS)


halves_of = st.sampled_from([half for slot in SLOTS for half in processes_of(slot)])


@dataclass(slots=True)
class Process:
    """A worker or replica process: its mail, and what it has open (partition → leader epoch)."""

    lives: bool = True
    mail: deque[tuple[int, int, Order, bool]] = field(default_factory=deque)
    opened: dict[int, int] = field(default_factory=dict)
    controller_epoch: int = 0


class Instance(RuleBasedStateMachine):
    """One topic with three partitions on three slots of two workers."""

    def __init__(self) -> None:
        super().__init__()
        self.processes = {half: Process() for slot in SLOTS for half in processes_of(slot)}
        self.files: dict[int, set[int]] = {slot: set() for slot in SLOTS}
        self.topic = TopicImage(
            "t",
            TOPIC_ID,
            tuple(PartitionImage(n, n, n + 1, n, 0, SLOTS, SLOTS) for n in range(PARTITIONS)),
        )
        self.image: TopicImage | None = None
        self.stopped: frozenset[int] = frozenset()
        self.epoch = 0
        self.answers: deque[tuple[int, Role, int]] = deque()
        self.take_over()

    @initialize(has_begun=st.booleans())
    def begins(self, has_begun: bool) -> None:
        if has_begun:
            self.everybody_comes_and_answers()

    # The controller

    def take_over(self) -> None:
        self.epoch += 1
        present = [half for half, process in self.processes.items() if process.lives]
        self.slots = SlotStates(SLOTS, workers=WORKERS, present=present, stopped=self.stopped)
        table = PartitionTable(memoryview(bytearray(table_size_bytes(8, 3))), slots=3)
        self.state = ClusterState(PartitionRows(table, controller_epoch=self.epoch), SLOTS)
        self.state.add(self.topic)
        if self.image is not None:
            self.state.visible["t"] = self.image
        self.up: set[Role] = set()
        self.number = 0
        self.outstanding: dict[Role, set[int]] = {half: set() for half in self.processes}
        self.copies = Copies(self.state, self.slots, is_up=lambda half: half in self.up)
        if self.epoch > 1:
            self.copies.presume_all()

    def send(self, half: Role, order: Order, *, full: bool = False) -> None:
        self.number += 1
        self.copies.sent(half, self.number, order, full=full)
        self.outstanding[half].add(self.number)
        self.processes[half].mail.append((self.epoch, self.number, order, full))

    def settle(self) -> None:
        """As the controller does at the end of a turn: sends what can be said, and shows who leads."""
        for half, order in self.copies.orders().items():
            self.send(half, order)
        self.copies.check()
        seen = self.image or self.topic
        self.image = replace(
            seen,
            partitions=tuple(
                now
                if (now.leader_epoch == before.leader_epoch and self.image is not None)
                or now.leader == NO_LEADER
                or self.copies.is_led(self.topic, now)
                or (now.leader_epoch == 0 and self.image is None)
                else before
                for before, now in zip(seen.partitions, self.topic.partitions, strict=True)
            ),
        )

    def become(self, number: int, **changed: object) -> None:
        before = self.topic.partitions[number]
        after = replace(before, leader_epoch=before.leader_epoch + 1, **changed)
        partitions = tuple(after if each is before else each for each in self.topic.partitions)
        self.topic = replace(self.topic, partitions=partitions)
        self.state.add(self.topic)
        self.copies.touch("t", number)
        for slot in set(after.replicas) - set(before.replicas):
            self.copies.join(("t", TOPIC_ID, number), slot)
        for slot in set(before.replicas) - set(after.replicas):
            self.copies.leave(("t", TOPIC_ID, number), slot)
        self.settle()

    @rule(number=partitions_of, leader=slots_of)
    def leader_moves(self, number: int, leader: int) -> None:
        if leader in self.topic.partitions[number].replicas and leader not in self.stopped:
            self.become(number, leader=leader)

    @rule(number=partitions_of)
    def nobody_leads(self, number: int) -> None:
        self.become(number, leader=NO_LEADER)

    @rule(number=partitions_of, replicas=st.lists(slots_of, min_size=1, unique=True).map(tuple))
    def replicas_change(self, number: int, replicas: tuple[int, ...]) -> None:
        leaders = [slot for slot in replicas if slot not in self.stopped]
        self.become(number, replicas=replicas, isr=replicas, leader=leaders[0] if leaders else NO_LEADER)

    @rule(slot=slots_of)
    def slot_stops_or_starts(self, slot: int) -> None:
        self.stopped ^= {slot}
        self.slots.stopped = self.stopped
        for each in self.topic.partitions:
            self.copies.touch("t", each.partition)
            if each.leader == slot:
                self.become(each.partition, leader=NO_LEADER)
        self.settle()

    @rule()
    def controller_dies(self) -> None:
        self.take_over()

    # The processes

    @rule(half=halves_of)
    def dies(self, half: Role) -> None:
        process = self.processes[half]
        if not process.lives:
            return
        self.processes[half] = Process(lives=False)
        self.answers = deque(each for each in self.answers if each[1] is not half)
        if half in self.up:
            self.up.discard(half)
        for number in self.outstanding[half]:
            self.copies.unsent(number)
        self.outstanding[half].clear()
        self.slots.down(half)
        self.copies.lost(half)
        self.settle()

    @rule(half=halves_of)
    def says_hello(self, half: Role) -> None:
        if half in self.up:
            return
        self.processes[half].lives = True
        self.up.add(half)
        self.slots.up(half)
        self.send(half, self.copies.full_order(half), full=True)
        self.settle()

    @rule(half=halves_of)
    def obeys(self, half: Role) -> None:
        process = self.processes[half]
        if not process.mail:
            return
        epoch, number, order, full = process.mail.popleft()
        if epoch < process.controller_epoch:
            return
        process.controller_epoch = epoch
        if full:
            process.opened.clear()
        for _, _, partition in order.released:
            process.opened.pop(partition, None)
        for _, _, partition in order.removed:
            process.opened.pop(partition, None)
            assert not self.is_open(half.slot, partition), "files removed under the other process"
            self.files[half.slot].discard(partition)
        for assigned in order.partitions:
            process.opened[assigned.partition] = assigned.leader_epoch
            self.files[half.slot].add(assigned.partition)
            leads = assigned.leader == half.slot
            assert half is (owner(half.slot, assigned.partition) if leads else replica_of(half.slot))
        self.answers.append((epoch, half, number))

    @rule(slot=slots_of)
    def one_slot_is_quick(self, slot: int) -> None:
        """It is told, obeys and is heard, again and again, while the others wait for the processor."""
        halves = processes_of(slot)
        while any(self.processes[half].mail for half in halves):
            for half in halves:
                self.obeys(half)
            while self.answers:
                self.answer_arrives()

    def everybody_comes_and_answers(self) -> None:
        for half in self.processes:
            self.says_hello(half)
        while self.answers or any(process.mail for process in self.processes.values()):
            for half in self.processes:
                self.obeys(half)
            self.answer_arrives()

    def is_open(self, slot: int, partition: int) -> bool:
        return any(partition in self.processes[half].opened for half in processes_of(slot))

    @rule()
    def answer_arrives(self) -> None:
        if not self.answers:
            return
        epoch, half, number = self.answers.popleft()
        if epoch == self.epoch and half in self.up:
            self.outstanding[half].discard(number)
            self.copies.confirmed(half, number, ())
            self.settle()

    @invariant()
    def no_copy_is_open_twice(self) -> None:
        for slot in SLOTS:
            opened = [each for half in processes_of(slot) for each in self.processes[half].opened]
            assert len(opened) == len(set(opened)), (slot, opened)

    @invariant()
    def no_row_is_served_by_two_workers(self) -> None:
        for number in range(PARTITIONS):
            serving = [slot for slot in SLOTS if number in self.processes[owner(slot, number)].opened]
            assert len(serving) <= 1, (number, serving)

    def teardown(self) -> None:
        """Everybody comes back and answers: then everything is where it should be."""
        self.everybody_comes_and_answers()
        for number, partition in enumerate(self.topic.partitions):
            for slot in SLOTS:
                leads, follows = (
                    number in self.processes[half].opened for half in (owner(slot, number), replica_of(slot))
                )
                holds = slot in partition.replicas and slot not in self.stopped
                assert leads is (holds and partition.leader == slot), (number, slot, partition)
                if partition.leader != NO_LEADER or not holds:
                    assert follows is (holds and partition.leader != slot), (number, slot, partition)
            if partition.leader != NO_LEADER:
                assert self.copies.is_led(self.topic, partition)
        assert self.image == self.topic


Instance.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestCopies = Instance.TestCase
