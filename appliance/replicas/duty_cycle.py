"""The duty cycle of a replica: woken by leaders, copies what they have more, says so; sleeps when there is nothing.

Does: keeps the logs that its slot follows, and their words in the partition table.
Never: serves a client; writes to a log that its slot leads; looks whether there is something (it is told).
Dies: the supervisor restarts it; its slot's logs are recovered, cut where they part from the leader's, and catch up.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
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
from appliance.channels.roles import CONTROLLER, Role, RoleKind, owner_of
from appliance.channels.supervision import (
    Failed,
    Heartbeat,
    Message,
    PeerDown,
    PeerUp,
    Ready,
    Stop,
    SupervisionSocket,
)
from appliance.channels.wiring import Attachment
from appliance.clock import Clock
from appliance.config import BrokerConfigs
from appliance.errors import ApplianceError, HostFault, StorageFault
from appliance.ipc.agent import DutyCycle
from appliance.ipc.process_table import ERRORS, REQUESTS, ProcessState
from appliance.journal import RateLimited
from appliance.log.directory_watch import DirectoryWatch
from appliance.log.flusher import Flusher
from appliance.log.halves import Half
from appliance.log.log_directories import LogDirectories
from appliance.log.reader_leases import LeaseBook
from appliance.log.removal import Removal
from appliance.log.state_publisher import StatePublisher
from appliance.replicas.copy_compaction import CopyCompaction
from appliance.replicas.copy_moves import CopyMoves
from appliance.replicas.durable_copies import DurableCopies
from appliance.replicas.follower import Follower
from appliance.replicas.followers import Followers
from appliance.replicas.leader_log import ReadBuffer
from appliance.replicas.throttle import FREE, Throttle, Throttled

MESSAGES_AT_ONCE: Final = 256
COPY_BYTES_A_TURN: Final = 1 << 20
# Then the supervisor, the controller and other partitions are heard, however much there is to catch up with.
COPY_NS_A_TURN: Final = 20_000_000
# How soon a partition is looked at again whose leader's files are being renamed; doubles for one that is refused.
AGAIN_MS: Final = 5
REFUSED_AGAIN_MS: Final = 200
REFUSED_AGAIN_MAX_MS: Final = 30_000
OPEN_AGAIN_MS: Final = 1_000
CUT_CHECKPOINT_MS: Final = 100
# Against others that want the same core, about a tenth of it.
BACKGROUND_NICE: Final = 10
BEAT_MS: Final = 500
_NS_PER_MS: Final = 1_000_000

_logger = logging.getLogger(__name__)


class Replica:
    """One replica process's loop and its state. `run` returns when the supervisor said stop and the logs are closed."""

    def __init__(
        self,
        attachment: Attachment,
        controller: ControllerLink,
        supervision: SupervisionSocket,
        *,
        clock: Clock,
    ) -> None:
        self._attachment = attachment
        self._controller = controller
        self._supervision = supervision
        self._clock = clock
        self._settings = attachment.wiring.settings
        self._slot = attachment.role.slot
        self._cycle = DutyCycle(attachment.doorbell, attachment.row, monotonic_ns=clock.monotonic_ns)
        self._cycle.add_inbox(controller)
        self._cycle.epoll.register(controller.fileno(), select.EPOLLIN)
        self._cycle.epoll.register(supervision.fileno(), select.EPOLLIN)
        for reader in attachment.inbound.values():
            self._cycle.add_inbox(reader)
        self._complain = RateLimited(_logger.warning, clock)
        self._compaction = CopyCompaction(
            attachment,
            self._cycle,
            retired=self._remove_retired,
            refused=lambda follower, fault: self._complain(f"partition {follower.topic_partition}: {fault}"),
            interrupted=self._storage_failed,
            warn=_logger.warning,
        )
        self._directories: LogDirectories | None = None
        self._watch = DirectoryWatch()
        self._followers: Followers | None = None
        self._moves: CopyMoves | None = None
        self._buffer = ReadBuffer()
        self._due: dict[int, Follower] = {}
        self._pauses_ms: dict[int, int] = {}
        self._throttle = Throttle(clock)
        self._throttled_rows: set[int] = set()
        self._owed: dict[Role, dict[int, int]] = {}
        self._serves = False
        self._opens_later = False
        self._dirty = False
        self._cut = False
        self._log_ends: dict[int, int] = {}
        self._flusher: threading.Thread | None = None
        self._durable = DurableCopies(
            Flusher(f"replica {self._slot}", eventfd=attachment.doorbell.eventfd),
            is_followed=lambda follower: (
                self._followers is not None and self._followers.is_followed(follower)
            ),
            fail=self._storage_failed,
        )
        self._cycle.add_inbox(self._durable)
        self._leases = LeaseBook(
            clock,
            max_bytes=self._settings.broker.reader_lease_max_bytes,
            max_ms=self._settings.broker.reader_lease_max_ms,
            warn=_logger.warning,
        )
        self._publisher = StatePublisher(
            self._after_ms,
            clock,
            interval_ms=self._settings.broker.reader_state_interval_ms,
            warn=self._complain,
        )
        self._running = True
        self._beaten_ns = 0
        self._say_hello()

    # The cycle

    def run(self) -> None:
        """Follows until told to stop."""
        supervision_fd = self._supervision.fileno()
        while self._running:
            if self._follow():
                wait_ms: int | None = 0
            else:
                if self._compaction.owed:
                    self._compaction.tell()
                wait_ms = 1 if self._owed else None
            for descriptor, _ in self._cycle.wait(wait_ms):
                if descriptor == supervision_fd:
                    self._supervised(self._supervision.receive())
                elif descriptor == self._watch.fileno():
                    self._watch.clear()
                    self._look_at_directories()
                else:
                    self._controller.wants_look = True
            if self._controller.wants_look:
                self._obey(self._controller.receive())
            self._compaction.serve(self._followed_at)
            if self._moves is not None and self._moves.done:
                self._moves.turn()
        self._close()

    def _followed_at(self, row: int) -> Follower | None:
        return None if self._followers is None else self._followers.by_row.get(row)

    def _follow(self) -> bool:
        """One round of what there is to copy; whether there may be more."""
        heard = self._hear_leaders()
        more = self._copy()
        for follower in self._durable.turn():
            self._owe(follower)
        self._tell_leaders()
        return heard or more

    def _breathe(self) -> None:
        """In the middle of long work: what there is to copy is copied, and the supervisor hears that it goes on."""
        self._beat()
        self._follow()

    def _beat(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._beaten_ns >= BEAT_MS * _NS_PER_MS:
            self._beaten_ns = now_ns
            self._supervision.send(Heartbeat(now_ns))

    def _hear_leaders(self) -> bool:
        """Takes what workers say; whether there was anything."""
        followers = self._followers
        heard = False
        for peer, reader in self._attachment.inbound.items():
            for message in reader.drain(MESSAGES_AT_ONCE):
                heard = True
                row, incarnation = message[1], message[2]
                self._attachment.row.cells[REQUESTS] += 1
                follower = None if followers is None else followers.by_row.get(row)
                if follower is not None and follower.incarnation == incarnation:
                    self._due[row] = follower
                    self._owed.setdefault(peer, {})[row] = incarnation
        return heard

    def _copy(self) -> bool:
        """One stretch of each partition that is due; whether some have more to do at once."""
        followers = self._followers
        if not self._due or followers is None:
            return False
        now_ms, monotonic_ns = self._clock.now_ms(), self._clock.monotonic_ns
        until_ns = monotonic_ns() + COPY_NS_A_TURN

        def is_time_up() -> bool:
            return monotonic_ns() >= until_ns

        more = False
        for row, follower in list(self._due.items()):
            if followers.by_row.get(row) is not follower:
                del self._due[row]  # let go of since
                continue
            how = FREE if follower.is_in_sync else follower.throttled
            if how is not FREE and self._must_wait(row, how):
                continue
            # A throttled copy takes one read at a time.
            budget_bytes, copied = COPY_BYTES_A_TURN if how is FREE else 1, follower.copied_bytes
            end, cuts = follower.log.log_end_offset, follower.log.cuts
            try:
                if follower.look(
                    self._buffer, now_ms=now_ms, budget_bytes=budget_bytes, is_time_up=is_time_up
                ):
                    del self._due[row]
                elif follower.log.log_end_offset == end:
                    self._later(row, AGAIN_MS)
                else:
                    more = True
                    self._due[row] = self._due.pop(row)  # behind those that wait for their turn
                self._pauses_ms.pop(row, None)
                if follower.trim():
                    self._remove_retired()
            except ApplianceError as fault:
                self._refused(row, follower, fault)
            self._throttle.copied(how, follower.copied_bytes - copied)
            self._buffer.shrink()
            if follower.log.cuts != cuts:
                self._note_cut()
            if follower.log.log_end_offset != end:
                self._note_dirty()
            self._durable.cover(follower)
            self._owe(follower)
            if is_time_up():
                return bool(self._due)
        return more

    def _owe(self, follower: Follower) -> None:
        """Its leader is told, in this turn or when its ring has room."""
        if follower.leader >= 0:
            self._owed.setdefault(owner_of(follower.leader), {})[follower.row] = follower.incarnation

    def _after_ms(self, pause_ms: int, action: Callable[[], None]) -> None:
        self._cycle.timers.add(self._clock.monotonic_ns() + pause_ms * _NS_PER_MS, action)

    def _later(self, row: int, pause_ms: int) -> None:
        """Looks at a partition again in a while."""
        follower = self._due.pop(row)

        def again() -> None:
            followers = self._followers
            if followers is not None and followers.by_row.get(row) is follower:
                self._due[row] = follower

        self._cycle.timers.add(self._clock.monotonic_ns() + pause_ms * _NS_PER_MS, again)

    def _must_wait(self, row: int, how: Throttled) -> bool:
        """Whether its rates leave no room: then it is looked at later, once for however many words of its leader."""
        pause_ms = self._throttle.pause_ms(how)
        if pause_ms and row in self._throttled_rows:
            del self._due[row]
        elif pause_ms:
            self._throttled_rows.add(row)
            self._after_ms(pause_ms, lambda: self._throttled_rows.discard(row))
            self._later(row, pause_ms)
        return bool(pause_ms)

    def _refused(self, row: int, follower: Follower, fault: ApplianceError) -> None:
        """Our disk, or what the leader's file holds: the slot falls behind, leaves the ISR, and tries again."""
        self._attachment.row.cells[ERRORS] += 1
        self._complain(f"partition {follower.topic_partition} is not followed: {fault}")
        follower.stop()
        pause_ms = self._pauses_ms.get(row, REFUSED_AGAIN_MS)
        self._pauses_ms[row] = min(2 * pause_ms, REFUSED_AGAIN_MAX_MS)
        self._later(row, pause_ms)

    def _tell_leaders(self) -> None:
        """What the ring has no room for is told in the next turn; whoever is down looks for itself when it is up."""
        for peer, rows in list(self._owed.items()):
            writer = self._attachment.outbound.get(peer)
            if writer is not None:
                for row, incarnation in list(rows.items()):
                    if not writer.put(0, row, incarnation, 0, 0, 0, 0, 0, 0):
                        break
                    del rows[row]
                writer.publish()
                self._attachment.bells[peer].ring()
            if writer is None or not rows:
                del self._owed[peer]

    def _look_at_all(self, leader: int | None = None) -> None:
        if self._followers is not None:
            for row, follower in self._followers.by_row.items():
                if leader is None or follower.leader == leader:
                    self._due[row] = follower

    # The supervisor's and the controller's words

    def _say_hello(self) -> None:
        self._controller.ask(ReplicaHello(self._slot, self._attachment.generation))

    def _supervised(self, messages: list[Message] | None) -> None:
        if messages is None:
            _logger.warning("the supervisor is gone; stopping")
            self._running = False
            return
        attachment = self._attachment
        for message in messages:
            match message:
                case PeerUp() if message.role == CONTROLLER:
                    self._say_hello()
                case PeerUp():
                    if attachment.peer_up(message.role, message.generation):
                        self._cycle.add_inbox(attachment.inbound[message.role])
                        self._compaction.peer_up(message.role)
                    if message.role.kind is RoleKind.IOPROC:
                        self._look_at_all(message.role.slot)
                case PeerDown():
                    if attachment.generations.get(message.role) == message.generation:
                        self._compaction.peer_down(message.role)
                        reader = attachment.inbound.get(message.role)
                        if reader is not None:
                            self._cycle.remove_inbox(reader)
                        self._owed.pop(message.role, None)
                        attachment.peer_down(message.role)
                case Stop():
                    self._running = False
                case Heartbeat():
                    self._supervision.send(message)
                case _:
                    _logger.warning("unexpected word of the supervisor: %s", message)

    def _obey(self, envelopes: list[Envelope]) -> None:
        for envelope in envelopes:
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
                self._throttle.go_by(envelope.body.rates)
            done = self._carry_out(followers, envelope.body)
            if done is None:
                continue
            self._due = {row: each for row, each in self._due.items() if followers.by_row.get(row) is each}
            self._compaction.assigned(
                followers.touched_by(envelope.body), removed=bool(envelope.body.removed)
            )
            for assigned in envelope.body.partitions:
                follower = followers.by_row.get(assigned.row)
                if follower is not None:
                    self._due[assigned.row] = follower
            self._controller.send(Envelope(envelope.id, done))
            if self._moves is not None:
                self._moves.opened()
            if followers.unopened:
                self._open_later(OPEN_AGAIN_MS)
            if envelope.body.full and not self._serves:
                self._serves = True
                self._attachment.row.set_state(ProcessState.RUNNING)
                self._supervision.send(Ready())
            if envelope.body.removed:
                self._sweep()
            self._remove_retired()

    def _carry_out(self, followers: Followers, command: Assign) -> Assigned | None:
        """Obeys. Who comes back, and whom no ISR waits for, opens its logs in the background: on a busy host the slots
        that take over what it led go first."""
        if not command.full or any(self._slot in each.isr for each in command.partitions):
            return followers.obey(command)
        answers: list[Assigned | None] = []

        def behind_others() -> None:
            # Of this thread alone, so it ends with it; a process could not take that back.
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND_NICE)
            answers.append(followers.obey(command))

        thread = threading.Thread(target=behind_others, name="open")
        thread.start()
        while thread.is_alive():
            # Who has it stand still says so by taking no processor time (`control/supervisor/silence.py`).
            thread.join(BEAT_MS / 1000)
        return answers.pop() if answers else None

    def _open(self, command: Assign) -> Followers | None:
        settings = self._settings
        try:
            self._directories = LogDirectories.open(
                settings.log_directories(self._slot),
                node_id=self._slot,
                cluster_id=command.cluster_id,
                clock=self._clock,
                half=Half.FOLLOWERS,
            )
        except ApplianceError as error:
            self._supervision.send(Failed(f"log directory {error}", fatal=not isinstance(error, HostFault)))
            self._running = False
            return None
        for directory in self._directories.serving.values():
            self._watch.add(directory.path / Half.FOLLOWERS.lock)
        if self._watch.fileno() >= 0:
            self._cycle.epoll.register(self._watch.fileno(), select.EPOLLIN)
        self._followers = Followers(
            self._directories,
            self._attachment.partitions,
            slot=self._slot,
            log_defaults=command.log_defaults or BrokerConfigs().log_defaults(settings),
            directories_of=settings.log_directories,
            breathe=self._breathe,
            publisher=self._publisher,
            warn=_logger.warning,
        )
        self._moves = CopyMoves(
            self._followers,
            self._directories,
            self._durable,
            thread=Flusher(f"moves {self._slot}", eventfd=self._attachment.doorbell.eventfd, threads=1),
            removed=self._sweep,
            suspect=self._suspect_directory,
            fail=self._storage_failed,
            moved=self._note_cut,
        )
        self._cycle.add_inbox(self._moves)
        self._sweep()  # what a killed life of ours had still to remove
        return self._followers

    def _open_later(self, pause_ms: int) -> None:
        if self._opens_later:
            return
        self._opens_later = True

        def again() -> None:
            self._opens_later = False
            if self._followers is not None:
                opened = self._followers.open_again()
                self._due.update((follower.row, follower) for follower in opened)
                self._compaction.assigned(opened, removed=False)
                if self._moves is not None:
                    self._moves.opened()
                if self._followers.unopened:
                    self._open_later(min(2 * pause_ms, REFUSED_AGAIN_MAX_MS))

        self._cycle.timers.add(self._clock.monotonic_ns() + pause_ms * _NS_PER_MS, again)

    # Keeping

    def _note_dirty(self) -> None:
        if not self._dirty:
            self._dirty = True
            interval_ns = self._settings.broker.log_flush_offset_checkpoint_interval_ms * _NS_PER_MS
            self._cycle.timers.add(self._clock.monotonic_ns() + interval_ns, self._checkpoint)

    def _note_cut(self) -> None:
        """A recovery point on the disk may be beyond what was cut: what comes in its place would not be checked."""
        if not self._cut:
            self._cut = True
            self._cycle.timers.add(
                self._clock.monotonic_ns() + CUT_CHECKPOINT_MS * _NS_PER_MS, self._checkpoint
            )

    def _checkpoint(self) -> None:
        """Recovery points and high watermarks to disk, on a thread; logs at rest let go of their descriptors."""
        self._dirty = self._cut = False
        if self._directories is None or self._followers is None:
            return
        self._look_at_directories()
        before, self._log_ends = self._log_ends, {}
        for row, follower in self._followers.by_row.items():
            self._beat()
            log = follower.log
            self._log_ends[row] = log.log_end_offset
            try:
                follower.trim()
                log.expire_producers(self._clock.now_ms())
                if before.get(row, 0) == log.log_end_offset:
                    log.release()
            except StorageFault as fault:
                self._complain(f"partition {follower.topic_partition}: {fault}")
        if any(before.get(row, 0) != end for row, end in self._log_ends.items()):
            self._note_dirty()
        else:
            self._publisher.release()
        self._remove_retired()
        if self._flusher is not None and self._flusher.is_alive():
            self._note_cut()
            return
        task = self._directories.flush_task(self._followers.high_watermarks())
        self._flusher = threading.Thread(target=task, name="flush", daemon=True)
        self._flusher.start()

    def _look_at_directories(self) -> None:
        """Something happened to a lock file, or it is time: directories that are gone take their partitions along."""
        if self._directories is None or self._followers is None:
            return
        for index, fault in self._directories.look().items():
            self._directory_failed(self._directories, self._followers, index, fault=fault)
        by_row = self._followers.by_row
        self._due = {row: each for row, each in self._due.items() if by_row.get(row) is each}

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

    def _sweep(self) -> None:
        if self._directories is not None:
            threading.Thread(
                target=self._remove_partitions, args=(self._directories,), name="sweep", daemon=True
            ).start()

    def _remove_retired(self) -> None:
        """Files of retired segments go after their delay."""
        if self._directories is not None:
            for removal in self._directories.take_removals():
                due_ns = self._clock.monotonic_ns() + removal.delay_ms * _NS_PER_MS
                self._cycle.timers.add(due_ns, partial(self._remove, removal))

    def _remove_partitions(self, directories: LogDirectories) -> None:
        """On a thread: deleted partitions, each when no reader reads it any more."""
        while (again := self._leases.remove_partitions(directories.remove_deleted)) is not None:
            time.sleep(again.delay_ms / 1000)

    def _remove(self, removal: Removal) -> None:
        try:
            again = removal.run_unless_held(self._leases)
            if again is not None:
                self._after_ms(again.delay_ms, partial(self._remove, removal))
        except StorageFault as fault:
            self._complain(f"the next opening removes what could not be: {fault}")

    def _close(self) -> None:
        self._attachment.row.set_state(ProcessState.STOPPING)
        self._durable.close()
        if self._moves is not None:
            self._moves.close()
        if self._flusher is not None:
            self._flusher.join()
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
        self._cycle.close()
        self._controller.close()

    def statistics(self) -> dict[str, int]:
        """Partitions followed, and those with something to copy."""
        return {"partitions": len(self._followers.by_name) if self._followers else 0, "due": len(self._due)}
