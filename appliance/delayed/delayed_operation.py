"""Operations that wait: what each waits for, and the table that lets it end exactly once.

    WAITING ──poke──→ SATISFIED      what it waited for is there
       ├─────clock──→ EXPIRED        its time is up first
       └─────cancel─→ CANCELLED      nobody wants the answer any more

The three ends are final: an event that finds an operation there does nothing. How each state answers:

| state | the requester gets |
|---|---|
| WAITING | nothing yet |
| SATISFIED | the full answer |
| EXPIRED | what there is (fetch), or what its owner says of it, as REQUEST_TIMED_OUT (produce, delete records) |
| CANCELLED | nothing: there is no requester |

A fetch watches *keys* (partitions) for a *position* in each: the high watermark. Keys are integers whose meaning is the
caller's. Source of the rule: Kafka's `DelayedFetch`. Produces and delete-records wait with the partition's owner, which
completes them; here they only have a deadline.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

import msgspec


class State(StrEnum):
    WAITING = "waiting"
    SATISFIED = "satisfied"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class Event(StrEnum):
    POKE = "poke"
    CLOCK = "clock"
    CANCEL = "cancel"


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.WAITING, Event.POKE): State.SATISFIED,
    (State.WAITING, Event.CLOCK): State.EXPIRED,
    (State.WAITING, Event.CANCEL): State.CANCELLED,
}


def after(state: State, event: Event) -> State | None:
    """Where `event` leads from `state`; None where it does nothing, because the operation has ended."""
    return TRANSITIONS.get((state, event))


class DelayedOperation(Protocol):
    """What a purgatory must know of an operation; the two below, and any other that fits."""

    @property
    def key(self) -> int:
        """Names the operation; unique among those that wait."""
        ...

    @property
    def watches(self) -> Mapping[int, int]:
        """The position in each watched key that the operation looks at."""
        ...

    def satisfied(self, reached: Mapping[int, int], appended_bytes: int) -> bool:
        """Whether the wait is over.

        Args:
            reached: the highest position known of each watched key that moved since the operation began to
            wait. appended_bytes: bytes that became readable in the watched keys meanwhile.
        """
        ...


class DelayedFetch(msgspec.Struct, frozen=True):
    """Waits until `needed_bytes` more are readable past the watched offsets, in all partitions together.

    `within`: of these, what is there already is to be read from the middle of a segment, and will not become more once
    records lie in the next one.
    """

    key: int
    watches: Mapping[int, int]
    needed_bytes: int
    within: frozenset[int] = frozenset()

    def is_left_behind(self, key: int, begun_at: int) -> bool:
        """Whether a segment that begins with `begun_at`, and holds records, is a later one than it reads in."""
        return begun_at >= self.watches[key] and key in self.within

    def satisfied(self, reached: Mapping[int, int], appended_bytes: int) -> bool:
        if appended_bytes < self.needed_bytes:
            return False
        return any(position > self.watches[key] for key, position in reached.items())


class DelayedAnswer(msgspec.Struct, frozen=True):
    """An answer that its owner holds (see `held_answers`). The owner completes it, so only the clock ends it here."""

    key: int

    @property
    def watches(self) -> Mapping[int, int]:
        return {}

    def satisfied(self, reached: Mapping[int, int], appended_bytes: int) -> bool:
        return False
