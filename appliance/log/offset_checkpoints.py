"""The three offset checkpoints of one log directory: an offset for each partition that has been there.

| file | says of a partition |
|---|---|
| `recovery-point-offset-checkpoint` | below it, all is on the disk |
| `log-start-offset-checkpoint` | the smallest offset that may be read, where no name of a file says it |
| `replication-offset-checkpoint` | its high watermark |

A partition that was not opened keeps what was written of it. Where several processes share the directory (`shares`),
each replaces the lines of the partitions it has open and leaves the others' as they are; the line of one that it let
go, it takes out only while nobody has a directory of it. Source: `LogManager.java`, `OffsetCheckpointFile.java`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from threading import Lock
from typing import Final

from appliance.cluster import TopicPartition
from appliance.errors import CorruptFile
from appliance.log.checkpoint import read_offsets, write_offsets
from appliance.log.faults import storage_faults
from appliance.log.file_names import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    parse_future_directory_name,
    parse_partition_directory_name,
)
from appliance.log.partition_log import PartitionLog
from appliance.log.shares import Share, one_at_a_time

_NAMES: Final = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS)
_logger = logging.getLogger(__name__)


class OffsetCheckpoints:
    """Used from the thread of the log directory; `write`, `write_log_starts` and what `expect` returned, from any."""

    __slots__ = (
        "_directory",
        "_dropped",
        "_expected",
        "_known",
        "_open",
        "_paths",
        "_seen",
        "_share",
        "_writing",
        "_written",
    )

    def __init__(
        self, directory: Path, open_logs: Mapping[TopicPartition, PartitionLog], *, share: Share
    ) -> None:
        """Reads them. `open_logs` are those that the directory has open, at any time."""
        self._directory = directory
        self._paths = {name: os.fspath(directory / name) for name in _NAMES}
        self._open = open_logs
        self._share = share
        self._known = {name: self._read(name) for name in _NAMES}
        self._written: dict[str, Mapping[TopicPartition, int]] = {
            name: dict(offsets) for name, offsets in self._known.items()
        }
        self._expected: set[TopicPartition] = set()
        self._dropped: dict[str, set[TopicPartition]] = {name: set() for name in _NAMES}
        self._seen: dict[str, tuple[tuple[int, int, int], Mapping[TopicPartition, int]]] = {}
        self._writing = Lock()

    def _read(self, name: str) -> dict[TopicPartition, int]:
        try:
            return read_offsets(self._directory / name)
        except CorruptFile as fault:
            # Without it more is read, and nothing is lost; the next checkpoint replaces it.
            _logger.warning("%s; starting without it", fault)
            return {}

    # What is written of a partition; 0 of one that was never seen

    def recovery_point(self, partition: TopicPartition) -> int:
        return self._known[RECOVERY_POINTS].get(partition, 0)

    def log_start(self, partition: TopicPartition) -> int:
        return self._known[LOG_STARTS].get(partition, 0)

    def high_watermark(self, partition: TopicPartition) -> int:
        return self._known[HIGH_WATERMARKS].get(partition, 0)

    def has_high_watermark(self, partition: TopicPartition) -> bool:
        """Return whether a high watermark was written down. A clean stop writes that of every open partition."""
        return partition in self._known[HIGH_WATERMARKS]

    def look_again(self, partition: TopicPartition, *, is_new: bool) -> None:
        """What others have written of the partition meanwhile; of a new one, nothing that is there is true.

        Raises:
            StorageFault: a checkpoint cannot be read.
        """
        if self._share.is_whole:
            return
        for name, offsets in self._known.items():
            offsets.pop(partition, None)
            written = None if is_new else self._read_again(name).get(partition)
            if written is not None:
                offsets[partition] = written

    def _read_again(self, name: str) -> Mapping[TopicPartition, int]:
        """A checkpoint as it is now; it is parsed only if it was replaced."""
        with storage_faults(self._directory):
            try:
                status = os.stat(self._paths[name])
            except FileNotFoundError:
                return {}
        mark = (status.st_ino, status.st_mtime_ns, status.st_size)
        seen = self._seen.get(name)
        if seen is None or seen[0] != mark:
            seen = self._seen[name] = mark, self._read(name)
        return seen[1]

    # Partitions that come and go

    def expect(self, partition: TopicPartition, *, recovery_point: int, log_start: int) -> Callable[[], None]:
        """A partition will come here (`LogDirectory.take_in`); what is returned writes that down, on any thread.

        Raises, when it is called:
            StorageFault: it failed.
        """
        self._known[RECOVERY_POINTS][partition] = recovery_point
        self._known[LOG_STARTS][partition] = log_start
        self._expected.add(partition)

        def run() -> None:
            for name, offset in ((RECOVERY_POINTS, recovery_point), (LOG_STARTS, log_start)):
                self._replace(name, {**self._written[name], partition: offset}, of={partition})

        return run

    def has_come(self, partition: TopicPartition) -> None:
        """It is open here: its lines are ours."""
        self._expected.discard(partition)
        for dropped in self._dropped.values():
            dropped.discard(partition)

    def forget(self, partition: TopicPartition) -> None:
        """It has gone, or did not come: its lines go with the next writing."""
        for offsets in self._known.values():
            offsets.pop(partition, None)
        self._expected.discard(partition)
        if not self._share.is_whole:
            for dropped in self._dropped.values():
                dropped.add(partition)

    # Writing

    def write(
        self,
        logs: Mapping[TopicPartition, PartitionLog],
        high_watermarks: Mapping[TopicPartition, int] | None,
    ) -> None:
        """Replaces each checkpoint by what these logs say, if it would change; high watermarks where they are given.

        Raises:
            StorageFault: it failed; the old file stands.
        """
        points = {name: log.recovery_point for name, log in logs.items()}
        self._replace(RECOVERY_POINTS, self._known[RECOVERY_POINTS] | points, of=logs.keys())
        self.write_log_starts(logs)
        if high_watermarks is not None:
            marks = {**self._known[HIGH_WATERMARKS], **high_watermarks}
            self._replace(HIGH_WATERMARKS, marks, of=high_watermarks.keys())

    def write_log_starts(self, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        """As `write`, the log starts alone."""
        # Where the first segment begins is said by its name already, as for most logs most of the time. A log that was
        # deleted meanwhile must say nothing: its successor of the same name would be opened with its start.
        starts = {name: start for name, start in dict(self._known[LOG_STARTS]).items() if name not in logs}
        for name, log in logs.items():
            start = log.log_start_offset
            if start > log.first_base_offset and self._open.get(name) is log:
                starts[name] = start
        self._replace(LOG_STARTS, starts, of=logs.keys())

    def _replace(
        self, name: str, offsets: Mapping[TopicPartition, int], *, of: Collection[TopicPartition]
    ) -> None:
        """Replaces a checkpoint, if it would change. `of` are those that it is about; where the directory is shared,
        the lines of all others are others'."""
        with self._writing:
            if self._share.is_whole:
                if self._written[name] != offsets:
                    write_offsets(self._directory / name, offsets)
                    self._written[name] = offsets
                return
            with one_at_a_time(self._directory):
                before = self._read(name)
                ours = {each for each in of if each in self._open or each in self._expected}
                gone = self._gone(name)
                after = {each: offset for each, offset in before.items() if each not in gone | ours}
                after.update((each, offset) for each, offset in offsets.items() if each in ours)
                if after != before:
                    write_offsets(self._directory / name, after)
                self._dropped[name] -= gone

    def _gone(self, name: str) -> set[TopicPartition]:
        """Whose lines are to go from a checkpoint: those that we let go and that nobody has taken since."""
        dropped = self._dropped[name]
        if not dropped:
            return set()
        with storage_faults(self._directory):
            names = os.listdir(self._directory)
        here = {parse_partition_directory_name(each) or parse_future_directory_name(each) for each in names}
        return {partition for partition in dropped.copy() if partition not in here}
