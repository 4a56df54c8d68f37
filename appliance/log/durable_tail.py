"""How far one log is on the disk, for `durability = "fsync"`: what to force before a record may be acknowledged.

    recovery point         durable                    log end
        │                     │                          │
    ├───┴─────────────────────┴──────────────────────────┤
     indexes too             .log only: acknowledged      answers wait

A flush forces the `.log` files that hold records beyond `durable` and, where a name is new, the directory and the
small files without which the records could not be found. Nothing else: indexes and snapshots are forced later, beside
the requests, and move the recovery point. After a power cut recovery reads from the recovery point and finds what was
acknowledged, or the disk has lied.

The flush goes through a duplicate of the descriptor that the records were written through. Linux reports a failed
write-back once to every open file description, so an error that came up earlier is seen here and by nobody before.
Whoever sees it must not flush again: the pages are marked clean by then, and the next flush would succeed over
records that are not there (PostgreSQL's "fsyncgate"; `fsync(2)`, errors). A `.log` file without a name is a failure
as well: its records go with the process.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.errors import StorageFault
from appliance.log.checkpoint import sync_directory
from appliance.log.faults import storage_fault, storage_faults
from appliance.log.file_names import (
    LEADER_EPOCHS,
    LOG,
    PARTITION_METADATA,
    parse_segment_file_name,
    segment_file_name,
)
from appliance.log.flush_times import FLUSH_TIMES

if TYPE_CHECKING:
    from appliance.log.partition_log import PartitionLog

_NOTHING_NAMED = -1


@dataclass(frozen=True, slots=True)
class TailFlush:
    """One flush of one log, to be run once, on any thread. The last of `descriptors` is the active segment's."""

    directory: Path
    descriptors: tuple[int, ...]
    named: tuple[Path, ...]
    end_offset: int
    cuts: int
    active_base: int

    def run(self) -> None:
        """Forces everything below `end_offset` to the disk, and closes its descriptors.

        Raises:
            StorageFault: it failed; what was to be flushed may be lost.
        """
        began_ns = time.monotonic_ns()
        try:
            try:
                for descriptor in self.descriptors:
                    os.fdatasync(descriptor)
                if not os.fstat(self.descriptors[-1]).st_nlink:
                    raise StorageFault(f"{self.directory}: its segments were removed")
                for directory in self.named:
                    sync_directory(directory)
                FLUSH_TIMES.note(began_ns)
            except OSError as error:
                raise storage_fault(error, self.directory) from error
        finally:
            for descriptor in self.descriptors:
                os.close(descriptor)


class DurableTail:
    """One log's acknowledgement point. Used by the log's owner; only a `TailFlush` runs elsewhere.

    Args:
        log: its records below `log_end_offset` count as durable from the start.
        flushed_to: below it they surely are; the first flush covers what follows.
    """

    __slots__ = ("_flushed_to", "_log", "_named_base", "offset")

    def __init__(self, log: PartitionLog, *, flushed_to: int) -> None:
        self._log = log
        self._flushed_to = flushed_to
        self._named_base = _NOTHING_NAMED
        self.offset = log.log_end_offset

    def flush(self) -> TailFlush:
        """What has to run before the records that are in the log now are durable.

        Raises:
            StorageFault: a file is gone or cannot be opened.
        """
        log = self._log
        segments = log.segments_since(self._flushed_to)
        active_base = segments[-1].base_offset
        named: tuple[Path, ...] = ()
        small: tuple[str, ...] = ()
        if active_base != self._named_base:
            named, small = (log.directory,), (LEADER_EPOCHS,)
            if self._named_base == _NOTHING_NAMED:
                named, small = (log.directory, log.directory.parent), (PARTITION_METADATA, LEADER_EPOCHS)
        descriptors: list[int] = []
        try:
            for name in small:
                with storage_faults(log.directory), suppress(FileNotFoundError):
                    descriptors.append(os.open(log.directory / name, os.O_RDONLY | os.O_CLOEXEC))
            for segment in segments:
                descriptors.append(segment.file.duplicate())
        except StorageFault:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return TailFlush(log.directory, tuple(descriptors), named, log.log_end_offset, log.cuts, active_base)

    def flushed(self, flush: TailFlush) -> None:
        """Takes a flush that has run into account; one that was begun before the log was cut proves nothing."""
        if flush.cuts != self._log.cuts:
            self._flushed_to = min(self._flushed_to, self._log.recovery_point)
            self.offset = min(self.offset, self._log.log_end_offset)
            return
        self._named_base = flush.active_base
        self._flushed_to = max(self._flushed_to, flush.end_offset)
        self.offset = max(self.offset, flush.end_offset)


def read_from_disk(directory: Path, recovery_point: int) -> None:
    """Makes the reads of a recovery see what the disk holds from `recovery_point` on, and what they find durable.

    After a crash of the process alone the page cache may still hold records whose write-back failed, marked clean. So
    what can be written is forced, and what is cached is dropped.

    Raises:
        StorageFault: it failed.
    """
    with storage_faults(directory):
        bases = []
        for name in os.listdir(directory):
            parsed = parse_segment_file_name(name)
            if parsed is not None and parsed[1] == LOG:
                bases.append(parsed[0])
        first = max((base for base in bases if base <= recovery_point), default=0)
        for base in bases:
            if base < first:
                continue
            descriptor = os.open(directory / segment_file_name(base, LOG), os.O_RDWR | os.O_CLOEXEC)
            try:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
        sync_directory(directory)
        sync_directory(directory.parent)
