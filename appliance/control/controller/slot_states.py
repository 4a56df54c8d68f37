"""Which halves of which slots live: the worker that leads, the replica process that follows.

A slot is one broker to clients, and two processes to us. Each half is in one of four states:

| state | since | may lead, or follow | keeps its place in the ISR | goes to |
|---|---|---|---|---|
| PRESUMED | the controller began; nobody has been heard of yet | yes | yes | UP, DOWN; GONE after `START_GRACE_MS` |
| UP | its hello | yes | yes | DOWN |
| DOWN | the supervisor said so | no | where it is missed | UP; GONE after `GRACE_MS` |
| GONE | it did not come back in time, or the kernel holds it | no | no | UP; DOWN when it has ended |

A *stopped* slot (by its operator) does neither, whatever its processes do. A slot is *live* (registered, and told to
clients) unless it is stopped or both of its halves are gone. Where there is one slot there is no replica process, and
the slot is always live.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

from appliance.channels.roles import Role, RoleKind, owner_of

GRACE_MS = 1_000
START_GRACE_MS = 5_000


class HalfState(StrEnum):
    """See the table above."""

    PRESUMED = "presumed"
    UP = "up"
    DOWN = "down"
    GONE = "gone"


ABLE = frozenset({HalfState.PRESUMED, HalfState.UP})


def replica_of(slot: int) -> Role:
    """The replica process of `slot`."""
    return Role(RoleKind.REPLICA, 0, slot)


class SlotStates:
    """The states of all halves. Pure: whoever has a clock says when a grace is over.

    Args:
        slots: node ids of this configuration, ascending.
        present: processes that there are as the controller begins.
        held: those of them that run no more, though the kernel does not let them end.
        stopped: slots that their operator stopped.
    """

    __slots__ = ("_halves", "all", "replicated", "stopped")

    def __init__(
        self,
        slots: Sequence[int],
        *,
        present: Collection[Role],
        held: Collection[Role] = (),
        stopped: Iterable[int] = (),
    ) -> None:
        self.all = tuple(slots)
        self.replicated = len(self.all) > 1
        self.stopped = frozenset(stopped)
        self._halves: dict[Role, HalfState] = {}
        for slot in self.all:
            for half in self.halves(slot):
                self._halves[half] = HalfState.PRESUMED if half in present else HalfState.DOWN
                if half in held:
                    self._halves[half] = HalfState.GONE

    def halves(self, slot: int) -> tuple[Role, ...]:
        """The worker, and where there is one the replica process."""
        return (owner_of(slot), replica_of(slot)) if self.replicated else (owner_of(slot),)

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

    def may_lead(self, slot: int) -> bool:
        return slot not in self.stopped and self._halves.get(owner_of(slot)) in ABLE

    def may_come_back(self, slot: int) -> bool:
        """Its worker cannot lead now, and is waited for."""
        return slot not in self.stopped and self._halves.get(owner_of(slot)) is HalfState.DOWN

    def may_follow(self, slot: int) -> bool:
        """Whether its replica process lives: what may join an ISR."""
        return slot not in self.stopped and self._halves.get(replica_of(slot)) in ABLE

    def stays_in_sync(self, slot: int) -> bool:
        """Whether it keeps its place in an ISR as a follower."""
        state = self._halves.get(replica_of(slot), HalfState.GONE)
        return slot not in self.stopped and state is not HalfState.GONE

    def is_live(self, slot: int) -> bool:
        if slot in self.stopped or slot not in self.all:
            return False
        return not self.replicated or any(
            self._halves[half] is not HalfState.GONE for half in self.halves(slot)
        )

    def live(self) -> tuple[int, ...]:
        return tuple(slot for slot in self.all if self.is_live(slot))
