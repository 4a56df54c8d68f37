"""Tells the purgatory that high watermarks moved, for the rows it watches and for no others.

A row that nobody waits on costs one load. When the ring to the purgatory is full the row stays dirty and is told
later: a poke may be late, never lost. When the purgatory is down nothing is owed: its successor looks at every row.
"""

from __future__ import annotations

from typing import Final

from appliance.channels.partition_table import HIGH_WATERMARK, WATCHERS, PartitionTable
from appliance.channels.purgatory_channel import PurgatoryOp
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.fence import full_fence
from appliance.ipc.ring import RingWriter

_POKE: Final = int(PurgatoryOp.POKE)


class Pokes:
    """Rows that moved since the last `tell`, with the bytes that were added."""

    __slots__ = ("_moved", "_table")

    def __init__(self, table: PartitionTable) -> None:
        self._table = table
        self._moved: dict[int, int] = {}

    def moved(self, row: int, appended_bytes: int) -> None:
        """Notes that `row`'s high watermark was published anew."""
        self._moved[row] = self._moved.get(row, 0) + appended_bytes

    def tell(self, writer: RingWriter | None, bell: Doorbell | None) -> None:
        """After publishing: fence, look who is watched, poke."""
        if not self._moved:
            return
        if writer is None or bell is None:
            self._moved.clear()
            return
        full_fence()
        cells, told = self._table.cells, 0
        for row, appended in list(self._moved.items()):
            at = self._table.at(row)
            if cells[at + WATCHERS]:
                if not writer.put(_POKE, 0, 0, row, cells[at + HIGH_WATERMARK], appended, 0, 0, 0, 0, 0):
                    break
                told += 1
            del self._moved[row]
        if told:
            writer.publish()
            bell.ring()

    @property
    def owed(self) -> bool:
        """Whether a full ring kept something back."""
        return bool(self._moved)
