"""The agent of an I/O worker: drain requests, append or locate, answer, poke; sleep when there is nothing.

Does: owns mmap'd segments and indexes, offsets, producer state and high watermark of the partitions it leads.
Never: talks to a client's socket; waits for a disk flush (answers may: `group_commit`); polls while idle.
Dies: the supervisor restarts it; the log recovers from its recovery point, and network processes answer what was
under way with a retriable error. Whatever was answered before is in the page cache and survives.
"""

from __future__ import annotations

from typing import Any, Final

from appliance.channels.control_channel import (
    AlteredPartitions,
    Assign,
    Envelope,
    WorkerHello,
)
from appliance.channels.controller_link import ControllerLink
from appliance.channels.request_channel import (
    APPENDED_BYTES,
    CONNECTION,
    ERROR,
    FLAGS,
    INCARNATION,
    LENGTH_BYTES,
    OFFSET,
    OP,
    POSITION,
    ROW,
    Op,
    RequestFlag,
    refusal,
)
from appliance.channels.roles import CONTROLLER, PURGATORY, Role, RoleKind
from appliance.channels.worker_counters import FORGOTTEN_PRODUCER_IDS, MOVING_PARTITIONS, PRODUCER_IDS
from appliance.cluster import TopicPartition
from appliance.config import BrokerConfigs
from appliance.errors import ApplianceError, CorruptFile, HostFault, StorageFault
from appliance.ioproc.answer_rings import AnswerRings
from appliance.ioproc.checkpoints import Checkpoints
from appliance.ioproc.compaction import Compaction
from appliance.ioproc.costly_requests import COSTLY_BYTES, CostlyRequests
from appliance.ioproc.followed import Followed
from appliance.ioproc.group_commit import GroupCommit
from appliance.ioproc.handlers.alter_log_dir import alter_log_dir
from appliance.ioproc.handlers.delete_records import delete_records
from appliance.ioproc.handlers.describe_log_dir import describe_log_dir
from appliance.ioproc.handlers.describe_producer import describe_producer
from appliance.ioproc.handlers.epoch_end import epoch_end
from appliance.ioproc.handlers.fetch import fetch
from appliance.ioproc.handlers.list_offsets import list_offsets
from appliance.ioproc.handlers.produce import Answer, produce
from appliance.ioproc.handlers.write_marker import write_marker
from appliance.ioproc.partition import Partition
from appliance.ioproc.partitions import Partitions
from appliance.ioproc.pokes import Pokes
from appliance.ioproc.removals import Removals
from appliance.ioproc.repairs import Repairs
from appliance.ioproc.retention import Retention
from appliance.ioproc.storage_failures import StorageFailures
from appliance.ipc.brief_wait import BriefWait
from appliance.ipc.process_table import BYTES_IN, REQUESTS
from appliance.ipc.ring import RingWriter
from appliance.journal import RateLimited
from appliance.log.flusher import Flusher
from appliance.log.known_directories import known_directories
from appliance.log.log_directories import LogDirectories
from appliance.log.log_moves import NO_FUTURE, LogMoves
from appliance.log.producer_limits import PRODUCER_LIMITS
from appliance.log.shares import Share
from appliance.log.state_publisher import StatePublisher
from appliance.process.agent import AgentProcess
from appliance.protocol.errors import ErrorCode

# Answers are published after this many requests or payload bytes, so that one network process's burst of large
# batches does not keep the first of its answers waiting for the last.
BURST_REQUESTS: Final = 32
BURST_BYTES: Final = 1 << 20
# The pause before partitions that could not be opened are tried again; doubles, since a try may read much.
OPEN_AGAIN_MS: Final = 500
OPEN_AGAIN_MAX_MS: Final = 60_000
BURSTS_A_LOOK: Final = 8
END_COMMITS_LOOK_MS: Final = 100
# Of logs that are opened one after the other, each a quarter to a whole millisecond.
OPENINGS_A_LOOK: Final = 4
# From an answer to the client's next request: two socket calls, two wake-ups and the network process twice.
NEXT_REQUEST_NS: Final = 150_000

_PRODUCE: Final = int(Op.PRODUCE)
_FETCH: Final = int(Op.FETCH)
_LIST_OFFSETS: Final = int(Op.LIST_OFFSETS)
_DELETE_RECORDS: Final = int(Op.DELETE_RECORDS)
_ALTER_LOG_DIR: Final = int(Op.ALTER_LOG_DIR)
_DESCRIBE_LOG_DIR: Final = int(Op.DESCRIBE_LOG_DIR)
_EPOCH_END: Final = int(Op.EPOCH_END)
_DESCRIBE_PRODUCER: Final = int(Op.DESCRIBE_PRODUCER)
_CONNECTION_CLOSED: Final = int(Op.CONNECTION_CLOSED)
_WRITE_MARKER: Final = int(Op.WRITE_MARKER)
_LONE: Final = int(RequestFlag.LONE)
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_INVALID_REQUEST: Final = int(ErrorCode.INVALID_REQUEST)
_STORAGE_ERROR: Final = int(ErrorCode.KAFKA_STORAGE_ERROR)
_TIMED_OUT: Final = int(ErrorCode.REQUEST_TIMED_OUT)


class WorkerAgent:
    """One worker's loop and its state. `run` returns after Stop, when the logs are closed."""

    def __init__(self, process: AgentProcess, controller: ControllerLink) -> None:
        attachment, clock, warn = process.attachment, process.clock, process.warn
        self._process = process
        self._attachment = attachment
        self._controller = controller
        self._clock = clock
        self._warn = warn
        self._settings = process.settings
        self._slot = attachment.role.slot
        self._cycle = process.cycle
        self._pokes = Pokes(attachment.partitions)
        self._directories: LogDirectories | None = None
        self._partitions: Partitions | None = None
        self._by_row: list[Any] = []
        self._answers = AnswerRings(attachment)
        self._costly = CostlyRequests()
        self._serves = False
        self._complain = RateLimited(warn, clock)
        self._failures = StorageFailures(
            attachment.row, controller, slot=self._slot, complain=self._complain, warn=warn
        )
        self._was_lone = False
        self._brief_wait = BriefWait(clock.monotonic_ns, limit_ns=NEXT_REQUEST_NS)
        self._depth = 0
        self._opens_later = False
        self._openings = 0
        self._look_again_ns = 0
        self._group_flusher = Flusher(
            f"{self._slot}.{attachment.role.index}", eventfd=attachment.doorbell.eventfd
        )
        self._commits = GroupCommit(
            self._pokes,
            reply=self._answers.reply,
            fail=self._failures.partition_failed,
            flusher_of=lambda _: self._group_flusher,
            published=self._published,
        )
        self._cycle.add_inbox(self._commits)
        self._removals = Removals(
            self._cycle.timers,
            clock,
            settings=self._settings.broker,
            eventfd=attachment.doorbell.eventfd,
            warn=warn,
        )
        self._publisher = StatePublisher(
            process.after_ms,
            clock,
            interval_ms=self._settings.broker.reader_state_interval_ms,
            warn=self._complain,
        )
        self._checkpoints = Checkpoints(
            self._cycle.timers,
            clock,
            settings=self._settings.broker,
            publisher=self._publisher,
            look=self._failures.look,
            beat=process.beat,
            count_producers=self._count_producers,
            warn=warn,
        )
        self._retention: Retention | None = None
        self._moves: LogMoves[Partition] | None = None
        self._compaction = Compaction(
            attachment,
            self._cycle,
            now_ms=clock.now_ms,
            retired=self._remove_retired,
            refused=self._failures.upkeep_failed,
            interrupted=self._failures.partition_failed,
            warn=warn,
        )
        self._repairs = Repairs(
            attachment.row,
            clock,
            slot=self._slot,
            directories_of=self._settings.log_directories,
            cut=self._failures.damaged,
            repaired=self._repaired,
        )
        self._followed = Followed(
            attachment,
            controller,
            self._cycle,
            clock=clock,
            pokes=self._pokes,
            commits=self._commits,
            by_row=self._led_at,
            led=self._led,
            reply=self._answers.reply,
            damaged=self._repairs.look,
        )
        self._has_followers = self._settings.slots > 1
        self._running = True
        self._say_hello()

    def _published(self, partition: Partition) -> None:
        self._followed.published_later(partition)

    def _repaired(self, partition: Partition) -> None:
        self._followed.repaired(partition)

    def _led_at(self, row: int) -> Partition | None:
        partition: Partition | None = self._by_row[row] if row < len(self._by_row) else None
        return partition

    def _led(self) -> list[Partition]:
        return [] if self._partitions is None else list(self._partitions.by_name.values())

    # The cycle

    def run(self) -> None:
        """Serve until Stop."""
        controller_fd, supervision_fd = self._controller.fileno(), self._process.supervision_fd
        rounds = 0
        while self._running:
            # Under load the rings are looked at again before the sockets are: a system call saved per burst.
            rounds += 1
            if self.serve_rings() and rounds % BURSTS_A_LOOK:
                if self._was_lone:
                    inbound = list(self._attachment.inbound.values())
                    self._brief_wait.look_out(inbound + self._followed.readers)
                continue
            if self._answers.late:
                self._answers.publish_late()
            if self._compaction.owed:
                self._compaction.tell()
            owed = self._answers.kept_back or self._pokes.owed or self._followed.owed
            for descriptor, _ in self._cycle.wait(1 if owed else None):
                if descriptor == supervision_fd:
                    self._process.hear(self)
                elif descriptor == controller_fd:
                    self._controller.wants_look = True
                else:
                    self._failures.look_when_told()
            if self._controller.wants_look:
                self.obey(self._controller.receive())
            if self._removals.take_removed():
                self._answers.tell_removed()
            self._compaction.serve(self._led_at)
            if self._moves is not None and self._moves.done:
                self._moves.turn()
        self.serve_rings()
        self._close()

    def serve_rings(self) -> bool:
        """Serves what waits on the rings, a burst from each; whether anything did."""
        answers = self._answers
        if answers.kept_back:
            answers.send_kept_back()
        attachment = self._attachment
        depth = 0
        lone = False
        for peer, reader in attachment.inbound.items():
            messages = reader.drain(BURST_REQUESTS)
            if messages:
                depth += len(messages) + reader.depth()
                lone = bool(messages[0][1] & _LONE)
                self._serve(peer, messages)
        if self._costly:
            self._serve_costly()
            depth = depth or 1
        self._was_lone = lone and depth == 1
        if self._has_followers:
            # Their answers go out in this round, too; what they are told is what it has appended.
            if self._followed.turn():
                answers.publish_late()
                depth = depth or 1
            self._followed.tell()
        if depth != self._depth:
            self._depth = depth
            attachment.row.set_queue_depth(depth)
        if self._commits.is_busy:
            self._commits.turn()
            answers.publish_late()
            # Whoever spins holds the interpreter's lock, which the flush wants back.
            self._was_lone = False
        self._pokes.tell(attachment.outbound.get(PURGATORY), attachment.bells.get(PURGATORY))
        return depth > 0

    def _serve(self, peer: Role, messages: list[tuple[Any, ...]]) -> None:
        writer = self._attachment.outbound.get(peer)
        pool = self._attachment.pools.get(peer)
        if writer is None or pool is None:
            return  # the asker is gone; so is its wish
        view, by_row, cells = pool.view, self._by_row, self._attachment.row.cells
        table, answers = self._attachment.partitions, self._answers
        burst_bytes = 0
        cells[REQUESTS] += len(messages)
        for message in messages:
            op, row = message[OP], message[ROW]
            if op == _CONNECTION_CLOSED:
                self._connection_closed(peer, message[CONNECTION])
                continue
            partition = by_row[row] if row < len(by_row) else None
            if partition is None or partition.incarnation != message[INCARNATION]:
                is_offline = row < len(by_row) and table.is_offline(row, message[INCARNATION])
                answer = refusal(message, _STORAGE_ERROR if is_offline else _NOT_LEADER)
            elif op == _PRODUCE:
                produced = self._produce(partition, peer, message, view, COSTLY_BYTES)
                if produced is None:
                    continue
                answer = produced
                burst_bytes += message[LENGTH_BYTES]
            elif op == _FETCH:
                answer = fetch(partition, message)
            elif op == _LIST_OFFSETS:
                self._costly.add(peer, message)  # a look-up by timestamp decompresses a batch
                continue
            else:
                self._serve_seldom(peer, writer, partition, message)
                continue
            if answer[ERROR]:
                self._note_error(partition, message, answer[ERROR])
            if not writer.put(*answer):
                answers.keep_back(peer, answer)
            if burst_bytes >= BURST_BYTES:
                cells[BYTES_IN] += burst_bytes
                burst_bytes = 0
                answers.publish(peer, writer)
        cells[BYTES_IN] += burst_bytes
        answers.publish(peer, writer)

    def _produce(
        self,
        partition: Partition,
        peer: Role,
        message: tuple[Any, ...],
        view: memoryview,
        cheap_bytes_max: int,
    ) -> Answer | None:
        """Append and publish; None: the answer comes later, from followers, from a disk or from a costly check."""
        costly = self._costly
        if cheap_bytes_max and costly and costly.has(peer, message):
            costly.add(peer, message)
            return None
        position, length_bytes = message[POSITION], message[LENGTH_BYTES]
        answer = produce(partition, message, view[position : position + length_bytes], cheap_bytes_max)
        if answer is None:
            costly.add(peer, message)
            return None
        return None if self._appended(partition, peer, message, answer) else answer

    def _appended(self, partition: Partition, peer: Role, message: tuple[Any, ...], answer: Answer) -> bool:
        """Publish what an append's answer tells of; return whether the answer waits for followers or for a disk."""
        if answer[ERROR]:
            return False
        if partition.is_held:
            self._checkpoints.note_dirty()
            if self._hold(partition, peer, message, answer):
                return True
        if not answer[FLAGS] and partition.replication is None:
            partition.publish()
            self._pokes.moved(partition.row, answer[APPENDED_BYTES])
            self._checkpoints.note_dirty()
        return False

    def _serve_costly(self) -> None:
        """Serve one costly operation: the others wait until the rings were looked at again."""
        peer, message = self._costly.next()
        writer, pool = self._attachment.outbound.get(peer), self._attachment.pools.get(peer)
        if writer is None or pool is None:
            return
        row = message[ROW]
        partition = self._led_at(row)
        if partition is None or partition.incarnation != message[INCARNATION]:
            is_offline = self._attachment.partitions.is_offline(row, message[INCARNATION])
            answer = refusal(message, _STORAGE_ERROR if is_offline else _NOT_LEADER)
        elif message[OP] == _PRODUCE:
            self._attachment.row.cells[BYTES_IN] += message[LENGTH_BYTES]
            produced = self._produce(partition, peer, message, pool.view, 0)
            if produced is None:
                return
            answer = produced
        else:
            answer = list_offsets(partition, message)
        if answer[ERROR] and partition is not None:
            self._note_error(partition, message, answer[ERROR])
        self._answers.reply(peer, answer)
        self._answers.publish_late()
        self._process.beat()

    def _connection_closed(self, peer: Role, connection: int) -> None:
        """Answer for a client that has left: the network process keeps its payloads until then."""
        for message in self._costly.drop_connection(peer, connection):
            self._answers.reply(peer, refusal(message, _TIMED_OUT))

    def _note_error(self, partition: Partition | None, message: tuple[Any, ...], error: int) -> None:
        if message[OP] == _FETCH and partition is not None and isinstance(partition.fault, CorruptFile):
            self._repairs.look(partition, message[OFFSET])
        self._failures.note_error(partition, error)

    def _hold(self, partition: Partition, peer: Role, message: tuple[Any, ...], answer: Answer) -> bool:
        """Whether an answer waits, for followers or for a disk."""
        if partition.replication is not None:
            return self._followed.hold(partition, peer, message, answer)
        return self._commits.hold(partition, peer, answer)

    def _serve_seldom(
        self, peer: Role, writer: RingWriter, partition: Partition, message: tuple[Any, ...]
    ) -> None:
        answer = self._seldom_answer(partition, message)
        if message[OP] == _WRITE_MARKER and self._appended(partition, peer, message, answer):
            return
        if (
            message[OP] == _DELETE_RECORDS
            and not answer[ERROR]
            and self._followed.hold_deletion(partition, peer, message, answer)
        ):
            return
        if answer[ERROR]:
            self._failures.note_error(partition, answer[ERROR])
        if not writer.put(*answer):
            self._answers.keep_back(peer, answer)

    def _seldom_answer(self, partition: Partition, message: tuple[Any, ...]) -> Answer:
        op = message[OP]
        if op == _DELETE_RECORDS:
            answer = delete_records(partition, message)
            if not answer[ERROR]:
                self._note_start_moved()
            return answer
        if op == _EPOCH_END:
            return epoch_end(partition, message)
        if op == _DESCRIBE_LOG_DIR:
            shown = NO_FUTURE if self._moves is None else self._moves.shown(partition)
            return describe_log_dir(partition, message, shown)
        if op == _WRITE_MARKER:
            return write_marker(partition, message, now_ms=self._clock.now_ms())
        if op == _DESCRIBE_PRODUCER:
            return describe_producer(partition, message)
        if op == _ALTER_LOG_DIR and self._moves is not None:
            return alter_log_dir(partition, message, self._moves)
        return refusal(message, _INVALID_REQUEST)

    # The supervisor's and the controller's words

    def _say_hello(self) -> None:
        """To each life of the controller: it answers the first hello of ours that it hears with all our partitions."""
        role = self._attachment.role
        self._controller.ask(WorkerHello(role.slot, role.index, self._attachment.generation))

    def stop(self, within_ms: int) -> None:
        """End after this turn; logs are flushed and marked clean then."""
        self._running = False

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """Greet a controller; serve the next life of a process that has a ring to this one."""
        if peer == CONTROLLER:
            self._say_hello()
            self._followed.new_controller()
        elif new_rings:
            self._compaction.peer_up(peer)
            self._followed.peer_up(peer, self._led())

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        """Drop the requests of a dead process: nobody waits for their answers."""
        if had_rings:
            self._compaction.peer_down(peer)
            self._answers.peer_down(peer)
            self._costly.drop_peer(peer)
            self._commits.drop_asker(peer)
            self._followed.peer_down(peer)

    def obey(self, envelopes: list[Envelope]) -> None:
        """Carries the controller's commands out."""
        for envelope in envelopes:
            if isinstance(envelope.body, AlteredPartitions):
                self._followed.altered(envelope.id, envelope.body)
                self._answers.publish_late()
                continue
            if not isinstance(envelope.body, Assign):
                self._warn(f"unexpected command: {type(envelope.body).__name__}")
                continue
            partitions = self._partitions or self._open(envelope.body)
            if partitions is None:
                return
            done = partitions.obey(envelope.body)
            if done is None:
                continue
            self._failures.show()
            if partitions.offline:
                named = (TopicPartition(each.topic, each.partition) for each in envelope.body.partitions)
                if refused := [name for name in named if name in partitions.offline]:
                    self._failures.tell(refused)
            touched = partitions.touched_by(envelope.body)
            self._assigned(touched, removed=bool(envelope.body.removed))
            self._removals.remove_retired()
            self._answers.publish_late()
            self._controller.send(Envelope(envelope.id, done))
            if self._moves is not None:
                self._moves.opened()
            if partitions.unopened:
                self._open_later(OPEN_AGAIN_MS)
            if envelope.body.full and not self._serves:
                self._serves = True
                self._process.ready()
            if envelope.body.removed:
                self._removals.remove_partitions()

    def _assigned(self, partitions: list[Partition], *, removed: bool = False) -> None:
        """These are led from now on, or by other words."""
        if any(each.log.log_start_offset > each.log.first_base_offset for each in partitions):
            # A leader before has moved it; the disk of this slot may not know.
            self._checkpoints.note_start_moved()
        self._compaction.assigned(partitions, removed=removed)
        self._followed.assigned(partitions)

    def _open(self, command: Assign) -> Partitions | None:
        paths = self._settings.log_directories(self._slot)
        defaults = command.log_defaults or BrokerConfigs().log_defaults(self._settings)
        try:
            self._directories = LogDirectories.open(
                paths,
                node_id=self._slot,
                cluster_id=command.cluster_id,
                clock=self._clock,
                known=known_directories(self._settings.known_directories(self._slot)),
                share=Share(
                    self._attachment.role.index,
                    workers=self._settings.io.workers,
                    is_replicated=self._has_followers,
                ),
                clean_seen_by=self._attachment.clean_seen_by,
            )
        except ApplianceError as error:
            self._process.failed(f"log directory {error}", fatal=not isinstance(error, HostFault))
            self._running = False
            return None
        self._partitions = Partitions(
            self._directories,
            self._attachment.partitions,
            slot=self._slot,
            log_defaults=defaults,
            commits=self._commits,
            clock=self._clock,
            withdrawn=self._followed.withdrawn,
            led_on=self._followed.published_later,
            publisher=self._publisher,
            between=self._between_openings,
            directories_of=self._settings.log_directories,
            is_emptied=self._slot in self._attachment.wiring.emptied_slots,
            warn=self._warn,
        )
        self._by_row = self._partitions.by_row
        self._failures.open(self._directories, self._partitions, self._cycle.epoll)
        self._checkpoints.open(self._directories, self._partitions)
        self._retention = Retention(
            self._partitions,
            self._cycle.timers,
            self._clock,
            interval_ms=self._settings.broker.log_retention_check_interval_ms,
            retired=self._remove_retired,
            fail=self._failures.upkeep_failed,
            warn=self._complain,
        )
        self._moves = LogMoves(
            self._partitions.by_name.get,
            self._directories,
            self._commits,
            thread=Flusher(
                f"moves {self._slot}.{self._attachment.role.index}",
                eventfd=self._attachment.doorbell.eventfd,
                threads=1,
            ),
            counted=self._count_moving,
            removed=self._removals.remove_partitions,
            suspect=self._failures.suspect_directory,
            fail=self._failures.partition_failed,
            moved=self._note_moved,
        )
        self._cycle.add_inbox(self._moves)
        self._removals.open(self._directories)
        return self._partitions

    def _open_later(self, pause_ms: int) -> None:
        if not self._opens_later:
            self._opens_later = True
            self._process.after_ms(pause_ms, lambda: self._open_again(pause_ms))

    def _open_again(self, pause_ms: int) -> None:
        self._opens_later = False
        if self._partitions is not None:
            self._assigned(self._partitions.open_again())
            if self._moves is not None:
                self._moves.opened()
            if self._partitions.unopened:
                self._open_later(min(2 * pause_ms, OPEN_AGAIN_MAX_MS))

    def _between_openings(self) -> None:
        """Clients of what is open already do not wait for the rest of a takeover.

        Before the first command is done nobody knows of us. After that the openings, for which others wait, have at
        least half of the time.
        """
        self._process.beat()
        self._openings += 1
        if not self._serves or self._openings % OPENINGS_A_LOOK:
            return
        begun_ns = self._clock.monotonic_ns()
        if begun_ns < self._look_again_ns:
            return
        self.serve_rings()
        if self._answers.late:
            self._answers.publish_late()
        ended_ns = self._clock.monotonic_ns()
        self._look_again_ns = ended_ns + (ended_ns - begun_ns)

    def _note_start_moved(self) -> None:
        if self._has_followers:
            self._followed.starts_moved()
        self._checkpoints.note_start_moved()

    def _remove_retired(self) -> None:
        if self._has_followers:
            self._followed.starts_moved()
        self._removals.remove_retired()

    def _count_moving(self, count: int) -> None:
        self._attachment.row.cells[MOVING_PARTITIONS] = count

    def _count_producers(self, count: int) -> None:
        PRODUCER_LIMITS.recount(count)
        cells = self._attachment.row.cells
        cells[PRODUCER_IDS] = count
        cells[FORGOTTEN_PRODUCER_IDS] = PRODUCER_LIMITS.forgotten

    def _note_moved(self) -> None:
        self._checkpoints.note_dirty()
        self._note_start_moved()

    def _close(self) -> None:
        self._process.stopping()
        self._checkpoints.join()
        self._end_commits()
        if self._moves is not None:
            self._moves.close()
        if self._directories is not None and self._partitions is not None:
            now_ms = self._clock.now_ms()
            led = [(each, each.state(now_ms=now_ms)) for each in self._partitions.by_name.values()]
            for partition, _ in led:
                partition.withdraw()
            try:
                self._directories.close(self._partitions.high_watermarks())
                for partition, state in led:
                    self._publisher.closed(partition, state)
            except StorageFault as fault:
                self._warn(f"not stopped cleanly, the next start recovers: {fault}")
        self._failures.close()
        self._process.close()
        self._controller.close()

    def _end_commits(self) -> None:
        """Every answer that waits for a flush gets it."""
        while self._commits.is_busy:
            if self._commits.is_empty():
                self._cycle.wait(END_COMMITS_LOOK_MS)
            self._commits.turn()
            self._answers.publish_late()
        self._group_flusher.close()

    def statistics(self) -> dict[str, int]:
        """Partitions led, answers kept back."""
        return {
            "partitions": len(self._partitions.by_name) if self._partitions else 0,
            **self._answers.statistics(),
            **self._costly.statistics(),
            "peers": sum(role.kind is RoleKind.NETPROC for role in self._attachment.inbound),
        }
