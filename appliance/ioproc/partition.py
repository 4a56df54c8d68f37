"""A partition that this worker leads: its log, its row in the partition table, its watermarks.

Publishing order, which readers of the table rely on: the bytes are in the segment, then the log end, then the high
watermark. Nothing here talks to a socket; what a request may see is decided by the words in the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.channels.control_channel import AssignedPartition
from appliance.channels.partition_table import (
    ACTIVE_SEGMENT,
    FILES_VERSION,
    HIGH_WATERMARK,
    LAST_STABLE_OFFSET,
    LOG_START,
    RESTART_LOG_END,
    SERVING_EPOCH,
    SERVING_EPOCH_START,
    SERVING_INCARNATION,
    SLOT_CLOSED_INCARNATION,
    SLOT_LOG_END,
    WATERMARK_INCARNATION,
    PartitionTable,
)
from appliance.clock import Clock
from appliance.cluster import TopicPartition
from appliance.errors import ApplianceError
from appliance.ioproc.replication import Replication
from appliance.log.durable_tail import DurableTail
from appliance.log.partition_log import PartitionLog
from appliance.log.partition_state import NO_ID, PartitionState, StateFile
from appliance.log.state_publisher import unpublished

OVERTAKEN_NS: Final = 10_000_000_000
"""What a client needs at most to send again what the leader before has refused, on a busy host."""


class Partition:
    """One led partition. Single-threaded; `slot` is the slot this worker serves, `directory` which of its log
    directories."""

    __slots__ = (
        "_cells",
        "_clock",
        "_led_since_ns",
        "_log_end_cell",
        "_row_at",
        "_table",
        "directory",
        "durable",
        "fault",
        "incarnation",
        "is_held",
        "is_marked",
        "isr",
        "leader_epoch",
        "log",
        "mark",
        "min_insync_replicas",
        "replication",
        "row",
        "slot",
        "state_file",
        "topic_partition",
    )

    def __init__(
        self,
        assigned: AssignedPartition,
        log: PartitionLog,
        *,
        table: PartitionTable,
        slot: int,
        min_insync_replicas: int,
        clock: Clock,
        directory: int = 0,
    ) -> None:
        self.topic_partition = TopicPartition(assigned.topic, assigned.partition)
        self.log = log
        self.slot = slot
        self.directory = directory
        self.row = assigned.row
        self.incarnation = assigned.incarnation
        self.leader_epoch = assigned.leader_epoch
        self.isr = assigned.isr
        self.min_insync_replicas = min_insync_replicas
        # The last fault of ours or the host's, for the worker to speak of; clients hear its code only.
        self.fault: ApplianceError | None = None
        # None: what is in the page cache counts; else the high watermark stays below what is on the disk.
        self.durable: DurableTail | None = None
        # None: the slot is the only replica.
        self.replication: Replication | None = None
        # Whether answers may have to wait, for a disk or for followers.
        self.is_held = False
        # For `StatePublisher`, which readers off the disk hear of it by.
        self.is_marked = True
        self.mark: Callable[[], None] = unpublished
        self.state_file: StateFile | None = None
        self._clock = clock
        self._led_since_ns = 0
        self._table = table
        self._cells = table.cells
        self._row_at = table.at(assigned.row)
        self._log_end_cell = table.slot_at(assigned.row, slot) + SLOT_LOG_END

    def serve(self) -> None:
        """Publishes the first words of this incarnation, last of them that it is served."""
        cells, at = self._cells, self._row_at
        self._led_since_ns = self._clock.monotonic_ns()
        cells[at + SERVING_INCARNATION] = 0
        if cells[at + FILES_VERSION] & 1:
            # An earlier life of this worker died while it swapped segments; opening the log has settled it.
            self.files_changed()
        else:
            # Another slot may have led, and names mean its files; or ours were cut while we followed, or recovered.
            cells[at + FILES_VERSION] += 2
        self.publish()
        cells[at + WATERMARK_INCARNATION] = self.incarnation
        self.serve_epoch()
        cells[at + SERVING_INCARNATION] = self.incarnation

    def serve_epoch(self) -> None:
        """Says under which leader epoch it is served, first where that begins: its file need not have it yet."""
        cells, at = self._cells, self._row_at
        if cells[at + SERVING_EPOCH] != self.leader_epoch:
            self._led_since_ns = self._clock.monotonic_ns()
        cells[at + SERVING_EPOCH_START] = self.log.leader_epochs.latest_start
        cells[at + SERVING_EPOCH] = self.leader_epoch

    def may_be_overtaken(self) -> bool:
        """Whether another slot led a moment ago: of a producer's batches a later one may come before an earlier one
        that the leader before has refused."""
        if self.replication is None:
            return False
        return self._clock.monotonic_ns() - self._led_since_ns < OVERTAKEN_NS

    def replicate(self, assigned: AssignedPartition, *, checkpoint: int, now_ms: int) -> None:
        """Before `serve`: others follow. `checkpoint` is the high watermark of the disk, where shared memory has none.

        What a leader before has shown to readers stays shown: the words of the row outlive it, as long as the host.
        """
        cells, at, log = self._cells, self._row_at, self.log
        high_watermark = checkpoint
        if cells[at + WATERMARK_INCARNATION] == self.incarnation:
            high_watermark = cells[at + HIGH_WATERMARK]
            log.advance_start(min(cells[at + LOG_START], log.log_end_offset))
        else:
            cells[at + RESTART_LOG_END] = log.log_end_offset
        cells[at + HIGH_WATERMARK] = max(min(high_watermark, log.log_end_offset), log.log_start_offset)
        self.replication = Replication(
            assigned, table=self._table, slot=self.slot, log_end=log.log_end_offset, now_ms=now_ms
        )
        self.is_held = True

    def closed(self) -> None:
        """Says that the log was closed in good order."""
        self._cells[self._log_end_cell - SLOT_LOG_END + SLOT_CLOSED_INCARNATION] = self.incarnation

    def withdraw(self, *, offline: bool = False) -> None:
        """Says that nobody serves the row, before the log is closed; `offline`: because its storage failed.

        Whoever was given up for dead and wakes leaves alone what a later leader serves.
        """
        cells, at = self._cells, self._row_at
        if (
            cells[at + SERVING_EPOCH] <= self.leader_epoch
            or cells[at + SERVING_INCARNATION] != self.incarnation
        ):
            cells[at + SERVING_INCARNATION] = -self.incarnation if offline else 0

    def files_change(self) -> None:
        """Says that segments' names are about to mean other files: before the first rename."""
        self._cells[self._row_at + FILES_VERSION] |= 1

    def files_changed(self) -> None:
        """Says that they have come to: after the last rename."""
        self._cells[self._row_at + FILES_VERSION] += 1
        if self.state_file is not None:
            self.state_file.files_changed()
        if not self.is_marked:
            self.mark()

    def files_begin_to_swap(self) -> None:
        """As `files_change`: the cleaner's segments take the place of some of ours."""
        self.files_change()

    def files_swapped(self, *, is_done: bool) -> None:
        """As `files_changed`, also when nothing was done: network processes read by the version."""
        self.files_changed()

    def cleanable_to(self, *, now_ms: int) -> int:
        """Return how far the log may be compacted.

        A log that nobody writes to rolls here, when it must be compacted at last.
        """
        log = self.log
        log.maybe_roll_by_time(now_ms)
        return min(log.stable_offset(self.high_watermark), self.last_stable_offset)

    def tidy(self, *, now_ms: int, is_at_rest: bool) -> None:
        """Have readers off the disk learn of a flush, and roll the log by time, once per checkpoint."""
        if self.has_unsaid_flush and not self.is_marked:
            self.mark()
        if is_at_rest:
            self.log.maybe_roll_by_time(now_ms)

    def publish(self) -> None:
        """Brings the row up to the log: log end, then the watermarks that follow from it."""
        cells, at, log = self._cells, self._row_at, self.log
        log_end = log.log_end_offset
        cells[at + LOG_START] = log.log_start_offset
        cells[at + ACTIVE_SEGMENT] = log.active_base_offset
        cells[self._log_end_cell] = log_end
        durable = self.durable
        if durable is not None and durable.offset < log_end:
            log_end = durable.offset
        if self.replication is not None:
            log_end = self.replication.high_watermark(log_end)
        # A transaction whose end is not replicated, or not on the disk, is open still.
        cells[at + LAST_STABLE_OFFSET] = log.stable_offset(log_end)
        cells[at + HIGH_WATERMARK] = log_end
        if not self.is_marked:
            self.mark()

    def state(self, *, now_ms: int) -> PartitionState:
        """For readers off the disk."""
        cells, at, log = self._cells, self._row_at, self.log
        active_base, active_bytes = log.active_segment
        return PartitionState(
            topic_id=log.topic_id or NO_ID,
            leader_epoch=self.leader_epoch,
            log_start=cells[at + LOG_START],
            high_watermark=cells[at + HIGH_WATERMARK],
            last_stable=cells[at + LAST_STABLE_OFFSET],
            log_end=log.log_end_offset,
            durable=log.recovery_point if self.durable is None else self.durable.offset,
            active_base=active_base,
            active_bytes=active_bytes,
            leads=True,
            written_ms=now_ms,
        )

    @property
    def has_unsaid_flush(self) -> bool:
        """Whether more was forced to the disk than readers off it were told."""
        last = None if self.state_file is None else self.state_file.last
        return last is not None and last.durable < self.log.recovery_point

    @property
    def high_watermark(self) -> int:
        return self._cells[self._row_at + HIGH_WATERMARK]

    @property
    def last_stable_offset(self) -> int:
        return self._cells[self._row_at + LAST_STABLE_OFFSET]

    def statistics(self) -> dict[str, int]:
        """Offsets as published."""
        cells, at = self._cells, self._row_at
        return {
            "log_start": cells[at + LOG_START],
            "log_end": cells[self._log_end_cell],
            "high_watermark": cells[at + HIGH_WATERMARK],
            "last_stable_offset": cells[at + LAST_STABLE_OFFSET],
        }
