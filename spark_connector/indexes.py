"""A segment's indexes as arrays. They are hints: every entry is held against the batch it points to before it counts.

The index of a segment that is appended to has room ahead, which reads as zeros; entries count as far as they rise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from appliance.log.file_names import OFFSET_INDEX, TIME_INDEX, segment_file_name
from spark_connector.storage import below, is_address, open_file, read_file

_OFFSET: Final = np.dtype([("relative", ">i4"), ("position", ">i4")])
_TIME: Final = np.dtype([("timestamp", ">i8"), ("relative", ">i4")])
Int64s = npt.NDArray[np.int64]
_WINDOW_ENTRIES: Final = 4096


@dataclass(frozen=True, slots=True)
class OffsetEntries:
    """The batch at `positions[i]` ends with `offsets[i]` or before; both rise."""

    offsets: Int64s
    positions: Int64s

    def floor(self, offset: int) -> tuple[int, int] | None:
        """(offset, position) of the last entry that is not above `offset`."""
        slot = int(np.searchsorted(self.offsets, offset, side="right")) - 1
        return (int(self.offsets[slot]), int(self.positions[slot])) if slot >= 0 else None

    def end_after(self, offset: int) -> int | None:
        """A position at or behind the end of the batch that holds `offset`; None: the end of the file."""
        slot = int(np.searchsorted(self.offsets, offset, side="left")) + 1
        return int(self.positions[slot]) if slot < len(self.positions) else None


@dataclass(frozen=True, slots=True)
class TimeEntries:
    """Up to the batch that ends with `offsets[i]` the largest timestamp is `timestamps_ms[i]`; both rise."""

    timestamps_ms: Int64s
    offsets: Int64s

    def before(self, timestamp_ms: int) -> int | None:
        """An offset up to which every record is earlier; None where no entry says one."""
        slot = int(np.searchsorted(self.timestamps_ms, timestamp_ms, side="left")) - 1
        return int(self.offsets[slot]) if slot >= 0 else None

    def after(self, timestamp_ms: int) -> int | None:
        """An offset of a batch that reaches beyond `timestamp_ms`; None where no entry does."""
        slot = int(np.searchsorted(self.timestamps_ms, timestamp_ms, side="right"))
        return int(self.offsets[slot]) if slot < len(self.offsets) else None


def offset_entries(directory: str, base_offset: int, *, size_bytes: int, suffix: str = "") -> OffsetEntries:
    """The offset index of a segment of `size_bytes`; none where there is no file. `suffix`: `.deleted`."""
    raw = _read(directory, base_offset, OFFSET_INDEX + suffix, _OFFSET)
    relative, positions = raw["relative"].astype(np.int64), raw["position"].astype(np.int64)
    count = _rising(positions, relative)
    if count:
        count = min(count, int(np.searchsorted(positions[:count], size_bytes)))
    return OffsetEntries(relative[:count] + base_offset, positions[:count])


def time_entries(directory: str, base_offset: int, *, suffix: str = "") -> TimeEntries:
    """The time index of a segment; none where there is no file."""
    raw = _read(directory, base_offset, TIME_INDEX + suffix, _TIME)
    timestamps, relative = raw["timestamp"].astype(np.int64), raw["relative"].astype(np.int64)
    count = _rising(timestamps, relative)
    return TimeEntries(timestamps[:count], relative[:count] + base_offset)


def _read(directory: str, base_offset: int, suffix: str, entry: np.dtype[np.void]) -> npt.NDArray[np.void]:
    path = below(directory, segment_file_name(base_offset, suffix))
    try:
        content = read_file(path) if is_address(path) else _without_room(path, entry.itemsize)
    except OSError:
        content = b""
    return np.frombuffer(content, dtype=entry, count=len(content) // entry.itemsize)


def _without_room(path: str, entry_bytes: int) -> bytes:
    """A file up to about where zeros begin: Apache Kafka takes 10 MiB ahead for each index of an active segment."""
    window_bytes = _WINDOW_ENTRIES * entry_bytes
    pieces: list[bytes] = []
    file = open_file(path)
    try:
        while True:
            piece = file.read(window_bytes, len(pieces) * window_bytes)
            pieces.append(piece)
            if len(piece) < window_bytes or not any(piece[-entry_bytes:]):
                return b"".join(pieces)
    finally:
        file.close()


def _rising(first: Int64s, second: Int64s) -> int:
    """How many entries rise strictly in `first` and never fall in `second`; zeros are room ahead."""
    if not len(first):
        return 0
    if first[0] <= 0 or second[0] < 0:
        return 0
    falls = np.flatnonzero((first[1:] <= first[:-1]) | (second[1:] < second[:-1]))
    return int(falls[0]) + 1 if len(falls) else len(first)
