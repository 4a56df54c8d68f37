"""The agent of a network process: frames in, operations out; answers in, responses out; sleep otherwise.

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
from collections.abc import Callable, Mapping
from contextlib import suppress
from socket import SocketType
from typing import TYPE_CHECKING, Any, Final

from appliance.channels.connection_channel import LANE, Assignment
from appliance.channels.controller_link import ControllerLink
from appliance.channels.partition_table import PartitionTable
from appliance.channels.roles import ACCEPTOR, CONTROLLER, PURGATORY, Role, RoleKind
from appliance.clock import NS_PER_MS
from appliance.cluster import ClientQuotas, ClusterImage
from appliance.errors import ClientFault, StorageFault
from appliance.ipc.brief_wait import BriefWait
from appliance.ipc.buffer_pool import BufferPool
from appliance.ipc.process_table import (
    BYTES_IN,
    BYTES_OUT,
    CONNECTIONS,
    ERRORS,
    REQUESTS,
)
from appliance.journal import Burst, RateLimited
from appliance.netproc.arrivals import ENCRYPTED_EVENTS, PLAIN_EVENTS, Arrivals
from appliance.netproc.audit_end import AuditEnd
from appliance.netproc.connection import Connection
from appliance.netproc.connections import Connections
from appliance.netproc.encrypted_stream import EncryptedStream
from appliance.netproc.fan_out import FanOut
from appliance.netproc.intake import CLOSED, STARVED, Intake
from appliance.netproc.memory_relief import MemoryRelief
from appliance.netproc.outlet import abandon, collect, flush
from appliance.process.agent import AgentProcess
from appliance.requests.answer import Piece
from appliance.requests.apis import SERVED_AFTER_CLOSE, Apis
from appliance.requests.coordinator_line import ANSWER_NS
from appliance.requests.coordinator_lines import CoordinatorLines
from appliance.requests.long_requests import LongRequests
from appliance.requests.meter import Meter
from appliance.requests.purgatory_line import PurgatoryLine
from appliance.requests.questions import ControllerRequests
from appliance.requests.segment_files import SegmentFiles
from appliance.requests.session import Request, Session
from appliance.requests.topic_routes import TopicRoutes
from appliance.requests.transport import Transport, TransportHost
from appliance.requests.worker_lines import WorkerClient

if TYPE_CHECKING:
    from appliance.lane.lanes import Lanes
    from appliance.netproc.metering import Metering
    from appliance.requests.traffic import Traffic

_log: Final = logging.getLogger(__name__)

_IN: Final = PLAIN_EVENTS
_OUT: Final = select.EPOLLOUT
_HUNG_UP: Final = select.EPOLLRDHUP
_IN_TLS: Final = ENCRYPTED_EVENTS
SWEEP_PARTS: Final = 4
SWEEP_MAX_NS: Final = 20_000_000_000
"""Pool pages that nobody uses go back to the system within this time, however long connections may be idle."""
IMAGE_LOOK_MS: Final = 10
"""How often a network process looks for the first image, after a start of everything and never again."""
COMPLAINT_INTERVAL_MS: Final = 10_000
"""At least, between two lines about segments that the host does not let us read."""
# Requests of one connection in one turn: who pipelines without end shares the turn with all others.
TURN_REQUESTS: Final = 16
# A part of the pool that half-received frames may not take, so that whole small requests always pass.
RESERVE_PART: Final = 8
# Answers are kept for who does not read them: of one connection this much and one answer, then no more of its frames
# are cut; of all together this part of the pool's size, then those who read least are closed.
OWED_BYTES_MAX: Final = 16 * 1024
OWED_PART: Final = 2


class NetworkAgent:
    """One network process's loop and its state. `run` returns after Stop, when the process is drained."""

    def __init__(self, process: AgentProcess, controller: ControllerLink, *, fan_out: FanOut) -> None:
        attachment, settings = process.attachment, process.settings
        clock, warn = process.clock, process.warn
        assert attachment.pool is not None
        self._process = process
        self._attachment = attachment
        self._controller = controller
        self._fan_out = fan_out
        self._clock = clock
        self._settings = settings
        self._cells = attachment.row.cells
        self._connections = Connections()
        self._cycle = process.cycle
        self._epoll = self._cycle.epoll
        self._pool = BufferPool(
            attachment.pool.view,
            reserve_bytes=len(attachment.pool.view) // RESERVE_PART,
            discard=attachment.pool.discard,
        )
        self._intake = Intake(
            self._pool,
            frame_bytes_max=settings.network.request_max_bytes,
            grace_ns=settings.network.request_stall_grace_ms * NS_PER_MS,
        )
        self._in_flight_max = settings.network.requests_in_flight_per_connection
        self._relief = MemoryRelief(
            self._intake,
            self._pool,
            self._connections,
            owed_bytes_max=len(attachment.pool.view) // OWED_PART,
            timers=self._cycle.timers,
            clock=clock,
            fault=self._fault,
            read_again=self._read_again,
            short=fan_out.report_load,
        )
        routes = TopicRoutes(attachment.image, workers=attachment.wiring.settings.io.workers)
        self._routes = routes
        self._lines = WorkerClient(attachment, brief_wait=BriefWait(clock.monotonic_ns))
        self._purgatory = PurgatoryLine(
            attachment, partitions_max=settings.network.waiting_fetch_partitions_max
        )
        self._coordinator = CoordinatorLines(
            attachment,
            routes,
            processes=settings.broker.coordinator_processes,
            finish=self._finish_owed,
            refuse=self._refuse,
            give=self._pool.give,
            brief_wait=BriefWait(clock.monotonic_ns, limit_ns=ANSWER_NS),
        )
        self._audit = AuditEnd(process) if settings.audit.is_on else None
        self.arrivals = Arrivals(process, routes, self._audit, add=self._add, ended=self._ended_early)
        self._questions = ControllerRequests(controller, self._cycle.timers)
        self._long = LongRequests(self._pool, self._questions, contain=self._contain, clock=clock)
        table = attachment.partitions
        directories = {slot: settings.log_directories(slot) for slot in range(settings.slots)}
        self._files = SegmentFiles(
            directories,
            is_served=lambda route: table.serves(route.row, route.incarnation),
            version=lambda route: table.files_version(route.row),
        )
        self._lines.on_removed(self._files.let_go_of_removed)
        self._apis = Apis(
            attachment,
            routes,
            directories=directories,
            files=self._files,
            pool=self._pool,
            lines=self._lines,
            purgatory=self._purgatory,
            coordinator=self._coordinator,
            long=self._long,
            finish=self._finish,
            finish_owed=self._finish_owed,
            refuse=self._refuse,
            clock=clock,
            complain=RateLimited(warn, clock, interval_ms=COMPLAINT_INTERVAL_MS),
            timers=self._cycle.timers,
            auditing=None if self._audit is None else self._audit.auditing,
        )
        self._say_closed = Burst(
            warn,
            clock,
            at=self._cycle.timers.add,
            lines=settings.network.closed_lines_per_minute,
            what="connections were closed for what they sent",
        )
        self._answered: set[Session] = set()
        self._closed_hosts: list[str] = []
        self._image_version = -1
        self._draining_until_ns: int | None = None
        self._running = True
        self._sweeping = False
        self._second: Transport | None = None  # clients that do not come by TCP
        self._quotas: tuple[ClientQuotas, ...] = ()
        self._traffic: Traffic | None = None
        self._metering: Metering | None = None  # since the first quota
        self._meter: Meter | None = None  # while there are quotas
        routes.on_image(self._look_at_quotas)
        self._lanes: Lanes | None = None  # in `_second`, too
        for inbox in (fan_out, self._long, self):
            self._cycle.add_inbox(inbox)
        self._epoll.register(fan_out.fileno(), _IN)
        if settings.metrics.is_on:
            self._count_traffic(table)

    def _count_traffic(self, table: PartitionTable) -> None:
        """Count requests for the metrics process."""
        from appliance.netproc.counting import traffic_of

        self._traffic = traffic_of(self._attachment, self._routes, table, self._cycle.timers, self._clock)
        self._apis.set_traffic(self._traffic)

    def add_transport(self, transport: Callable[[TransportHost], Transport]) -> None:
        """Serve the clients of a second transport, too. Call it before `run`."""
        self._second = transport(self._transport_host())

    def _transport_host(self) -> TransportHost:
        return TransportHost(
            self._process,
            self._cycle,
            self._pool,
            self._apis,
            is_ready=lambda: self._attachment.image.version > 0,
            end_requests=self._end_requests,
            say_closed=self._say_closed,
            report_sessions=self._fan_out.report_sessions,
            tidy=self._tidy,
            auditing=None if self._audit is None else self._audit.auditing,
        )

    def _add_lane(self, assignment: Assignment, sock: SocketType) -> None:
        """Take a client with a lane. Until the first one comes a turn pays nothing for them."""
        if self._lanes is None:
            from appliance.lane.lanes import Lanes
            from appliance.lane.pair import Pair

            self._lanes = Lanes(self._transport_host(), lambda host: self._fan_out.report_closed((host,)))
            self._second = self._lanes if self._second is None else Pair(self._lanes, self._second)
        self._lanes.add(assignment, sock)

    def _look_at_quotas(self, image: ClusterImage) -> None:
        """Go by the quotas of a new image."""
        if image.quotas is self._quotas:
            return
        self._quotas = image.quotas
        meter: Meter | None = None
        if any(each.entity.ip is None for each in image.quotas):
            if self._metering is None:
                from appliance.netproc.metering import Metering

                self._metering = Metering(
                    self._attachment,
                    timers=self._cycle.timers,
                    clock=self._clock,
                    mute=self._mute_throttled,
                    resume=self._resume_throttled,
                )
            self._metering.set_quotas(image.quotas)
            meter = self._metering.meter
        self._meter = meter
        self._apis.set_meter(meter)

    def _mute_throttled(self, session: Session) -> None:
        """A client is over its quota. A second transport looks at the session before it takes a request."""
        if isinstance(session, Connection) and not session.closed:
            session.muted = True
            self._intake.settle(session, self._clock.monotonic_ns())
            self._watch(session)

    def _resume_throttled(self, session: Session) -> None:
        if not isinstance(session, Connection):
            assert self._second is not None
            self._second.resume(session)
        elif self._may_resume(session):
            self._resume(session)
        else:
            self._watch(session)

    # The cycle

    def run(self) -> None:
        """Serve until Stop, then until what is under way is answered."""
        self._process.publish_counters(self.counters)
        self._process.ready()
        self.join()
        while self._running:
            self.turn()
            self._lines.await_lone_answer()
            self._coordinator.await_lone_answer()
        self._end()

    def join(self) -> None:
        """Takes connections from now on if there is an image, else as soon as there is one.

        Who asked before was told of a cluster without brokers; librdkafka then drops those it knows, for good.
        """
        if self._attachment.image.version:
            self._routes.look()  # so that quotas count for the first request
            self._fan_out.connect()
        else:
            self._process.after_ms(IMAGE_LOOK_MS, self.join)

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
            if self._draining_until_ns is not None:
                self._drain()  # who was answered just now has nothing under way
        if self._traffic is not None and self._traffic.unsent:
            self._traffic.sent()
        self._purgatory.publish()

    def is_empty(self) -> bool:
        """Inbox: whether the end of the last turn has left nothing to be sent or said.

        A send may begin what waited for it, and close a connection.
        """
        return not (self._answered or self._closed_hosts or self._coordinator.has_unsaid)

    def _unusual(self, connection: Connection, mask: int) -> None:
        """Room to send again, or the peer is gone; or any event of an encrypted connection."""
        if connection.tls is not None:
            self._on_encrypted(connection, connection.tls, mask)
            return
        if mask & ~(_IN | _OUT | _HUNG_UP):
            self._close(connection)
            return
        # The event may be one of a connection that was closed in this turn, and whose descriptor a new one has got.
        if mask & _HUNG_UP and connection.held and self._hung_up(connection):
            return
        self._send(connection)
        if self._may_resume(connection):
            self._resume(connection)
        if mask & _IN and not connection.closed:
            self._read(connection)

    def _on_encrypted(self, connection: Connection, tls: EncryptedStream, mask: int) -> None:
        """`_unusual` and `_read` of a connection that may have decrypted bytes of which epoll knows nothing."""
        if mask & ~(_IN_TLS | _OUT | _HUNG_UP):
            self._close(connection)
            return
        if mask & _HUNG_UP and connection.held and self._hung_up(connection):
            return
        if connection.out:
            self._send(connection)
        if self._may_resume(connection):
            self._resume(connection)
        if (mask & _IN or tls.has_more) and not connection.closed and not connection.starved:
            self._read(connection)
        if not connection.closed:
            self._watch(connection)

    def _rarely(self) -> None:
        """What is nothing to do in most turns: a few looks at words of our own."""
        if self._controller.wants_look:
            self._questions.take_answers()
        if not self._fan_out.is_empty():
            self._accept()
        if self._intake.starved:
            self._relief.feed()
        if self._long.wants_turn:
            self._long.run()
        for stage in self.arrivals.stages:
            if not stage.is_empty():
                stage.turn()
        if self._second is not None:
            self._second.turn(may_read=not self._lines.congested)
        # Behind all who may have asked the coordinator: it is woken for that before we sleep.
        if self._coordinator.wants_turn:
            self._coordinator.turn()
        if self._closed_hosts:
            self._fan_out.report_closed(self._closed_hosts)
            self._closed_hosts = []
        if self._draining_until_ns is not None:
            self._drain()

    def _wait_congested(self) -> list[tuple[int, int]]:
        """A worker's ring is full: no socket is read until it has room; its answers ring our bell."""
        events = self._cycle.wait(1)
        return [(fd, mask) for fd, mask in events if self._connections.get(fd) is None or mask & _OUT]

    def _other(self, descriptor: int) -> None:
        if descriptor == self._process.supervision_fd:
            self._process.hear(self)
        elif descriptor == self._controller.fileno():
            self._controller.wants_look = True
        elif descriptor == self._fan_out.fileno():
            self._accept()
        elif not self.arrivals.on_ready(descriptor) and self._second is not None:
            self._second.on_ready(descriptor)

    # Connections

    def _accept(self) -> None:
        for assignment, sock in self._fan_out.accepted():
            if self._draining_until_ns is not None:
                sock.close()
                self._closed_hosts.append(assignment.peer_host)
                continue
            if assignment.listener == LANE:
                self._add_lane(assignment, sock)
                continue
            self.arrivals.take(assignment, sock)

    def _add(self, connection: Connection, events: int) -> None:
        """Take a connection that is a session from now on."""
        self._connections.add(connection)
        connection.mask = events
        self._epoll.register(connection.fd, events)
        self._cells[CONNECTIONS] = len(self._connections)
        if not self._sweeping:
            self._sweep_later(connection.last_active_ns)

    def _ended_early(self, host: str, line: str | None) -> None:
        """Note a connection that was closed before it was a session."""
        self._closed_hosts.append(host)
        if line is not None:
            self._cells[ERRORS] += 1
            self._say_closed(line)

    def _close(self, connection: Session) -> None:
        if not isinstance(connection, Connection):
            assert self._second is not None
            self._second.end(connection)
            return
        if connection.closed:
            return
        connection.closed = True
        self._connections.remove(connection)
        self._epoll.unregister(connection.fd)
        self._intake.release(connection)
        self._relief.owed_bytes -= connection.owed_bytes
        abandon(connection)
        self._end_requests(connection)
        connection.sock.close()
        self._cells[CONNECTIONS] = len(self._connections)
        self._closed_hosts.append(connection.peer_host)

    def _end_requests(self, session: Session) -> None:
        """Drop what a session has asked for that has ended."""
        if session.audited is not None and self._audit is not None:
            self._audit.auditing.left(session)
        if session.queue:
            self._lines.drop_connection(session.connection_id)
        for pending in list(session.queue or ()):
            # Without this assignment the request and its handler would refer to each other until the collector runs.
            drop, pending.drop = pending.drop, None
            if drop is not None:
                drop()
        if session.queue:
            self._coordinator.leave(session)
        session.queue = None
        self._answered.discard(session)
        if self._metering is not None:
            self._metering.ended(session)

    def _refuse(self, pending: Request, why: str) -> None:
        self._fault(pending.session, why)

    def _fault(self, connection: Session, why: str) -> None:
        """Log one line and close the connection. No other connection is affected."""
        if not isinstance(connection, Connection):
            assert self._second is not None
            self._second.fault(connection, why)
            return
        if not connection.closed:
            self._cells[ERRORS] += 1
            self._say_closed(f"{connection} closed: {why}")
            with suppress(OSError, StorageFault):  # what was asked before it may leave
                collect(connection)
                flush(connection)
            self._close(connection)

    def _contain(self, connection: Session, error: Exception) -> None:
        """A request could not be served, by its client's fault or by a defect of ours: its connection alone pays."""
        if not isinstance(connection, Connection):
            assert self._second is not None
            self._second.contain(connection, error)
            return
        if isinstance(error, ClientFault):
            self._fault(connection, str(error))
        else:
            _log.error("internal error in a request of %s (traceback follows)", connection, exc_info=error)
            self._fault(connection, "a defect of ours, told above")

    def _hung_up(self, connection: Connection) -> bool:
        """The client of a held connection has closed it; whether we close it, too, with all that it asked.

        What it produced or committed, or that it leaves its group, is still taken: it was received, and its client may
        have meant to close behind it without an answer.
        """
        if self._intake.next_api_key(connection) in SERVED_AFTER_CLOSE:
            connection.hung_up = True
            self._apis.end_waits(connection)
            self._watch(connection)
            return False
        self._close(connection)
        return True

    def _watch(self, connection: Connection) -> None:
        """Brings the epoll mask up to what the connection waits for."""
        mask = 0 if connection.muted or connection.starved else _IN
        if mask and connection.tls is not None:
            mask = _IN_TLS | _OUT if connection.tls.has_more else _IN_TLS
        if connection.held and not connection.hung_up:
            mask |= _HUNG_UP
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
            elif count != STARVED and self._intake.begun_bytes(connection):
                self._cut(connection)  # it was held, then starved: whole frames may be there
        except Exception as error:
            self._contain(connection, error)
            return
        if count == CLOSED and not connection.muted:
            begun_bytes = self._intake.begun_bytes(connection)
            if begun_bytes:
                self._fault(connection, f"its client left it {begun_bytes} bytes into a request")
            else:
                self._close(connection)
        elif count == STARVED:
            self._watch(connection)
            self._relief.relieve_later()

    def _read_again(self, connection: Connection) -> None:
        self._watch(connection)
        self._read(connection)
        if connection.tls is not None and not connection.closed:
            self._watch(connection)  # decrypted bytes may be left

    def _cut(self, connection: Connection) -> None:
        """Serves the whole frames that are there, as many as fit into a turn; the others wait for the next."""
        limit, left = self._in_flight_max, TURN_REQUESTS
        apis, cells = self._apis, self._cells
        for block, start, end in self._intake.frames(connection):
            cells[REQUESTS] += 1
            apis.serve(connection, block, start, end)
            left -= 1
            if not left or connection.in_flight >= limit:
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
            and not connection.throttled_until_ns
            and connection.in_flight <= (0 if connection.held else self._in_flight_max // 2)
            and self._draining_until_ns is None
        )

    def _resume(self, connection: Connection) -> None:
        connection.muted = connection.held = False
        try:
            if self._intake.unstash(connection):
                self._cut(connection)
            else:
                self._relief.relieve_later()
        except Exception as error:
            self._contain(connection, error)
            return
        if not connection.closed:
            self._watch(connection)

    # Answering

    def _finish(self, pending: Request, answer: list[Piece]) -> None:
        pending.give_block(self._pool)
        session = pending.session
        pending.answer = answer
        if pending.arrived_ns and self._traffic is not None:
            self._traffic.answered(pending)
        if session.closed:
            for piece in answer:
                if not isinstance(piece, bytes):
                    piece.file.release()
            return
        if self._meter is not None:
            self._meter.answered(pending, answer)
        queue = session.queue
        if queue is not None and queue[0] is pending:
            self._answered.add(session)

    def _finish_owed(self, pending: Request, answer: list[Piece]) -> None:
        """`_finish` for answers that may be large where their requests are small."""
        self._finish(pending, answer)
        connection = pending.session
        if connection.closed:
            return
        head, *_ = answer
        owed_bytes = len(head) if isinstance(head, bytes) else 0
        if not isinstance(connection, Connection):
            assert self._second is not None
            self._second.owe(connection, owed_bytes)
            return
        relief = self._relief
        relief.owed_bytes += owed_bytes
        connection.owed_bytes += owed_bytes
        if connection.owed_bytes > OWED_BYTES_MAX and not connection.muted:
            connection.muted = True
            self._watch(connection)  # a socket that is watched and not read would keep the cycle spinning
        if relief.owed_bytes > relief.owed_bytes_max:
            relief.relieve_later()

    def _send_answered(self) -> None:
        answered, self._answered = self._answered, set()
        for session in answered:
            if isinstance(session, Connection):
                self._send(session)
            else:
                assert self._second is not None
                self._second.send(session)

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
            self._relief.owed_bytes -= connection.owed_bytes
            connection.owed_bytes = 0
        if connection.out or connection.mask != _IN:
            self._watch(connection)

    # Idle connections and pages

    def _sweep_later(self, now_ns: int) -> None:
        self._sweeping = True
        idle_ns = self._settings.network.connections_max_idle_ms * NS_PER_MS
        pause_ns = min(max(idle_ns // SWEEP_PARTS, NS_PER_MS), SWEEP_MAX_NS)
        self._cycle.timers.add(now_ns + pause_ns, self._sweep)

    def _sweep(self) -> None:
        """Closes connections that were idle for too long, lets unused segments and pool pages go."""
        self._sweeping = False
        now_ns = self._clock.monotonic_ns()
        idle_ns = self._settings.network.connections_max_idle_ms * NS_PER_MS
        for connection in self._connections.all():
            if now_ns - connection.last_active_ns > idle_ns and (connection.out or not connection.queue):
                self._close(connection)
        self._tidy()
        if self._connections:
            self._sweep_later(now_ns)

    def _tidy(self) -> None:
        self._pool.trim()
        self._forget_deleted()

    def _forget_deleted(self) -> None:
        image = self._routes.image
        if image is not None and image.version != self._image_version:
            self._image_version = image.version
            self._files.retain(
                {(p.row, p.incarnation) for topic in image.topics.values() for p in topic.partitions}
            )

    # The supervisor and the peers

    def stop(self, within_ms: int) -> None:
        """Take no further request, and end when those under way are answered or the time is up."""
        self._process.stopping()
        self._draining_until_ns = self._clock.monotonic_ns() + within_ms * NS_PER_MS
        self._cycle.timers.add(self._draining_until_ns, lambda: None)  # wakes the last turn
        self._purgatory.stop()
        self._coordinator.stop()
        for connection in self._long.unfinished():
            self._close(connection)
        self.arrivals.close()
        self._send_answered()  # before the look at who has nothing under way
        self._drain()

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """Join the acceptor, or serve with the next life of a process that has a ring to this one."""
        if peer == ACCEPTOR:
            self.join()
        elif new_rings and peer.kind is RoleKind.IOPROC:
            self._lines.worker_up(peer)
        elif new_rings and peer.kind is RoleKind.COORDINATOR:
            self._coordinator.coordinator_up(peer)

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        """Answer the requests that wait for a dead process."""
        if peer == CONTROLLER:
            self._questions.controller_down()
        if not had_rings:
            return
        # First the ring, then those who wait: what they ask next must not go into a dead process's ring.
        self._process.release(peer)
        if peer.kind is RoleKind.IOPROC:
            self._lines.worker_down(peer)
        elif peer == PURGATORY:
            self._purgatory.purgatory_down()
        elif peer.kind is RoleKind.COORDINATOR:
            self._coordinator.coordinator_down(peer)

    # The end

    def _drain(self) -> None:
        """Stopping: connections without anything under way are closed, the others get their answers first."""
        assert self._draining_until_ns is not None
        late = self._clock.monotonic_ns() >= self._draining_until_ns
        for connection in self._connections.all():
            if late or not (connection.queue or connection.out):
                self._close(connection)
            elif not connection.muted:
                connection.muted = True
                self._watch(connection)
        is_second_done = self._second is None or self._second.drain(late=late)
        if is_second_done and not self._connections:
            self._running = False

    def _end(self) -> None:
        for connection in self._connections.all():
            self._close(connection)
        if self._second is not None:
            self._second.close()
        self._files.close()
        if self._traffic is not None:
            self._traffic.flush()
        if self._metering is not None:
            self._metering.close()
        self._fan_out.close()
        self._controller.close()
        if self._audit is not None:
            self._audit.close()
        self._process.close()

    def counters(self) -> Mapping[str, int]:
        """Return partitions that the purgatory watches for this process, fetches that left it early to make room, and
        what quotas do.
        """
        quotas = {} if self._metering is None else self._metering.statistics()
        return {
            "watched_partitions": self._purgatory.partitions,
            "fetches_answered_early": self._purgatory.hurried,
            "lost_audit_entries": 0 if self._audit is None else self._audit.lost,
            "throttled_answers": quotas.get("throttled", 0),
            "throttled_sessions": quotas.get("muted", 0),
            "forgotten_budgets": quotas.get("evicted", 0),
        }

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
            "long": self._long.statistics(),
            "segments": self._files.statistics(),
            "quotas": {} if self._metering is None else self._metering.statistics(),
        }
