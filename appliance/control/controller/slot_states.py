"""Which processes of which slots live: the workers that lead, the replica process that follows.

A slot is one broker to clients, and several processes to us. A copy of a partition knows two of them, its halves: the
worker that owns it where the slot leads, and the replica process. Each is in one of four states:

| state | since | may lead, or follow | keeps its place in the ISR | goes to |
|---|---|---|---|---|
| PRESUMED | the controller began; nobody has been heard of yet | yes | yes | UP, DOWN; GONE after `START_GRACE_MS` |
| UP | its hello | yes | yes | DOWN |
| DOWN | the supervisor said so | no | where it is missed | UP; GONE after `GRACE_MS` |
| GONE | it did not come back in time, or the kernel holds it | no | no | UP; DOWN when it has ended |

A *stopped* slot (by its operator) does neither, whatever its processes do. A slot is *live* (registered, and told to
clients) unless it is stopped or all of its processes are gone. Where there is one slot there is no replica process, and
the slot is always live.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from uuid import UUID

from appliance.channels.roles import Role, RoleKind, owner_index, owner_of, replica_of, workers_of

GRACE_MS = 1_000
START_GRACE_MS = 5_000


class HalfState(StrEnum):
    """See the table above."""

    PRESUMED = "presumed"
    UP = "up"
    DOWN = "down"
    GONE = "gone"


ABLE = frozenset({HalfState.PRESUMED, HalfState.UP})
WAITED_FOR = frozenset({HalfState.DOWN})
NOT_GONE = frozenset(HalfState) - {HalfState.GONE}


class SlotStates:
    """The states of all processes. Pure: whoever has a clock says when a grace is over.

    Args:
        slots: node ids of this configuration, ascending.
        workers: how many each slot has.
        present: processes that there are as the controller begins.
        held: those of them that run no more, though the kernel does not let them end.
        stopped: slots that their operator stopped.
    """

    __slots__ = ("_by_worker", "_halves", "_halves_of", "all", "replicated", "stopped", "workers")

    def __init__(
        self,
        slots: Sequence[int],
        *,
        workers: int = 1,
        present: Collection[Role],
        held: Collection[Role] = (),
        stopped: Iterable[int] = (),
    ) -> None:
        self.all = tuple(slots)
        self.workers = workers
        self.replicated = len(self.all) > 1
        self.stopped = frozenset(stopped)
        self._halves: dict[Role, HalfState] = {}
        for slot in self.all:
            for half in self.processes(slot):
                self._halves[half] = HalfState.PRESUMED if half in present else HalfState.DOWN
                if half in held:
                    self._halves[half] = HalfState.GONE
        self._by_worker = tuple(PartitionSlots(self, worker) for worker in range(workers))
        # Asked several times for each copy of each change: to make a Role is dearer than all the rest of the answer.
        self._halves_of = {
            slot: tuple(
                (owner, replica_of(slot)) if self.replicated else (owner,)
                for owner in workers_of(slot, workers=workers)
            )
            for slot in self.all
        }

    def processes(self, slot: int) -> tuple[Role, ...]:
        """All of a slot's: its workers, and where there is one the replica process."""
        owners = workers_of(slot, workers=self.workers)
        return (*owners, replica_of(slot)) if self.replicated else owners

    def owner(self, slot: int, topic_id: UUID, partition: int) -> Role:
        """The worker that has the slot's copy of a partition open where the slot leads; any slot will do."""
        if slot not in self._halves_of:
            return owner_of(slot, topic_id, partition, workers=self.workers)
        return self.halves(slot, topic_id, partition)[0]

    def halves(self, slot: int, topic_id: UUID, partition: int) -> tuple[Role, ...]:
        """Who may have the slot's copy of a partition open: its worker, and where there is one the replica process."""
        index = 0 if self.workers == 1 else owner_index(topic_id, partition, workers=self.workers)
        return self._halves_of[slot][index]

    def of(self, topic_id: UUID, partition: int) -> PartitionSlots:
        """The slots as that partition sees them."""
        return self._by_worker[owner_index(topic_id, partition, workers=self.workers)]

    def __contains__(self, half: Role) -> bool:
        return half in self._halves

    def state(self, half: Role) -> HalfState:
        return self._halves[half]

    def up(self, half: Role) -> bool:
        """It said hello; whether that is news."""
        before = self._halves[half]
        self._halves[half] = HalfState.UP
        return before is not HalfState.UP

    def down(self, half: Role) -> None:
        self._halves[half] = HalfState.DOWN

    def held(self, half: Role) -> None:
        """It runs no more, and does not end: nobody waits for it."""
        self._halves[half] = HalfState.GONE

    def overdue(self, half: Role, since: HalfState) -> bool:
        """The grace of `since` is over; whether it is gone by that."""
        if self._halves[half] is not since:
            return False
        self._halves[half] = HalfState.GONE
        return True

    def waited_for(self) -> list[Role]:
        """Halves that have not been heard of, or have been lost, and may come any moment."""
        return [half for half, state in self._halves.items() if state in (HalfState.PRESUMED, HalfState.DOWN)]

    def has(self, half: Role, states: Collection[HalfState]) -> bool:
        """Whether it is a process of a slot that is not stopped, and in one of these states."""
        return half.slot not in self.stopped and self._halves.get(half) in states

    def is_live(self, slot: int) -> bool:
        if slot in self.stopped or slot not in self.all:
            return False
        return not self.replicated or any(
            self._halves[half] is not HalfState.GONE for half in self.processes(slot)
        )

    def live(self) -> tuple[int, ...]:
        return tuple(slot for slot in self.all if self.is_live(slot))


class PartitionSlots:
    """The slots as a partition sees them: of each, the worker that would lead it and the replica process."""

    __slots__ = ("_states", "_worker")

    def __init__(self, states: SlotStates, worker: int) -> None:
        self._states = states
        self._worker = worker

    @property
    def stopped(self) -> frozenset[int]:
        return self._states.stopped

    def _owner(self, slot: int) -> Role:
        return Role(RoleKind.IOPROC, self._worker, slot)

    def may_lead(self, slot: int) -> bool:
        return self._states.has(self._owner(slot), ABLE)

    def may_come_back(self, slot: int) -> bool:
        """Its worker cannot lead now, and is waited for."""
        return self._states.has(self._owner(slot), WAITED_FOR)

    def may_follow(self, slot: int) -> bool:
        """Whether its replica process lives: what may join an ISR."""
        return self._states.has(replica_of(slot), ABLE)

    def stays_in_sync(self, slot: int) -> bool:
        """Whether it keeps its place in an ISR as a follower."""
        return self._states.has(replica_of(slot), NOT_GONE)

    def is_live(self, slot: int) -> bool:
        return self._states.is_live(slot)
