"""Who holds which copy of which partition, and what each process must be told so that it is who should.

A slot's copy of a partition is open in one process at most: in the worker that owns it while the slot leads, in the
slot's replica process while it follows. So a copy is given to one half only after the other half let go of it:

    the other half … | then
    ---------------- | ------------------------------------------------
    holds it         | is told to release it, and its answer is waited for
    died             | holds nothing: it is given at once
    may hold it      | (a controller before us left a change unfinished) its answer to a full Assign is waited for
    is held itself   | (by the kernel) its end is waited for, unless we are known to have opened the copy since

A partition's row, too, has one writer: a worker is told to lead after every other slot's worker has let go, or died.
One that lets go late would withdraw what its successor serves, and no client could read until leaders change again.

That is looked at from the level, not from the edge: `touch` names a partition about which anything changed, `orders`
compares what should be with what each half was told last, and says what is to be sent now. What cannot be said yet
is looked at again when the answer comes that it waits for, since the answer touches it. So a change may be overtaken
by the next one, or by a death, at any step.

A holding, of one copy by one half:

| state | means | goes to |
|---|---|---|
| PRESUMED | it was told so by the controller before | HELD, or nothing, with the answer to its full Assign |
| TOLD | it was told by us | HELD |
| HELD | it has answered | |
| RELEASING | it was told to let go | nothing, with its answer |
| REMOVING | it was told to let go and delete the files | nothing, or UNDELETED, with its answer |
| UNDELETED | it let go, and could not delete the files | |

The death of its process ends every holding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import StrEnum
from uuid import UUID

import msgspec

from appliance.channels.control_channel import AssignedPartition
from appliance.channels.roles import Role, RoleKind, replica_of
from appliance.cluster import NO_LEADER, PartitionImage, TopicImage
from appliance.control.controller.cluster_state import ClusterState
from appliance.control.controller.slot_states import HalfState, SlotStates

Key = tuple[UUID, int]
"""Topic id and partition."""

Place = tuple[str, UUID, int]
"""Topic, topic id, partition: a copy as commands name it."""


class HoldingState(StrEnum):
    """See the table above."""

    PRESUMED = "presumed"
    TOLD = "told"
    HELD = "held"
    RELEASING = "releasing"
    REMOVING = "removing"
    UNDELETED = "undeleted"


PIECE = 40
"""An order is given in pieces of so many copies: the first are answered, and go on to who waits for them, while the
next are opened."""

PIECES_MAX = 8
"""Of a change of leaders: each answer may be an image that everybody reads."""

GOING = frozenset({HoldingState.RELEASING, HoldingState.REMOVING, HoldingState.UNDELETED})


class Holding(msgspec.Struct):
    """`number`: the command whose answer it waits for. `has_failed`: by the answer, the copy could not be opened."""

    place: Place
    state: HoldingState
    told: AssignedPartition | None = None
    number: int = 0
    has_failed: bool = False


class Order(msgspec.Struct):
    """What one process is to be told."""

    partitions: list[AssignedPartition] = msgspec.field(default_factory=list)
    released: list[Place] = msgspec.field(default_factory=list)
    removed: list[Place] = msgspec.field(default_factory=list)

    def pieces(self, count_max: int | None = None) -> Iterator[Order]:
        """The same in several orders, one after the other, of PIECE copies where that makes no more than `count_max`;
        at least one."""
        released, removed, partitions = self.released, self.removed, self.partitions
        count = len(released) + len(removed) + len(partitions)
        size = PIECE if count_max is None else max(PIECE, -(-count // count_max))
        for start in range(0, max(count, 1), size):
            # Releases first: that is how a command is carried out.
            at = start - len(released)
            after = at - len(removed)
            yield Order(
                partitions=partitions[max(after, 0) : max(after + size, 0)],
                released=released[start : start + size],
                removed=removed[max(at, 0) : max(at + size, 0)],
            )

    def places(self) -> Iterable[Place]:
        """Every copy that is named."""
        yield from self.released
        yield from self.removed
        for each in self.partitions:
            yield each.topic, each.topic_id, each.partition


class Copies:
    """Single-threaded. A touched partition costs its replicas; a full order costs all partitions."""

    __slots__ = (
        "_dirty",
        "_held",
        "_is_up",
        "_kept",
        "_leaving",
        "_left",
        "_numbered",
        "_slots",
        "_state",
        "_unheard",
    )

    def __init__(self, state: ClusterState, slots: SlotStates, *, is_up: Callable[[Role], bool]) -> None:
        """`is_up`: whether a process has said hello and can be told anything."""
        self._state = state
        self._slots = slots
        self._is_up = is_up
        self._held: dict[Role, dict[Key, Holding]] = {
            half: {} for slot in slots.all for half in slots.processes(slot)
        }
        self._dirty: dict[tuple[str, int], None] = {}
        self._leaving: dict[tuple[Key, int], Place] = {}
        self._kept: set[Key] = set()
        self._numbered: dict[int, list[Place]] = {}
        # Halves that may still obey a controller before us, and the full command whose answer ends that.
        self._unheard: dict[Role, int | None] = {}
        self._left: set[tuple[Key, int]] = set()

    # What changes

    def touch(self, topic: str, partition: int) -> None:
        """Something changed about it: where it should be, who leads it, its settings."""
        self._dirty[topic, partition] = None

    def presume_all(self) -> None:
        """There may have been a controller before, and any process that is there may hold what that one told it to.

        It published no leader before the copies that the change concerns were free. So where clients see the leader
        epoch of now, a copy is held by the half that should hold it; where they do not, by either.
        """
        for half in self._held:
            if self._slots.state(half) is HalfState.PRESUMED:
                self._unheard[half] = None
        for place, slot, partition in self._all_copies():
            settled = partition is not None and self._is_settled(place[0], partition)
            self._presume(
                place, slot, self._should_hold(place[1:], partition, slot) if partition and settled else None
            )

    def presume_held(self, half: Role) -> None:
        """The kernel holds that process: it may have open still what its slot's other half has not opened since."""
        for place, slot, partition in self._all_copies():
            if slot != half.slot or half not in self._halves(slot, place[1:]):
                continue
            follows = None if partition is None else self._state.rows.opened_as(partition, slot)
            if follows in (None, half.kind is RoleKind.REPLICA):
                self._held[half][place[1:]] = Holding(place, HoldingState.PRESUMED)

    def _all_copies(self) -> Iterator[tuple[Place, int, PartitionImage | None]]:
        """Every copy that is to be held or deleted: its place, its slot, and the partition where it is to be held."""
        for topic in self._state.topics.values():
            for partition in topic.partitions:
                place = (topic.name, topic.topic_id, partition.partition)
                for slot in self._slots.all:
                    if slot in partition.replicas:
                        yield place, slot, partition
                    elif slot in partition.leaving:
                        yield place, slot, None
        for deletion in self._state.deletions.values():
            for slot, number in deletion.waiting:
                yield (deletion.topic.name, deletion.topic.topic_id, number), slot, None

    def _is_settled(self, name: str, partition: PartitionImage) -> bool:
        """Whether clients see the leader epoch of now."""
        seen = self._state.visible.get(name)
        if seen is None or partition.partition >= len(seen.partitions) or partition.leader == NO_LEADER:
            return False
        return seen.partitions[partition.partition].leader_epoch == partition.leader_epoch

    def _presume(self, place: Place, slot: int, half: Role | None) -> None:
        """`half` None: any of the slot."""
        for each in self._halves(slot, place[1:]):
            if half in (None, each) and self._slots.state(each) is HalfState.PRESUMED:
                self._held[each][place[1:]] = Holding(place, HoldingState.PRESUMED)

    def join(self, place: Place, slot: int) -> None:
        """The slot is a replica of that partition by now.

        A half that has not answered us yet may have been told about it before, to hold it or to remove it. Unless
        the slot was a replica when we began: then we know.
        """
        if (place[1:], slot) in self._left:
            return
        for half in self._halves(slot, place[1:]) if slot in self._slots.all else ():
            if half not in self._unheard or place[1:] in self._held[half]:
                continue
            number = self._unheard[half]
            if number is None:
                self._held[half][place[1:]] = Holding(place, HoldingState.PRESUMED)
            else:
                self._held[half][place[1:]] = Holding(place, HoldingState.RELEASING, number=number)
                self._numbered[number].append(place)

    def leave(self, place: Place, slot: int) -> None:
        """The slot is no replica of that partition any more: its files are to be deleted."""
        if slot in self._slots.all:
            if self._unheard:
                self._left.add((place[1:], slot))
            self._leaving[place[1:], slot] = place
            self.touch(place[0], place[2])

    def keep_all(self, topic_id: UUID, partition: int) -> None:
        """No copy of it is deleted until `may_go`: the store's replicas are those of a backup."""
        self._kept.add((topic_id, partition))

    def may_go(self, topic_id: UUID, partition: int) -> None:
        """Copies that are to go may go again, once the partition is led."""
        self._kept.discard((topic_id, partition))

    def agreed(self, slot: int, topic: TopicImage, partition: PartitionImage) -> None:
        """The leader's worker learns of a new ISR by the answer to its question: it need not be told of that again."""
        key = (topic.topic_id, partition.partition)
        holding = self._held[self._slots.owner(slot, *key)].get(key)
        if holding is None or holding.told is None:
            return
        now = assigned_to(topic, partition)
        if _as_followed(holding.told) == _as_followed(now):
            holding.told = now

    def lost(self, half: Role) -> None:
        """The process has died."""
        for holding in self._held[half].values():
            self.touch(holding.place[0], holding.place[2])
        self._held[half].clear()
        self._unheard.pop(half, None)

    def gone(self, half: Role) -> None:
        """The process was waited for long enough: what waited for it is looked at again."""
        for holding in self._held[half].values():
            self.touch(holding.place[0], holding.place[2])

    def forget(self, topic: TopicImage) -> None:
        """The topic is gone for good."""
        for partition in topic.partitions:
            key = (topic.topic_id, partition.partition)
            self._dirty.pop((topic.name, partition.partition), None)
            for slot in (*partition.replicas, *partition.leaving):
                self._leaving.pop((key, slot), None)
                for half in self._halves(slot, key) if slot in self._slots.all else ():
                    self._held[half].pop(key, None)
            self._kept.discard(key)

    # What is told

    def orders(self) -> dict[Role, Order]:
        """What is to be told now; remembered as told. `sent` must follow for each."""
        orders: dict[Role, Order] = {}
        touched, self._dirty = self._dirty, {}
        for name, number in touched:
            doomed = self._state.deletions.get(name)
            if doomed is not None and number < len(doomed.topic.partitions):
                for slot, each in sorted(doomed.waiting):
                    if each == number:
                        self._remove(orders, (name, doomed.topic.topic_id, number), slot)
                continue
            topic = self._state.topics.get(name)
            if topic is None or number >= len(topic.partitions):
                continue
            partition = topic.partitions[number]
            for slot in self._slots.all:
                if slot in partition.replicas:
                    self._place(orders, topic, partition, slot)
                elif ((topic.topic_id, number), slot) not in self._leaving:
                    continue
                elif not self._may_go(topic, partition):
                    self._let_go(orders, (name, topic.topic_id, number), slot)
                else:
                    self._remove(orders, (name, topic.topic_id, number), slot)
        return orders

    def full_order(self, half: Role) -> Order:
        """Everything that `half`, of which nothing or only what is presumed is known, is to hold and remove."""
        order = Order()
        held = self._held[half]
        for topic in self._state.topics.values():
            for partition in topic.partitions:
                key = (topic.topic_id, partition.partition)
                if half.slot not in partition.replicas:
                    continue
                if self._should_hold(key, partition, half.slot) is half and self._is_free_for(half, key):
                    assigned = assigned_to(topic, partition)
                    order.partitions.append(assigned)
                    held[key] = Holding((topic.name, *key), HoldingState.TOLD, assigned)
        for deletion in self._state.deletions.values():
            for slot, number in sorted(deletion.waiting):
                key = (deletion.topic.topic_id, number)
                if half is self._slots.owner(slot, *key) and not self._twin_holds(half, key):
                    place = (deletion.topic.name, *key)
                    order.removed.append(place)
                    held[key] = Holding(place, HoldingState.REMOVING)
        return order

    def sent(self, half: Role, number: int, order: Order, *, full: bool = False) -> None:
        """`order` went out as command `number`. After a full one nothing is presumed that it does not name."""
        held = self._held[half]
        places = list(order.places())
        for place in places:
            held[place[1:]].number = number
        if full:
            if half in self._unheard:
                self._unheard[half] = number
            for holding in held.values():
                if holding.state is HoldingState.PRESUMED:
                    holding.state, holding.number = HoldingState.RELEASING, number
                    places.append(holding.place)
        self._numbered[number] = places

    def confirmed(self, half: Role, number: int, failures: Collection[str]) -> list[Place]:
        """The answer to command `number` has come, with `failures` (`topic-partition`); the copies whose files are
        gone by it."""
        held = self._held[half]
        if self._unheard.get(half) == number:
            del self._unheard[half]
        removed = []
        for place in self._numbered.pop(number, ()):
            key = place[1:]
            holding = held.get(key)
            if holding is None or holding.number != number:
                continue
            if holding.state is HoldingState.TOLD:
                holding.state = HoldingState.HELD
                holding.has_failed = f"{place[0]}-{place[2]}" in failures
            elif holding.state is HoldingState.RELEASING:
                del held[key]
            elif holding.state is HoldingState.REMOVING:
                if f"{place[0]}-{place[2]}" in failures:
                    holding.state = HoldingState.UNDELETED
                else:
                    del held[key]
                    self._leaving.pop((key, half.slot), None)
                    removed.append(place)
            self.touch(place[0], place[2])
        return removed

    def unsent(self, number: int) -> None:
        """Command `number` will not be answered: its process is dead."""
        self._numbered.pop(number, None)

    # What is known

    def is_led(self, topic: TopicImage, partition: PartitionImage) -> bool:
        """Whether the leader's worker has answered that it leads in this epoch; so the copies it took were free."""
        if partition.leader not in self._slots.all:
            return False
        key = (topic.topic_id, partition.partition)
        holding = self._held[self._slots.owner(partition.leader, *key)].get(key)
        return (
            holding is not None
            and holding.state is HoldingState.HELD
            and holding.told is not None
            and holding.told.leader_epoch == partition.leader_epoch
        )

    def statistics(self) -> dict[str, int]:
        """Holdings, of them such that wait for an answer; for display."""
        holdings = [each for held in self._held.values() for each in held.values()]
        waiting = sum(each.state is not HoldingState.HELD for each in holdings)
        return {"holdings": len(holdings), "waiting": waiting, "leaving": len(self._leaving)}

    def check(self) -> None:
        """No copy was given to one half of its slot while the other may have it open, nor a row to two workers, nor
        anything to a worker that does not own it."""
        workers = [half for half in self._held if half.kind is RoleKind.IOPROC]
        for half in workers:
            worker, replica = self._held[half], self._held.get(replica_of(half.slot), {})
            for key in worker.keys() & replica.keys():
                given = {worker[key].state, replica[key].state} - {
                    HoldingState.PRESUMED,
                    HoldingState.RELEASING,
                }
                assert not given, (half, key, given)
            for key in worker:
                assert half is self._slots.owner(half.slot, *key), (half, key)
        led = [
            key
            for half in workers
            for key, holding in self._held[half].items()
            if holding.state in (HoldingState.TOLD, HoldingState.HELD)
        ]
        assert len(led) == len(set(led)), led

    # One copy

    def _halves(self, slot: int, key: Key) -> tuple[Role, ...]:
        return self._slots.halves(slot, *key)

    def _should_hold(self, key: Key, partition: PartitionImage, slot: int) -> Role | None:
        if slot in self._slots.stopped:
            return None
        if partition.leader == slot:
            return self._slots.owner(slot, *key)
        return replica_of(slot) if self._slots.replicated else None

    def _twin_holds(self, half: Role, key: Key) -> bool:
        return any(twin is not half and key in self._held[twin] for twin in self._halves(half.slot, key))

    def _is_served_elsewhere(self, slot: int, key: Key) -> bool:
        """Whether another slot's worker may serve the partition's row. One that was never heard of, and is gone, may
        not hold up everybody: it is told by its first full Assign."""
        for other in self._slots.all:
            worker = self._slots.owner(other, *key)
            holding = self._held[worker].get(key) if other != slot else None
            if (
                holding is not None
                and holding.state is not HoldingState.UNDELETED
                and self._slots.state(worker) is not HalfState.GONE
            ):
                return True
        return False

    def _is_free_for(self, half: Role, key: Key) -> bool:
        return not self._twin_holds(half, key) and not (
            half.kind is RoleKind.IOPROC and self._is_served_elsewhere(half.slot, key)
        )

    def _place(
        self, orders: dict[Role, Order], topic: TopicImage, partition: PartitionImage, slot: int
    ) -> None:
        key = (topic.topic_id, partition.partition)
        place = (topic.name, *key)
        wanted = self._should_hold(key, partition, slot)
        free = True
        for half in self._halves(slot, key):
            holding = self._held[half].get(key)
            if half is wanted or holding is None:
                continue
            free = False
            self._release(orders, half, holding)
        if wanted is None or not free or not self._is_up(wanted):
            return
        if wanted.kind is RoleKind.IOPROC and self._is_served_elsewhere(slot, key):
            return  # its answer touches the partition
        assigned = assigned_to(topic, partition)
        holding = self._held[wanted].get(key)
        if holding is None or holding.told is None or not _goes_by(holding.told, assigned, slot):
            orders.setdefault(wanted, Order()).partitions.append(assigned)
            self._held[wanted][key] = Holding(place, HoldingState.TOLD, assigned)

    def _release(self, orders: dict[Role, Order], half: Role, holding: Holding) -> None:
        if holding.state not in GOING and self._is_up(half):
            orders.setdefault(half, Order()).released.append(holding.place)
            holding.state, holding.told = HoldingState.RELEASING, None

    def _let_go(self, orders: dict[Role, Order], place: Place, slot: int) -> None:
        """The slot's processes close their copy, since another slot leads; its files stay for now."""
        for half in self._halves(slot, place[1:]):
            if (holding := self._held[half].get(place[1:])) is not None:
                self._release(orders, half, holding)

    def _may_go(self, topic: TopicImage, partition: PartitionImage) -> bool:
        """Whether a copy of a slot that is no replica may be deleted: the leader has opened its log, and compared it.

        In a store that was restored from a backup, the only copy with records may stand as one that is to go.
        """
        key = (topic.topic_id, partition.partition)
        if key in self._kept or not self.is_led(topic, partition):
            return False
        return not self._held[self._slots.owner(partition.leader, *key)][key].has_failed

    def _remove(self, orders: dict[Role, Order], place: Place, slot: int) -> None:
        key = place[1:]
        holders = [half for half in self._halves(slot, key) if key in self._held[half]]
        if len(holders) > 1:
            # Presumed of both: their answers to full Assigns will tell.
            return
        half = holders[0] if holders else self._slots.owner(slot, *key)
        holding = self._held[half].get(key)
        if (holding is not None and holding.state in GOING) or not self._is_up(half):
            return
        orders.setdefault(half, Order()).removed.append(place)
        self._held[half][key] = Holding(place, HoldingState.REMOVING)


def assigned_to(topic: TopicImage, partition: PartitionImage) -> AssignedPartition:
    """The partition as those are told that hold a copy of it."""
    return AssignedPartition(
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=partition.partition,
        row=partition.row,
        incarnation=partition.incarnation,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        replicas=partition.replicas,
        isr=partition.isr,
        configs=topic.configs,
        partition_epoch=partition.partition_epoch,
    )


def _goes_by(told: AssignedPartition, now: AssignedPartition, slot: int) -> bool:
    """Whether who was told the one need not be told the other. Followers do not look at the ISR, nor at its epoch."""
    if told == now or now.leader == slot:
        return told == now
    return _as_followed(told) == _as_followed(now)


def _as_followed(assigned: AssignedPartition) -> tuple[object, ...]:
    return (
        assigned.row,
        assigned.incarnation,
        assigned.leader,
        assigned.leader_epoch,
        assigned.replicas,
        assigned.configs,
    )
