"""One partition that this slot follows: its log, its words in the partition table, and how it comes to be in step.

| state | meaning | leaves it when |
|---|---|---|
| AWAY | nobody leads, or the leader does not serve this epoch yet | the row says that it does |
| FOLLOWING | what differs from the leader's log was cut; what it has more is copied | another leader: told, or seen |

Truncation goes by leader epochs (`truncation`), never by a high watermark: what is above it may be acknowledged still,
and only the new leader's log says what counts. `followed_epoch` stands in the table only while FOLLOWING, so a leader
never counts bytes that it did not write. Log start and high watermark are the leader's: a copy that begins later lacks
files, and is begun anew. The log end in the table is what the disk has, under `durability = "fsync"`
(`durable_copies.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from appliance.channels.control_channel import AssignedPartition
from appliance.channels.partition_table import (
    FILES_VERSION,
    HIGH_WATERMARK,
    ISR_BITS,
    LAST_STABLE_OFFSET,
    LOG_START,
    NOT_FOLLOWING,
    NOT_HELD,
    SERVING_EPOCH,
    SERVING_EPOCH_START,
    SERVING_INCARNATION,
    SLOT_CAUGHT_UP_MS,
    SLOT_CLOSED_INCARNATION,
    SLOT_DAMAGE_FOUND,
    SLOT_DIRECTORY,
    SLOT_FOLLOWED_EPOCH,
    SLOT_FOLLOWED_INCARNATION,
    SLOT_FUTURE_BYTES,
    SLOT_FUTURE_DIRECTORY,
    SLOT_FUTURE_END,
    SLOT_LOG_END,
    SLOT_LOG_START,
    SLOT_SIZE_BYTES,
    WATERMARK_INCARNATION,
    PartitionTable,
)
from appliance.channels.roles import Role, owner_of
from appliance.cluster import NO_LEADER, TopicPartition
from appliance.errors import DamagedLog, StorageFault
from appliance.log.durable_tail import DurableTail, TailFlush
from appliance.log.handed_over import decode_epochs
from appliance.log.leader_epochs import LeaderEpochs, read_epochs
from appliance.log.others_directories import DirectoriesOf
from appliance.log.partition_log import PartitionLog
from appliance.log.partition_state import NO_ID, Mode, PartitionState, StateFile
from appliance.log.state_publisher import unpublished
from appliance.protocol.records.errors import BatchFault
from appliance.replicas.leader_log import LeaderLog, ReadBuffer
from appliance.replicas.throttle import FREE
from appliance.replicas.truncation import common_end

_logger: Final = logging.getLogger(__name__)


class NotInSync(StorageFault):
    """The slot is in the ISR, whose members may lead, and its copy lacks what they have: it has to leave it first."""


class Follower:
    """Single-threaded. `slot` is ours; the leader's is known from the assignment. `directory` is where `log` lies."""

    __slots__ = (
        "_at",
        "_cells",
        "_directories_of",
        "_durable",
        "_own_at",
        "_reader",
        "_table",
        "_topic_id",
        "_trimmed_to",
        "_workers",
        "copied_bytes",
        "directory",
        "incarnation",
        "is_following",
        "is_marked",
        "leader",
        "leader_epoch",
        "log",
        "mark",
        "row",
        "slot",
        "state_file",
        "throttled",
        "topic_partition",
        "worker",
    )

    def __init__(
        self,
        assigned: AssignedPartition,
        log: PartitionLog,
        *,
        table: PartitionTable,
        slot: int,
        directories_of: DirectoriesOf,
        directory: int = 0,
        workers: int = 1,
    ) -> None:
        """`workers`: how many each slot has."""
        self.topic_partition = TopicPartition(assigned.topic, assigned.partition)
        self.log = log
        self.slot = slot
        self.directory = directory
        self.row = assigned.row
        self.incarnation = assigned.incarnation
        self.leader: int = NO_LEADER
        self.worker: Role | None = None
        """Of the leading slot: who owns the partition there."""
        self.leader_epoch: int = NOT_FOLLOWING
        self.is_following = False
        self.throttled = FREE
        self.copied_bytes = 0
        # For `StatePublisher`, which readers off the disk hear of it by.
        self.is_marked = True
        self.mark: Callable[[], None] = unpublished
        self.state_file: StateFile | None = None
        self._topic_id = assigned.topic_id
        self._workers = workers
        self._table = table
        self._cells = table.cells
        self._at: Final = table.at(assigned.row)
        self._own_at: Final = table.slot_at(assigned.row, slot)
        self._directories_of = directories_of
        self._reader: LeaderLog | None = None
        self._trimmed_to = -1
        self._durable: DurableTail | None = None
        self.settings_changed()
        self.follow(assigned.leader, assigned.leader_epoch)
        self._publish_extent()
        self._cells[self._own_at + SLOT_DIRECTORY] = directory + 1
        self._cells[self._own_at + SLOT_FUTURE_DIRECTORY] = NOT_HELD

    def follow(self, leader: int, leader_epoch: int) -> None:
        """Another leader, or another epoch; the same ones change nothing."""
        if (leader, leader_epoch) == (self.leader, self.leader_epoch):
            return
        self.stop()
        self.leader, self.leader_epoch = leader, leader_epoch
        self.worker = None
        if leader != NO_LEADER:
            number = self.topic_partition.partition
            self.worker = owner_of(leader, self._topic_id, number, workers=self._workers)
            self._reader = LeaderLog(
                self._directories_of(leader),
                self.topic_partition,
                files_version=lambda: self._cells[self._at + FILES_VERSION],
            )

    def stop(self) -> None:
        """Says that no leader may count on these bytes any more."""
        self._cells[self._own_at + SLOT_FOLLOWED_EPOCH] = NOT_FOLLOWING
        self.rest()

    def rest(self) -> None:
        """Copies no more. What was said of these bytes holds: a log that is closed in good order keeps them."""
        self.is_following = False
        if self._reader is not None:
            self._reader.close()

    def settings_changed(self) -> None:
        """Whether the disk is waited for is the topic's to say, while it runs too."""
        log = self.log
        if not log.settings.is_fsync:
            self._durable = None
        elif self._durable is None:
            self._durable = self._tail(log.recovery_point)

    def _tail(self, durable_to: int) -> DurableTail:
        tail = DurableTail(self.log, flushed_to=self.log.recovery_point)
        tail.offset = min(durable_to, self.log.log_end_offset)
        return tail

    @property
    def wants_flush(self) -> bool:
        """Whether there is something that the disk must have before it is told."""
        return self._durable is not None and self._durable.offset < self.log.log_end_offset

    def flush(self) -> TailFlush | None:
        """What has to run, on any thread, before what is in the log now may be told; None if nothing.

        Raises:
            StorageFault: a file is gone or cannot be opened.
        """
        return None if self._durable is None else self._durable.flush()

    def flushed(self, flush: TailFlush) -> None:
        """It has run."""
        if self._durable is not None:
            self._durable.flushed(flush)
            if not self.is_marked:
                self.mark()
            self._publish_extent()

    def let_go(self) -> None:
        """Says that this slot follows no more, before its log is closed."""
        self.stop()
        self._cells[self._own_at + SLOT_DIRECTORY] = NOT_HELD
        self._cells[self._own_at + SLOT_FUTURE_DIRECTORY] = NOT_HELD

    def closed(self) -> None:
        """Says that the log was closed in good order."""
        self._cells[self._own_at + SLOT_CLOSED_INCARNATION] = self.incarnation

    def look(
        self,
        buffer: ReadBuffer,
        *,
        now_ms: int,
        budget_bytes: int,
        is_time_up: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Copies what the leader has more, about `budget_bytes` at most; whether there is nothing left to do.

        Something is copied even where `is_time_up` from the start. False also where the leader's files are being
        renamed: look again soon.

        Raises:
            NotInSync: it lacks files; nothing was done.
            DamagedLog: the leader's bytes are no sound batches. Its worker is to repair them.
            StorageFault, DiskFull: our log, or the leader's, refuses.
        """
        reader = self._reader
        if reader is None:
            return True
        try:
            return self._look(reader, buffer, now_ms=now_ms, budget_bytes=budget_bytes, is_time_up=is_time_up)
        except (DamagedLog, BatchFault) as fault:
            if self._cells[self._at + SERVING_EPOCH] != self.leader_epoch:
                self.stop()
                return True  # what was read is of nobody knows when
            # The leader's worker repairs it; the row's next message sends it there. What was sound is in the log.
            end = self.log.log_end_offset
            self._publish_extent()
            self._cells[self._own_at + SLOT_DAMAGE_FOUND] = end + 1
            raise DamagedLog(f"the leader's log is damaged at offset {end}: {fault}") from fault

    def _look(
        self,
        reader: LeaderLog,
        buffer: ReadBuffer,
        *,
        now_ms: int,
        budget_bytes: int,
        is_time_up: Callable[[], bool],
    ) -> bool:
        if not self.is_following:
            if not self._leader_serves():
                return True  # it tells us when it does
            if not self._begin(reader):
                return False
            if not self.is_following:
                return True  # the leader was withdrawn meanwhile; it tells us when it serves
        cells, log = self._cells, self.log
        leader_end_at = self._table.slot_at(self.row, self.leader) + SLOT_LOG_END
        copied = 0
        while (end := log.log_end_offset) < (leader_end := cells[leader_end_at]):
            if copied >= budget_bytes or (copied and is_time_up()):
                return False
            if end < cells[self._at + LOG_START] and not self._start_anew(reader):
                return False
            batches = reader.read(
                log.log_end_offset, leader_end, buffer, is_compacted=log.settings.is_compacted
            )
            if cells[self._at + SERVING_EPOCH] != self.leader_epoch:
                # After the read: who led before cuts its log, once another serves, and goes on with that one's records.
                # Behind what we have, and it lacks, they would hide where we part.
                self.stop()
                return True
            if batches is None:
                return False
            log.append_as_follower(batches, segment_base_offset=reader.base_offset)
            log.stable_offset(self.high_watermark)  # forgets the transactions that ended below
            copied += len(batches)
            self.copied_bytes += len(batches)
            cells[self._own_at + SLOT_SIZE_BYTES] += len(batches)
            if self._durable is None:
                cells[self._own_at + SLOT_LOG_END] = log.log_end_offset
            if not self.is_marked:
                self.mark()
        cells[self._own_at + SLOT_CAUGHT_UP_MS] = now_ms
        return True

    @property
    def is_in_sync(self) -> bool:
        """Whether the slot is in the ISR, as the controller says."""
        return bool(self._cells[self._at + ISR_BITS] >> self.slot & 1)

    def trim(self) -> bool:
        """Follows the leader's log start, and retires the segments below it; whether there were any.

        Raises:
            StorageFault: it failed.
        """
        cells, log = self._cells, self.log
        start = cells[self._at + LOG_START]
        if start == self._trimmed_to:
            return False  # nearly always
        if cells[self._at + WATERMARK_INCARNATION] != self.incarnation or not self.is_following:
            return False
        if log.log_start_offset < start <= log.log_end_offset:
            log.advance_start(start)
            if not self.is_marked:
                self.mark()
        bases = [segment.base_offset for segment in log.segments_since(log.first_base_offset)]
        count = sum(following <= log.log_start_offset for following in bases[1:])
        if count:
            log.retire_oldest(count)
        self._publish_extent()
        if log.log_start_offset == start:
            self._trimmed_to = start
        return bool(count)

    def tidy(self, *, now_ms: int, is_at_rest: bool) -> None:
        """Follow the leader's log start, once per checkpoint.

        Raises:
            StorageFault: it failed.
        """
        self.trim()

    def _leader_serves(self) -> bool:
        cells, at = self._cells, self._at
        return bool(
            cells[at + SERVING_INCARNATION] == self.incarnation
            and cells[at + SERVING_EPOCH] == self.leader_epoch
        )

    def _begin(self, reader: LeaderLog) -> bool:
        """Cuts what the leader does not have; False where its files are not there to be read now.

        Where the leader does not serve any more when its epochs are read, nothing is cut, and nothing followed.

        Raises:
            NotInSync: it is in sync, and begins after the leader's, or ends below what is committed.
            StorageFault: our log refuses.
        """
        directory = reader.directory()
        if directory is None:
            return False
        cells, log, own = self._cells, self.log, self._own_at
        leader_end = cells[self._table.slot_at(self.row, self.leader) + SLOT_LOG_END]
        known = read_epochs(directory)
        left = decode_epochs(self._table.left(self.row, self.incarnation, self.leader))
        if left and (not known or left[-1][0] > known[-1][0]):
            known = left  # its file does not say yet what it was left
        theirs = LeaderEpochs(log.directory, known)  # never written
        theirs.assign(self.leader_epoch, cells[self._at + SERVING_EPOCH_START], write=False)
        if not self._leader_serves():
            return True  # what was read is of nobody knows when
        if log.log_start_offset > cells[self._at + LOG_START]:
            if self.is_in_sync:
                # Whoever is may lead, so it must not be begun anew: the next try does.
                raise NotInSync(
                    f"{log.directory} begins at {log.log_start_offset}, its leader's log at"
                    f" {cells[self._at + LOG_START]}: what lies between has gone"
                )
            if not self._start_anew(reader):
                return False
        high_watermark = cells[self._at + HIGH_WATERMARK]
        end = common_end(log.leader_epochs, log.log_end_offset, theirs, leader_end)
        if end is None:
            end = min(log.log_end_offset, high_watermark)
        end = min(end, leader_end)
        if end < high_watermark and self.is_in_sync and self._leader_serves():
            raise NotInSync(
                f"{log.directory} has the leader's records up to {end}, and all is committed up to {high_watermark}:"
                " what lies between has gone"
            )
        self._say_cut(end)
        if log.truncate_to(end) and self._durable is not None:
            self._durable = self._tail(self._durable.offset)
        may_lack = log.log_end_offset < cells[self._at + LOG_START] or self._is_bare
        if may_lack and not self._start_anew(reader):
            return False
        self._publish_extent()
        cells[own + SLOT_DAMAGE_FOUND] = 0
        cells[own + SLOT_FOLLOWED_INCARNATION] = self.incarnation
        cells[own + SLOT_FOLLOWED_EPOCH] = self.leader_epoch
        self.is_following = True
        return True

    @property
    def _is_bare(self) -> bool:
        """Whether it is empty behind offset 0, and nobody counts on it: where it would go on may lie inside of a batch.

        So where DeleteRecords moved the log start into one, that was written down, and then the files went.
        """
        log = self.log
        return not log.size_bytes and log.log_end_offset > 0 and not self.is_in_sync

    def _start_anew(self, reader: LeaderLog) -> bool:
        """The leader begins after our end, or before our start: we begin with the segment that it begins with.

        False where its files do not show that one now.
        """
        log, start = self.log, self._cells[self._at + LOG_START]
        base = reader.first_base_offset(start)
        if base is None or base > start:
            return False
        is_partial = log.log_start_offset > start
        if is_partial:
            _logger.warning(
                "partition %s: files of this replica are missing: it starts at %d, the leader's log at %d;"
                " copying it again",
                self.topic_partition,
                log.log_start_offset,
                start,
            )
        if is_partial or log.log_end_offset < base or (base < log.log_end_offset and self._is_bare):
            reader.close()
            self._say_cut(base)
            log.start_anew_at(base)
            if self._durable is not None:
                self._durable = self._tail(base)
            self._publish_extent()
        return True

    def _publish_extent(self) -> None:
        """Begin, end and size, after anything but an append."""
        cells, own, log = self._cells, self._own_at, self.log
        cells[own + SLOT_LOG_START] = log.log_start_offset
        cells[own + SLOT_SIZE_BYTES] = log.size_bytes
        cells[own + SLOT_LOG_END] = log.log_end_offset if self._durable is None else self._durable.offset

    def _say_cut(self, end: int) -> None:
        """Before records go: the table never says that we have more than we have, for who opens what a death in the
        middle leaves; and readers off the disk, who may have seen them, are told."""
        log_end_at = self._own_at + SLOT_LOG_END
        self._cells[log_end_at] = min(self._cells[log_end_at], end)
        state_file = self.state_file
        last = None if state_file is None else state_file.known()
        if state_file is not None and last is not None and end < last.high_watermark:
            state_file.publish(
                replace(
                    last,
                    mode=Mode.RUNNING,
                    high_watermark=end,
                    last_stable=min(last.last_stable, end),
                    log_end=end,
                    durable=min(last.durable, end),
                )
            )

    def state(self, *, now_ms: int) -> PartitionState:
        """For readers off the disk."""
        cells, at, log = self._cells, self._at, self.log
        active_base, active_bytes = log.active_segment
        high_watermark = max(self.high_watermark, log.log_start_offset)
        return PartitionState(
            topic_id=log.topic_id or NO_ID,
            leader_epoch=max(self.leader_epoch, log.latest_epoch),
            log_start=log.log_start_offset,
            high_watermark=high_watermark,
            last_stable=max(min(cells[at + LAST_STABLE_OFFSET], high_watermark), log.log_start_offset),
            log_end=log.log_end_offset,
            durable=log.recovery_point if self._durable is None else self._durable.offset,
            active_base=active_base,
            active_bytes=active_bytes,
            leads=False,
            written_ms=now_ms,
        )

    # A move between log directories

    def files_change(self) -> None:
        """Nobody opens a followed copy by what this process has said of its files."""

    def files_changed(self) -> None:
        """Its files are in `directory` now."""
        self._cells[self._own_at + SLOT_DIRECTORY] = self.directory + 1
        if self.state_file is not None:
            self.state_file.files_changed()
        if not self.is_marked:
            self.mark()

    def relocated(self) -> None:
        """What was told of the disk stays told; the next flush covers what the new place lacks."""
        if self._durable is not None:
            self._durable = self._tail(self._durable.offset)

    def show_future(self, future: tuple[int, int, int]) -> None:
        """For DescribeLogDirs: (bytes, lag in offsets, directory) of the copy elsewhere; bytes -1: there is none."""
        size_bytes, lag, directory = future
        cells, own = self._cells, self._own_at
        cells[own + SLOT_FUTURE_BYTES] = size_bytes
        cells[own + SLOT_FUTURE_END] = self.log.log_end_offset - lag
        cells[own + SLOT_FUTURE_DIRECTORY] = NOT_HELD if size_bytes < 0 else directory + 1

    # Compaction: each replica is compacted for itself, as in Kafka, led or not

    def files_begin_to_swap(self) -> None:
        """Nobody opens a followed copy by what this process has said of its files."""

    def files_swapped(self, *, is_done: bool) -> None:
        """Publish the size after a compaction."""
        if is_done:
            self._publish_extent()

    def cleanable_to(self, *, now_ms: int) -> int | None:
        """Return how far the log may be compacted: every record, and every transaction's end, is committed below.

        None while it does not follow, because what it has may yet be cut. A follower closes no segment by its age: its
        segments begin where the leader's do.
        """
        if not self.is_following:
            return None
        return min(self.log.stable_offset(self.high_watermark), self._cells[self._at + LAST_STABLE_OFFSET])

    @property
    def high_watermark(self) -> int:
        """For the checkpoint: the leader's, as far as we have it."""
        return min(self._cells[self._at + HIGH_WATERMARK], self.log.log_end_offset)
