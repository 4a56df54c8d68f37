"""A group's committed offsets in one topic, packed: values of one length in a row, their partitions beside them.

    partitions    0    1    2    5      rising
    begin         what all values begin with, once
    middles      ├────┼────┼────┼────┤  what they differ in, as many bytes each
    end           what all values end with, once

A value of version 4 without metadata has 42 bytes, whatever it says, so nearly all are of one length; as bytes objects
in a dictionary each would cost three times as much. Of one commit they differ in a few bytes of the offset: leader
epoch, metadata, time and topic id are the same. Where a length differs, a plain dictionary holds the topic.

Finding one is O(log partitions); one that is new in the middle moves those behind it, and more than a few of these
have all put together anew. What is alike is looked for where many come at once; a single one that begins or ends
otherwise leaves less that is, so that a member that commits one partition at a time pays for that once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import ItemsView, Iterator, MutableMapping, Sequence
from typing import Final, Self

_FEW: Final = 8
Offsets = MutableMapping[int, bytes]
"""Partition → value."""


class PackedOffsets(Offsets):
    """Values of `width` bytes by partition; one of another length must not be put in."""

    __slots__ = ("_begin", "_end", "_middles", "_partitions", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self._partitions = array("i")
        self._begin = self._end = b""
        self._middles = bytearray()

    @classmethod
    def of(cls, partitions: array[int], values: bytes | bytearray) -> Self:
        """Of rising partitions, at least one, and the row of their values; `share` has not looked at it yet."""
        made = cls(len(values) // len(partitions))
        made._partitions = partitions
        made._write_out(values)
        return made

    def replace(self, partitions: array[int], values: bytes) -> bool:
        """Takes over the row of values of these rising partitions, if they are those that are held, in their length."""
        if len(values) != self.width * len(self._partitions) or partitions != self._partitions:
            return False
        self._write_out(values)
        return True

    def share(self) -> None:
        """Holds once what all values begin and end with, where they are many. O(n × width)."""
        if len(self._partitions) > _FEW:
            self._share(self._cut())

    def _share(self, values: Sequence[bytes]) -> None:
        begin = _common_begin(values[0], values)
        self._hold(begin, values, _common_end(values[0][len(begin) :], values))

    def _share_with(self, value: bytes) -> None:
        """Leaves of what is held once that which this one begins and ends with, too."""
        self._hold(_common_begin(self._begin, [value]), self._cut(), _common_end(self._end, [value]))

    def _hold(self, begin: bytes, values: Sequence[bytes], end: bytes) -> None:
        start, stop = len(begin), self.width - len(end)
        self._begin, self._end = begin, end
        self._middles = bytearray().join([value[start:stop] for value in values])

    def all_end_with(self, ending: bytes) -> bool:
        """Whether each value does. It compares a column of them at a time."""
        if len(ending) <= len(self._end):
            return self._end.endswith(ending)
        values, count, width = self._row(), len(self._partitions), self.width
        if len(ending) > width:
            return False
        return all(
            values[width - place :: width].count(octet) == count
            for place, octet in enumerate(reversed(ending), 1)
        )

    def put_all(self, offsets: Sequence[tuple[int, bytes]]) -> None:
        """As one by one; quicker where they are all there are. O(n log n)."""
        if array("i", [partition for partition, _ in offsets]) != self._partitions:
            if len(offsets) <= _FEW:
                for partition, value in offsets:
                    self[partition] = value
                return
            offsets = sorted({**dict(self.items()), **dict(offsets)}.items())
            self._partitions = array("i", [partition for partition, _ in offsets])
        values = [value for _, value in offsets]
        if len(values) > _FEW:
            self._share(values)
        else:
            self._write_out(b"".join(values))

    def __setitem__(self, partition: int, value: bytes) -> None:
        if not (value.startswith(self._begin) and value.endswith(self._end)):
            self._share_with(value)
        partitions = self._partitions
        middle = value[len(self._begin) : self.width - len(self._end)]
        width = len(middle)
        slot = bisect_left(partitions, partition)
        at = slot * width
        if slot < len(partitions) and partitions[slot] == partition:
            self._middles[at : at + width] = middle
        else:
            partitions.insert(slot, partition)
            self._middles[at:at] = middle

    def __delitem__(self, partition: int) -> None:
        slot = self._slot(partition)
        width = self._middle_bytes()
        del self._partitions[slot]
        del self._middles[slot * width : (slot + 1) * width]

    def __getitem__(self, partition: int) -> bytes:
        width = self._middle_bytes()
        at = self._slot(partition) * width
        return self._begin + self._middles[at : at + width] + self._end

    def _slot(self, partition: int) -> int:
        slot = bisect_left(self._partitions, partition)
        if slot == len(self._partitions) or self._partitions[slot] != partition:
            raise KeyError(partition)
        return slot

    def _middle_bytes(self) -> int:
        return self.width - len(self._begin) - len(self._end)

    def _row(self) -> bytes | bytearray:
        """The values, one after the other, whole."""
        return b"".join(self._cut()) if self._begin or self._end else self._middles

    def _cut(self) -> list[bytes]:
        """The values, each whole."""
        begin, middles, end, width = self._begin, bytes(self._middles), self._end, self._middle_bytes()
        if not width:
            return [begin + end] * len(self._partitions)
        return [begin + middles[at : at + width] + end for at in range(0, len(middles), width)]

    def _write_out(self, values: bytes | bytearray) -> None:
        """Holds this row of values of the partitions; nothing of it is shared."""
        self._begin = self._end = b""
        self._middles[:] = values

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[int]:
        return iter(self._partitions)

    def items(self) -> ItemsView[int, bytes]:
        """All of them as they are now, by rising partition."""
        return dict(zip(self._partitions, self._cut(), strict=True)).items()

    def check(self) -> None:
        """Partitions rise, and each has its value."""
        partitions = list(self._partitions)
        assert partitions == sorted(set(partitions)), partitions
        assert len(self._middles) == self._middle_bytes() * len(partitions), len(self._middles)


def _common_begin(begin: bytes, values: Sequence[bytes]) -> bytes:
    """As much of `begin` as all values begin with."""
    for value in values:
        while not value.startswith(begin):
            begin = begin[:-1]
    return begin


def _common_end(end: bytes, values: Sequence[bytes]) -> bytes:
    """As much of `end` as all values end with."""
    for value in values:
        while not value.endswith(end):
            end = end[1:]
    return end


def all_end_with(offsets: Offsets, ending: bytes) -> bool:
    """Whether each value ends with it."""
    if isinstance(offsets, PackedOffsets):
        return offsets.all_end_with(ending)
    return all(value.endswith(ending) for value in offsets.values())


def packed(offsets: dict[int, bytes]) -> Offsets:
    """The same in a row, where its values are of one length; else as it is."""
    if len(set(map(len, offsets.values()))) != 1:
        return offsets
    partitions = sorted(offsets)
    return PackedOffsets.of(array("i", partitions), b"".join(map(offsets.__getitem__, partitions)))


def with_all(held: Offsets | None, offsets: Sequence[tuple[int, bytes]]) -> Offsets:
    """What holds `offsets`, too: `held` itself where it can, else another."""
    if len(offsets) == 1 and isinstance(held, PackedOffsets):
        partition, value = offsets[0]
        if len(value) == held.width:
            held[partition] = value
            return held
    widths = {len(value) for _, value in offsets}
    if held is None and len(widths) == 1:
        held = PackedOffsets(widths.pop())
        held.put_all(offsets)
    elif isinstance(held, PackedOffsets) and widths <= {held.width}:
        held.put_all(offsets)
    else:
        held = held if isinstance(held, dict) else dict(held or {})
        held.update(offsets)
    return held
