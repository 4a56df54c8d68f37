"""The `.timeindex` of a segment: from a timestamp to an offset before which nothing is that late.

    entry (12 bytes)   timestamp int64 · relative offset int32

An entry says: the largest timestamp up to here is `timestamp`, first reached in the batch that ends with offset
`base + relative offset`. Timestamps rise strictly. The last entry of a closed segment is its largest timestamp.
Source: `TimeIndex.java`; KIP-33.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from appliance.log.file_names import TIME_INDEX
from appliance.log.index_file import IndexFile
from appliance.protocol.records.batch import NO_TIMESTAMP

_ENTRY: Final = Struct(">qi")


class TimeIndex(IndexFile):
    """Entries of (timestamp in ms, relative offset), both rising."""

    ENTRY_BYTES = _ENTRY.size
    SUFFIX = TIME_INDEX

    __slots__ = ()

    @property
    def is_full(self) -> bool:
        # One entry is kept for the largest timestamp, written when the segment is closed.
        return self.entries >= self.entries_max - 1

    def append_if_later(self, timestamp_ms: int, offset: int) -> None:
        """Adds an entry if its timestamp is above the last one's; the room must be reserved."""
        if timestamp_ms > self.last()[0]:
            _ENTRY.pack_into(self.view(), self.entries * _ENTRY.size, timestamp_ms, offset - self.base_offset)
            self.entries += 1

    def entry(self, number: int) -> tuple[int, int]:
        """(timestamp in ms, offset) of one entry."""
        timestamp_ms, relative = _ENTRY.unpack_from(self.view(), number * _ENTRY.size)
        return timestamp_ms, self.base_offset + relative

    def last(self) -> tuple[int, int]:
        """(timestamp in ms, offset) of the last entry, (-1, base offset) if there is none."""
        return self.entry(self.entries - 1) if self.entries else (NO_TIMESTAMP, self.base_offset)

    def lookup(self, timestamp_ms: int) -> int:
        """An offset from which a scan finds the first record of at least `timestamp_ms`. O(log entries)."""
        low, high = 0, self.entries
        view = self.view()
        while low < high:
            middle = (low + high) // 2
            if _ENTRY.unpack_from(view, middle * _ENTRY.size)[0] < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return self.entry(low - 1)[1] if low else self.base_offset

    def truncate_to(self, offset: int) -> None:
        """Drops the entries of `offset` and later ones.

        Raises:
            StorageFault: the file cannot be mapped.
        """
        relative = offset - self.base_offset
        view = self.view()
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            if _ENTRY.unpack_from(view, middle * _ENTRY.size)[1] < relative:
                low = middle + 1
            else:
                high = middle
        self.truncate_to_entries(low)

    def fault(self) -> str | None:
        """Why the index cannot be believed, or None."""
        if self.allocated_bytes % _ENTRY.size:
            return f"{self.allocated_bytes} bytes are no whole entries"
        if self.entries:
            timestamp_ms, offset = self.last()
            if timestamp_ms < self.entry(0)[0] or offset < self.base_offset:
                return f"its last entry is timestamp {timestamp_ms} at offset {offset}"
        return None
