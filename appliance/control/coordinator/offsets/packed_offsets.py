"""A group's committed offsets in one topic, packed: values of one length in a row, their partitions beside them.

    partitions    0    1    2    5      rising
    values       ├────┼────┼────┼────┤  `width` bytes each, as their records hold them

A value of version 4 without metadata has 42 bytes, whatever it says, so nearly all are of one length; as bytes objects
in a dictionary each would cost three times as much. Where a length differs, a plain dictionary holds the topic.
Finding one is O(log partitions); one that is new in the middle moves those behind it, and more than a few of these
have all put together anew.
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

    __slots__ = ("_partitions", "_values", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self._partitions = array("i")
        self._values = bytearray()

    @classmethod
    def of(cls, partitions: array[int], values: bytes | bytearray) -> Self:
        """Of rising partitions, at least one, and the row of their values."""
        made = cls(len(values) // len(partitions))
        made._partitions = partitions
        made._values[:] = values
        return made

    def replace(self, partitions: array[int], values: bytes) -> bool:
        """Takes over the row of values of these rising partitions, if they are those that are held, in their length."""
        if len(values) != len(self._values) or partitions != self._partitions:
            return False
        self._values[:] = values
        return True

    def all_end_with(self, ending: bytes) -> bool:
        """Whether each value does. It compares a column of them at a time."""
        count, width = len(self._partitions), self.width
        if len(ending) > width:
            return False
        return all(
            self._values[width - place :: width].count(octet) == count
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
        self._values[:] = b"".join([value for _, value in offsets])

    def __setitem__(self, partition: int, value: bytes) -> None:
        partitions, width = self._partitions, self.width
        slot = bisect_left(partitions, partition)
        at = slot * width
        if slot < len(partitions) and partitions[slot] == partition:
            self._values[at : at + width] = value
        else:
            partitions.insert(slot, partition)
            self._values[at:at] = value

    def __delitem__(self, partition: int) -> None:
        slot = self._slot(partition)
        del self._partitions[slot]
        del self._values[slot * self.width : (slot + 1) * self.width]

    def __getitem__(self, partition: int) -> bytes:
        at = self._slot(partition) * self.width
        return bytes(self._values[at : at + self.width])

    def _slot(self, partition: int) -> int:
        slot = bisect_left(self._partitions, partition)
        if slot == len(self._partitions) or self._partitions[slot] != partition:
            raise KeyError(partition)
        return slot

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[int]:
        return iter(self._partitions)

    def items(self) -> ItemsView[int, bytes]:
        """All of them as they are now, by rising partition."""
        values, width = bytes(self._values), self.width
        cut = [values[at : at + width] for at in range(0, len(values), width)]
        return dict(zip(self._partitions, cut, strict=True)).items()

    def check(self) -> None:
        """Partitions rise, and each has its value."""
        partitions = list(self._partitions)
        assert partitions == sorted(set(partitions)), partitions
        assert len(self._values) == self.width * len(partitions), len(self._values)


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
