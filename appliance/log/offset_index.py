"""The `.index` of a segment: from an offset to a position in the `.log` that is near, and never too far.

    entry (8 bytes)   relative offset int32 · position int32

An entry says: the batch that begins at `position` ends with offset `base + relative offset`. So whoever looks
for an offset starts at the entry with the greatest offset that is not greater, and scans on from there:

    entries   (base+9, 4120)  (base+19, 8270)        lookup(base+14) = 4120: the batch there ends with 9,
                                                     the one wanted follows

Source: `OffsetIndex.java`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from appliance.log.file_names import OFFSET_INDEX
from appliance.log.index_file import IndexFile

_ENTRY: Final = Struct(">ii")


class OffsetIndex(IndexFile):
    """Entries of (relative offset, position), both rising."""

    ENTRY_BYTES = _ENTRY.size
    SUFFIX = OFFSET_INDEX

    __slots__ = ()

    def append(self, offset: int, position: int) -> None:
        """Adds an entry; its room must be reserved."""
        _ENTRY.pack_into(self.view(), self.entries * _ENTRY.size, offset - self.base_offset, position)
        self.entries += 1

    def entry(self, number: int) -> tuple[int, int]:
        """(offset, position) of one entry."""
        relative, position = _ENTRY.unpack_from(self.view(), number * _ENTRY.size)
        return self.base_offset + relative, position

    def last(self) -> tuple[int, int]:
        """(offset, position) of the last entry, (base offset, 0) if there is none."""
        return self.entry(self.entries - 1) if self.entries else (self.base_offset, 0)

    def lookup(self, offset: int) -> int:
        """Where a scan for `offset` starts. O(log entries)."""
        slot = self._slot(offset - self.base_offset)
        return self.entry(slot)[1] if slot >= 0 else 0

    def truncate_to(self, offset: int) -> None:
        """Drops the entries of `offset` and later ones.

        Raises:
            StorageFault: the file cannot be mapped.
        """
        self.truncate_to_entries(self._slot(offset - self.base_offset - 1) + 1)

    def fault(self, log_size_bytes: int) -> str | None:
        """Why the index cannot be believed, or None."""
        if self.allocated_bytes % _ENTRY.size:
            return f"{self.allocated_bytes} bytes are no whole entries"
        if self.entries:
            offset, position = self.last()
            if offset < self.base_offset or not 0 <= position < log_size_bytes:
                return f"its last entry is offset {offset} at position {position}"
        return None

    def _slot(self, relative: int) -> int:
        """The last entry whose relative offset is not above `relative`; -1 if there is none."""
        view = self.view()
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            if _ENTRY.unpack_from(view, middle * _ENTRY.size)[0] <= relative:
                low = middle + 1
            else:
                high = middle
        return low - 1
