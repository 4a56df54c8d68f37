"""Rows of the shared partition table: which are free, and which use (incarnation) of a row a partition has.

A row is written by several processes in turn, so giving one away has an order: the controller writes the
words of a new incarnation, then tells the worker; it takes the row back only after the worker said that it
let go. A row whose last user is not known (a controller died between writing the row and publishing the
image) rests in quarantine until every worker has answered a full assignment, which no longer names it.

Incarnations are never repeated, not even by the next controller: a request that waits in some ring may name
any of them. So each controller counts from its own epoch:

    bit 63      0 │ 62 … 32  controller epoch │ 31 … 0  count within that controller's life
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from appliance.channels.partition_table import (
    INCARNATION,
    ISR_BITS,
    LEADER_EPOCH,
    LEADER_SLOT,
    SERVING_EPOCH,
    SERVING_INCARNATION,
    SLOT_FOLLOWED_EPOCH,
    SLOT_FOLLOWED_INCARNATION,
    PartitionTable,
)
from appliance.cluster import NO_LEADER, PartitionImage

FREE = 0
INCARNATION_BITS = 32


class RowStatistics(msgspec.Struct, frozen=True):
    """For display: rows in all, in use, resting."""

    rows: int
    used: int
    quarantined: int


class PartitionRows:
    """The controller's book of rows. Taking and giving back cost O(1), a new book O(rows)."""

    __slots__ = ("_free", "_incarnation", "_quarantine", "_table", "_used")

    def __init__(
        self, table: PartitionTable, *, controller_epoch: int, living: Iterable[PartitionImage] = ()
    ) -> None:
        """`living`: partitions that keep row and incarnation, as the image of the controller before said."""
        self._table = table
        self._used = {partition.row for partition in living}
        self._incarnation = controller_epoch << INCARNATION_BITS
        unknown = {
            row for row, used_as in enumerate(table.column(INCARNATION)) if used_as != FREE
        } - self._used
        self._quarantine = unknown
        # Popped from the end: low rows first, so that a small cluster stays within few pages.
        taken = self._used | unknown
        self._free = [row for row in range(len(table) - 1, -1, -1) if row not in taken]

    @property
    def free_count(self) -> int:
        return len(self._free)

    def take(self) -> tuple[int, int]:
        """A free row and its next incarnation; nothing is written yet. The caller looked at `free_count`."""
        row = self._free.pop()
        self._used.add(row)
        self._incarnation += 1
        return row, self._incarnation

    def untake(self, row: int) -> None:
        """Gives back a row that nobody was told of."""
        self._used.discard(row)
        self._free.append(row)

    def write(self, partition: PartitionImage) -> None:
        """Writes the controller's words; the incarnation last, since it makes the others valid."""
        cells, at = self._table.cells, self._table.at(partition.row)
        cells[at + LEADER_SLOT] = partition.leader
        cells[at + LEADER_EPOCH] = partition.leader_epoch
        cells[at + ISR_BITS] = isr_bits(partition.isr)
        cells[at + INCARNATION] = partition.incarnation

    def withdraw(self, row: int) -> None:
        """The partition is going: no request may begin any more. The row stays taken."""
        cells, at = self._table.cells, self._table.at(row)
        cells[at + INCARNATION] = FREE
        cells[at + LEADER_SLOT] = NO_LEADER
        cells[at + ISR_BITS] = 0

    def give_back(self, row: int) -> None:
        """The worker let go."""
        self.withdraw(row)
        self.untake(row)

    def end_quarantine(self) -> None:
        """Every worker knows its partitions: nobody uses a row that is not in the book."""
        for row in sorted(self._quarantine, reverse=True):
            self.withdraw(row)
            self._free.append(row)
        self._quarantine = set()

    def opened_as(self, partition: PartitionImage, slot: int) -> bool | None:
        """As what a slot has opened its copy under the leader epoch of now, as the table says: True as a follower, in
        its replica process, False as the leader, in a worker; None: not known.

        Each half writes its word once it has the copy open, and the other one is not given it under the same epoch.
        """
        cells, at = self._table.cells, self._table.at(partition.row)
        if partition.leader == slot:
            follows, said = False, (cells[at + SERVING_INCARNATION], cells[at + SERVING_EPOCH])
        else:
            own = self._table.slot_at(partition.row, slot)
            follows = True
            said = (cells[own + SLOT_FOLLOWED_INCARNATION], cells[own + SLOT_FOLLOWED_EPOCH])
        return follows if said == (partition.incarnation, partition.leader_epoch) else None

    def statistics(self) -> RowStatistics:
        return RowStatistics(len(self._table), len(self._used), len(self._quarantine))

    def check(self) -> None:
        """Every row is free, used or resting, and nothing twice."""
        free = set(self._free)
        assert len(free) == len(self._free)
        assert not free & self._used
        assert not free & self._quarantine
        assert not self._used & self._quarantine
        assert len(free) + len(self._used) + len(self._quarantine) == len(self._table)


def isr_bits(isr: Iterable[int]) -> int:
    """Slot n is bit n."""
    bits = 0
    for slot in isr:
        bits |= 1 << slot
    return bits
