"""Recognizes delayed records of a batch that its producer has sent again.

For each producer and partition, the last BATCHES batches are remembered, as a log does: a producer has at most so many
batches in flight. Within a batch, records come in the order of their offsets, and what was stored of a batch is always
its beginning. So one number per batch is enough: the highest offset that has come.

    batch of sequence 20: offsets 7, 9       first time, 9 could not be stored
    sent again: 7, 9                         7 is known, 9 is new

A record that a consumer handed back is known by itself, whatever its offset: the consumer may have died before it could
commit, and another one hands the same delivery of the record back.

A producer is forgotten REMEMBERED_S after its last record. All lanes of a process share one `Room`, which bounds what
they remember together. If it is full, the lane that remembers most forgets first: a group that hands everything back
does not make the others forget.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from uuid import UUID
from weakref import WeakSet

from appliance.delivery.waiting import HANDED_BACK, Waiting

BATCHES: Final = 5
PRODUCERS_MAX: Final = 200_000
"""Producers and hand-backs that all lanes of a process remember. One takes about 550 bytes."""
REMEMBERED_S: Final = 15 * 60.0
"""As long as a lane keeps its records for this purpose (`lane.REMEMBERED_MS`)."""
_LOOK_S: Final = 60.0
_FORGOTTEN_AT_ONCE: Final = 100
"""Of a full room, one in so many producers is forgotten at once. To find the largest lane costs a look at each lane."""

_Producer = tuple[UUID, int, int]
_Batch = tuple[int, int, int]
"""Producer epoch, base sequence, and the highest offset that has come."""


class Room:
    """What all lanes of a process remember together.

    Args:
        producers_max: how many producers and hand-backs.
        now_s: a clock that is never set.
    """

    __slots__ = ("_count", "_lanes", "_look_at_s", "now_s", "producers_max")

    def __init__(
        self, *, producers_max: int = PRODUCERS_MAX, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.producers_max = producers_max
        self.now_s = now_s
        self._lanes: WeakSet[SentAgain] = WeakSet()
        self._count = 0
        self._look_at_s = now_s() + _LOOK_S

    def add(self, lane: SentAgain) -> None:
        """A lane begins. It is forgotten with its last reference."""
        self._lanes.add(lane)

    def took_one(self) -> None:
        """A lane remembers one more producer: make room if there is none."""
        self._count += 1
        if self._count > self.producers_max:
            self._count = sum(map(len, self._lanes))  # without the lanes that have ended
            excess = self._count - self.producers_max
            if excess > 0:
                most = max(excess, self.producers_max // _FORGOTTEN_AT_ONCE)
                self._count -= max(self._lanes, key=len).forget_oldest(most)

    def look(self, now_s: float) -> None:
        """Now and then have all lanes forget what is old, those without new records, too."""
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + _LOOK_S
        for lane in self._lanes:
            lane.forget_old(now_s)
        self._count = sum(map(len, self._lanes))

    def statistics(self) -> dict[str, int]:
        """Lanes, and producers that they remember."""
        return {"lanes": len(self._lanes), "producers": sum(map(len, self._lanes))}


ROOM: Final = Room()
"""Of this process."""


class SentAgain:
    """What has come lately of each producer, to one lane. Time: constant for each record."""

    __slots__ = ("__weakref__", "_known", "_room")

    def __init__(self, *, room: Room = ROOM) -> None:
        self._known: OrderedDict[_Producer, tuple[float, tuple[_Batch, ...]]] = OrderedDict()
        self._room = room
        room.add(self)

    def __len__(self) -> int:
        return len(self._known)

    def is_known(self, waiting: Waiting) -> bool:
        """Return whether the record has come before, and remember it."""
        origin = waiting.origin
        if origin.producer_id < 0:
            return False
        room = self._room
        now_s = room.now_s()
        room.look(now_s)
        self.forget_old(now_s)
        producer = waiting.topic_id, waiting.partition, origin.producer_id
        _, batches = self._known.pop(producer, (0.0, ()))
        is_new = not batches
        name = origin.producer_epoch, origin.base_sequence
        before = next((each for each in batches if each[:2] == name), None)
        is_known = before is not None and (
            waiting.offset <= before[2] or origin.producer_epoch == HANDED_BACK
        )
        if before is None:
            batches = (*batches[-(BATCHES - 1) :], (*name, waiting.offset))
        elif not is_known:
            batches = tuple((*name, waiting.offset) if each is before else each for each in batches)
        self._known[producer] = now_s, batches  # at the end: in the order of their last records
        if is_new:
            room.took_one()
        return is_known

    def forget_old(self, now_s: float) -> None:
        """Forget producers of which nothing came for REMEMBERED_S."""
        known = self._known
        while known:
            producer = next(iter(known))
            if known[producer][0] > now_s - REMEMBERED_S:
                return
            del known[producer]

    def forget_oldest(self, most: int) -> int:
        """Forget up to so many producers, those silent for longest; return how many."""
        count = min(most, len(self._known))
        for _ in range(count):
            self._known.popitem(last=False)
        return count
