"""The duty cycle of a network process: frames in, operations out; answers in, responses out; sleep otherwise.

Does: receives into its pool, parses, places operations on the workers' rings, answers what needs no log, sends
responses and segments. Never: opens a log for writing, keeps a message, waits for another process.
Dies: its connections drop and clients reconnect; its rings and pool go with it, nobody else notices.

One turn of the cycle, in this order: what other processes answered; what clients sent; what is placed is published
at once for all of it; what is answered is sent, joined by connection.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from appliance.channels.controller_link import ControllerLink
from appliance.channels.roles import ACCEPTOR, CONTROLLER, COORDINATOR, PURGATORY, Role, RoleKind
from appliance.channels.supervision import (
    Heartbeat,
    Message,
    PeerDown,
    PeerUp,
    Stop,
    SupervisionSocket,
)
from appliance.channels.wiring import Attachment
from appliance.clock import Clock
from appliance.errors import ClientFault, MalformedFrame, StorageFault
from appliance.ipc.agent import DutyCycle
from appliance.ipc.brief_wait import BriefWait
from appliance.ipc.buffer_pool import BufferPool
from appliance.ipc.process_table import BYTES_IN, BYTES_OUT, CONNECTIONS, ERRORS, REQUESTS, ProcessState
from appliance.netproc.connection import Connection, Pending, Piece
from appliance.netproc.coordinator_line import CoordinatorLine
from appliance.netproc.fan_out import FanOut
from appliance.netproc.fetch_session import FetchSessions
from appliance.netproc.intake import CLOSED, STARVED, Intake
from appliance.netproc.local_handlers.view import ProducerIds
from appliance.netproc.local_requests import LocalRequests
from appliance.netproc.log_dirs import LogDirs
from appliance.netproc.log_handlers.fetch import FetchHandler
from appliance.netproc.log_handlers.produce import ProduceHandler
from appliance.netproc.log_handlers.seldom import seldom_handlers
from appliance.netproc.outlet import abandon, collect, deafest, flush
from appliance.netproc.purgatory_line import PurgatoryLine
from appliance.netproc.questions import Questions
from appliance.netproc.segment_files import SegmentFiles
from appliance.netproc.topic_routes import TopicRoutes
from appliance.netproc.worker_lines import WorkerLines
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.coordinator_errors import COORDINATOR_APIS
from appliance.protocol.headers import parse_request_header
from appliance.protocol.messages import encode_unsupported_api_versions
from appliance.protocol.produce import ProduceMemo, parse_produce

_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)

_log: Final = logging.getLogger(__name__)

_NS_PER_MS: Final = 1_000_000
_IN: Final = select.EPOLLIN
_OUT: Final = select.EPOLLOUT
RELIEF_INTERVAL_NS: Final = 100 * _NS_PER_MS
SWEEP_PARTS: Final = 4
IMAGE_LOOK_MS: Final = 10
"""How often a network process looks for the first image, after a start of everything and never again."""
# Requests of one connection in one turn: who pipelines without end shares the turn with all others.
TURN_REQUESTS: Final = 16
# A part of the pool that half-received frames may not take, so that whole small requests always pass.
RESERVE_PART: Final = 8
# Answers are kept for who does not read them: of one connection this much and one answer, then no more of its frames
# are cut; of all together this part of the pool's size, then those who read least are closed.
OWED_BYTES_MAX: Final = 16 * 1024
OWED_PART: Final = 2


class Processor:
    """One network process's loop and its state. `run` returns when it was told to stop and is drained."""

    def __init__(
        self,
        attachment: Attachment,
        controller: ControllerLink,
        supervision: SupervisionSocket,
        *,
        fan_out: FanOut,
        clock: Clock,
        warn: Callable[[str], None],
    ) -> None:
        settings = attachment.wiring.settings
        assert attachment.pool is not None
        self._attachment = attachment
        self._supervision = supervision
        self._controller = controller
        self._fan_out = fan_out
        self._clock = clock
        self._warn = warn
        self._settings = settings
        self._cells = attachment.row.cells
        self._connections: dict[int, Connection] = {}
        self._cycle = DutyCycle(attachment.doorbell, attachment.row, monotonic_ns=clock.monotonic_ns)
        self._epoll = self._cycle.epoll
        self._pool = BufferPool(
            attachment.pool.view,
            reserve_bytes=len(attachment.pool.view) // RESERVE_PART,
            discard=attachment.pool.discard,
        )
        self._intake = Intake(
            self._pool,
            frame_bytes_max=settings.network.request_max_bytes,
            grace_ns=settings.network.request_stall_grace_ms * _NS_PER_MS,
        )
        self._in_flight_max = settings.network.requests_in_flight_per_connection
        self._owed_bytes = 0
        self._owed_bytes_max = len(attachment.pool.view) // OWED_PART
        routes = TopicRoutes(attachment.image)
        self._routes = routes
        self._lines = WorkerLines(attachment, brief_wait=BriefWait(clock.monotonic_ns))
        self._purgatory = PurgatoryLine(attachment)
        self._coordinator = CoordinatorLine(
            attachment, finish=self._finish_owed, refuse=self._refuse, give=self._pool.give
        )
        self._questions = Questions(controller, self._cycle.timers, clock)
        table = attachment.partitions
        directories = {slot: settings.log_directories(slot) for slot in range(settings.slots)}
        self._files = SegmentFiles(
            directories,
            is_served=lambda route: table.serves(route.row, route.incarnation),
            version=lambda route: table.files_version(route.row),
        )
        self._lines.on_removed(self._files.let_go_of_removed)
        self._local = LocalRequests(
            settings,
            routes,
            self._questions,
            producer_ids=ProducerIds(),
            partitions=table,
            finish=self._finish_owed,
            contain=self._contain,
        )
        self._produce = ProduceHandler(routes, self._lines, finish=self._finish, refuse=self._refuse)
        self._fetch = FetchHandler(
            routes,
            self._lines,
            attachment.partitions,
            purgatory=self._purgatory,
            sessions=FetchSessions(
                settings.broker.fetch_session_slots,
                first_id=attachment.role.index + 1,
                stride=settings.network.processes,
            ),
            files=self._files,
            finish=self._finish_owed,
            clock=clock,
            max_bytes=settings.broker.fetch_max_bytes,
        )
        self._begin_seldom = seldom_handlers(
            attachment,
            routes,
            self._lines,
            log_dirs=LogDirs(directories, attachment, self._lines),
            questions=self._questions,
            finish=self._finish_owed,
        )
        self._answered: set[Connection] = set()
        self._closed_ids: list[int] = []
        self._image_version = -1
        self._draining_until_ns: int | None = None
        self._running = True
        self._relief: object | None = None
        self._sweeping = False
        self._trim_due = False
        for reader in attachment.inbound.values():
            self._cycle.add_inbox(reader)
        self._cycle.add_inbox(controller)
        self._cycle.add_inbox(fan_out)
        for descriptor in (controller.fileno(), supervision.fileno(), fan_out.fileno()):
            self._epoll.register(descriptor, _IN)

    # The cycle

    def run(self) -> None:
        """Serves until told to stop, then until what is under way is answered."""
        self._attachment.row.set_state(ProcessState.RUNNING)
        while self._running:
            self.turn()
            self._lines.await_lone_answer()
        self._end()

    def join(self) -> None:
        """Takes connections from now on if there is an image, else as soon as there is one.

        Who asked before was told of a cluster without brokers; librdkafka then drops those it knows, for good.
        """
        if self._attachment.image.version:
            self._fan_out.connect()
        else:
            self._cycle.timers.add(self._clock.monotonic_ns() + IMAGE_LOOK_MS * _NS_PER_MS, self.join)

    def turn(self) -> None:
        """One turn of the cycle; sleeps first when there is nothing to do."""
        lines = self._lines
        if lines.congested:
            events = self._wait_congested()
        else:
            events = self._cycle.wait(1 if self._purgatory.congested else None)
        lines.take_answers()
        self._purgatory.take_completions()
        if self._answered:
            self._send_answered()
        connections = self._connections
        for descriptor, mask in events:
            connection = connections.get(descriptor)
            if connection is None:
                self._other(descriptor)
            elif mask == _IN:
                self._read(connection)
            else:
                self._unusual(connection, mask)
        self._rarely()
        lines.publish()
        if self._answered:
            self._send_answered()
            # An answer that left may have let its connection's next requests in.
            lines.publish()
        self._purgatory.publish()

    def _unusual(self, connection: Connection, mask: int) -> None:
        """Room to send again, or the peer is gone."""
        if mask & ~(_IN | _OUT):
            self._close(connection)
            return
        self._send(connection)
        if self._may_resume(connection):
            self._resume(connection)
        if mask & _IN and not connection.closed:
            self._read(connection)

    def _rarely(self) -> None:
        """What is nothing to do in most turns: a few looks at words of our own."""
        if self._controller.wants_look:
            self._questions.take_answers()
        if not self._fan_out.is_empty():
            self._accept()
        if self._intake.starved:
            self._feed()
        if self._coordinator.wants_turn:
            self._coordinator.turn()
        if self._closed_ids:
            self._fan_out.report_closed(self._closed_ids)
            self._closed_ids = []
        if self._draining_until_ns is not None:
            self._drain()

    def _wait_congested(self) -> list[tuple[int, int]]:
        """A worker's ring is full: no socket is read until it has room; its answers ring our bell."""
        events = self._cycle.wait(1)
        return [(fd, mask) for fd, mask in events if fd not in self._connections or mask & _OUT]

    def _other(self, descriptor: int) -> None:
        if descriptor == self._supervision.fileno():
            self._supervised(self._supervision.receive())
        elif descriptor == self._controller.fileno():
            self._controller.wants_look = True
        elif descriptor == self._fan_out.fileno():
            self._accept()

    # Connections

    def _accept(self) -> None:
        now_ns = self._clock.monotonic_ns()
        for assignment, sock in self._fan_out.accepted():
            if self._draining_until_ns is not None:
                sock.close()
                self._closed_ids.append(assignment.connection_id)
                continue
            connection = Connection(
                sock,
                connection_id=assignment.connection_id,
                slot=assignment.slot,
                listener=assignment.listener,
                peer=f"{assignment.peer_host}:{assignment.peer_port}",
                now_ns=now_ns,
                is_local=sock.getsockname()[0] == assignment.peer_host,
            )
            connection.produce_memo = ProduceMemo()
            self._connections[connection.fd] = connection
            connection.mask = _IN
            self._epoll.register(connection.fd, _IN)
        self._cells[CONNECTIONS] = len(self._connections)
        if self._connections and not self._sweeping:
            self._sweep_later(now_ns)

    def _close(self, connection: Connection) -> None:
        if connection.closed:
            return
        connection.closed = True
        del self._connections[connection.fd]
        self._epoll.unregister(connection.fd)
        self._intake.release(connection)
        self._owed_bytes -= connection.owed_bytes
        abandon(connection)
        for pending in list(connection.queue):
            if pending.drop is not None:
                pending.drop()
        connection.queue.clear()
        self._answered.discard(connection)
        connection.sock.close()
        self._cells[CONNECTIONS] = len(self._connections)
        self._closed_ids.append(connection.connection_id)

    def _refuse(self, pending: Pending, why: str) -> None:
        self._fault(pending.connection, why)

    def _fault(self, connection: Connection, why: str) -> None:
        """One clear line, then the connection is closed; nobody else notices."""
        if not connection.closed:
            self._cells[ERRORS] += 1
            self._warn(f"{connection} closed: {why}")
            with suppress(OSError, StorageFault):  # what was asked before it may leave
                collect(connection)
                flush(connection)
            self._close(connection)

    def _contain(self, connection: Connection, error: Exception) -> None:
        """A request could not be served, by its client's fault or by a defect of ours: its connection alone pays."""
        if isinstance(error, ClientFault):
            self._fault(connection, str(error))
        else:
            _log.error("a request of %s met a defect", connection, exc_info=error)
            self._fault(connection, "a defect of ours, told above")

    def _watch(self, connection: Connection) -> None:
        """Brings the epoll mask up to what the connection waits for."""
        mask = 0 if connection.muted or connection.starved else _IN
        if connection.out or self._may_resume(connection):
            mask |= _OUT
        if mask != connection.mask:
            connection.mask = mask
            self._epoll.modify(connection.fd, mask)

    # Receiving

    def _read(self, connection: Connection) -> None:
        if connection.muted:
            return
        try:
            count = self._intake.receive(connection)
            if count > 0:
                self._cells[BYTES_IN] += count
                self._cut(connection)
        except Exception as error:
            self._contain(connection, error)
            return
        if count == CLOSED:
            begun_bytes = self._intake.begun_bytes(connection)
            if begun_bytes:
                self._fault(connection, f"its client left it {begun_bytes} bytes into a request")
            else:
                self._close(connection)
        elif count == STARVED:
            self._watch(connection)
            self._relieve_later()

    def _cut(self, connection: Connection) -> None:
        """Serves the whole frames that are there, as many as fit into a turn; the others wait for the next."""
        queue, limit, left = connection.queue, self._in_flight_max, TURN_REQUESTS
        for block, start, end in self._intake.frames(connection):
            self._serve(connection, block, start, end)
            left -= 1
            if not left or len(queue) >= limit:
                connection.muted = True
        if connection.closed:
            return
        now_ns = self._clock.monotonic_ns()
        connection.last_active_ns = now_ns
        self._intake.settle(connection, now_ns)
        if connection.muted:
            self._watch(connection)

    def _may_resume(self, connection: Connection) -> bool:
        """Whether a muted connection's next frames may be cut. They are in the next turn, so that one that
        always has more does not keep the others waiting: room to send, which is there, is an event.
        """
        return (
            connection.muted
            and not connection.closed
            and not connection.out
            and not connection.owed_bytes
            and len(connection.queue) <= self._in_flight_max // 2
            and self._draining_until_ns is None
        )

    def _resume(self, connection: Connection) -> None:
        connection.muted = False
        try:
            self._cut(connection)
        except Exception as error:
            self._contain(connection, error)
            return
        if not connection.closed:
            self._watch(connection)

    def _serve(self, connection: Connection, block: Any, start: int, end: int) -> None:
        view = block.view
        self._cells[REQUESTS] += 1
        memo: Any = connection.produce_memo
        # The usual request of a busy producer is recognised by its bytes, before anything is parsed.
        if view[start : start + 2] == b"\x00\x00":
            version = view[start + 2] << 8 | view[start + 3]
            produce = memo.parse(view, start, end, version)
            if produce is not None:
                correlation_id = int.from_bytes(view[start + 4 : start + 8], "big", signed=True)
                pending = Pending(connection, block, _PRODUCE, version, correlation_id)
                connection.queue.append(pending)
                self._produce.place(pending, produce)
                return
        try:
            header = parse_request_header(view, start, end)
        except MalformedFrame:
            self._pool.give(block)
            raise
        if header.client_id is not None:
            connection.client_id = header.client_id
        pending = Pending(connection, block, header.api_key, header.version, header.correlation_id)
        connection.queue.append(pending)
        try:
            if not header.served:
                self._finish(pending, [encode_unsupported_api_versions(header.correlation_id)])
            elif header.api_key == _PRODUCE:
                request = parse_produce(view, header.body_position, end, header.version)
                memo.remember(view, start, header=header, request=request)
                self._produce.place(pending, request)
            elif header.api_key == _FETCH:
                self._fetch.begin(pending, view, header.body_position, end)
                self._give_block(pending)  # a fetch that waits holds no payload
            elif header.api_key in COORDINATOR_APIS:
                self._coordinator.begin(pending, view, header.body_position, end, start=start)
                self._give_block(pending)
            else:
                begin = self._begin_seldom.get(header.api_key, self._local.begin)
                begin(pending, view, header.body_position, end)
                self._give_block(pending)
        except MalformedFrame:
            self._give_block(pending)
            raise
        except Exception:
            # A worker may read a produce request's block already: that one is lost with this process's life.
            if header.api_key != _PRODUCE:
                self._give_block(pending)
            raise

    # Answering

    def _finish(self, pending: Pending, answer: list[Piece]) -> None:
        self._give_block(pending)
        connection = pending.connection
        pending.answer = answer
        if connection.closed:
            for piece in answer:
                if not isinstance(piece, bytes):
                    piece.file.release()
            return
        if connection.queue[0] is pending:
            self._answered.add(connection)

    def _finish_owed(self, pending: Pending, answer: list[Piece]) -> None:
        """`_finish` for answers that may be large where their requests are small."""
        self._finish(pending, answer)
        connection = pending.connection
        if connection.closed:
            return
        head = answer[0]
        owed_bytes = len(head) if isinstance(head, bytes) else 0
        self._owed_bytes += owed_bytes
        connection.owed_bytes += owed_bytes
        if connection.owed_bytes > OWED_BYTES_MAX and not connection.muted:
            connection.muted = True
            self._watch(connection)  # a socket that is watched and not read would keep the cycle spinning
        if self._owed_bytes > self._owed_bytes_max:
            self._relieve_later()

    def _give_block(self, pending: Pending) -> None:
        block = pending.block
        if block is not None:
            pending.block = None
            self._pool.give(block)

    def _send_answered(self) -> None:
        answered, self._answered = self._answered, set()
        for connection in answered:
            self._send(connection)

    def _send(self, connection: Connection) -> None:
        if connection.closed:
            return
        try:
            while connection.out or collect(connection):
                sent = flush(connection)
                self._cells[BYTES_OUT] += sent
                if connection.out:
                    break
        except StorageFault as fault:
            self._fault(connection, str(fault))
            return
        except OSError:
            self._close(connection)
            return
        if connection.owed_bytes and not connection.out and not connection.queue:
            self._owed_bytes -= connection.owed_bytes
            connection.owed_bytes = 0
        if connection.out or connection.mask != _IN:
            self._watch(connection)

    # A full pool

    def _feed(self) -> None:
        """Reads starved connections again, as long as blocks come back."""
        now_ns = self._clock.monotonic_ns()
        while (connection := self._intake.next_fed(now_ns)) is not None:
            self._watch(connection)
            self._read(connection)
            if connection.starved:
                return

    def _relieve_later(self) -> None:
        if self._relief is None:
            due_ns = self._clock.monotonic_ns() + RELIEF_INTERVAL_NS
            self._relief = self._cycle.timers.add(due_ns, self._relieve)

    def _relieve(self) -> None:
        """Memory is short: who has held some for too long gives it back, the slowest first."""
        self._relief = None
        now_ns = self._clock.monotonic_ns()
        if self._owed_bytes > self._owed_bytes_max:
            for connection in deafest(self._connections.values(), now_ns - self._intake.grace_ns):
                self._fault(connection, "it does not read its answers, and there are too many of them")
                if self._owed_bytes <= self._owed_bytes_max:
                    break
        if self._intake.starved:
            enough_bytes = self._pool.reserve_bytes + self._intake.starved_bytes()
            for connection in self._intake.slowest(self._connections.values(), now_ns):
                if self._pool.free_bytes() > enough_bytes:
                    break
                self._fault(connection, "its unfinished request held memory that others wait for")
            self._feed()
        if self._intake.starved or self._owed_bytes > self._owed_bytes_max:
            self._relieve_later()

    # Idle connections and pages

    def _sweep_later(self, now_ns: int) -> None:
        self._sweeping = True
        idle_ns = self._settings.network.connections_max_idle_ms * _NS_PER_MS
        self._cycle.timers.add(now_ns + max(idle_ns // SWEEP_PARTS, _NS_PER_MS), self._sweep)

    def _sweep(self) -> None:
        """Closes connections that were idle for too long, lets unused segments and pool pages go."""
        self._sweeping = False
        now_ns = self._clock.monotonic_ns()
        idle_ns = self._settings.network.connections_max_idle_ms * _NS_PER_MS
        for connection in list(self._connections.values()):
            if now_ns - connection.last_active_ns > idle_ns and (connection.out or not connection.queue):
                self._close(connection)
        self._pool.trim()
        self._forget_deleted()
        if self._connections:
            self._sweep_later(now_ns)

    def _forget_deleted(self) -> None:
        image = self._routes.image
        if image is not None and image.version != self._image_version:
            self._image_version = image.version
            self._files.retain(
                {(p.row, p.incarnation) for topic in image.topics.values() for p in topic.partitions}
            )

    # The supervisor's words

    def _supervised(self, messages: list[Message] | None) -> None:
        if messages is None:
            self._warn("the supervisor is gone; stopping")
            self._running = False
            return
        for message in messages:
            match message:
                case PeerUp():
                    self._peer_up(message.role, message.generation)
                case PeerDown() if message.role == CONTROLLER:
                    self._questions.controller_down()
                case PeerDown():
                    if self._attachment.generations.get(message.role) == message.generation:
                        self._peer_down(message.role)
                case Stop():
                    self._attachment.row.set_state(ProcessState.STOPPING)
                    self._draining_until_ns = self._clock.monotonic_ns() + message.within_ms * _NS_PER_MS
                    self._cycle.timers.add(self._draining_until_ns, lambda: None)  # wakes the last turn
                    self._purgatory.stop()
                    self._coordinator.stop()
                    self._send_answered()  # before the look at who has nothing under way
                    self._drain()
                case Heartbeat():
                    self._supervision.send(message)
                case _:
                    self._warn(f"unexpected word of the supervisor: {message}")

    def _peer_up(self, role: Role, generation: int) -> None:
        if self._attachment.generations.get(role, generation) != generation:
            self._peer_down(role)
        if role == ACCEPTOR:
            self.join()
        if not self._attachment.peer_up(role, generation):
            return
        if role.kind is RoleKind.IOPROC:
            self._cycle.add_inbox(self._lines.worker_up(role))
        elif role == COORDINATOR:
            self._cycle.add_inbox(self._coordinator.coordinator_up())
        elif role == PURGATORY:
            self._cycle.add_inbox(self._attachment.inbound[role])

    def _peer_down(self, role: Role) -> None:
        if role.kind is RoleKind.IOPROC:
            # First the ring, then those who wait: what they ask next must not go into a dead worker's ring.
            self._attachment.peer_down(role)
            inbox = self._lines.worker_down(role)
            if inbox is not None:
                self._cycle.remove_inbox(inbox)
        elif role == PURGATORY:
            self._cycle.remove_inbox(self._attachment.inbound[role])
            self._attachment.peer_down(role)
            self._purgatory.purgatory_down()
        elif role == COORDINATOR:
            self._cycle.remove_inbox(self._attachment.inbound[role])
            self._attachment.peer_down(role)
            self._coordinator.coordinator_down()

    # The end

    def _drain(self) -> None:
        """Stopping: connections without anything under way are closed, the others get their answers first."""
        assert self._draining_until_ns is not None
        late = self._clock.monotonic_ns() >= self._draining_until_ns
        for connection in list(self._connections.values()):
            if late or not (connection.queue or connection.out):
                self._close(connection)
            elif not connection.muted:
                connection.muted = True
                self._watch(connection)
        if not self._connections:
            self._running = False

    def _end(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection)
        self._files.close()
        self._fan_out.close()
        self._controller.close()
        self._cycle.close()

    def statistics(self) -> dict[str, Any]:
        """What this process holds."""
        return {
            "pid": os.getpid(),
            "connections": len(self._connections),
            "pool": self._pool.statistics(),
            "lines": self._lines.statistics(),
            "waiting": self._purgatory.statistics(),
            "coordinator": self._coordinator.statistics(),
            "questions": self._questions.statistics(),
            "segments": self._files.statistics(),
        }
