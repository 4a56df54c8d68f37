"""A sliding window of records in process: what may be processed now, and up to which offset all is done. Without I/O.

    partition    41   42   43   44   45   46          committable: 44, behind the last of the first that are all done
                 done done done run  done wait

Several workers take records at once. A committed offset says that everything before it is done, so a record that takes
long holds the offset back, and only what is contiguous is committed. A restart repeats what was done behind it: at
least once, as with any consumer. The window of each partition is bounded, so what a restart repeats is, too.

| order | records that are processed one after the other, in their order |
|---|---|
| key | those with the same key in the same partition; records without a key are free |
| partition | those of the same partition |
| unordered | none |

A *lane* holds what must wait for each other: the records of one key, or of one partition. A partition that the group
takes away and gives back begins a new share of the window, so a worker that comes late with a record of the old one
changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import count

from appliance_client.values import ConsumerRecord, TopicPartition


class Order(StrEnum):
    """Which records wait for each other."""

    KEY = "key"
    PARTITION = "partition"
    UNORDERED = "unordered"


class _Share:
    """One partition while it is assigned. `offsets`: given and not yet contiguous, in order; `done`: some of them."""

    __slots__ = ("committed", "done", "next_offset", "offsets", "place", "running")

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.offsets: deque[int] = deque()
        self.done: set[int] = set()
        self.next_offset: int | None = None
        self.committed: int | None = None
        self.running = 0


class Task:
    """A record that a worker may process now."""

    __slots__ = ("lane", "record", "share")

    def __init__(self, record: ConsumerRecord, share: _Share, lane: Hashable) -> None:
        self.record = record
        self.share = share
        self.lane = lane


class Window:
    """The records of all partitions that are in process.

    Args:
        size: how many records of a partition, from the first that is not done on, may be in it before it is full.
    """

    def __init__(self, *, order: Order, size: int) -> None:
        self._order = order
        self._size = size
        self._shares: dict[TopicPartition, _Share] = {}
        self._ready: deque[Task] = deque()
        self._lanes: dict[Hashable, deque[Task]] = {}
        self._free = count()

    def add(self, place: TopicPartition, records: Iterable[ConsumerRecord]) -> None:
        """Take records of a partition, in their order."""
        share = self._shares.get(place)
        if share is None:
            share = self._shares[place] = _Share(place)
        for record in records:
            if share.next_offset is None:
                # Committed although nothing is done yet: without a committed offset, auto.offset.reset = latest would
                # let the next owner skip these records.
                share.next_offset = record.offset
            share.offsets.append(record.offset)
            task = Task(record, share, self._lane(record, share))
            behind = self._lanes.get(task.lane)
            if behind is None:
                self._lanes[task.lane] = deque()
                self._ready.append(task)
            else:
                behind.append(task)

    def _lane(self, record: ConsumerRecord, share: _Share) -> Hashable:
        if self._order is Order.PARTITION:
            return id(share)
        if self._order is Order.KEY and record.key is not None:
            try:
                return (id(share), hash(record.key), record.key)
            except TypeError:
                return id(share)  # a deserializer made something without a hash of it
        return next(self._free), None

    def next(self) -> Task | None:
        """Return a record that may be processed now; None: there is none until another one is done."""
        if not self._ready:
            return None
        task = self._ready.popleft()
        task.share.running += 1
        return task

    def done(self, task: Task) -> bool:
        """A task of `next` is done. Return whether its partition has room again."""
        share = task.share
        share.running -= 1
        behind = self._lanes.get(task.lane)
        if behind:
            self._ready.append(behind.popleft())
        elif behind is not None:
            del self._lanes[task.lane]
        if self._shares.get(share.place) is not share:
            return False
        was_full = self.is_full(share.place)
        share.done.add(task.record.offset)
        while share.offsets and share.offsets[0] in share.done:
            offset = share.offsets.popleft()
            share.done.discard(offset)
            share.next_offset = offset + 1
        return was_full and not self.is_full(share.place)

    def give_up(self, task: Task) -> None:
        """A task of `next` has failed for good: it is never done, and what waits for it is not processed."""
        task.share.running -= 1

    def committable(self, places: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the offsets to commit of partitions, of all if none are named, where they have moved."""
        wanted = self._shares if places is None else places
        found: dict[TopicPartition, int] = {}
        for place in wanted:
            share = self._shares.get(place)
            if share is not None and share.next_offset is not None and share.next_offset != share.committed:
                found[place] = share.next_offset
        return found

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These are committed."""
        for place, offset in offsets.items():
            share = self._shares.get(place)
            if share is not None:
                share.committed = offset

    def is_full(self, place: TopicPartition) -> bool:
        """Whether the partition has no room for more records."""
        share = self._shares.get(place)
        return share is not None and len(share.offsets) >= self._size

    def take_back(self, places: Iterable[TopicPartition]) -> None:
        """Process nothing more of these partitions than what runs."""
        shares = {self._shares[place] for place in places if place in self._shares}
        for task in self._ready:
            if task.share in shares:
                del self._lanes[task.lane]  # a lane is of one share, so all of it goes
        self._ready = deque(task for task in self._ready if task.share not in shares)
        for behind in self._lanes.values():
            if behind and behind[0].share in shares:
                behind.clear()  # its first task runs

    def running(self, places: Iterable[TopicPartition] | None = None) -> int:
        """Return how many records of these partitions, or of all, are being processed."""
        wanted: Sequence[TopicPartition] = list(self._shares if places is None else places)
        return sum(self._shares[place].running for place in wanted if place in self._shares)

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """These partitions are another consumer's: what still runs of them counts no more."""
        for place in places:
            self._shares.pop(place, None)

    @property
    def places(self) -> Sequence[TopicPartition]:
        """The partitions of which there were records."""
        return list(self._shares)

    def statistics(self) -> dict[str, int]:
        """Records that are in the window, ready, and being processed; lanes."""
        return {
            "records": sum(len(share.offsets) for share in self._shares.values()),
            "ready": len(self._ready),
            "running": self.running(),
            "lanes": len(self._lanes),
        }

    def check(self) -> None:
        """A lane has a task that is ready or runs; done offsets are in the window, and the first is not done."""
        for share in self._shares.values():
            assert share.done <= set(share.offsets)
            assert not share.offsets or share.offsets[0] not in share.done
            assert share.running >= 0
        lanes = [task.lane for task in self._ready]
        assert len(set(lanes)) == len(lanes)
        assert set(lanes) <= self._lanes.keys()
