"""What is under way to one worker, and what waits for room there: turns of transactions, lanes of partitions.

    Line       of a worker: how much is in flight, and what waits
    ├ permits  turns of requests: each sends a few of its permits, then goes behind the others
    ├ turns    turns of transactions: each sends a few of its markers, then goes behind the others
    └ lanes    of a partition: its markers in flight, and what waits because the partition has its share

A lane stands in the turns under the transaction whose marker is its next one, or it waits for an answer of its own
partition. Example: transaction A has 5,000 partitions, B and C have one each.

    turns      A: a0 a1 a2 …    B: b0    C: c0
    sent       a0 … a15, b0, c0, a16 … a31, …          (PARTITIONS_A_SLICE = 16)

Markers of one partition and one transaction keep their order, because a lane is first in, first out.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

from appliance.cluster import TopicPartition

IN_FLIGHT_MAX: Final = 2048
"""Markers that a worker has not answered."""
UNREAD_MAX: Final = 64
"""Messages on a worker's ring that it has not read; with more, no further marker is put there. Two bursts of a worker:
it works on one while the coordinator fills in the next. What the coordinator appends for others waits behind them."""
PERMITS_MAX: Final = 256
"""Permits that a worker has not answered. It answers them at once, so about as many are unread."""
PARTITIONS_A_SLICE: Final = 16

Job = TypeVar("Job")
Item = TypeVar("Item")
Request = TypeVar("Request")


class Turns(Generic[Job, Item]):
    """What waits, by job. Jobs are served in turns, and what waits for one of them in order. All calls are O(1)."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[Job, deque[Item]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        """How many items wait: O(jobs)."""
        return sum(map(len, self._waiting.values()))

    def put(self, job: Job, item: Item, *, first: bool = False) -> None:
        """Let an item of a job wait, behind those of the same job or before them."""
        waiting = self._waiting.get(job)
        if waiting is None:
            waiting = self._waiting[job] = deque()
        if first:
            waiting.appendleft(item)
        else:
            waiting.append(item)

    def turn(self) -> tuple[Job, deque[Item]]:
        """Return the job whose turn it is, with what waits for it, which may be taken; then call `end_turn`."""
        return next(iter(self._waiting.items()))

    def end_turn(self, job: Job, *, was_served: bool) -> None:
        """Put a job behind the others, or leave it where it is; forget it where nothing is left."""
        waiting = self._waiting[job]
        if was_served or not waiting:
            del self._waiting[job]
            if waiting:
                self._waiting[job] = waiting

    def take_all(self) -> list[tuple[Job, Item]]:
        """Return everything that waits, which does so no longer."""
        waiting, self._waiting = self._waiting, {}
        return [(job, item) for job, items in waiting.items() for item in items]

    def items(self) -> list[Item]:
        """Return everything that waits."""
        return [item for items in self._waiting.values() for item in items]


class Lane(Generic[Job]):
    """The markers of one partition: how many are in flight, and what waits, None where nothing has waited yet."""

    __slots__ = ("in_flight", "is_queued", "partition", "waiting")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.in_flight = 0
        self.waiting: deque[Job] | None = None
        self.is_queued = False


class Line(Generic[Job, Request]):
    """What is under way to one worker. `Job` has markers to write, `Request` permits to give.

    `turns`: lanes that may send as soon as there is room. Other lanes with waiting markers wait for their own answers.
    `is_full`: the ring had no room in this turn. `room`: how many markers may still be put on it in this turn.
    """

    __slots__ = ("is_full", "lanes", "markers", "permits", "permits_waiting", "room", "turns")

    def __init__(self) -> None:
        self.permits = 0
        self.markers = 0
        self.is_full = False
        self.room = 0
        self.permits_waiting: Turns[Request, TopicPartition] = Turns()
        self.lanes: dict[TopicPartition, Lane[Job]] = {}
        self.turns: Turns[Job, Lane[Job]] = Turns()

    def begin_turn(self, room: int) -> None:
        """A turn begins, in which `room` markers may be sent."""
        self.is_full = False
        self.room = room

    @property
    def may_permit(self) -> bool:
        return not self.is_full and self.permits < PERMITS_MAX

    @property
    def may_mark(self) -> bool:
        return not self.is_full and self.room > 0 and self.markers < IN_FLIGHT_MAX

    @property
    def waits(self) -> bool:
        """Whether something could be sent if there were room."""
        return bool(self.permits_waiting or self.turns)

    @property
    def waits_for_reader(self) -> bool:
        """Whether something can be sent as soon as the worker has read on, which no message announces."""
        return (self.is_full and self.waits) or (
            self.room <= 0 and bool(self.turns) and self.markers < IN_FLIGHT_MAX
        )

    def has_share(self, lane: Lane[Job]) -> bool:
        """Whether the partition may have one more marker in flight: less than what is free of the worker's bound."""
        return lane.in_flight < IN_FLIGHT_MAX - self.markers

    def lane(self, partition: TopicPartition) -> Lane[Job]:
        lane = self.lanes.get(partition)
        if lane is None:
            lane = self.lanes[partition] = Lane(partition)
        return lane

    def queue(self, lane: Lane[Job], *, first: bool = False) -> None:
        """Put a lane in which something waits in the turns, unless it is there or waits for its own answers."""
        waiting = lane.waiting
        if waiting and not lane.is_queued and (self.has_share(lane) or not lane.in_flight):
            lane.is_queued = True
            self.turns.put(waiting[0], lane, first=first)

    def park(self, lane: Lane[Job], job: Job, *, first: bool = False) -> None:
        """Let a marker wait, behind those that wait for the same partition or before them."""
        if lane.waiting is None:
            lane.waiting = deque()
        if first:
            lane.waiting.appendleft(job)
        else:
            lane.waiting.append(job)
        self.queue(lane, first=first)

    def tidy(self, lane: Lane[Job]) -> None:
        """Forget a lane in which nothing is left."""
        if not lane.in_flight and not lane.waiting and self.lanes.get(lane.partition) is lane:
            del self.lanes[lane.partition]
