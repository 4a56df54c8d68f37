"""A segment: a stretch of the log in one `.log` file, and the indexes that find things in it.

Rules of its indexes (`LogSegment.java`): before a batch is appended, if more than `index.interval.bytes` were
appended since the last entry, an entry is added that points at this batch. Closing the segment adds its largest
timestamp to the time index.

The active segment remembers the places of its newest batches (`_Recent`): a consumer at the end of the log, the
commonest reader by far, is answered without touching index or file.

The first segment of a new log has no files before it has a batch (`put_off`): a directory without any says as much, to
Apache Kafka too, and thousands of partitions are made at once that get their first record one by one, or never.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.errors import ApplianceDefect, CorruptFile
from appliance.log.config import LogSettings
from appliance.log.faults import storage_faults
from appliance.log.file_names import (
    LOG,
    OFFSET_INDEX,
    SEGMENT_SUFFIXES,
    TIME_INDEX,
    TRANSACTION_INDEX,
    segment_file_name,
)
from appliance.log.offset_index import OffsetIndex
from appliance.log.segment_file import Header, SegmentFile
from appliance.log.time_index import TimeIndex
from appliance.log.transaction_index import TransactionIndex
from appliance.protocol.records.batch import (
    H_BASE_OFFSET,
    H_BATCH_LENGTH,
    H_LAST_OFFSET_DELTA,
    H_MAX_TIMESTAMP,
    HEADER_BYTES,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
)

RELATIVE_OFFSET_MAX: Final = 2**31 - 1
_RECENT_BATCHES: Final = 256
_NOTHING_RECENT: Final = array("q")
"""Of all segments that nobody appends to; never changed."""
_UNKNOWN: Final = -2
_SCAN_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class SegmentStatistics:
    """What a segment holds, for status and tests."""

    base_offset: int
    size_bytes: int
    allocated_bytes: int
    offset_entries: int
    time_entries: int
    is_open: bool


class Segment:
    """One segment. Which one is active only its log knows; appending is for that one."""

    __slots__ = (
        "_bytes_since_entry",
        "_first_timestamp_ms",
        "_index_interval_bytes",
        "_max_timestamp_ms",
        "_max_timestamp_offset",
        "_recent_first_offset",
        "_recent_last_offsets",
        "_recent_positions",
        "base_offset",
        "before_files",
        "created_ms",
        "directory",
        "file",
        "has_files",
        "jitter_ms",
        "offset_index",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        *,
        settings: LogSettings,
        created_ms: int,
        jitter_ms: int = 0,
        size_bytes: int = 0,
        offset_index_bytes: int = 0,
        time_index_bytes: int = 0,
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.jitter_ms = jitter_ms
        self.has_files = True
        self.before_files: Callable[[], None] | None = None
        self.file = SegmentFile(
            directory,
            base_offset,
            size_bytes=size_bytes,
            growth_bytes_max=max(settings.segment_bytes, size_bytes),
        )
        index_bytes_max = settings.segment_index_bytes
        self.offset_index = OffsetIndex(
            directory, base_offset, size_bytes=offset_index_bytes, bytes_max=index_bytes_max
        )
        self.time_index = TimeIndex(
            directory, base_offset, size_bytes=time_index_bytes, bytes_max=index_bytes_max
        )
        self.transaction_index = TransactionIndex(directory, base_offset)
        self._index_interval_bytes = settings.index_interval_bytes
        self._bytes_since_entry = 0
        self._max_timestamp_ms = _UNKNOWN
        self._max_timestamp_offset = base_offset
        self._first_timestamp_ms = _UNKNOWN
        self._recent_first_offset = RELATIVE_OFFSET_MAX << 32
        self._recent_last_offsets = _NOTHING_RECENT
        self._recent_positions = _NOTHING_RECENT

    def path(self, suffix: str) -> Path:
        """Where the file of this segment with a suffix lies."""
        return self.directory / segment_file_name(self.base_offset, suffix)

    def relocate(self, directory: Path) -> None:
        """Goes on with the files of the same names and contents in another directory."""
        self.directory = directory
        self.file.relocate(directory)
        self.offset_index.relocate(directory)
        self.time_index.relocate(directory)
        self.transaction_index.relocate(directory)

    def create(self) -> None:
        """Makes the empty files.

        Raises:
            DiskFull, StorageFault: it failed; what was made is removed.
        """
        if self.before_files is not None:
            self.before_files()
        try:
            self.file.create()
            self.offset_index.create()
            self.time_index.create()
        except Exception:
            self.delete()
            raise
        self.has_files = True
        self.before_files = None
        self._max_timestamp_ms = NO_TIMESTAMP

    def put_off(self) -> None:
        """Instead of `create`: the files come with the first batch, after what `before_files` does then. For a segment
        that is alone and begins at 0."""
        self.has_files = False
        self._max_timestamp_ms = NO_TIMESTAMP

    def update_settings(self, settings: LogSettings) -> None:
        """Takes the new distance of index entries, and room for as much as the segment may now hold.

        The largest size of its indexes stays: they have their room already.
        """
        self._index_interval_bytes = settings.index_interval_bytes
        self.file.growth_bytes_max = max(settings.segment_bytes, self.file.size_bytes)

    # Appending

    def append(
        self,
        batch: memoryview,
        placement: bytes,
        *,
        base_offset: int,
        last_offset: int,
        max_timestamp_ms: int,
    ) -> None:
        """Appends one batch, whose first bytes become `placement`, and indexes it.

        Raises:
            DiskFull, StorageFault: it failed; the segment is as it was.
        """
        file = self.file
        position = file.size_bytes
        length_bytes = len(batch)
        if position + length_bytes > file.allocated_bytes:
            self._make_room(length_bytes)
        index_it = self._bytes_since_entry > self._index_interval_bytes
        if index_it:
            self.offset_index.reserve()
            self.time_index.reserve()
        if self._max_timestamp_ms == _UNKNOWN:
            self._load_max_timestamp()
        file.append(batch, placement)
        if max_timestamp_ms > self._max_timestamp_ms:
            self._max_timestamp_ms = max_timestamp_ms
            self._max_timestamp_offset = last_offset
        if index_it:
            self.offset_index.append(last_offset, position)
            self.time_index.append_if_later(self._max_timestamp_ms, self._max_timestamp_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += length_bytes
        if position == 0:
            self._first_timestamp_ms = max_timestamp_ms
        recent = self._recent_positions
        if not recent:
            self._recent_first_offset = base_offset
            recent = self._recent_positions = array("q")
            self._recent_last_offsets = array("q")
        elif len(recent) == _RECENT_BATCHES:
            self._forget_older_half()
        recent.append(position)
        self._recent_last_offsets.append(last_offset)

    def _make_room(self, length_bytes: int) -> None:
        if not self.has_files:
            self.create()
        self.file.reserve(length_bytes)

    def _forget_older_half(self) -> None:
        half = _RECENT_BATCHES // 2
        self._recent_first_offset = self._recent_last_offsets[half - 1] + 1
        del self._recent_positions[:half]
        del self._recent_last_offsets[:half]

    def _forget_recent(self) -> None:
        self._recent_first_offset = RELATIVE_OFFSET_MAX << 32
        self._recent_positions = self._recent_last_offsets = _NOTHING_RECENT

    def must_roll(
        self,
        length_bytes: int,
        *,
        last_offset: int,
        max_timestamp_ms: int,
        now_ms: int,
        settings: LogSettings,
    ) -> bool:
        """Whether a batch has to go into a next segment (`LogSegment.shouldRoll`)."""
        size_bytes = self.file.size_bytes
        return (
            size_bytes + length_bytes > settings.segment_bytes
            or (
                size_bytes > 0
                and self.waited_ms(now_ms, max_timestamp_ms) > settings.segment_ms - self.jitter_ms
            )
            or self.offset_index.is_full
            or self.time_index.is_full
            or last_offset - self.base_offset > RELATIVE_OFFSET_MAX
        )

    def cannot_take(self, last_offset: int) -> bool:
        """Whether a batch that ends there cannot be indexed here."""
        return (
            self.offset_index.is_full
            or self.time_index.is_full
            or last_offset - self.base_offset > RELATIVE_OFFSET_MAX
        )

    def waited_ms(self, now_ms: int, timestamp_ms: int) -> int:
        """How long the segment has been filled, by the records' clock if they have one, else by ours."""
        first_ms = self.first_timestamp_ms
        return timestamp_ms - first_ms if first_ms >= 0 else now_ms - self.created_ms

    @property
    def first_timestamp_ms(self) -> int:
        """Largest timestamp of the first batch; -1 without one."""
        if self._first_timestamp_ms == _UNKNOWN:
            first = next(self.file.headers(0, end=self.file.size_bytes), None)
            if first is None:
                return NO_TIMESTAMP
            self._first_timestamp_ms = first[1][8]
        return self._first_timestamp_ms

    # Finding

    def locate(self, offset: int) -> tuple[int, int] | None:
        """(position, size in bytes) of the first batch that ends with `offset` or later.

        O(log batches) at the end of the active segment, else one index lookup and a scan of about
        `index.interval.bytes`.

        Raises:
            StorageFault, CorruptFile: the file cannot be read.
        """
        if offset >= self._recent_first_offset:
            positions = self._recent_positions
            slot = bisect_left(self._recent_last_offsets, offset)
            if slot < len(positions):
                position = positions[slot]
                end = positions[slot + 1] if slot + 1 < len(positions) else self.file.size_bytes
                return position, end - position
            return None
        for position, header in self._headers_near(offset):
            if header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] >= offset:
                return position, header[H_BATCH_LENGTH] + LOG_OVERHEAD
        return None

    def _headers_near(self, offset: int) -> Iterator[tuple[int, Header]]:
        # The batch wanted begins at most one interval behind the entry; more would be read for nothing.
        return self.file.headers(
            self.offset_index.lookup(offset),
            end=self.file.size_bytes,
            read_bytes=min(self._index_interval_bytes, _SCAN_BYTES_MAX) + HEADER_BYTES,
            ends_whole=True,
        )

    def max_timestamp(self) -> tuple[int, int]:
        """(largest timestamp in ms, last offset of the batch that reached it first); (-1, base offset) without."""
        if self._max_timestamp_ms == _UNKNOWN:
            self._load_max_timestamp()
        return self._max_timestamp_ms, self._max_timestamp_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of its batches."""
        return self.file.size_bytes

    def largest_timestamp_ms(self) -> int:
        """By what its age is told (`LogSegment.largestTimestamp`): of its records, or of the file if they have none.

        Leaves no index open that was not.

        Raises:
            StorageFault: the index or the file cannot be read.
        """
        if self._max_timestamp_ms == _UNKNOWN:
            was_open = self.time_index.is_open
            self._load_max_timestamp()
            if not was_open:
                self.time_index.release_mapping()
        if self._max_timestamp_ms >= 0:
            return self._max_timestamp_ms
        with storage_faults(self.file.path):
            return os.stat(self.file.path).st_mtime_ns // 1_000_000

    def _load_max_timestamp(self) -> None:
        self._max_timestamp_ms, self._max_timestamp_offset = self.time_index.last()

    def batches_from_timestamp(self, timestamp_ms: int, first_offset: int) -> Iterator[tuple[int, Header]]:
        """(position, header) of batches from the first that may hold a record of at least `timestamp_ms`."""
        start = max(self.time_index.lookup(timestamp_ms), first_offset)
        for position, header in self._headers_near(start):
            if (
                header[H_MAX_TIMESTAMP] >= timestamp_ms
                and header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] >= first_offset
            ):
                yield position, header

    # Life

    def load_tail(self) -> int:
        """Reads on from the last index entries to the end of the file; returns the next offset.

        Takes the batches as sound. Zeros behind the last one are cut.

        Raises:
            StorageFault: the file cannot be read.
            CorruptFile: it ends before its last index entry, or inside of a batch: some of it has gone.
        """
        _, position = self.offset_index.last()
        timestamp_ms, timestamp_offset = self.time_index.last()
        next_offset = self.base_offset
        end = position
        for at, header in self.file.headers(position, end=self.file.size_bytes):
            next_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
            end = at + header[H_BATCH_LENGTH] + LOG_OVERHEAD
            if header[H_MAX_TIMESTAMP] > timestamp_ms:
                timestamp_ms, timestamp_offset = header[H_MAX_TIMESTAMP], next_offset - 1
        if position and end == position:
            raise CorruptFile(
                f"{self.file.path} holds no batch at position {end}, where its index says there is one"
            )
        if end != self.file.size_bytes:
            if self.file.read(end, LOG_OVERHEAD).strip(b"\0"):
                raise CorruptFile(f"{self.file.path} holds no whole batch at position {end}")
            self.file.truncate(end)
        self._max_timestamp_ms, self._max_timestamp_offset = timestamp_ms, timestamp_offset
        self._bytes_since_entry = end - position
        return next_offset

    def lay_down(self) -> tuple[int, int, int]:
        """Lets go of everything for another process, which goes on in the room that is ours.

        Returns the bytes of the file that count, and the entries of both indexes.
        """
        self.abandon()
        return self.file.size_bytes, self.offset_index.entries, self.time_index.entries

    def take_up(self, size_bytes: int, offset_entries: int, time_entries: int) -> None:
        """Goes on with what `lay_down` returned, where the files can hold that."""
        if (
            size_bytes <= self.file.size_bytes
            and offset_entries <= self.offset_index.entries
            and time_entries <= self.time_index.entries
        ):
            self.file.end_at(size_bytes)
            self.offset_index.end_at(offset_entries)
            self.time_index.end_at(time_entries)

    @property
    def file_bytes(self) -> tuple[int, int, int]:
        """Bytes of `.log`, `.index` and `.timeindex`, with the room ahead."""
        return self.file.allocated_bytes, self.offset_index.allocated_bytes, self.time_index.allocated_bytes

    def tail(self) -> tuple[int, int, int, int] | None:
        """What `load_tail` would find out, for `go_on_from`; None where that is not known.

        Timestamps of the first batch and the largest one, in ms; the last offset of the batch that has the largest;
        bytes since the last entry of the index.
        """
        if self._max_timestamp_ms == _UNKNOWN:
            return None
        return (
            self._first_timestamp_ms,
            self._max_timestamp_ms,
            self._max_timestamp_offset,
            self._bytes_since_entry,
        )

    def go_on_from(self, tail: tuple[int, int, int, int]) -> None:
        """Instead of `load_tail`, after `take_up`: takes another process's word for it."""
        (
            self._first_timestamp_ms,
            self._max_timestamp_ms,
            self._max_timestamp_offset,
            self._bytes_since_entry,
        ) = tail

    def start_rebuild(self) -> None:
        """Empties the indexes; `index_batch` for every batch and `finish_rebuild` fill them again.

        Raises:
            StorageFault: it failed.
        """
        self.offset_index.empty()
        self.time_index.empty()
        self.transaction_index.reset()
        self._forget_recent()
        self._max_timestamp_ms = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset
        self._first_timestamp_ms = _UNKNOWN
        self._bytes_since_entry = 0

    def index_batch(self, position: int, size_bytes: int, *, last_offset: int, max_timestamp_ms: int) -> None:
        """Indexes a batch that is in the file already, as its append would have.

        Raises:
            DiskFull, StorageFault: an index cannot grow.
        """
        if max_timestamp_ms > self._max_timestamp_ms:
            self._max_timestamp_ms = max_timestamp_ms
            self._max_timestamp_offset = last_offset
        if self._bytes_since_entry > self._index_interval_bytes:
            self.offset_index.reserve()
            self.time_index.reserve()
            self.offset_index.append(last_offset, position)
            self.time_index.append_if_later(self._max_timestamp_ms, self._max_timestamp_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size_bytes

    def seal(self) -> None:
        """Writes the largest timestamp, trims all files and lets go of them.

        Raises:
            DiskFull, StorageFault: it failed.
        """
        timestamp_ms, offset = self.max_timestamp()
        if timestamp_ms > self.time_index.last()[0]:
            self.time_index.reserve()
            self.time_index.append_if_later(timestamp_ms, offset)
        self.release()
        self._forget_recent()

    def release(self) -> None:
        """Lets go of every descriptor and mapping; files are trimmed to what they hold.

        Raises:
            StorageFault: it failed.
        """
        self.file.release()
        self.offset_index.release()
        self.time_index.release()

    def abandon(self) -> None:
        """Lets go of every descriptor and mapping and leaves the files as they are."""
        self.file.abandon()
        self.offset_index.release_mapping()
        self.time_index.release_mapping()

    def truncate_to(self, offset: int) -> int:
        """Drops the batches that end with `offset` or later; returns the next offset.

        The transaction index is left to the caller, for when the marker's end is published.

        Raises:
            StorageFault, CorruptFile: it failed; nothing is dropped.
        """
        found = self.locate(offset)
        if found is not None:
            self.file.truncate(found[0])
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self._forget_recent()
        if self.file.size_bytes == 0:
            self._first_timestamp_ms = _UNKNOWN
        return self.load_tail()

    def rename(self, old_suffix: str, new_suffix: str) -> None:
        """Renames every file from one suffix after its own to another; missing ones are passed over.

        Raises:
            StorageFault: it failed.
        """
        for suffix in SEGMENT_SUFFIXES:
            with storage_faults(self.directory), suppress(FileNotFoundError):
                os.rename(self.path(suffix + old_suffix), self.path(suffix + new_suffix))

    def delete(self) -> None:
        """Removes every file; a reader that has one open keeps it.

        Raises:
            StorageFault: it failed.
        """
        self.abandon()
        for suffix in (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX):
            with storage_faults(self.directory):
                self.path(suffix).unlink(missing_ok=True)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files whose content must be on the disk for the segment to be."""
        return self.path(LOG), self.path(OFFSET_INDEX), self.path(TIME_INDEX), self.path(TRANSACTION_INDEX)

    def check(self) -> int:
        """Reads everything and compares: batches rise, indexes point at batches and say the truth of them.

        Returns the next offset.

        Raises:
            ApplianceDefect: naming what does not hold.
        """
        ends: dict[int, int] = {}
        largest: dict[int, int] = {}
        next_offset = self.base_offset
        position = 0
        timestamp_ms = NO_TIMESTAMP
        for at, header in self.file.headers(0, end=self.file.size_bytes):
            if at != position or header[H_BASE_OFFSET] < next_offset:
                raise ApplianceDefect(
                    f"{self.file.path}: batch {header[H_BASE_OFFSET]} at {at} does not follow {next_offset}"
                )
            next_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
            position = at + header[H_BATCH_LENGTH] + LOG_OVERHEAD
            ends[at] = next_offset - 1
            largest[next_offset - 1] = header[H_MAX_TIMESTAMP]
            timestamp_ms = max(timestamp_ms, header[H_MAX_TIMESTAMP])
        if position != self.file.size_bytes:
            raise ApplianceDefect(
                f"{self.file.path}: batches end at {position}, not at {self.file.size_bytes}"
            )
        entries = [self.offset_index.entry(number) for number in range(self.offset_index.entries)]
        if entries != sorted(set(entries)) or any(ends.get(place) != offset for offset, place in entries):
            raise ApplianceDefect(f"{self.offset_index.path}: an entry points beside its batch")
        times = [self.time_index.entry(number) for number in range(self.time_index.entries)]
        if times != sorted(set(times)) or any(largest.get(offset) != time for time, offset in times):
            raise ApplianceDefect(f"{self.time_index.path}: an entry names no batch with its timestamp")
        if position and self.max_timestamp()[0] != timestamp_ms:
            raise ApplianceDefect(f"{self.file.path}: largest timestamp {timestamp_ms} is not known")
        return next_offset

    def statistics(self) -> SegmentStatistics:
        return SegmentStatistics(
            base_offset=self.base_offset,
            size_bytes=self.file.size_bytes,
            allocated_bytes=self.file.allocated_bytes,
            offset_entries=self.offset_index.entries,
            time_entries=self.time_index.entries,
            is_open=self.file.is_open or self.offset_index.is_open or self.time_index.is_open,
        )
