"""One log directory of one broker slot: its partitions, its checkpoints, and who may use it.

    open     .lock is taken (one instance a directory); meta.properties is claimed; checkpoints are read;
             .kafka_cleanshutdown is looked for and removed, so that dying later is never taken for a clean stop
    serve    partitions are opened, made and deleted; rolled segments are forced to the disk beside the
             requests, and the checkpoints say how far
    close    every partition is closed and forced to the disk; checkpoints; then .kafka_cleanshutdown

Source: `LogManager.java`, `CleanShutdownFileHandler.java`.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from appliance.clock import Clock
from appliance.cluster import TopicPartition
from appliance.errors import ApplianceDefect, DataDirectoryInUse, DiskFull, StorageFault
from appliance.log.checkpoint import replace_file
from appliance.log.config import LogSettings
from appliance.log.durable_tail import read_from_disk
from appliance.log.faults import is_lasting, storage_faults
from appliance.log.file_names import (
    CLEAN_SHUTDOWN,
    DIRECTORY_DELETED,
    DIRECTORY_STRAY,
    marked_directory_name,
    parse_partition_directory_name,
    partition_directory_name,
)
from appliance.log.flush import FlushQueue, FlushTask
from appliance.log.handed_over import HandedOver
from appliance.log.lock_file import holders_named, open_lock_file
from appliance.log.meta_properties import claim
from appliance.log.offset_checkpoints import OffsetCheckpoints
from appliance.log.partition_log import PartitionLog, nowhere
from appliance.log.partition_metadata import read_topic_id
from appliance.log.removal import Removal
from appliance.log.shares import (
    WHOLE,
    Closed,
    Share,
    all_closed,
    forget_taken,
    one_at_a_time,
    say_closed,
    take_back_closed,
    take_marker,
    take_shared_marker,
)
from appliance.log.whole_sync import WholeSync

_CLOSING_THREADS: Final = 16
"""To trim a file, and to force it, waits for the file system; these wait together."""
WHOLE_SYNC_FROM: Final = 256
"""So many logs to flush are flushed by one call. It forces what others have written into the file system too, so few
logs do not wait for that."""
PROBE: Final = ".probe"
Each = TypeVar("Each")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DirectoryStatistics:
    """A log directory at a glance."""

    partitions: int
    unopened: int
    size_bytes: int
    open_segments: int
    flushes_waiting: int


def _locked(path: Path, *, is_shared: bool) -> int:
    """The descriptor of a lock file that we hold, together with others if `is_shared`.

    Raises:
        DataDirectoryInUse: another living process holds it.
        StorageFault: it cannot be made.
    """
    kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    with storage_faults(path):
        lock = open_lock_file(path)
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
        # Java locks by the other kind, and neither kind sees the other.
        fcntl.lockf(lock, kind | fcntl.LOCK_NB)
    except OSError:
        holders = holders_named(lock)
        os.close(lock)
        raise DataDirectoryInUse(
            f"{path.parent} is used by another instance, which holds {path}: {holders}"
        ) from None
    return lock


def _unless_gone(
    _function: Callable[..., object], _path: str, raised: tuple[Any, BaseException, Any]
) -> None:
    """Another of the slot's processes may be removing the same."""
    if not isinstance(raised[1], FileNotFoundError):
        raise raised[1]


def _for_each(action: Callable[[Each], None], things: Sequence[Each]) -> None:
    """Do it to each, many of them at the same time. What `action` raises is raised."""
    if len(things) > _CLOSING_THREADS:
        with ThreadPoolExecutor(_CLOSING_THREADS, "close-log") as threads:
            list(threads.map(action, things))
    else:
        for thing in things:
            action(thing)


class LogDirectory:
    """The partitions in one directory. Used from one thread; flush and removal tasks may run on others."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        defaults: LogSettings,
        locks: Sequence[int],
        clean: bool,
        share: Share = WHOLE,
    ) -> None:
        self.path = path
        self._share = share
        self._began_clean: Final = clean
        # The replica looks at what it follows all the same: the leader has the word on it.
        self.was_clean: Final = clean and not share.follows
        self.partitions: dict[TopicPartition, PartitionLog] = {}
        self._clock = clock
        self._defaults = defaults
        self._locks = list(locks)
        self._whole_sync = WholeSync.open(path)
        self._given_up = False
        self._handed_over = False
        self.flush_fault: StorageFault | None = None
        self.flushes: Final = FlushQueue()
        self._owed: list[TopicPartition] = []
        self._removals: deque[Removal] = deque()
        self.checkpoints: Final = OffsetCheckpoints(path, self.partitions, share=share)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        node_id: int,
        cluster_id: str,
        clock: Clock,
        defaults: LogSettings | None = None,
        share: Share = WHOLE,
        clean_seen_by: str = "",
    ) -> Self:
        """Takes a directory, or a share of it (see `shares`), which is made if it is missing. Partitions are opened
        one by one later. `clean_seen_by`: as `shares.take_shared_marker`.

        Raises:
            DataDirectoryInUse: another living process holds it.
            OperatorFault: it belongs to another cluster or node.
            StorageFault: it cannot be read or written.
        """
        with storage_faults(path):
            path.mkdir(parents=True, exist_ok=True)
        locks: list[int] = []
        try:
            for name in share.locks:
                locks.append(_locked(path / name, is_shared=name != share.lock))
            if share.is_whole:
                claim(path, cluster_id=cluster_id, node_id=node_id)
                clean = take_marker(path)
            else:
                with one_at_a_time(path):
                    claim(path, cluster_id=cluster_id, node_id=node_id)
                    take_back_closed(path, share)
                    clean = take_shared_marker(path, clean_seen_by)
            return cls(
                path, clock=clock, defaults=defaults or LogSettings(), locks=locks, clean=clean, share=share
            )
        except BaseException:
            for lock in locks:
                os.close(lock)
            raise

    @property
    def locks(self) -> list[Path]:
        """The files that keep others out while we live."""
        return [self.path / name for name in self._share.locks]

    # Partitions

    def _names_on_disk(self) -> set[TopicPartition]:
        with storage_faults(self.path):
            names = [entry.name for entry in os.scandir(self.path) if entry.is_dir()]
        found = map(parse_partition_directory_name, names)
        return {partition for partition in found if partition is not None}

    def open_partition(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        settings: LogSettings | None = None,
        *,
        closed: bool | None = None,
        left: HandedOver | None = None,
        is_absent: bool = False,
    ) -> PartitionLog:
        """The log of a partition: the open one with these settings from now on, or opened, or made.

        `closed`: whether it was handed over in good order by who had it before; None where nobody had it since the
        start, so that the directory's marker counts. `left`: what that one has left (`PartitionLog.hand_over`); None:
        it lies in a file. `is_absent`: it is known that there is no directory of it. One
        of the same name that belongs to another topic id is set aside as `-stray`.

        Raises:
            StorageFault: it cannot be read or written. DiskFull where that was the cause.
        """
        settings = settings or self._defaults
        log = self.partitions.get(partition)
        if log is not None:
            if log.topic_id in (topic_id, None):
                log.update_settings(settings)
                return log
            log.close(clean=False)
            del self.partitions[partition]
        directory = self.path / partition_directory_name(partition)
        known: UUID | None = None
        if not is_absent:
            is_told = left is not None and left.is_only_of(topic_id)
            known = topic_id if is_told else read_topic_id(directory)
        if known is not None and known != topic_id:
            _logger.warning("%s belongs to topic id %s, not %s; moved aside", directory, known, topic_id)
            self._mark(partition, DIRECTORY_STRAY)
            known = None
        clean = self.was_clean if closed is None else closed
        is_new = is_absent or (known is None and not directory.is_dir())
        self.checkpoints.look_again(partition, is_new=is_new)
        recovery_point = self.checkpoints.recovery_point(partition)
        if settings.is_fsync and not clean and not is_new:
            read_from_disk(directory, recovery_point)
        log = PartitionLog.open(
            directory,
            settings=settings,
            clock=self._clock,
            recovery_point=recovery_point,
            log_start=self.checkpoints.log_start(partition),
            clean=clean,
            flushed=closed is None,
            leads_only=not self._share.is_replicated,
            topic_id=topic_id,
            has_topic_id=known is not None,
            is_new=is_new,
            left=left,
            flushes=self.flushes,
            removals=self._removals,
        )
        if closed and log.recovery_point < log.log_end_offset:
            # Who had it before may have flushed less than it wrote, and what it had to flush went with it.
            # In no hurry: a takeover opens many.
            if log.has_due_epochs:
                self._owed.append(partition)  # to make the flush would write their file
            else:
                self.flushes.put_by(log.flush_task())
        self.partitions[partition] = log
        self.checkpoints.has_come(partition)
        return log

    def hand_over(self, partition: TopicPartition, leave: Callable[[bytes], bool] = nowhere) -> None:
        """Closes a partition in good order, without waiting for the disk, for another of the slot's processes. `leave`:
        as `PartitionLog.hand_over`.

        Raises:
            StorageFault: it failed; who opens it must recover it.
        """
        log = self.partitions.pop(partition, None)
        if log is not None:
            self._handed_over = True
            try:
                log.hand_over(leave)
            except StorageFault:
                log.close(clean=False)
                raise

    def delete_partition(self, partition: TopicPartition, topic_id: UUID | None = None) -> bool:
        """Renames a partition away; `remove_deleted` removes its files later. Whether there was one.

        With `topic_id`, only a partition of that topic.

        Raises:
            StorageFault: it failed.
        """
        log = self.partitions.get(partition)
        directory = self.path / partition_directory_name(partition)
        # Another of the slot's processes may have set ours aside and made another topic's: the disk is asked, too.
        if topic_id is not None and log is not None and log.topic_id not in (topic_id, None):
            return False
        if log is not None:
            log.close(clean=False)
            del self.partitions[partition]
        if topic_id is not None and read_topic_id(directory) not in (topic_id, None):
            return False
        if not directory.is_dir():
            return False
        self._mark(partition, DIRECTORY_DELETED)
        return True

    def give_up(self, partition: TopicPartition) -> None:
        """Lets go of a partition whose storage failed, as a crash would; a stop is then no clean one."""
        log = self.partitions.pop(partition, None)
        if log is not None:
            log.close(clean=False)
        self._given_up = True

    # Moves between directories

    def take_in(self, partition: TopicPartition, log: PartitionLog, *, recovery_point: int) -> None:
        """A partition whose files were renamed into this directory is served from here on."""
        log.relocate(
            self.path / partition_directory_name(partition),
            recovery_point=recovery_point,
            flushes=self.flushes,
            removals=self._removals,
        )
        self.partitions[partition] = log
        self.checkpoints.has_come(partition)

    def forget(self, partition: TopicPartition) -> None:
        """A partition has gone elsewhere, or did not come; its files are not touched."""
        self.partitions.pop(partition, None)
        self.checkpoints.forget(partition)

    def is_there(self) -> bool:
        """Whether the directory is still where it was, and ours, by the lock files that we hold in it."""
        try:
            return all(
                os.path.samestat(os.stat(path), os.fstat(held))
                for path, held in zip(self.locks, self._locks, strict=True)
            )
        except (OSError, ValueError):  # ValueError: it was given up
            return False

    def probe(self) -> None:
        """Writes a file and forces it, to tell a failing directory from one bad file.

        Raises:
            StorageFault: it failed.
        """
        if not self.is_there():
            raise StorageFault(f"{self.path} was removed or replaced")
        # Each its own: another process may be at it, too.
        probe = self.path / (PROBE if self._share.is_whole else f"{PROBE}-{self._share.name}")
        replace_file(probe, b"")
        with storage_faults(self.path):
            probe.unlink()

    def _mark(self, partition: TopicPartition, mark: str) -> None:
        source = self.path / partition_directory_name(partition)
        with storage_faults(source):
            os.rename(source, self.path / marked_directory_name(partition, mark))
        self.forget(partition)

    def remove_deleted(self, is_free: Callable[[Path], bool] | None = None) -> int:
        """Removes the files of deleted partitions, those that `is_free` says may go; how many partitions.

        May run on any thread.

        Raises:
            StorageFault: it failed.
        """
        removed = 0
        with storage_faults(self.path):
            for name in os.listdir(self.path):
                if name.endswith(DIRECTORY_DELETED) and (is_free is None or is_free(self.path / name)):
                    shutil.rmtree(self.path / name, onerror=_unless_gone)
                    removed += 1
        return removed

    def release_idle(self) -> None:
        """Lets go of every descriptor and mapping of every partition, until they are needed again.

        Raises:
            StorageFault: it failed.
        """
        for log in self.partitions.values():
            log.release()

    # Keeping

    def flush_task(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> Callable[[], None]:
        """Forces rolled segments to the disk, then writes the checkpoints; to be called once, on any thread.

        The returned call raises nothing: what fails is logged. A failed flush is not tried again, since Linux marks
        the pages clean; it is left in `flush_fault`, and the recovery point stays below for good.
        """
        flushes = [*self._owed_flushes(), *(self.flushes.popleft() for _ in range(len(self.flushes)))]
        marks = None if high_watermarks is None else dict(high_watermarks)
        logs = dict(self.partitions)

        def run() -> None:
            for flush in flushes:
                try:
                    flush.run()
                except StorageFault as fault:
                    _logger.error("flush failed: %s", fault)
                    if not isinstance(fault, DiskFull) and not is_lasting(fault):
                        self.flushes.put_by(flush)  # it did not come to the flush
                        continue
                    self.flush_fault = fault
                    return
            try:
                self.checkpoints.write(logs, marks)
            except StorageFault as fault:
                _logger.error("checkpoint failed: %s", fault)

        return run

    def _owed_flushes(self) -> list[FlushTask]:
        """Of logs that were handed over with epochs that their file lacked, whose flush writes them first."""
        owed, self._owed = self._owed, []
        flushes = []
        for partition in owed:
            log = self.partitions.get(partition)
            if log is not None and log.recovery_point < log.log_end_offset:
                try:
                    flushes.append(log.flush_task())
                except StorageFault as fault:
                    _logger.error("flush failed: %s", fault)
                    self._owed.append(partition)
        return flushes

    def write_checkpoints(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Writes recovery points, log starts and high watermarks, each file only if it would change.

        Raises:
            StorageFault: it failed; the old files stand.
        """
        self.checkpoints.write(self.partitions, high_watermarks)

    def log_starts_task(self) -> Callable[[], None]:
        """Writes the log starts alone; to be called once, on any thread, and never beside a `flush_task`.

        The returned call raises nothing: what fails is logged, and tried again by the next checkpoint.
        """
        logs = dict(self.partitions)

        def run() -> None:
            try:
                self.checkpoints.write_log_starts(logs)
            except StorageFault as fault:
                _logger.error("checkpoint of log start offsets failed: %s", fault)

        return run

    def take_removals(self) -> list[Removal]:
        """Files of retired segments that nobody has taken charge of yet, to be removed in time."""
        return [self._removals.popleft() for _ in range(len(self._removals))]

    def close(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """Closes every partition, writes the checkpoints, and the clean-shutdown marker last.

        If a partition fails, the rest is closed all the same and no marker is written.

        Raises:
            StorageFault: the first failure.
        """
        faults: list[StorageFault] = []
        flushes: list[FlushTask] = []

        def close_one(log: PartitionLog) -> None:
            try:
                flush = log.close_unflushed()
            except StorageFault as fault:
                faults.append(fault)
            else:
                if flush is not None:
                    flushes.append(flush)

        def flush_one(flush: FlushTask) -> None:
            try:
                flush.run()
            except StorageFault as fault:
                faults.append(fault)

        try:
            _for_each(close_one, list(self.partitions.values()))
            if not self._flush_at_once(flushes):
                _for_each(flush_one, flushes)
            self.write_checkpoints(high_watermarks or {})
            if faults:
                raise faults[0]
            if self._given_up:
                return
            if self._share.is_whole:
                if self._began_clean or not self._unopened():
                    self._mark_clean()
                return
            with one_at_a_time(self.path):
                ours = frozenset(map(partition_directory_name, self.partitions))
                say_closed(self.path, self._share, Closed(ours, self._began_clean and not self._handed_over))
                said = all_closed(self.path, self._share)
                if said is not None and self._is_clean(said):
                    self._mark_clean()
                    take_back_closed(self.path, self._share)
                    forget_taken(self.path)
        finally:
            self.abandon()

    def _flush_at_once(self, flushes: list[FlushTask]) -> bool:
        """Flush many logs by one call; False where that is not possible, or not worth it."""
        if len(flushes) < WHOLE_SYNC_FROM or self._whole_sync is None:
            return False
        failure = self._whole_sync.sync()
        if failure is not None:
            _logger.warning("%s: some file of its file system was not written (%s)", self.path, failure)
            return False  # perhaps none of ours: each file is forced by itself and tells
        for flush in flushes:
            flush.ran()
        return True

    def _mark_clean(self) -> None:
        replace_file(self.path / CLEAN_SHUTDOWN, json.dumps({"version": 0, "brokerEpoch": -1}).encode())

    def _is_clean(self, said: Iterable[Closed]) -> bool:
        """Whether every partition was closed in good order by somebody, or has not been opened since it was."""
        if all(each.began_clean for each in said):
            return True
        closed = frozenset[str]().union(*(each.directories for each in said))
        return all(partition_directory_name(each) in closed for each in self._names_on_disk())

    def _unopened(self) -> set[TopicPartition]:
        """Partitions nobody has opened: after an unclean stop they still wait for their recovery."""
        return self._names_on_disk() - self.partitions.keys()

    def abandon(self) -> None:
        """Gives the directory up as it is, as a crash would, but for the lock."""
        for log in self.partitions.values():
            log.close(clean=False)
        self.partitions.clear()
        if self._whole_sync is not None:
            self._whole_sync.close()
            self._whole_sync = None
        while self._locks:
            os.close(self._locks.pop())

    def check(self) -> None:
        """Checks every open partition, reading all of it.

        Raises:
            ApplianceDefect: naming what does not hold.
        """
        for partition, log in self.partitions.items():
            if log.directory != self.path / partition_directory_name(partition):
                raise ApplianceDefect(f"{partition} is kept in {log.directory}")
            log.check()

    def statistics(self) -> DirectoryStatistics:
        logs = [log.statistics() for log in self.partitions.values()]
        return DirectoryStatistics(
            partitions=len(logs),
            unopened=len(self._unopened()),
            size_bytes=sum(log.size_bytes for log in logs),
            open_segments=sum(log.open_segments for log in logs),
            flushes_waiting=len(self.flushes),
        )
