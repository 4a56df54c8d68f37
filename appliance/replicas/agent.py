"""The agent of a replica process: woken by leaders, copies what they have more, says so; sleeps when there is nothing.

Does: keeps the logs that its slot follows, and their words in the partition table.
Never: serves a client; writes to a log that its slot leads; looks whether there is something (it is told).
Dies: the supervisor restarts it; its slot's logs are recovered, cut where they part from the leader's, and catch up.
"""

from __future__ import annotations

import logging
import select
from itertools import takewhile
from typing import Final

from appliance.channels.control_channel import (
    Assign,
    Assigned,
    CopiesMoved,
    Envelope,
    MoveCopies,
    PartitionsOffline,
    ReplicaHello,
)
from appliance.channels.controller_link import ControllerLink
from appliance.channels.roles import CONTROLLER, Role, RoleKind
from appliance.channels.supervision import Message, Stop
from appliance.cluster import TopicPartition
from appliance.config import BrokerConfigs
from appliance.errors import ApplianceError, HostFault, StorageFault
from appliance.ipc.process_table import ERRORS
from appliance.journal import RateLimited
from appliance.log.directory_watch import DirectoryWatch
from appliance.log.flusher import Flusher
from appliance.log.known_directories import known_directories
from appliance.log.log_directories import LogDirectories
from appliance.log.reader_leases import LeaseBook
from appliance.log.shares import Share
from appliance.log.state_publisher import StatePublisher
from appliance.process.agent import AgentProcess
from appliance.replicas.background import behind_others
from appliance.replicas.breaths import Breaths
from appliance.replicas.copy_checkpoints import CopyCheckpoints
from appliance.replicas.copy_compaction import CopyCompaction
from appliance.replicas.copy_moves import CopyMoves
from appliance.replicas.copy_removals import CopyRemovals
from appliance.replicas.durable_copies import DurableCopies
from appliance.replicas.fetcher import Fetcher
from appliance.replicas.follower import Follower, NotInSync
from appliance.replicas.followers import Followers
from appliance.replicas.leader_lines import LeaderLines

OPEN_AGAIN_MS: Final = 1_000
OPEN_AGAIN_MAX_MS: Final = 30_000

_logger = logging.getLogger(__name__)


class ReplicaAgent:
    """A replica process's loop and its state. `run` returns after Stop, when the logs are closed."""

    def __init__(self, process: AgentProcess, controller: ControllerLink) -> None:
        attachment, clock = process.attachment, process.clock
        self._process = process
        self._attachment = attachment
        self._controller = controller
        self._clock = clock
        self._settings = process.settings
        self._slot = attachment.role.slot
        self._cycle = process.cycle
        self._complain = RateLimited(_logger.warning, clock)
        self._removals = CopyRemovals(
            process.after_ms,
            LeaseBook(
                clock,
                max_bytes=self._settings.broker.reader_lease_max_bytes,
                max_ms=self._settings.broker.reader_lease_max_ms,
                warn=_logger.warning,
            ),
            warn=self._complain,
        )
        self._compaction = CopyCompaction(
            attachment,
            self._cycle,
            retired=self._removals.remove_retired,
            refused=lambda follower, fault: self._complain(f"partition {follower.topic_partition}: {fault}"),
            interrupted=self._storage_failed,
            warn=_logger.warning,
        )
        self._directories: LogDirectories | None = None
        self._watch = DirectoryWatch()
        self._followers: Followers | None = None
        self._moves: CopyMoves | None = None
        self._lines = LeaderLines(attachment)
        self._serves = False
        self._opens_later = False
        self._durable = DurableCopies(
            Flusher(f"replica {self._slot}", eventfd=attachment.doorbell.eventfd),
            is_followed=lambda follower: (
                self._followers is not None and self._followers.is_followed(follower)
            ),
            fail=self._storage_failed,
        )
        self._cycle.add_inbox(self._durable)
        self._publisher = StatePublisher(
            process.after_ms,
            clock,
            interval_ms=self._settings.broker.reader_state_interval_ms,
            warn=self._complain,
        )
        self._checkpoints = CopyCheckpoints(
            process.after_ms,
            clock,
            interval_ms=self._settings.broker.log_flush_offset_checkpoint_interval_ms,
            start_interval_ms=self._settings.broker.log_flush_start_offset_checkpoint_interval_ms,
            publisher=self._publisher,
            removals=self._removals,
            look=self._look_at_directories,
            beat=process.beat,
            warn=self._complain,
        )
        self._fetcher = Fetcher(
            process.after_ms,
            clock,
            lines=self._lines,
            durable=self._durable,
            checkpoints=self._checkpoints,
            removals=self._removals,
            refused=self._refused,
        )
        self._running = True
        self._overheard: list[Message] = []
        self._say_hello()

    # The cycle

    def run(self) -> None:
        """Follow until Stop."""
        supervision_fd = self._process.supervision_fd
        while self._running:
            if self._fetcher.turn():
                wait_ms: int | None = 0
            else:
                if self._compaction.owed:
                    self._compaction.tell()
                wait_ms = 1 if self._lines.owed else None
            for descriptor, _ in self._cycle.wait(wait_ms):
                if descriptor == supervision_fd:
                    self._process.hear(self)
                elif descriptor == self._watch.fileno():
                    self._watch.clear()
                    self._look_at_directories()
                else:
                    self._controller.wants_look = True
            if self._controller.wants_look:
                self._obey(self._controller.receive())
                self._process.carry_out(self, self._take_overheard())
            self._compaction.serve(self._followed_at)
            if self._moves is not None and self._moves.done:
                self._moves.turn()
        self._close()

    def _followed_at(self, row: int) -> Follower | None:
        return None if self._followers is None else self._followers.by_row.get(row)

    def _breathe(self) -> None:
        """Copy what there is to copy in the middle of long work, and send a heartbeat."""
        self._process.beat()
        self._fetcher.turn()

    def _refused(self, follower: Follower, fault: ApplianceError) -> None:
        self._attachment.row.cells[ERRORS] += 1
        name = follower.topic_partition
        self._complain(f"partition {name} is not followed: {fault}")
        if isinstance(fault, NotInSync):
            # As a leader's look would come to, after `replica.lag.time.max.ms` in which acks=all waits for it.
            place = ((name.topic, name.partition),)
            self._controller.ask(PartitionsOffline(self._slot, place, partial=place))

    # The supervisor's and the controller's words

    def _say_hello(self) -> None:
        self._controller.ask(ReplicaHello(self._slot, self._attachment.generation))

    def stop(self, within_ms: int) -> None:
        """End after this turn; logs are flushed and marked clean then."""
        self._running = False

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """Greet a controller; copy what the next life of a leader's worker has."""
        if peer == CONTROLLER:
            self._say_hello()
            return
        if new_rings:
            self._compaction.peer_up(peer)
        if peer.kind is RoleKind.IOPROC:
            self._fetcher.look_at_all(peer)

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        """Forget what a dead worker or cleaner shared with this process."""
        if had_rings:
            self._compaction.peer_down(peer)
            self._lines.peer_down(peer)

    def _obey(self, envelopes: list[Envelope]) -> None:
        for envelope in takewhile(lambda _: self._running, envelopes):
            if isinstance(envelope.body, MoveCopies):
                errors = () if self._moves is None else self._moves.alter_all(envelope.body.moves)
                self._controller.send(Envelope(envelope.id, CopiesMoved(errors)))
                continue
            if not isinstance(envelope.body, Assign):
                _logger.warning("unexpected command: %s", type(envelope.body).__name__)
                continue
            followers = self._followers or self._open(envelope.body)
            if followers is None:
                return
            if envelope.body.rates is not None:
                self._fetcher.go_by(envelope.body.rates)
            done = self._carry_out(followers, envelope.body)
            if done is None:
                continue
            self._compaction.assigned(
                followers.touched_by(envelope.body), removed=bool(envelope.body.removed)
            )
            for assigned in envelope.body.partitions:
                follower = followers.by_row.get(assigned.row)
                if follower is not None:
                    self._fetcher.look_at(follower)
            self._controller.send(Envelope(envelope.id, done))
            if self._moves is not None:
                self._moves.opened()
            if followers.unopened:
                self._open_later(OPEN_AGAIN_MS)
            if envelope.body.full and not self._serves:
                self._serves = True
                self._process.ready()
            if envelope.body.removed:
                self._removals.remove_partitions()
            self._removals.remove_retired()

    def _carry_out(self, followers: Followers, command: Assign) -> Assigned | None:
        """Obeys, and tells the controller which copies have gone: they are in sync no more."""
        done = self._obeyed(followers, command)
        if done is not None and followers.offline:
            named = ((each.topic, each.partition) for each in command.partitions)
            gone = tuple(each for each in named if TopicPartition(*each) in followers.offline)
            if gone:
                self._controller.ask(PartitionsOffline(self._slot, gone))
        return done

    def _obeyed(self, followers: Followers, command: Assign) -> Assigned | None:
        """Who comes back, and whom no ISR waits for, opens its logs in the background: on a busy host the slots that
        take over what it led go first. It is told of them all at once, or in pieces where it was back before others
        were elected."""
        is_waited_for = any(self._slot in each.isr for each in command.partitions) or any(
            each.is_in_sync for each in followers.by_row.values()
        )
        if is_waited_for or not command.partitions:
            return followers.obey(command)
        if followers.will_flush(command):
            self._durable.begin()
        done = behind_others(lambda: followers.obey(command), meanwhile=self._overhear)
        return done if self._running else None

    def _overhear(self) -> None:
        """What the supervisor says while a command is carried out: an end is heeded now, all else afterwards.

        Behind the others, on a host full of work, a command would outlast the time that a stop has.
        """
        said = self._process.supervision.receive()
        self._overheard.extend(said or ())
        if said is None or any(isinstance(message, Stop) for message in said):
            self._running = False

    def _take_overheard(self) -> list[Message]:
        overheard, self._overheard = self._overheard, []
        return overheard

    def _open(self, command: Assign) -> Followers | None:
        settings = self._settings
        try:
            self._directories = LogDirectories.open(
                settings.log_directories(self._slot),
                node_id=self._slot,
                cluster_id=command.cluster_id,
                clock=self._clock,
                known=known_directories(settings.known_directories(self._slot)),
                share=Share(None, workers=settings.io.workers, is_replicated=True),
                clean_seen_by=self._attachment.clean_seen_by,
            )
        except ApplianceError as error:
            self._process.failed(f"log directory {error}", fatal=not isinstance(error, HostFault))
            self._running = False
            return None
        for directory in self._directories.serving.values():
            for lock in directory.locks:
                self._watch.add(lock)
        if self._watch.fileno() >= 0:
            self._cycle.epoll.register(self._watch.fileno(), select.EPOLLIN)
        self._followers = Followers(
            self._directories,
            self._attachment.partitions,
            slot=self._slot,
            log_defaults=command.log_defaults or BrokerConfigs().log_defaults(settings),
            directories_of=settings.log_directories,
            workers=settings.io.workers,
            breathe=Breaths(self._breathe, self._clock).take,
            is_stopping=lambda: not self._running,
            publisher=self._publisher,
            warn=_logger.warning,
        )
        self._moves = CopyMoves(
            self._followers,
            self._directories,
            self._durable,
            thread=Flusher(f"moves {self._slot}", eventfd=self._attachment.doorbell.eventfd, threads=1),
            removed=self._removals.remove_partitions,
            suspect=self._suspect_directory,
            fail=self._storage_failed,
            moved=self._checkpoints.note_cut,
        )
        self._cycle.add_inbox(self._moves)
        self._fetcher.open(self._followers.by_row)
        self._checkpoints.open(self._directories, self._followers)
        self._removals.open(self._directories)
        return self._followers

    def _open_later(self, pause_ms: int) -> None:
        if self._opens_later:
            return
        self._opens_later = True

        def again() -> None:
            self._opens_later = False
            if self._followers is not None:
                opened = self._followers.open_again()
                for follower in opened:
                    self._fetcher.look_at(follower)
                self._compaction.assigned(opened, removed=False)
                if self._moves is not None:
                    self._moves.opened()
                if self._followers.unopened:
                    self._open_later(min(2 * pause_ms, OPEN_AGAIN_MAX_MS))

        self._process.after_ms(pause_ms, again)

    # Directories that fail

    def _look_at_directories(self) -> None:
        """Something happened to a lock file, or it is time: directories that are gone take their partitions along."""
        if self._directories is None or self._followers is None:
            return
        for index, fault in self._directories.look().items():
            self._directory_failed(self._directories, self._followers, index, fault=fault)

    def _directory_failed(
        self, directories: LogDirectories, followers: Followers, index: int, *, fault: StorageFault
    ) -> None:
        gone = followers.directory_failed(index)
        _logger.warning("%d partitions are not followed any more, with their log directory", len(gone))
        directories.fail(index, fault)
        named = tuple((each.topic, each.partition) for each in gone)
        self._controller.ask(PartitionsOffline(self._slot, named))

    def _storage_failed(self, follower: Follower, fault: StorageFault) -> None:
        """What the disk holds of the copy is not known any more; nor of its directory, if that fails a probe."""
        directories, followers, name = self._directories, self._followers, follower.topic_partition
        if directories is None or followers is None:
            return
        self._attachment.row.cells[ERRORS] += 1
        index = directories.index_of(name)
        wider = directories.probe(index)
        if wider is not None:
            self._directory_failed(directories, followers, index, fault=wider)
            return
        _logger.warning("partition %s is not followed any more: %s", name, fault)
        followers.take_offline(follower, fault)
        self._controller.ask(PartitionsOffline(self._slot, ((name.topic, name.partition),)))

    def _suspect_directory(self, index: int) -> None:
        """It has refused something: whether it has failed shows in a probe."""
        wider = None if self._directories is None else self._directories.probe(index)
        if wider is not None and self._directories is not None and self._followers is not None:
            self._directory_failed(self._directories, self._followers, index, fault=wider)

    def _close(self) -> None:
        self._process.stopping()
        self._durable.close()
        if self._moves is not None:
            self._moves.close()
        self._checkpoints.join()
        if self._directories is not None and self._followers is not None:
            now_ms = self._clock.now_ms()
            followed = [(each, each.state(now_ms=now_ms)) for each in self._followers.by_name.values()]
            # They stay in sync: where all stop and one is slow, its leader would else say that it alone has all.
            for follower, _ in followed:
                follower.rest()
            try:
                self._directories.close(self._followers.high_watermarks())
                for follower, state in followed:
                    self._publisher.closed(follower, state)
            except StorageFault as fault:
                for follower, _ in followed:
                    follower.stop()
                _logger.warning("not stopped cleanly, the next start recovers: %s", fault)
        self._watch.close()
        self._process.close()
        self._controller.close()

    def statistics(self) -> dict[str, int]:
        """Partitions followed, and those with something to copy."""
        followed = len(self._followers.by_name) if self._followers else 0
        return {"partitions": followed, **self._fetcher.statistics()}
