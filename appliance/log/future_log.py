"""A partition's files on their way to another log directory: a copy that follows the log until it can take its place.

    <topic>-<partition>.<uuid>-future/      the copy, file for file and byte for byte the log's own

    owner                                          any thread
    next_slice ── what to copy, up to SLICE_BYTES ──→ CopySlice.run: sendfile, fdatasync
    copied     ←──────────────────────────────────────┘
      ... until the active segment alone lacks no more than SWAP_BYTES ...
    copy_rest, then the swap (`LogDirectories.swap_in`)

A log only grows at its end, so every stretch is copied once. What is not so has a new `Segment`: compaction puts one in
the place of others, retention takes some away, a cut (`cuts`) changes what was there; then the copy forgets that part.
A closed segment is forced to the disk and takes its source's time of change, so that age by file means the same, and so
that a later life, or the slot's other process, which finds size and time the same need not copy it again.

What is begun anew is a new file. Under the old name there may be one that somebody has open: a thread of the process
that had the partition before, in the middle of a slice. What it still writes, and the time of change that it sets at
the end, are of a file without a name then. So a file whose time says that it is finished was written by one from its
beginning to its end.

Every first part of the copy is a log in itself: Apache Kafka, which names it so too, would go on from there.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.errors import StorageFault
from appliance.log.faults import storage_fault
from appliance.log.file_names import (
    LEADER_EPOCHS,
    LOG,
    MOVED_HERE,
    OFFSET_INDEX,
    PARTITION_METADATA,
    PRODUCER_SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    segment_file_name,
)
from appliance.log.partition_log import PartitionLog
from appliance.log.segment import Segment

SLICE_BYTES: Final = 32 << 20
SLICE_SEGMENTS: Final = 64
UNFORCED_BYTES: Final = 16 << 20
"""So little is not forced slice by slice, or a fast writer would stay ahead of the disk; it is, after the swap."""
SWAP_BYTES: Final = 4 << 20
_PIECE_BYTES: Final = 1 << 20
_OWN_FILES: Final = (PARTITION_METADATA, LEADER_EPOCHS, MOVED_HERE)


class SourceChanged(StorageFault):
    """A file of the log went, or was cut, while it was read: what is to be copied must be asked again."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes [start, end) of one file. `closes`: nothing follows, the file is a closed segment's."""

    name: str
    start: int
    end: int
    closes: bool


@dataclass(frozen=True, slots=True)
class CopySlice:
    """Some of what the copy lacks, to be run once, on any thread.

    `segments` are those it belongs to, as far as they are whole after it; `keep` names the files that may stay in the
    copy, None where all may. `bases` are offsets of producer snapshots that may have come since.
    """

    source: Path
    target: Path
    stretches: tuple[Stretch, ...]
    segments: tuple[tuple[Segment, str, int], ...]
    closed: tuple[Segment, ...]
    bases: tuple[int, ...]
    cuts: int
    forces: bool
    keep: frozenset[str] | None

    def run(self) -> None:
        """Copies.

        Raises:
            SourceChanged: the log is not what it was; nothing is lost by asking for another slice.
            StorageFault: it failed. DiskFull where that was the cause.
        """
        try:
            snapshots = [segment_file_name(base, PRODUCER_SNAPSHOT) for base in self.bases]
            if self.keep is not None:
                for name in os.listdir(self.target):
                    if name not in self.keep:
                        (self.target / name).unlink()
                snapshots = [name for name in os.listdir(self.source) if name.endswith(PRODUCER_SNAPSHOT)]
            for stretch in self.stretches:
                self._copy(stretch)
            for name in snapshots:
                self._copy_snapshot(name)
        except OSError as error:
            raise storage_fault(error, self.target) from error

    def _copy(self, stretch: Stretch) -> None:
        source = self._open(stretch.name)
        try:
            found = os.fstat(source)
            if stretch.closes and not stretch.start and self._is_there(stretch.name, found):
                return
            target = _open_target(self.target / stretch.name, stretch.start)
            try:
                send(source, target, stretch.start, stretch.end)
                if stretch.closes or self.forces:
                    os.fdatasync(target)
                if stretch.closes:
                    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
            finally:
                os.close(target)
        finally:
            os.close(source)

    def _open(self, name: str) -> int:
        try:
            return os.open(self.source / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SourceChanged(f"{self.source / name} is gone") from None

    def _is_there(self, name: str, source: os.stat_result) -> bool:
        try:
            found = os.stat(self.target / name)
        except FileNotFoundError:
            return False
        return (found.st_size, found.st_mtime_ns) == (source.st_size, source.st_mtime_ns)

    def _copy_snapshot(self, name: str) -> None:
        # Of producers whose batches are deleted it is the only memory.
        try:
            content = (self.source / name).read_bytes()
        except FileNotFoundError:
            return
        descriptor = _open_target(self.target / name, 0)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


def _open_target(path: Path, start: int) -> int:
    """A file of the copy to go on with at `start`, cut there; from 0 on it is a new one. Raises OSError."""
    if start == 0:
        with suppress(FileNotFoundError):
            path.unlink()
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(descriptor, start)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def send(source: int, target: int, start: int, end: int) -> None:
    """Copies [start, end) of one open file to the same place of another, in the kernel.

    Raises:
        SourceChanged: the source ends before.
        OSError: it failed.
    """
    os.lseek(target, start, os.SEEK_SET)
    while start < end:
        sent = os.sendfile(target, source, start, min(end - start, _PIECE_BYTES))
        if not sent:
            raise SourceChanged(f"a file ends at {start}")
        start += sent


class FutureLog:
    """The owner's account of one copy. Used by the log's owner; only slices run elsewhere.

    Args:
        directory: of the copy; it exists, and may hold what an earlier life has copied.
    """

    __slots__ = ("_closed", "_copied", "_cuts", "_looks_over", "directory", "forced_to", "log", "size_bytes")

    def __init__(self, log: PartitionLog, directory: Path) -> None:
        self.log = log
        self.directory = directory
        self.size_bytes = 0
        self.forced_to = 0
        """Below it everything is on the disk."""
        self._copied: dict[tuple[Segment, str], int] = {}
        self._closed: set[Segment] = set()
        self._cuts = log.cuts
        self._looks_over = True

    def next_slice(self) -> CopySlice | None:
        """What is to be copied next; None when so little is left that `copy_rest` may be called. O(segments)."""
        log = self.log
        segments = log.segments_since(0)
        self._forget_what_changed(segments)
        keep = self._names(segments) if self._looks_over else None
        stretches: list[Stretch] = []
        reached: list[tuple[Segment, str, int]] = []
        closed: list[Segment] = []
        left = SLICE_BYTES
        for segment in segments:
            if segment in self._closed:
                continue
            if left <= 0 or len(closed) == SLICE_SEGMENTS:
                break
            whole = True
            closes = segment is not segments[-1]
            for suffix, size_bytes in _files(segment):
                start = self._copied.get((segment, suffix), 0)
                end = min(size_bytes, start + left)
                left -= end - start
                whole = whole and end == size_bytes
                if end > start or (closes and end == size_bytes):
                    name = segment_file_name(segment.base_offset, suffix)
                    stretches.append(Stretch(name, start, end, closes and end == size_bytes))
                    reached.append((segment, suffix, end))
            if closes and whole:
                closed.append(segment)
        lacking = sum(stretch.end - stretch.start for stretch in stretches)
        if not closed and not any(s.closes for s in stretches) and lacking <= SWAP_BYTES and keep is None:
            return None
        # Until it is known to have run: half of it may be there, of segments that are gone before the next.
        self._looks_over = True
        return CopySlice(
            log.directory,
            self.directory,
            tuple(stretches),
            tuple(reached),
            tuple(closed),
            tuple(segment.base_offset for segment in (*closed, segments[-1])),
            log.cuts,
            forces=lacking > UNFORCED_BYTES,
            keep=keep,
        )

    def copied(self, done: CopySlice) -> None:
        """Takes a slice that has run into account."""
        if done.cuts != self.log.cuts:
            return
        self._looks_over = False
        for segment, suffix, end in done.segments:
            self._copied[segment, suffix] = end
        self._closed.update(done.closed)
        self.size_bytes = sum(end for (_, suffix), end in self._copied.items() if suffix == LOG)
        first_open = next((s for s in self.log.segments_since(0) if s not in self._closed), None)
        if first_open is not None:
            self.forced_to = max(self.forced_to, first_open.base_offset)

    def copy_rest(self) -> None:
        """Copies what the active segment lacks still, some milliseconds' worth; forces nothing.

        Raises:
            StorageFault: it failed. DiskFull where that was the cause.
        """
        active = self.log.segments_since(self.log.log_end_offset)[-1]
        try:
            for suffix, size_bytes in _files(active):
                start = self._copied.get((active, suffix), 0)
                name = segment_file_name(active.base_offset, suffix)
                source = os.open(self.log.directory / name, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    target = _open_target(self.directory / name, start)
                    try:
                        send(source, target, start, size_bytes)
                    finally:
                        os.close(target)
                finally:
                    os.close(source)
        except OSError as error:
            raise storage_fault(error, self.directory) from error

    @property
    def lag(self) -> int:
        """How many offsets the copy is behind the log's end."""
        for segment in self.log.segments_since(0):
            copied = self._copied.get((segment, LOG), 0)
            if copied < segment.size_bytes:
                return self.log.log_end_offset - _offset_at(segment, copied)
        return 0

    def _forget_what_changed(self, segments: list[Segment]) -> None:
        if self._cuts != self.log.cuts:
            self._cuts = self.log.cuts
            self._copied.clear()
            self._closed.clear()
            self.forced_to = 0
            self._looks_over = True
            return
        living = set(segments)
        gone = {segment for segment, _ in self._copied if segment not in living}
        if gone:
            self._closed -= gone
            self._copied = {key: end for key, end in self._copied.items() if key[0] not in gone}
            self._looks_over = True

    def _names(self, segments: list[Segment]) -> frozenset[str]:
        suffixes = (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)
        names = [
            segment_file_name(segment.base_offset, suffix) for segment in segments for suffix in suffixes
        ]
        return frozenset((*names, *_OWN_FILES))


def _files(segment: Segment) -> Iterator[tuple[str, int]]:
    """(suffix, bytes that count) of the files of a segment, the records last: indexes never point at nothing."""
    if not segment.has_files:
        return
    aborted_bytes = segment.transaction_index.size_bytes
    if aborted_bytes:
        yield TRANSACTION_INDEX, aborted_bytes
    yield OFFSET_INDEX, segment.offset_index.size_bytes
    yield TIME_INDEX, segment.time_index.size_bytes
    yield LOG, segment.size_bytes


def _offset_at(segment: Segment, position: int) -> int:
    """The offset that is indexed at a position or before it; at most one index interval too low."""
    index = segment.offset_index
    was_open = index.is_open
    at = bisect_right(range(index.entries), position, key=lambda number: index.entry(number)[1])
    offset = index.entry(at - 1)[0] if at else segment.base_offset
    if not was_open:
        index.release_mapping()
    return offset
