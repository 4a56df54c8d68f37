"""The partitions that a slot follows: opened at the controller's command, copied by `Fetcher`, kept in order.

    controller ─→ obey ─→ Followers ─→ Fetcher, DurableCopies, moves, compaction
                                           │
    what happens to a copy ←── events ─────┘

The host connects the parts: a part reports an event (`PartitionListener`), and the host decides what follows. A copy is
moved between the slot's log directories, and compacted, by whoever has it open, led or not, as in Kafka. The copy in
the other directory is made from the slot's own log, which goes on following meanwhile: reading the leader's a second
time would cost it, and could bring other bytes after a cut.
"""

from __future__ import annotations

from collections.abc import Mapping

from appliance.channels.control_channel import (
    Assign,
    Assigned,
    CopiesMoved,
    CopyMove,
    Envelope,
    MoveCopies,
    PartitionsOffline,
)
from appliance.channels.controller_link import ControllerLink
from appliance.channels.roles import Role
from appliance.cluster import TopicPartition
from appliance.errors import ApplianceError, StorageFault
from appliance.ipc.process_table import ERRORS
from appliance.log.flusher import Flusher
from appliance.log.log_directories import LogDirectories
from appliance.log.producer_limits import PRODUCER_LIMITS
from appliance.log.shares import Share
from appliance.partition_host.copy_holder import CopyHolder
from appliance.partition_host.host import PartitionHost
from appliance.partition_host.run_state import RunState
from appliance.partition_host.storage_failures import StorageFailures
from appliance.process.agent import AgentProcess
from appliance.protocol.errors import ErrorCode, code_for
from appliance.replicas.background import behind_others
from appliance.replicas.breaths import Breaths
from appliance.replicas.durable_copies import DurableCopies
from appliance.replicas.fetcher import Fetcher
from appliance.replicas.follower import Follower, NotInSync
from appliance.replicas.followers import Followers
from appliance.replicas.leader_lines import LeaderLines


class FollowerHost(PartitionHost[Follower]):
    """Those of one replica process."""

    OPEN_AGAIN_MS = 1_000
    OPEN_AGAIN_MAX_MS = 30_000
    FLUSHES_ROLLED = False

    def __init__(
        self,
        process: AgentProcess,
        controller: ControllerLink,
        *,
        run_state: RunState,
    ) -> None:
        attachment, clock, cycle = process.attachment, process.clock, process.cycle
        super().__init__(
            process,
            controller,
            run_state=run_state,
            share=Share(None, workers=process.settings.io.workers, is_replicated=True),
            name=f"{attachment.role.slot}",
        )
        self._failures = StorageFailures[Follower](
            attachment.row, controller, slot=self.slot, complain=self.complain
        )
        self._followers: Followers | None = None
        self._breaths = Breaths(self._breathe, clock)
        self._durable = DurableCopies(
            Flusher(f"replica {self.slot}", eventfd=attachment.doorbell.eventfd), listener=self
        )
        cycle.add_inbox(self._durable)
        self.lines = LeaderLines(attachment)
        self.fetcher = Fetcher(
            cycle.timers,
            clock,
            lines=self.lines,
            durable=self._durable,
            checkpoints=self.checkpoints,
            listener=self,
        )

    # The parts, for `PartitionHost`

    @property
    def holder(self) -> Followers | None:
        return self._followers

    @property
    def failures(self) -> StorageFailures[Follower]:
        return self._failures

    @property
    def flush_gaps(self) -> DurableCopies:
        return self._durable

    def held_at(self, row: int) -> Follower | None:
        return None if self._followers is None else self._followers.by_row.get(row)

    def _hold(self, directories: LogDirectories, log_defaults: Mapping[str, str]) -> Followers:
        self._followers = Followers(
            directories,
            self.attachment.partitions,
            slot=self.slot,
            log_defaults=log_defaults,
            directories_of=self.settings.log_directories,
            workers=self.settings.io.workers,
            publisher=self.publisher,
            listener=self,
            warn=self.process.warn,
        )
        return self._followers

    def _opened(self, directories: LogDirectories) -> None:
        assert self._followers is not None
        self.fetcher.open(self._followers.by_row)

    # Commands of the controller

    def _obey_other(self, envelope: Envelope) -> bool:
        if not isinstance(envelope.body, MoveCopies):
            return False
        errors = tuple(self._move(each) for each in envelope.body.moves) if self.moves is not None else ()
        self._controller.send(Envelope(envelope.id, CopiesMoved(errors)))
        return True

    def _move(self, move: CopyMove) -> int:
        """Begin a move. Return a Kafka error code: REPLICA_NOT_AVAILABLE where the copy is not followed here."""
        followers, moves, name = self._followers, self.moves, TopicPartition(move.topic, move.partition)
        if followers is None or moves is None:
            return int(ErrorCode.REPLICA_NOT_AVAILABLE)
        if name in followers.offline:
            return int(ErrorCode.KAFKA_STORAGE_ERROR)
        follower = followers.by_name.get(name)
        if follower is None or follower.incarnation != move.incarnation:
            return int(ErrorCode.REPLICA_NOT_AVAILABLE)
        try:
            moves.alter(follower, move.directory)
        except ApplianceError as fault:
            return int(code_for(fault))
        return 0

    def _carry_out(self, holder: CopyHolder[Follower], command: Assign) -> Assigned | None:
        """Open logs in the background when no ISR waits for them: on a busy host the slots that take over what this one
        has led go first. All of them come in one command, or in pieces where this slot was back before others were
        elected."""
        if command.rates is not None:
            self.fetcher.go_by(command.rates)
        is_waited_for = any(self.slot in each.isr for each in command.partitions) or any(
            each.is_in_sync for each in holder.by_name.values()
        )
        if is_waited_for or not command.partitions:
            return holder.obey(command)
        if self._followers is not None and self._followers.will_flush(command):
            self._durable.begin()
        done = behind_others(holder.steps(command), meanwhile=self.run_state.overhear)
        return done if self.run_state.is_running else None

    def _assigned(self, partitions: list[Follower], *, removed: bool) -> None:
        self.compaction.assigned(partitions, removed=removed)
        for follower in partitions:
            self.fetcher.look_at(follower)

    def before_opening(self) -> bool:
        """Copy for the followers of other partitions: their leaders wait meanwhile."""
        self._breaths.take()
        return self.run_state.is_running

    def _breathe(self) -> None:
        self.process.beat()
        self.fetcher.turn()

    # Turns of the duty cycle

    def look_at_directories(self) -> None:
        """Look because something has happened to a lock file."""
        self._failures.look_when_told()

    def _files_removed(self) -> None:
        """Nobody else opens a followed copy's files."""

    def peer_down(self, role: Role) -> None:
        super().peer_down(role)
        self.lines.peer_down(role)

    # Events of the parts

    def producers_counted(self, count: int) -> None:
        PRODUCER_LIMITS.recount(count)

    def move_advanced(self, partition: Follower) -> None:
        if self.moves is not None:
            partition.show_future(self.moves.shown(partition))

    def relocated(self, partition: Follower) -> None:
        self.checkpoints.note_cut()

    def refused(self, partition: Follower, fault: ApplianceError) -> None:
        super().refused(partition, fault)
        if isinstance(fault, NotInSync):
            # As a leader's look would come to, after `replica.lag.time.max.ms` in which acks=all waits for it.
            name = partition.topic_partition
            place = ((name.topic, name.partition),)
            self._controller.ask(PartitionsOffline(self.slot, place, partial=place))

    def storage_failed(self, partition: Follower, fault: StorageFault) -> None:
        self.attachment.row.cells[ERRORS] += 1
        super().storage_failed(partition, fault)

    # The end

    def _end_flushes(self) -> None:
        self._durable.close()

    def _leave(self, partition: Follower) -> None:
        """It stays in sync: where all slots stop and one is slow, its leader would else have the ISR to itself."""
        partition.rest()

    def _leave_unclean(self, partition: Follower) -> None:
        partition.stop()

    def statistics(self) -> dict[str, int]:
        """Return how many partitions are followed, and how many of them have something to copy."""
        followed = 0 if self._followers is None else len(self._followers.by_name)
        return {"partitions": followed, **self.fetcher.statistics()}
