"""The agent of a network process: frames in, operations out; answers in, responses out; sleep otherwise.

Does: receives into its pool, parses, places operations on the workers' rings, answers what needs no log, sends
responses and segments. Never: opens a log for writing, keeps a message, waits for another process.
Dies: its connections drop and clients reconnect; its rings and pool go with it, and other processes serve on.

One turn of the cycle, in this order: what other processes answered; what clients sent; what is placed is published
at once for all of it; what is answered is sent, joined by connection.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable, Mapping
from socket import SocketType
from typing import TYPE_CHECKING, Any, Final

from appliance.channels.connection_channel import LANE, Assignment
from appliance.channels.controller_link import ControllerLink
from appliance.channels.roles import ACCEPTOR, CONTROLLER, PURGATORY, Role, RoleKind
from appliance.clock import NS_PER_MS
from appliance.cluster import ClientQuotas, ClusterImage
from appliance.ipc.brief_wait import BriefWait
from appliance.ipc.buffer_pool import BufferPool
from appliance.ipc.process_table import ERRORS
from appliance.journal import Burst, RateLimited
from appliance.netproc.address_failures import AddressFailures
from appliance.netproc.arrivals import PLAIN_EVENTS, Arrivals
from appliance.netproc.audit_end import AuditEnd
from appliance.netproc.connection import Connection
from appliance.netproc.fan_out import FanOut
from appliance.netproc.sockets import Sockets
from appliance.netproc.watchers import Watchers
from appliance.process.agent import AgentProcess
from appliance.requests.answer import Piece
from appliance.requests.apis import Apis
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
IMAGE_LOOK_MS: Final = 10
"""How often a network process looks for the first image, after a start of everything and never again."""
COMPLAINT_INTERVAL_MS: Final = 10_000
"""At least, between two lines about segments that the host does not let us read."""
# A part of the pool that half-received frames may not take, so that whole small requests always pass.
RESERVE_PART: Final = 8


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
        self._cycle = process.cycle
        self._epoll = self._cycle.epoll
        self._pool = BufferPool(
            attachment.pool.view,
            reserve_bytes=len(attachment.pool.view) // RESERVE_PART,
            discard=attachment.pool.discard,
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
        failures = AddressFailures(settings.sasl.failed_delay_ms)
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
            failed=failures.failed,
            auditing=None if self._audit is None else self._audit.auditing,
        )
        self._say_closed = Burst(
            warn,
            clock,
            at=self._cycle.timers.add,
            lines=settings.network.closed_lines_per_minute,
            what="connections were closed for what they sent",
        )
        self._sockets = Sockets(
            process,
            self._pool,
            self._apis,
            say_closed=self._say_closed,
            end_requests=self._end_requests,
            short=fan_out.report_load,
            tidy=self._tidy,
        )
        self.arrivals = Arrivals(
            process,
            routes,
            self._audit,
            failures=failures,
            add=self._sockets.add,
            ended=self._ended_early,
        )
        self._answered: set[Session] = set()
        self._image_version = -1
        self._draining_until_ns: int | None = None
        self._running = True
        self._second: Transport | None = None  # clients that do not come by TCP
        self._quotas: tuple[ClientQuotas, ...] = ()
        self._watchers = Watchers(process, self._apis, routes, self._lines, self._pool)
        self._traffic: Traffic | None = self._watchers.traffic
        self._metering: Metering | None = None  # since the first quota
        self._meter: Meter | None = None  # while there are quotas
        routes.on_image(self._look_at_image)
        self._lanes: Lanes | None = None  # in `_second`, too
        for inbox in (fan_out, self._long, self):
            self._cycle.add_inbox(inbox)
        self._epoll.register(fan_out.fileno(), _IN)

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

    def _look_at_image(self, image: ClusterImage) -> None:
        """Apply a new image to what is not looked up for each request."""
        self._look_at_quotas(image)
        self._watchers.look(image)
        self._traffic = self._watchers.traffic

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
        if isinstance(session, Connection):
            self._sockets.mute(session)

    def _resume_throttled(self, session: Session) -> None:
        if isinstance(session, Connection):
            self._sockets.unmute(session)
        else:
            assert self._second is not None
            self._second.resume(session)

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
        """Take connections from now on if there is an image, else as soon as there is one.

        Without an image, a client would get a cluster without brokers. librdkafka then drops those it knows, for good.
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
        sockets = self._sockets
        connections = sockets.connections
        for descriptor, mask in events:
            connection = connections.get(descriptor)
            if connection is None:
                self._other(descriptor)
            elif mask == _IN:
                sockets.read(connection)
            else:
                sockets.unusual(connection, mask)
        self._rarely()
        lines.publish()
        if self._answered:
            self._send_answered()
            # An answer that left may have let its connection's next requests in.
            lines.publish()
            if self._draining_until_ns is not None:
                self._drain()  # connections that were answered just now may have nothing in flight
        if self._traffic is not None and self._traffic.unsent:
            self._traffic.sent()
        self._purgatory.publish()

    def is_empty(self) -> bool:
        """Inbox: whether the end of the last turn has left nothing to be sent or said.

        A send may begin what waited for it, and close a connection.
        """
        return not (self._answered or self._sockets.closed_hosts or self._coordinator.has_unsaid)

    def _rarely(self) -> None:
        """What is nothing to do in most turns: a few looks at words of our own."""
        if self._controller.wants_look:
            self._questions.take_answers()
        if not self._fan_out.is_empty():
            self._accept()
        if self._sockets.is_starved:
            self._sockets.feed()
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
        closed_hosts = self._sockets.closed_hosts
        if closed_hosts:
            self._sockets.closed_hosts = []
            self._fan_out.report_closed(closed_hosts)
        if self._draining_until_ns is not None:
            self._drain()

    def _wait_congested(self) -> list[tuple[int, int]]:
        """A worker's ring is full: no socket is read until it has room; its answers ring our bell."""
        events = self._cycle.wait(1)
        connections = self._sockets.connections
        return [(fd, mask) for fd, mask in events if connections.get(fd) is None or mask & _OUT]

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
            if assignment.listener == LANE:
                self._add_lane(assignment, sock)
                continue
            if self._draining_until_ns is not None:
                sock.close()
                self._sockets.closed_hosts.append(assignment.peer_host)
                continue
            self.arrivals.take(assignment, sock)

    def _ended_early(self, host: str, line: str | None) -> None:
        """Note a connection that was closed before it was a session."""
        self._sockets.closed_hosts.append(host)
        if line is not None:
            self._cells[ERRORS] += 1
            self._say_closed(line)

    def _close(self, session: Session) -> None:
        if isinstance(session, Connection):
            self._sockets.close(session)
        else:
            assert self._second is not None
            self._second.end(session)

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

    def _fault(self, session: Session, why: str) -> None:
        if isinstance(session, Connection):
            self._sockets.fault(session, why)
        else:
            assert self._second is not None
            self._second.fault(session, why)

    def _contain(self, session: Session, error: Exception) -> None:
        if isinstance(session, Connection):
            self._sockets.contain(session, error)
        else:
            assert self._second is not None
            self._second.contain(session, error)

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
        session = pending.session
        if session.closed:
            return
        head, *_ = answer
        owed_bytes = len(head) if isinstance(head, bytes) else 0
        if isinstance(session, Connection):
            self._sockets.owe(session, owed_bytes)
        else:
            assert self._second is not None
            self._second.owe(session, owed_bytes)

    def _send_answered(self) -> None:
        answered, self._answered = self._answered, set()
        for session in answered:
            if isinstance(session, Connection):
                self._sockets.send(session)
            else:
                assert self._second is not None
                self._second.send(session)

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
        self._sockets.is_draining = True
        self._draining_until_ns = self._clock.monotonic_ns() + within_ms * NS_PER_MS
        self._cycle.timers.add(self._draining_until_ns, lambda: None)  # wakes the last turn
        self._purgatory.stop()
        self._coordinator.stop()
        for connection in self._long.unfinished():
            self._close(connection)
        self.arrivals.close()
        self._send_answered()  # first, because then more connections have nothing in flight
        self._drain()

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """Join the acceptor, or serve with the next generation of a process that has a ring to this one."""
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
        # First the ring, then the requests that wait: what they ask next must not go into a dead process's ring.
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
        is_first_done = self._sockets.drain(late=late)
        is_second_done = self._second is None or self._second.drain(late=late)
        if is_first_done and is_second_done:
            self._running = False

    def _end(self) -> None:
        self._sockets.close_all()
        if self._second is not None:
            self._second.close()
        self._files.close()
        self._watchers.close()
        if self._metering is not None:
            self._metering.close()
        self._fan_out.close()
        self._controller.close()
        if self._audit is not None:
            self._audit.close()
        self._process.close()

    def counters(self) -> Mapping[str, int]:
        """Return partitions that the purgatory watches for this process, fetches that left it early to make room, what
        quotas do, and delayed records that were stored.
        """
        delayed = self._apis.delayed
        quotas = {} if self._metering is None else self._metering.statistics()
        telemetry = self._watchers.telemetry_counters()
        return {
            "watched_partitions": self._purgatory.partitions,
            "fetches_answered_early": self._purgatory.hurried,
            "lost_audit_entries": 0 if self._audit is None else self._audit.lost,
            "throttled_answers": quotas.get("throttled", 0),
            "throttled_sessions": quotas.get("muted", 0),
            "forgotten_budgets": quotas.get("evicted", 0),
            "throttled_ms": quotas.get("throttled_ms", 0),
            "client_pushes": telemetry.get("pushes", 0),
            "refused_client_pushes": telemetry.get("refused", 0),
            "lost_client_pushes": telemetry.get("lost", 0),
            "delayed_records": delayed.stored,
            "handed_back_records": delayed.handed_back,
            "dead_letters": delayed.dead,
        }

    def statistics(self) -> dict[str, Any]:
        """What this process holds."""
        return {
            "pid": os.getpid(),
            "connections": len(self._sockets.connections),
            "pool": self._pool.statistics(),
            "lines": self._lines.statistics(),
            "waiting": self._purgatory.statistics(),
            "coordinator": self._coordinator.statistics(),
            "questions": self._questions.statistics(),
            "long": self._long.statistics(),
            "segments": self._files.statistics(),
            "quotas": {} if self._metering is None else self._metering.statistics(),
        }
