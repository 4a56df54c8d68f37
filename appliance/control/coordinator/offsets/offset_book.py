"""The committed offsets of the groups of one internal partition: group → topic → partition → the record's value.

Values are kept as the bytes of their records and parsed when somebody asks; memory is ten to fifty bytes for an offset
(`packed_offsets`), where parsed values would take hundreds. A replay puts what one commit has said of many partitions
into a row at once; what it met one by one costs a slice and a dictionary entry each. Both are packed afterwards.

What open transactions have written is kept beside them (`pending_offsets`) until its marker comes.

Pure: what is put here was committed to the log before, and is put in the log's order.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from appliance.control.coordinator.offsets.packed_offsets import Offsets, PackedOffsets, packed, with_all
from appliance.control.coordinator.offsets.pending_offsets import PendingOffsets
from appliance.control.coordinator.runtime.effects import Record
from appliance.protocol.records.offset_records import (
    KEY_TYPE_BYTES,
    OFFSET_KEYS,
    PARTITION_BYTES,
    key_prefix,
    parse_key,
    suffix,
)

ByPartition = dict[int, bytes]
ByTopic = dict[str, Offsets]

_NONE: Final[Mapping[str, Offsets]] = {}


class OffsetBook:
    """All offsets of one internal partition."""

    __slots__ = ("_groups", "_names", "pending")

    def __init__(self) -> None:
        self.pending = PendingOffsets()
        self._groups: dict[str, ByTopic] = {}
        self._names: dict[str, str] = {}

    def put(self, group: str, topic: str, partition: int, value: bytes | None) -> None:
        """Takes over what a committed record says; None is a tombstone."""
        topics = self._groups.get(group)
        if value is None:
            if self.pending.is_open:
                self.pending.forget(group, topic, partition)
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
        if self.pending.is_open:
            self.pending.supersede(group, topic, [partition for partition, _ in offsets])
        self._hold(group, topic, offsets)

    def _hold(self, group: str, topic: str, offsets: Sequence[tuple[int, bytes]]) -> None:
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

    def put_pending(
        self, producer_id: int, group: str, topic: str, partition: int, value: bytes | None
    ) -> None:
        """Takes over what a record of a producer's transaction says. A tombstone counts at once, as in Kafka."""
        if value is None:
            self.put(group, topic, partition, None)
        else:
            self.pending.put(producer_id, group, topic, partition, value)

    def end_transaction(self, producer_id: int, *, committed: bool) -> list[str]:
        """Takes over the marker of a producer's transaction; the groups in which it was open."""
        return self.pending.end(producer_id, committed=committed, put=self._hold)

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
        """How many offsets a group has, without those that are pending."""
        return sum(map(len, self.of(group).values()))

    def has(self, group: str) -> bool:
        """Whether the group has an offset, or an open transaction."""
        return group in self._groups or self.pending.is_open_in(group)

    def groups(self) -> Sequence[str]:
        """Every group with an offset, or an open transaction."""
        if not self.pending.is_open:
            return list(self._groups)
        return list(dict.fromkeys([*self._groups, *self.pending.groups()]))

    def topics_of(self, group: str) -> set[str]:
        """The topics in which a group has offsets, or pending ones."""
        return set(self.of(group)) | self.pending.topics(group)

    def topics(self) -> set[str]:
        """Every topic that some group has offsets of."""
        return {topic for topics in self._groups.values() for topic in topics}

    def tombstones(
        self, group: str, wanted: Callable[[str, int, bytes], bool] = lambda *_: True
    ) -> list[Record]:
        """The records that delete those offsets of a group that are `wanted`(topic, partition, value).

        Pending offsets are deleted with them. One that is not committed yet is asked about if nothing else is.
        """
        found: list[Record] = []
        for topic, partitions in self.of(group).items():
            prefix = key_prefix(group, topic)
            found += [
                Record(prefix + suffix(partition), None)
                for partition, value in partitions.items()
                if wanted(topic, partition, value)
            ]
        if self.pending.is_open_in(group):
            only_pending = {
                (topic, partition)
                for topic, partition, value in self.pending.of(group)
                if value is not None
                and self.value(group, topic, partition) is None
                and wanted(topic, partition, value)
            }
            found += [
                Record(key_prefix(group, topic) + suffix(partition), None)
                for topic, partition in sorted(only_pending)
            ]
        return found

    def place(self, group: str, topic: str) -> ByPartition:
        """Where a replay puts a group's offsets in a topic one by one; it calls `prune` when it is done."""
        topics = self._groups.setdefault(group, {})
        name = self._names.setdefault(topic, topic)
        held = topics.get(name)
        if isinstance(held, dict):
            return held
        place = topics[name] = dict(held.items()) if held is not None else {}
        return place

    def place_row(self, group: str, topic: str, row: PackedOffsets) -> bool:
        """Takes a replay's row of a group's offsets in a topic for all there are; False where others are held, too."""
        topics = self._groups.setdefault(group, {})
        held = topics.get(topic)
        if held is not None and (len(held) > len(row) or not held.keys() <= set(row)):
            return False
        topics[self._names.setdefault(topic, topic)] = row
        return True

    def prune(self) -> None:
        """Takes out what a replay has left empty."""
        for group, topics in list(self._groups.items()):
            if all(topics.values()):
                continue
            for topic in [topic for topic, offsets in topics.items() if not offsets]:
                del topics[topic]
            if not topics:
                del self._groups[group]

    def packing(self) -> Iterator[int]:
        """Packs what a replay has left, a topic of a group at each step, and says of how many offsets that was.

        The book may be used between two steps. Where lengths differ nothing can be packed; that is a step as well.
        """
        for group in list(self._groups):
            for topic in list(self.of(group)):
                offsets = self.of(group).get(topic)
                if isinstance(offsets, dict):
                    offsets = self._groups[group][topic] = packed(offsets)
                if isinstance(offsets, PackedOffsets):
                    offsets.share()
                if offsets is not None:
                    yield len(offsets)

    def statistics(self) -> dict[str, int]:
        """How many groups have offsets, how many offsets they have, and how many are pending beside them."""
        return {
            "pending": self.pending.count(),
            "groups": len(self._groups),
            "offsets": sum(len(p) for topics in self._groups.values() for p in topics.values()),
        }

    def check(self) -> None:
        """No empty group, no empty topic."""
        self.pending.check()
        for group, topics in self._groups.items():
            assert topics, group
            assert all(topics.values()), group
            for offsets in topics.values():
                if isinstance(offsets, PackedOffsets):
                    offsets.check()


class Replay:
    """Fills a book from records in log order.

    `places`: a key of an offset without its partition → where the topic's offsets lie one by one, so a record that is
    not the first of its group and topic costs no parsing. `_rows`: the same without the type of the key, of those that
    lie in a row so far. Neither has what a transaction is open for (`_open`: the same keys by group): that has to be
    weighed against what is pending, record by record.
    """

    __slots__ = ("_book", "_open", "_rows", "places")

    def __init__(self, book: OffsetBook) -> None:
        self._book = book
        self._open: dict[str, set[bytes]] = {}
        self._rows: dict[bytes, PackedOffsets] = {}
        self.places: dict[bytes, ByPartition] = {}

    def put(self, key: bytes, value: bytes | None) -> None:
        """One record whose key is of type 0 or 1."""
        if self._open:
            group, topic, partition = parse_key(key)
            if _known_as(key) in self._open.get(group, ()):
                self._book.put(group, topic, partition, value)
                return
        place = self._place(key)
        partition = int.from_bytes(key[-PARTITION_BYTES:], "big", signed=True)
        if value is None:
            place.pop(partition, None)
        else:
            place[partition] = value

    def put_row(self, key: bytes, partitions: array[int], values: bytes) -> None:
        """Records of one group and topic, none of them a tombstone: their partitions rise, their values are of one
        length. `key` is that of one of them."""
        known_as = _known_as(key)
        held = self._rows.get(known_as)
        if held is not None and held.replace(partitions, values):
            return
        group, topic, _ = parse_key(key)
        row = PackedOffsets.of(partitions, values)
        if self._open and known_as in self._open.get(group, ()):
            self._book.put_all(group, topic, list(row.items()))
            return
        if self._book.place_row(group, topic, row):
            self._rows[known_as] = row
            for kind in OFFSET_KEYS:
                self.places.pop(kind + known_as, None)
        else:
            self._place(key).update(row.items())

    def _place(self, key: bytes) -> ByPartition:
        prefix = key[:-PARTITION_BYTES]
        place = self.places.get(prefix)
        if place is None:
            group, topic, _ = parse_key(key)
            self._rows.pop(prefix[KEY_TYPE_BYTES:], None)
            place = self.places[prefix] = self._book.place(group, topic)
        return place

    def put_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        """One record of a transaction whose end is not near, as `put`."""
        group, topic, partition = parse_key(key)
        known_as = _known_as(key)
        self._open.setdefault(group, set()).add(known_as)
        self._rows.pop(known_as, None)
        for kind in OFFSET_KEYS:
            self.places.pop(kind + known_as, None)
        self._book.put_pending(producer_id, group, topic, partition, value)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """A marker."""
        for group in self._book.end_transaction(producer_id, committed=committed):
            if not self._book.pending.is_open_in(group):
                self._open.pop(group, None)

    def done(self) -> None:
        """The end of the log: what tombstones have emptied goes. What was put in one by one is not packed yet."""
        self._book.prune()


def _known_as(key: bytes) -> bytes:
    """A key of an offset without its type and its partition."""
    return key[KEY_TYPE_BYTES:-PARTITION_BYTES]
