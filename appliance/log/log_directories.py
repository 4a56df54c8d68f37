"""The log directories of one slot: `LogDirectory` times as many disks as there are, and what one's failure means.

| what happens | what follows |
|---|---|
| a directory cannot be taken at start | it has failed; the others serve |
| none can | refused: nothing could be served |
| it belongs to another cluster or node, or another instance holds it | refused, whatever the others say |
| one that was in use is empty now: a disk that is not mounted | it has failed |
| it fails later, or is removed | its partitions go offline for the life of the process; it is touched no more |
| a partition is in none that serves, while one has failed | offline, unless it is new: it may be in that one |
| a partition is in two | what a move left behind is resolved; otherwise offline: nobody knows which one counts |
| a copy in the making (`-future`) is found | the move goes on; it goes where its partition is, or is not |
| a partition on the move changes hands between the slot's processes | whoever has it now keeps what is finished |

A copy belongs to whoever has its partition open; `moves-to` in the partition's directory names it, so that who opens
the partition next finds it. A new partition goes to the directory with the fewest. Which directories a slot has used is
kept beside the metadata (`known_directories`).
Source: `LogManager.java`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self
from uuid import UUID

from appliance.clock import Clock
from appliance.cluster import TopicPartition
from appliance.errors import LogDirectoryOffline, RejectedRequest, StorageFault
from appliance.log.checkpoint import read_small, replace_file, sync_directory
from appliance.log.config import LogSettings
from appliance.log.faults import storage_faults
from appliance.log.file_names import (
    DIRECTORY_DELETED,
    LEADER_EPOCHS,
    MOVED_HERE,
    MOVES_TO,
    future_directory_name,
    marked_directory_name,
    parse_future_directory_name,
    parse_partition_directory_name,
    partition_directory_name,
)
from appliance.log.handed_over import HandedOver, decode_handed_over
from appliance.log.known_directories import KnownDirectories
from appliance.log.log_directory import LogDirectory
from appliance.log.partition_homes import PartitionHomes
from appliance.log.partition_log import PartitionLog, nowhere
from appliance.log.partition_metadata import read_topic_id, write_topic_id
from appliance.log.removal import Removal
from appliance.log.settlement import Settlement, settling, take_mark_off
from appliance.log.shares import WHOLE, Share, remove_traces
from appliance.protocol.errors import ErrorCode

_logger = logging.getLogger(__name__)


class LogDirectories:
    """All directories of a slot. Used from one thread, as each of them. Directories are told by their index."""

    def __init__(self, paths: Sequence[Path], *, share: Share = WHOLE) -> None:
        self.paths: Final = tuple(paths)
        self._share = share
        self.serving: dict[int, LogDirectory] = {}
        self.failed: dict[int, StorageFault] = {}
        self._places = PartitionHomes(len(self.paths), self.serving, self.failed, share=share)
        self._homes: Final = self._places.homes
        self.futures: dict[TopicPartition, tuple[int, Path]] = {}
        """Copies in the making: where, and in which directory's file system."""
        self._needless: list[Path] = []
        self._settlements: dict[TopicPartition, Settlement] = {}

    @classmethod
    def open(
        cls,
        paths: Sequence[Path],
        *,
        node_id: int,
        cluster_id: str,
        clock: Clock,
        known: KnownDirectories | None = None,
        share: Share = WHOLE,
        clean_seen_by: Mapping[Path, str] = MappingProxyType({}),
    ) -> Self:
        """Takes every directory that can be taken, or a `share` of it; the first of those who share writes down which
        ones are known. `clean_seen_by`: as `LogDirectory.open`, of these.

        Raises:
            OperatorFault: one belongs to somebody else.
            StorageFault: none can be taken.
        """
        all_of_them = cls(paths, share=share)
        try:
            for index, path in enumerate(paths):
                try:
                    if known is not None:
                        known.check(path)
                    directory = LogDirectory.open(
                        path,
                        node_id=node_id,
                        cluster_id=cluster_id,
                        clock=clock,
                        share=share,
                        clean_seen_by=clean_seen_by.get(path, ""),
                    )
                    all_of_them.serving[index] = directory
                    if known is not None and share.is_first:
                        known.note(path)
                    all_of_them._look_for_partitions(index, directory)
                except StorageFault as fault:
                    all_of_them.fail(index, fault)
            all_of_them._sort_futures()
            if not all_of_them.serving:
                raise next(iter(all_of_them.failed.values()))
        except BaseException:
            all_of_them.abandon()
            raise
        return all_of_them

    def _look_for_partitions(self, index: int, directory: LogDirectory) -> None:
        with storage_faults(directory.path):
            names = os.listdir(directory.path)
        if self._share.is_whole:
            remove_traces(directory.path, names)
        for name in names:
            partition = parse_partition_directory_name(name)
            if partition is not None:
                self._places.note(partition, index)
            moving = parse_future_directory_name(name)
            if (
                moving is not None
                and self.futures.setdefault(moving, (index, directory.path / name))[1].name != name
            ):
                self._needless.append(directory.path / name)

    def _sort_futures(self) -> None:
        for partition, (index, path) in list(self.futures.items()):
            home = self._homes.get(partition)
            if home == index or (home is None and not self.failed):
                del self.futures[partition]
                self._needless.append(path)
        if not self._share.is_first:
            self._needless.clear()  # the first worker's to remove

    # Partitions

    def open_partition(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        settings: LogSettings,
        *,
        is_new: bool = True,
        was_there: bool = False,
        closed: bool | None = None,
        left: bytes | None = None,
    ) -> PartitionLog:
        """As `LogDirectory.open_partition`, in the directory that has it, else in the one with the fewest.

        One that `was_there` is not begun anew: its files have gone, and others would take what is left for all of it.

        Raises:
            StorageFault: as there; or its directory has failed, or may have; or it is in two.
        """
        self._places.look_again(partition)
        if partition in self._places.twice:
            self._resolve_twins(partition, topic_id, settings)
        handed_over: HandedOver | None = None
        if closed and left:
            handed_over = self._decode_left(partition, left)
            closed = handed_over is not None
        is_plain = handed_over is not None and handed_over.is_only_of(topic_id)
        may_move = not is_plain and self._look_for_future(partition)
        if not may_move:
            self.futures.pop(partition, None)
        home = self._places.choose(
            partition,
            is_new=is_new,
            was_there=was_there,
            moving_to=(index for index, _ in self.futures.values()),
        )
        is_known = partition in self._homes
        log = self.serving[home].open_partition(
            partition, topic_id, settings, closed=closed, left=handed_over, is_absent=not is_known
        )
        if not is_plain and is_known and not self.failed:
            take_mark_off(log.directory)
        if may_move or (not is_plain and self.failed):
            log.has_mark()
        self._homes[partition] = home
        return log

    def _decode_left(self, partition: TopicPartition, left: bytes) -> HandedOver | None:
        """What its last owner has left of a partition, as far as its directory bears it out; None: unreadable."""
        handed_over = decode_handed_over(left)
        home = self._homes.get(partition)
        if handed_over is None or home not in self.serving:
            return handed_over
        return handed_over.as_found(f"{self.serving[home].path}/{partition_directory_name(partition)}")

    def _look_for_future(self, partition: TopicPartition) -> bool:
        """Whether it may be on the move, as another of the slot's processes may have left it: `futures` says where to,
        if that is known."""
        home = self._homes.get(partition)
        if self._share.is_whole or home is None or home in self.failed:
            return partition in self.futures
        known = self.futures.get(partition)
        if known is not None and known[0] in self.serving and known[1].is_dir():
            return True
        self.futures.pop(partition, None)
        try:
            mark = read_small(f"{self.serving[home].path}/{partition_directory_name(partition)}/{MOVES_TO}")
            if mark is None:
                return False
            name = mark.decode()
        except (OSError, ValueError):
            return True
        if parse_future_directory_name(name) != partition:
            return True
        for index, each in self.serving.items():
            if index != home and (each.path / name).is_dir():
                self.futures[partition] = index, each.path / name
        return True

    def has(self, partition: TopicPartition) -> bool:
        """Whether there is a directory of it in any log directory that serves."""
        return bool(self._places.on_disk(partition))

    def hand_over(self, partition: TopicPartition, leave: Callable[[bytes], bool] = nowhere) -> None:
        """As `LogDirectory.hand_over`, wherever it is; nothing where it is not open.

        Raises:
            StorageFault: it failed.
        """
        self._leave_move(partition)
        directory = self.serving.get(self.index_of(partition))
        if directory is not None:
            directory.hand_over(partition, leave)

    def _leave_move(self, partition: TopicPartition) -> None:
        """Its next owner goes on with it, under another name: a thread of ours may be at work on the copy, and
        knows the old one. What it has open is no finished file, and nobody else writes to that (`future_log`)."""
        settlement = self._settlements.pop(partition, None)
        if settlement is not None:
            settlement.called_off = True
        home = self.serving.get(self.index_of(partition))
        if home is not None and partition in home.partitions and partition in self.futures:
            to, path = self.futures[partition]
            name = future_directory_name(partition)
            try:
                if to not in self.serving or name is None:
                    raise FileNotFoundError(path)
                self.serving[to].forget(partition)
                os.rename(path, path.with_name(name))
                (home.path / partition_directory_name(partition) / MOVES_TO).write_text(name)
            except OSError:
                self.cancel_move(partition)
        self.futures.pop(partition, None)

    def high_watermark_checkpoint(self, partition: TopicPartition) -> int:
        """The high watermark of a partition that was opened, as last written down; 0 where it never was."""
        directory = self.serving.get(self.index_of(partition))
        return 0 if directory is None else directory.checkpoints.high_watermark(partition)

    def has_high_watermark_checkpoint(self, partition: TopicPartition) -> bool:
        """Return whether the high watermark of a partition that was opened is written down."""
        directory = self.serving.get(self.index_of(partition))
        return directory is not None and directory.checkpoints.has_high_watermark(partition)

    def _resolve_twins(self, partition: TopicPartition, topic_id: UUID, settings: LogSettings) -> None:
        """A move ended between its swap and its settlement: see `settlement`."""
        found = self._places.directories(partition)
        marked = [index for index, path in found.items() if (path / MOVED_HERE).exists()]
        if (
            len(found) != 2
            or len(marked) != 1
            or any(read_topic_id(path) not in (topic_id, None) for path in found.values())
        ):
            raise LogDirectoryOffline(f"{partition} is in two log directories; move one of them away")
        (target,) = marked
        with settling(found[target], waits=False) as is_free:
            if not is_free or self._places.directories(partition) != found:
                raise StorageFault(f"{partition} was moved, and its new directory is being flushed to disk")
            self._settle(partition, topic_id, settings, found=found, target=target)

    def _settle(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        settings: LogSettings,
        *,
        found: Mapping[int, Path],
        target: int,
    ) -> None:
        (source,) = found.keys() - {target}
        # One of the two was not closed in any order.
        closed = None if self._share.is_whole else False
        ends = {
            index: self.serving[index]
            .open_partition(partition, topic_id, settings, closed=closed)
            .log_end_offset
            for index in (source, target)
        }
        winner, loser = (target, source) if ends[target] >= ends[source] else (source, target)
        _logger.warning(
            "%s is in two log directories after an interrupted move: using %s, which ends at %d; removing %s, at %d",
            partition,
            found[winner],
            ends[winner],
            found[loser],
            ends[loser],
        )
        self.serving[loser].delete_partition(partition, topic_id)
        with storage_faults(found[loser]):
            sync_directory(self.serving[loser].path)
        self._homes[partition] = winner
        self._places.twice.discard(partition)

    def index_of(self, partition: TopicPartition) -> int:
        """The directory of a partition that was opened; 0 for any other."""
        return self._homes.get(partition, 0)

    @property
    def partitions(self) -> dict[TopicPartition, PartitionLog]:
        """All open logs."""
        return {
            name: log for directory in self.serving.values() for name, log in directory.partitions.items()
        }

    def delete_partition(self, partition: TopicPartition, topic_id: UUID | None = None) -> bool:
        """As `LogDirectory.delete_partition`, wherever it is.

        Raises:
            StorageFault: it failed, or its directory has.
        """
        self._places.look_again(partition)
        self._look_for_future(partition)
        self.cancel_move(partition)
        home = self._homes.get(partition)
        if home is None:
            return False
        if home in self.failed:
            raise LogDirectoryOffline(str(self.failed[home])) from self.failed[home]
        if partition in self._places.twice:
            # Moved, and not settled by whoever had it.
            for index in self._places.directories(partition).keys() - {home}:
                self.serving[index].delete_partition(partition, topic_id)
            self._places.twice.discard(partition)
        deleted = self.serving[home].delete_partition(partition, topic_id)
        if deleted:
            del self._homes[partition]
            self._settlements.pop(partition, None)
        return deleted

    # Moves

    def begin_move(self, partition: TopicPartition, to: int) -> Path:
        """Makes the directory in which the copy of an open partition will grow.

        Raises:
            RejectedRequest: INVALID_TOPIC_EXCEPTION, its name would be too long.
            StorageFault: it failed.
        """
        name = future_directory_name(partition)
        if name is None:
            raise RejectedRequest(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
        path = self.serving[to].path / name
        log = self.serving[self._homes[partition]].partitions[partition]
        with storage_faults(path):
            path.mkdir()
        self.futures[partition] = to, path
        log.has_mark()
        if log.topic_id is not None:
            write_topic_id(path, log.topic_id)
        if not self._share.is_whole:
            with storage_faults(log.directory):
                (log.directory / MOVES_TO).write_text(name)
        return path

    def cancel_move(self, partition: TopicPartition) -> None:
        """Gives a copy up; `remove_deleted` removes it later. What the disk refuses here is left to the next start."""
        found = self.futures.pop(partition, None)
        home = self._homes.get(partition)
        if found is not None and home in self.serving:
            with suppress(OSError):
                (self.serving[home].path / partition_directory_name(partition) / MOVES_TO).unlink()
        if found is None or found[0] not in self.serving:
            return
        index, path = found
        self.serving[index].forget(partition)
        with suppress(OSError):
            os.rename(path, path.with_name(marked_directory_name(partition, DIRECTORY_DELETED)))

    def expect(self, partition: TopicPartition, *, recovery_point: int) -> Callable[[], None]:
        """What has to run, on any thread, before `swap_in`: the target's checkpoints, and the mark of a move."""
        index, path = self.futures[partition]
        log = self.serving[self._homes[partition]].partitions[partition]
        checkpoint = self.serving[index].checkpoints.expect(
            partition, recovery_point=recovery_point, log_start=log.log_start_offset
        )

        def run() -> None:
            checkpoint()
            replace_file(path / MOVED_HERE, b"")

        return run

    def swap_in(self, partition: TopicPartition, *, recovery_point: int) -> Settlement:
        """The copy, which must hold every byte of the log, takes its place: one rename. What has to run after it.

        Raises:
            StorageFault: it failed, and nothing has changed.
        """
        index, path = self.futures[partition]
        source, target = self.serving[self._homes[partition]], self.serving[index]
        log = source.partitions[partition]
        log.write_epochs(path)
        old, new = log.directory, target.path / partition_directory_name(partition)
        with storage_faults(path):
            os.rename(path, new)
        del self.futures[partition]
        self._homes[partition] = index
        source.forget(partition)
        target.take_in(partition, log, recovery_point=recovery_point)
        files = [file for segment in log.segments_since(recovery_point) for file in segment.paths]
        settlement = Settlement(partition, old, new, (*files, new / LEADER_EPOCHS))
        if not self._share.is_whole:
            self._settlements[partition] = settlement
        return settlement

    def settled(self, settlement: Settlement) -> None:
        """It has run."""
        if self._settlements.get(settlement.partition) is settlement:
            del self._settlements[settlement.partition]

    def remove_needless(self) -> None:
        """Copies of an earlier life that nobody goes on with are marked for `remove_deleted`."""
        for path in self._needless:
            partition = parse_future_directory_name(path.name)
            if partition is not None:
                with suppress(OSError):
                    os.rename(path, path.with_name(marked_directory_name(partition, DIRECTORY_DELETED)))
        self._needless.clear()

    def distrust(self, partition: TopicPartition, offset: int) -> None:
        """Have whoever opens a partition next check everything from `offset` on, and cut what is damaged.

        Raises:
            StorageFault: the checkpoint could not be written.
        """
        directory = self.serving[self.index_of(partition)]
        log = directory.partitions[partition]
        log.distrust(offset)
        directory.checkpoints.write({partition: log}, None)

    def give_up(self, partition: TopicPartition) -> None:
        """Lets go of a partition whose storage failed."""
        directory = self.serving.get(self.index_of(partition))
        if directory is not None:
            directory.give_up(partition)

    # Failure

    def fail(self, index: int, fault: StorageFault) -> None:
        """A directory has failed: it is touched no more. Its partitions' homes stay known."""
        if index in self.failed:
            return
        self.failed[index] = fault
        _logger.error("log directory %s has failed: %s", self.paths[index], fault)
        directory = self.serving.pop(index, None)
        if directory is not None:
            directory.abandon()

    def look(self) -> dict[int, StorageFault]:
        """Directories that serve and should not: those that are gone, or where a flush has failed meanwhile."""
        found = {}
        for index, directory in self.serving.items():
            fault = directory.flush_fault
            if fault is None and not directory.is_there():
                fault = StorageFault(f"{directory.path} was removed or replaced")
            if fault is not None:
                found[index] = fault
        return found

    def probe(self, index: int) -> StorageFault | None:
        """Whether a directory still takes and forces a file, after something else in it failed; the fault, if not."""
        directory = self.serving.get(index)
        if directory is None:
            return self.failed.get(index)
        try:
            directory.probe()
        except StorageFault as fault:
            return fault
        return None

    # Keeping

    def release_idle(self) -> None:
        """As `LogDirectory.release_idle`."""
        for directory in self.serving.values():
            directory.release_idle()

    def remove_deleted(self, is_free: Callable[[Path], bool] | None = None) -> int:
        """As `LogDirectory.remove_deleted`; a directory that fails at it is tried by the next sweep."""
        removed = 0
        for directory in list(self.serving.values()):
            with suppress(StorageFault):
                removed += directory.remove_deleted(is_free)
        return removed

    def flush_task(self, high_watermarks: Mapping[TopicPartition, int]) -> Callable[[], None]:
        """As `LogDirectory.flush_task`, one directory after the other."""
        tasks = [
            directory.flush_task(self._places.of(high_watermarks, index))
            for index, directory in self.serving.items()
        ]

        def run() -> None:
            for task in tasks:
                task()

        return run

    def on_flush_due(self, noted: Callable[[], None]) -> None:
        """`noted` is called whenever a log has put in a flush, as `FlushQueue.on_due`."""
        for directory in self.serving.values():
            directory.flushes.on_due = noted

    def log_starts_task(self) -> Callable[[], None]:
        """As `LogDirectory.log_starts_task`, one directory after the other."""
        tasks = [directory.log_starts_task() for directory in self.serving.values()]

        def run() -> None:
            for task in tasks:
                task()

        return run

    def take_removals(self) -> list[Removal]:
        """As `LogDirectory.take_removals`, of all directories."""
        return [removal for directory in self.serving.values() for removal in directory.take_removals()]

    def close(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Closes every directory that serves, each with its own marker of a clean stop.

        Raises:
            StorageFault: the first failure; the others are closed all the same.
        """
        faults: list[StorageFault] = []
        for index, directory in self.serving.items():
            try:
                directory.close(self._places.of(high_watermarks, index))
            except StorageFault as fault:
                faults.append(fault)
        if faults:
            raise faults[0]

    def abandon(self) -> None:
        """Gives all of them up, as a crash would, but for the locks."""
        for directory in self.serving.values():
            directory.abandon()
        self.serving.clear()
