"""The partitions that one worker leads: opened at the controller's command, served by `RequestRings`, kept in order.

    controller ─→ obey ─→ Partitions ─→ RequestRings, GroupCommit, Followed, Retention, moves, compaction
                                                 │
    what happens to a partition ←── events ──────┘

The host connects the parts: a part reports an event (`PartitionListener`), and the host decides what follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.channels.control_channel import AlteredPartitions, Envelope, LogsAhead
from appliance.channels.controller_link import ControllerLink
from appliance.channels.roles import Role
from appliance.channels.traffic_table import stages_at
from appliance.channels.worker_counters import FORGOTTEN_PRODUCER_IDS, MOVING_PARTITIONS, PRODUCER_IDS
from appliance.errors import StorageFault
from appliance.ioproc.answer_rings import AnswerRings
from appliance.ioproc.expiry_line import ExpiryLine
from appliance.ioproc.followed import Followed
from appliance.ioproc.group_commit import GroupCommit
from appliance.ioproc.log_sizes import LogSizes
from appliance.ioproc.partition import Partition
from appliance.ioproc.partitions import Partitions
from appliance.ioproc.pokes import Pokes
from appliance.ioproc.repairs import Repairs
from appliance.ioproc.request_rings import RequestRings
from appliance.ioproc.retention import Retention
from appliance.ioproc.stage_times import StageTimes
from appliance.ioproc.storage_failures import ServedFailures
from appliance.ipc.shared_memory import Region
from appliance.log.flusher import Flusher
from appliance.log.log_directories import LogDirectories
from appliance.log.producer_limits import PRODUCER_LIMITS
from appliance.log.shares import Share
from appliance.partition_host.host import PartitionHost
from appliance.partition_host.run_state import RunState
from appliance.process.agent import AgentProcess

END_COMMITS_LOOK_MS: Final = 100
# Of logs that are opened one after the other, each a quarter to a whole millisecond.
OPENINGS_A_LOOK: Final = 4


class LeaderHost(PartitionHost[Partition]):
    """Those of one worker."""

    OPEN_AGAIN_MS = 500
    OPEN_AGAIN_MAX_MS = 60_000
    FLUSHES_ROLLED = True

    def __init__(
        self,
        process: AgentProcess,
        controller: ControllerLink,
        *,
        run_state: RunState,
    ) -> None:
        attachment, settings, clock, cycle = (
            process.attachment,
            process.settings,
            process.clock,
            process.cycle,
        )
        role = attachment.role
        self._has_followers = settings.slots > 1
        super().__init__(
            process,
            controller,
            run_state=run_state,
            share=Share(role.index, workers=settings.io.workers, is_replicated=self._has_followers),
            name=f"{role.slot}.{role.index}",
        )
        self._failures = ServedFailures(attachment.row, controller, slot=self.slot, complain=self.complain)
        self._partitions: Partitions | None = None
        self._retention: Retention | None = None
        self._log_sizes: LogSizes | None = None
        self._stages: StageTimes | None = None
        self._openings = 0
        self._look_again_ns = 0
        self._answers = AnswerRings(attachment)
        self._flusher = Flusher(self._name, eventfd=attachment.doorbell.eventfd)
        pokes = Pokes(attachment.partitions)
        self._commits = GroupCommit(pokes, reply=self._answers.reply, flusher=self._flusher, listener=self)
        cycle.add_inbox(self._commits)
        self._repairs = Repairs(
            attachment.row,
            clock,
            slot=self.slot,
            directories_of=settings.log_directories,
            listener=self,
        )
        self._expiry_line = ExpiryLine(attachment, cycle, clock)
        self.expire = self._expiry_line.turn
        self._followed = Followed(
            attachment,
            controller,
            cycle,
            clock=clock,
            pokes=pokes,
            commits=self._commits,
            deadlines=self._expiry_line.deadlines,
            answers=self._answers,
            listener=self,
        )
        self.rings = RequestRings(
            process,
            answers=self._answers,
            pokes=pokes,
            commits=self._commits,
            followed=self._followed,
            checkpoints=self.checkpoints,
            failures=self._failures,
            listener=self,
        )

    # The parts, for `PartitionHost`

    @property
    def holder(self) -> Partitions | None:
        return self._partitions

    @property
    def failures(self) -> ServedFailures:
        return self._failures

    @property
    def flush_gaps(self) -> GroupCommit:
        return self._commits

    def held_at(self, row: int) -> Partition | None:
        by_row = [] if self._partitions is None else self._partitions.by_row
        return by_row[row] if row < len(by_row) else None

    def _hold(self, directories: LogDirectories, log_defaults: Mapping[str, str]) -> Partitions:
        self._partitions = Partitions(
            directories,
            self.attachment.partitions,
            slot=self.slot,
            log_defaults=log_defaults,
            commits=self._commits,
            clock=self.clock,
            publisher=self.publisher,
            directories_of=self.settings.log_directories,
            listener=self,
            is_emptied=self.slot in self.attachment.wiring.emptied_slots,
            warn=self.process.warn,
        )
        return self._partitions

    def _opened(self, directories: LogDirectories) -> None:
        partitions, moves = self._partitions, self.moves
        assert partitions is not None
        assert moves is not None
        self._failures.serve(partitions)
        self._followed.open(partitions)
        self.rings.open(partitions.by_row, moves)
        if self.settings.counts_traffic:
            region = Region.open(self.attachment.wiring.logs_name)
            self._log_sizes = LogSizes(region.view, partitions.by_row, after_ms=self.process.after_ms)
            number = self.slot * self.settings.io.workers + self.attachment.role.index
            at = stages_at(number, rows=self.settings.broker.max_partitions)
            self._stages = StageTimes(region.view, at, clock=self.clock, after_ms=self.process.after_ms)
            self.rings.set_stages(self._stages)
        self._retention = Retention(
            partitions,
            self.cycle.timers,
            self.clock,
            interval_ms=self.settings.broker.log_retention_check_interval_ms,
            listener=self,
            warn=self.complain,
        )

    # Commands of the controller

    def new_controller(self) -> None:
        """Ask a new controller what the one before has not answered."""
        self._followed.new_controller()

    def _obey_other(self, envelope: Envelope) -> bool:
        if not isinstance(envelope.body, AlteredPartitions):
            return False
        self._followed.altered(envelope.id, envelope.body)
        self._answers.publish_late()
        return True

    def _assigned(self, partitions: list[Partition], *, removed: bool) -> None:
        if any(each.log.log_start_offset > each.log.first_base_offset for each in partitions):
            # A leader before has moved it, and the disk of this slot may not have that.
            self.checkpoints.note_start_moved()
        self.compaction.assigned(partitions, removed=removed)
        self._followed.assigned(partitions)
        self._answers.publish_late()
        self._report_ahead()

    def _report_ahead(self) -> None:
        """Tell the controller which logs have later epochs than it knows, before it learns what else was opened."""
        holder = self.holder
        if holder is not None and holder.ahead:
            self._controller.ask(LogsAhead(self.slot, tuple(holder.ahead.values())))
            holder.ahead.clear()

    def before_opening(self) -> bool:
        """Serve clients of what is open already: they do not wait for the rest of a takeover.

        Before the first command is done nobody knows of this worker. After that the openings, for which others wait,
        have at least half of the time.
        """
        self.process.beat()
        self._openings += 1
        if not self.serves or self._openings % OPENINGS_A_LOOK:
            return True
        begun_ns = self.clock.monotonic_ns()
        if begun_ns < self._look_again_ns:
            return True
        self.rings.serve()
        if self._answers.late:
            self._answers.publish_late()
        ended_ns = self.clock.monotonic_ns()
        self._look_again_ns = ended_ns + (ended_ns - begun_ns)
        return True

    # Turns of the duty cycle

    def before_sleep(self) -> None:
        if self._answers.late:
            self._answers.publish_late()
        if self.compaction.owed:
            self.compaction.tell()

    def look_at_directories(self) -> None:
        """Look because something has happened to a lock file."""
        self._failures.look_when_told()

    def _files_removed(self) -> None:
        self._answers.tell_removed()

    def peer_up(self, role: Role) -> None:
        super().peer_up(role)
        self._expiry_line.peer_up(role)
        self._followed.peer_up(role)

    def peer_down(self, role: Role) -> None:
        super().peer_down(role)
        self._expiry_line.peer_down(role)
        self.rings.peer_down(role)

    # Events of the parts

    def withdrawn(self, partition: Partition, error: int) -> None:
        self._followed.withdrawn(partition, error)

    def high_watermark_may_move(self, partition: Partition) -> None:
        self._followed.published_later(partition)

    def log_start_moved(self) -> None:
        if self._has_followers:
            self._followed.starts_moved()
        self.checkpoints.note_start_moved()

    def segments_retired(self) -> None:
        if self._has_followers:
            self._followed.starts_moved()
        super().segments_retired()

    def producers_counted(self, count: int) -> None:
        PRODUCER_LIMITS.recount(count)
        cells = self.attachment.row.cells
        cells[PRODUCER_IDS] = count
        cells[FORGOTTEN_PRODUCER_IDS] = PRODUCER_LIMITS.forgotten

    def moves_counted(self, count: int) -> None:
        self.attachment.row.cells[MOVING_PARTITIONS] = count

    def relocated(self, partition: Partition) -> None:
        self.checkpoints.note_dirty()
        self.log_start_moved()

    def log_damaged(self, partition: Partition, offset: int) -> None:
        self._repairs.look(partition, offset)

    def log_repaired(self, partition: Partition) -> None:
        self._followed.repaired(partition)

    def better_copy_found(self, partition: Partition, offset: int, fault: StorageFault) -> None:
        self._failures.better_copy_found(partition, offset, fault)

    # The end

    def _end_flushes(self) -> None:
        """Send every answer that waits for a flush."""
        while self._commits.is_busy:
            if self._commits.is_empty():
                self.cycle.wait(END_COMMITS_LOOK_MS)
                self.expire()  # else a message of the purgatory would end each wait at once
            self._commits.turn()
            self._answers.publish_late()
        self._flusher.close()

    def _leave(self, partition: Partition) -> None:
        partition.withdraw()

    def statistics(self) -> dict[str, int]:
        """Return how many partitions are led, and what waits on the rings."""
        led = 0 if self._partitions is None else len(self._partitions.by_name)
        return {"partitions": led, **self.rings.statistics()}
