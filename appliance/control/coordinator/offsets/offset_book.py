"""The committed offsets of the groups of one internal partition: group → topic → partition → the record's value.

Values are kept as the bytes of their records and parsed when somebody asks: a replay of a million then costs a slice
and a dictionary entry each, and is packed when it is done; memory is some fifty bytes for an offset (`packed_offsets`),
where parsed values would take hundreds.

Pure: what is put here was committed to the log before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from appliance.control.coordinator.group.effects import Record
from appliance.control.coordinator.offsets.offset_records import (
    PARTITION_BYTES,
    key_prefix,
    parse_key,
    suffix,
)
from appliance.control.coordinator.offsets.packed_offsets import Offsets, PackedOffsets, with_all

ByPartition = dict[int, bytes]
ByTopic = dict[str, Offsets]

_NONE: Final[Mapping[str, Offsets]] = {}


class OffsetBook:
    """All offsets of one internal partition."""

    __slots__ = ("_groups", "_names")

    def __init__(self) -> None:
        self._groups: dict[str, ByTopic] = {}
        self._names: dict[str, str] = {}

    def put(self, group: str, topic: str, partition: int, value: bytes | None) -> None:
        """Takes over what a committed record says; None is a tombstone."""
        topics = self._groups.get(group)
        if value is None:
            if topics is None or (partitions := topics.get(topic)) is None:
                return
            partitions.pop(partition, None)
            if not partitions:
                del topics[topic]
                if not topics:
                    del self._groups[group]
            return
        self.put_all(group, topic, ((partition, value),))

    def put_all(self, group: str, topic: str, offsets: Sequence[tuple[int, bytes]]) -> None:
        """`put` of many of a topic, (partition, value), none of them a tombstone."""
        if not offsets:
            return
        topics = self._groups.get(group)
        if topics is None:
            topics = self._groups[group] = {}
        held = topics.get(topic)
        holder = with_all(held, offsets)
        if holder is not held:
            # One text for a topic, however many groups consume it.
            topics[self._names.setdefault(topic, topic)] = holder

    def apply(self, key: bytes, value: bytes | None) -> None:
        """`put` by the record's own bytes."""
        self.put(*parse_key(key), value)

    def of(self, group: str) -> Mapping[str, Offsets]:
        """Topic → partition → value of a group; empty where it has none."""
        return self._groups.get(group, _NONE)

    def value(self, group: str, topic: str, partition: int) -> bytes | None:
        topics = self._groups.get(group)
        partitions = topics.get(topic) if topics is not None else None
        return partitions.get(partition) if partitions is not None else None

    def count(self, group: str) -> int:
        """How many offsets a group has."""
        return sum(map(len, self.of(group).values()))

    def has(self, group: str) -> bool:
        return group in self._groups

    def groups(self) -> Sequence[str]:
        """Every group with an offset."""
        return list(self._groups)

    def topics(self) -> set[str]:
        """Every topic that some group has offsets of."""
        return {topic for topics in self._groups.values() for topic in topics}

    def tombstones(
        self, group: str, wanted: Callable[[str, int, bytes], bool] = lambda *_: True
    ) -> list[Record]:
        """The records that delete those offsets of a group that are `wanted`(topic, partition, value)."""
        found: list[Record] = []
        for topic, partitions in self.of(group).items():
            prefix = key_prefix(group, topic)
            found += [
                Record(prefix + suffix(partition), None)
                for partition, value in partitions.items()
                if wanted(topic, partition, value)
            ]
        return found

    def place(self, group: str, topic: str) -> ByPartition:
        """Where a replay puts a group's offsets in a topic; it calls `prune` when it is done."""
        name = self._names.setdefault(topic, topic)
        place = self._groups.setdefault(group, {}).setdefault(name, {})
        assert isinstance(place, dict), "nothing is committed to a book before it is replayed"
        return place

    def prune(self) -> None:
        """Packs what a replay has put in, and takes out what has become empty."""
        for group in list(self._groups):
            topics = self._groups[group]
            for topic, offsets in list(topics.items()):
                if not offsets:
                    del topics[topic]
                elif not isinstance(offsets, PackedOffsets):
                    topics[topic] = with_all(None, sorted(offsets.items()))
            if not topics:
                del self._groups[group]

    def statistics(self) -> dict[str, int]:
        """How many groups have offsets, and how many offsets they have."""
        return {
            "groups": len(self._groups),
            "offsets": sum(len(p) for topics in self._groups.values() for p in topics.values()),
        }

    def check(self) -> None:
        """No empty group, no empty topic."""
        for group, topics in self._groups.items():
            assert topics, group
            assert all(topics.values()), group
            for offsets in topics.values():
                if isinstance(offsets, PackedOffsets):
                    offsets.check()


class Replay:
    """Fills a book from records in log order.

    `places`: a key of an offset without its partition → where the topic's offsets lie, so a record that is not the
    first of its group and topic costs no parsing.
    """

    __slots__ = ("_book", "places")

    def __init__(self, book: OffsetBook) -> None:
        self._book = book
        self.places: dict[bytes, ByPartition] = {}

    def put(self, key: bytes, value: bytes | None) -> None:
        """One record whose key is of type 0 or 1."""
        prefix = key[:-PARTITION_BYTES]
        place = self.places.get(prefix)
        if place is None:
            group, topic, _ = parse_key(key)
            place = self.places[prefix] = self._book.place(group, topic)
        partition = int.from_bytes(key[-PARTITION_BYTES:], "big", signed=True)
        if value is None:
            place.pop(partition, None)
        else:
            place[partition] = value

    def done(self) -> None:
        """The end of the log: what tombstones have emptied goes."""
        self._book.prune()
