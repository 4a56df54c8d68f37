"""Offsets that open transactions have written: producer id → group → topic → partition → the record's value.

Nobody sees them before the producer's marker says that they were committed. Then they go into the book
(`OffsetBook.end_transaction`), unless something that stands later in the log has said more of the same partition:

    log     A: p0=5   p0=7   B: p0=6   B commits   A commits          p0 is 6: A's record is the oldest of the three

Records are taken in in the log's order, so each gets the next number, and what comes later makes what waits "older":
its value is dropped. It is pending nevertheless, until the marker: readers who want stable offsets wait for it. A
tombstone takes a pending offset away altogether. Source: `OffsetMetadataManager.java` of Kafka 4.3.

A group has an open transaction until the marker, also when tombstones have left nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

OVERHEAD_BYTES: Final = 200
"""Of memory for a pending offset, beside its value."""

_Pending = tuple[int, bytes | None]
"""Its number in the log's order; its value, None where something later counts already."""
_ByTopic = dict[str, dict[int, _Pending]]
_NOBODY: Final[Mapping[int, _ByTopic]] = {}


class PendingOffsets:
    """Of one internal partition. Everything costs O(open transactions of the group) at most.

    `bytes`: about as much memory as they take.
    """

    __slots__ = ("_by_group", "_by_producer", "_number", "bytes")

    def __init__(self) -> None:
        self._by_group: dict[str, dict[int, _ByTopic]] = {}
        self._by_producer: dict[int, list[str]] = {}
        self._number = 0
        self.bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether any transaction is open."""
        return bool(self._by_producer)

    def groups(self) -> Iterable[str]:
        """Every group with an open transaction."""
        return self._by_group.keys()

    def is_open_in(self, group: str) -> bool:
        return group in self._by_group

    def has(self, group: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has an offset of it."""
        producers = self._by_group.get(group, _NOBODY)
        return any(partition in topics.get(topic, ()) for topics in producers.values())

    def of(self, group: str) -> Iterator[tuple[str, int, bytes | None]]:
        """(topic, partition, value) of all that is pending in a group; a value of None is older than what counts."""
        for topics in self._by_group.get(group, _NOBODY).values():
            for topic, partitions in topics.items():
                for partition, (_, value) in partitions.items():
                    yield topic, partition, value

    def topics(self, group: str) -> set[str]:
        """The topics of which something is pending in a group."""
        return {topic for topics in self._by_group.get(group, _NOBODY).values() for topic in topics}

    def put(self, producer_id: int, group: str, topic: str, partition: int, value: bytes) -> None:
        """Take over what a record of the producer's transaction says."""
        producers = self._by_group.setdefault(group, {})
        topics = producers.get(producer_id)
        if topics is None:
            topics = producers[producer_id] = {}
            self._by_producer.setdefault(producer_id, []).append(group)
        partitions = topics.setdefault(topic, {})
        self._number += 1
        self._drop(partitions.get(partition))
        partitions[partition] = (self._number, value)
        self.bytes += OVERHEAD_BYTES + len(value)

    def supersede(self, group: str, topic: str, partitions: Iterable[int]) -> None:
        """Something that counts stands later in the log than all that is pending of these."""
        for topics in self._by_group.get(group, _NOBODY).values():
            held = topics.get(topic)
            if held is not None:
                for partition in partitions:
                    self._make_older(held, partition, self._number)

    def forget(self, group: str, topic: str, partition: int) -> None:
        """A tombstone stands later in the log."""
        for topics in self._by_group.get(group, _NOBODY).values():
            held = topics.get(topic)
            if held is not None:
                self._drop(held.pop(partition, None))
                if not held:
                    del topics[topic]

    def end(
        self, producer_id: int, *, committed: bool, put: Callable[[str, str, list[tuple[int, bytes]]], None]
    ) -> list[str]:
        """The producer's transaction is over: return the groups in which it was open.

        `put` gets group, topic and the offsets that count now, if it was committed.
        """
        groups = self._by_producer.pop(producer_id, [])
        for group in groups:
            producers = self._by_group[group]
            topics = producers.pop(producer_id)
            if not producers:
                del self._by_group[group]
            for topic, held in topics.items():
                for each in held.values():
                    self._drop(each)
                if committed:
                    self._end_topic(group, topic, held, put)
        return groups

    def _end_topic(
        self,
        group: str,
        topic: str,
        held: dict[int, _Pending],
        put: Callable[[str, str, list[tuple[int, bytes]]], None],
    ) -> None:
        counts = [(partition, value) for partition, (_, value) in held.items() if value is not None]
        put(group, topic, counts)
        for topics in self._by_group.get(group, _NOBODY).values():
            others = topics.get(topic)
            if others is not None:
                for partition, (number, _) in held.items():
                    self._make_older(others, partition, number)

    def _make_older(self, held: dict[int, _Pending], partition: int, number: int) -> None:
        """What is held of the partition does not count any more, if it is not newer than that number."""
        pending = held.get(partition)
        if pending is not None and pending[1] is not None and pending[0] <= number:
            self.bytes -= len(pending[1])
            held[partition] = (pending[0], None)

    def _drop(self, pending: _Pending | None) -> None:
        if pending is not None:
            self.bytes -= OVERHEAD_BYTES + (0 if pending[1] is None else len(pending[1]))

    def count(self) -> int:
        """How many offsets are pending."""
        return sum(
            len(partitions)
            for producers in self._by_group.values()
            for topics in producers.values()
            for partitions in topics.values()
        )

    def check(self) -> None:
        """Both tables say the same, and the bytes add up."""
        open_in = {
            (producer_id, group) for group, producers in self._by_group.items() for producer_id in producers
        }
        assert all(self._by_group.values())
        listed = [
            (producer_id, group) for producer_id, groups in self._by_producer.items() for group in groups
        ]
        assert set(listed) == open_in, (listed, open_in)
        assert len(listed) == len(open_in), listed
        held = [
            pending
            for producers in self._by_group.values()
            for topics in producers.values()
            for partitions in topics.values()
            for pending in partitions.values()
        ]
        assert self.bytes == sum(OVERHEAD_BYTES + len(value or b"") for _, value in held)
