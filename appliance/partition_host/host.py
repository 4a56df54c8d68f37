"""What a worker and a replica process do alike: open a slot's log directories, hold partitions open, and keep house.

    Assign ─→ open directories ─→ holder opens logs ─→ Assigned
                  │
                  ├─ state publisher, checkpoints, removals, reader leases
                  ├─ moves between log directories, compaction
                  └─ directories that fail

A worker serves what it leads (`ioproc.leader_host`), a replica copies what it follows (`replicas.follower_host`); each
is a host, and the listener of its own parts. Everything runs on the process's thread. Only flushes, checkpoints,
removals and slices of moves run on others.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Protocol, TypeVar

from appliance.channels.control_channel import Assign, Assigned, Envelope
from appliance.channels.controller_link import ControllerLink
from appliance.channels.roles import Role
from appliance.cluster import TopicPartition
from appliance.config import BrokerConfigs
from appliance.errors import ApplianceError, HostFault, StorageFault
from appliance.journal import RateLimited
from appliance.log.flusher import Flusher
from appliance.log.known_directories import known_directories
from appliance.log.log_directories import LogDirectories
from appliance.log.shares import Share
from appliance.log.state_publisher import Published, StatePublisher
from appliance.partition_host.checkpoints import Checkpointed, Checkpoints
from appliance.partition_host.compaction import Compacted, Compaction
from appliance.partition_host.copy_holder import CopyHolder, HeldCopy
from appliance.partition_host.listener import PartitionListener
from appliance.partition_host.log_moves import FlushGaps, LogMoves, Movable
from appliance.partition_host.removals import Removals
from appliance.partition_host.run_state import RunState
from appliance.partition_host.storage_failures import StorageFailures
from appliance.process.agent import AgentProcess

_logger = logging.getLogger(__name__)


class Hosted(HeldCopy, Movable, Compacted, Checkpointed, Published, Protocol):
    """A partition that is held open: led, or followed."""


Held = TypeVar("Held", bound=Hosted)


class PartitionHost(PartitionListener[Held], ABC):
    """The partitions of one process. Nothing is open before the first command.

    Args:
        share: Which of the slot's partitions the process may hold.
        name: Names the process's threads.
    """

    OPEN_AGAIN_MS: ClassVar[int]
    """The pause before partitions that could not be opened are tried again. It doubles, since a try may read much."""
    OPEN_AGAIN_MAX_MS: ClassVar[int]
    FLUSHES_ROLLED: ClassVar[bool]
    """Whether rolled segments are forced to the disk within a second, or by the next checkpoint."""

    def __init__(
        self,
        process: AgentProcess,
        controller: ControllerLink,
        *,
        run_state: RunState,
        share: Share,
        name: str,
    ) -> None:
        attachment, clock, cycle = process.attachment, process.clock, process.cycle
        broker = process.settings.broker
        self.process = process
        self.attachment = attachment
        self.clock = clock
        self.cycle = cycle
        self.settings = process.settings
        self.slot = attachment.role.slot
        self.run_state = run_state
        self._controller = controller
        self._share = share
        self._name = name
        self.complain = RateLimited(process.warn, clock)
        self.removals = Removals(
            cycle.timers, clock, settings=broker, eventfd=attachment.doorbell.eventfd, warn=process.warn
        )
        self.publisher = StatePublisher(
            process.after_ms,
            clock,
            interval_ms=broker.reader_state_interval_ms,
            warn=self.complain,
            processor_ns=time.thread_time_ns,
        )
        self.checkpoints = Checkpoints(
            cycle.timers,
            clock,
            settings=broker,
            publisher=self.publisher,
            removals=self.removals,
            listener=self,
            complain=self.complain,
        )
        self.compaction = Compaction(attachment, cycle, clock, listener=self, complain=self.complain)
        self.directories: LogDirectories | None = None
        self.moves: LogMoves[Held] | None = None
        self.serves = False
        """Whether the first command was carried out, and the supervisor knows."""
        self._opens_later = False

    # What differs

    @property
    @abstractmethod
    def holder(self) -> CopyHolder[Held] | None:
        """The partitions; None before the first command."""

    @property
    @abstractmethod
    def failures(self) -> StorageFailures[Held]:
        """What is offline."""

    @property
    @abstractmethod
    def flush_gaps(self) -> FlushGaps[Held]:
        """The part that flushes partitions under `durability = "fsync"`."""

    @abstractmethod
    def held_at(self, row: int) -> Held | None:
        """Return the partition of a row."""

    @abstractmethod
    def _hold(self, directories: LogDirectories, log_defaults: Mapping[str, str]) -> CopyHolder[Held]:
        """Make the holder, empty. `holder` returns it from now on."""

    @abstractmethod
    def _opened(self, directories: LogDirectories) -> None:
        """Called once, when the directories are open and all parts know them."""

    @abstractmethod
    def _assigned(self, partitions: list[Held], *, removed: bool) -> None:
        """Called when partitions were opened or have other settings, and when some were removed."""

    @abstractmethod
    def _files_removed(self) -> None:
        """Called when files were removed that another process may hold open."""

    @abstractmethod
    def _obey_other(self, envelope: Envelope) -> bool:
        """Carry out a command that is no assignment. Return False for one that is not known."""

    def _carry_out(self, holder: CopyHolder[Held], command: Assign) -> Assigned | None:
        """Carry an assignment out."""
        return holder.obey(command)

    # Commands of the controller

    def obey(self, envelopes: list[Envelope]) -> None:
        """Carry the controller's commands out."""
        for envelope in envelopes:
            if not self.run_state.is_running:
                return
            if isinstance(envelope.body, Assign):
                self._assign(envelope.id, envelope.body)
            elif not self._obey_other(envelope):
                self.process.warn(f"unexpected command: {type(envelope.body).__name__}")

    def _assign(self, number: int, command: Assign) -> None:
        holder = self.holder or self._open(command)
        if holder is None:
            return
        _logger.debug(
            "assignment %d of controller epoch %d: %d partitions",
            number,
            command.controller_epoch,
            len(command.partitions),
        )
        done = self._carry_out(holder, command)
        if done is None:
            return
        self.failures.show()
        if holder.offline:
            named = (TopicPartition(each.topic, each.partition) for each in command.partitions)
            if refused := [name for name in named if name in holder.offline]:
                self.failures.tell(refused)
        self._assigned(holder.touched_by(command), removed=bool(command.removed))
        self.removals.remove_retired()
        self._controller.send(Envelope(number, done))
        if self.moves is not None:
            self.moves.opened()
        if holder.unopened:
            self._open_later(self.OPEN_AGAIN_MS)
        if command.full and not self.serves:
            self.serves = True
            self.process.ready()
        if command.removed:
            self.removals.remove_partitions()

    def _open(self, command: Assign) -> CopyHolder[Held] | None:
        settings = self.settings
        try:
            directories = LogDirectories.open(
                settings.log_directories(self.slot),
                node_id=self.slot,
                cluster_id=command.cluster_id,
                clock=self.clock,
                known=known_directories(settings.known_directories(self.slot)),
                share=self._share,
                clean_seen_by=self.attachment.clean_seen_by,
            )
        except ApplianceError as error:
            self.process.failed(f"log directory {error}", fatal=not isinstance(error, HostFault))
            self.run_state.is_running = False
            return None
        self.directories = directories
        holder = self._hold(directories, command.log_defaults or BrokerConfigs().log_defaults(settings))
        self.failures.open(directories, holder, self.cycle.epoll)
        self.checkpoints.open(directories, holder.by_name, flushes_rolled=self.FLUSHES_ROLLED)
        self.moves = LogMoves(
            holder.by_name,
            directories,
            self.flush_gaps,
            thread=Flusher(f"moves {self._name}", eventfd=self.attachment.doorbell.eventfd, threads=1),
            listener=self,
        )
        self.cycle.add_inbox(self.moves)
        self._opened(directories)
        self.removals.open(directories)
        return holder

    def _open_later(self, pause_ms: int) -> None:
        if not self._opens_later:
            self._opens_later = True
            self.process.after_ms(pause_ms, partial(self._open_again, pause_ms))

    def _open_again(self, pause_ms: int) -> None:
        self._opens_later = False
        holder = self.holder
        if holder is not None:
            self._assigned(holder.open_again(), removed=False)
            if self.moves is not None:
                self.moves.opened()
            if holder.unopened:
                self._open_later(min(2 * pause_ms, self.OPEN_AGAIN_MAX_MS))

    # Turns of the duty cycle

    def before_sleep(self) -> None:
        """Tell the cleaner where to look. Called before the process waits."""
        if self.compaction.owed:
            self.compaction.tell()

    def turn(self) -> None:
        """Do what threads and the cleaner have left to do. Called after each wait."""
        if self.removals.take_removed():
            self._files_removed()
        self.compaction.serve(self.held_at)
        if self.moves is not None and self.moves.done:
            self.moves.turn()

    def peer_up(self, role: Role) -> None:
        """Take a process's rings into use, once the attachment has them."""
        self.compaction.peer_up(role)

    def peer_down(self, role: Role) -> None:
        """Let go of a process's rings, before the attachment does."""
        self.compaction.peer_down(role)

    # Events of the parts

    def work_goes_on(self) -> None:
        self.process.beat()

    def checkpoint_begins(self) -> None:
        self.failures.look()

    def segments_retired(self) -> None:
        self.removals.remove_retired()

    def directories_deleted(self) -> None:
        self.removals.remove_partitions()

    def refused(self, partition: Held, fault: ApplianceError) -> None:
        self.failures.refused(partition, fault)

    def storage_failed(self, partition: Held, fault: StorageFault) -> None:
        self.failures.partition_failed(partition, fault)

    def directory_suspected(self, index: int) -> None:
        self.failures.suspect_directory(index)

    # The end

    def close(self) -> None:
        """Close every log, with a marker of a clean stop where that succeeds."""
        self.process.stopping()
        self.checkpoints.join()
        self._end_flushes()
        if self.moves is not None:
            self.moves.close()
        holder = self.holder
        if self.directories is not None and holder is not None:
            now_ms = self.clock.now_ms()
            held = [(each, each.state(now_ms=now_ms)) for each in holder.by_name.values()]
            for each, _ in held:
                self._leave(each)
            try:
                self.directories.close(holder.high_watermarks())
                for each, state in held:
                    self.publisher.closed(each, state)
            except StorageFault as fault:
                for each, _ in held:
                    self._leave_unclean(each)
                self.process.warn(f"not stopped cleanly, the next start recovers: {fault}")
        self.failures.close()

    @abstractmethod
    def _end_flushes(self) -> None:
        """Wait for the flushes that were begun."""

    @abstractmethod
    def _leave(self, partition: Held) -> None:
        """Stop serving or following a partition, whose log is about to be closed."""

    def _leave_unclean(self, partition: Held) -> None:
        """Called after `_leave` when some log could not be closed in good order."""
