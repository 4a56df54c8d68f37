"""The network process's end of ZeroMQ: sessions, requests in, answers out (docs/zeromq.md).

    ROUTER ─→ message ─→ session by connection ─→ may it begin?  no: held, in the session
                                                   yes: copied into the pool ─→ Apis.serve
    ROUTER ←─ parts ←─ window open? ←─ out ←─ queue ←─ answer

Nothing here blocks: every send says DONTWAIT, and what a client does not acknowledge is not sent. What one client can
make this process hold:

| what | bound | then |
|---|---|---|
| requests unanswered | `network.requests.in.flight.per.connection`, `zeromq.bytes.in.flight.max` | the session ends |
| requests held, all sessions | a quarter of the pool's size | the session that holds most ends |
| sent and not acknowledged | the window, at most `zeromq.window.max.bytes` | its answers wait |
| that, all sessions | `limits.outstanding_max` | each is sent one message at a time |
| that, of a session that has ended | `KEPT_BYTES_MAX` | its connection ends |
| answers that wait, beside records, all sessions | a quarter of the pool's size | the sessions that are owed most end |
| heartbeats | one that is not acknowledged | no other is sent |
| connections without a session | `connections.default_unused_max` for each door | the oldest end |
| errors told to a connection without a session | what `limits.sent_max` messages take | they are dropped |
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import Final

import zmq

from appliance.clock import NS_PER_MS
from appliance.errors import ClientFault, MalformedFrame, StorageFault
from appliance.gateway.admission import not_admitted
from appliance.gateway.cuts import Cuts
from appliance.gateway.doors import Door, close_doors, make_doorkeeper, open_doors, unwatch, watch
from appliance.gateway.frames import (
    FRAMES_MAX,
    VERSION,
    Code,
    Kind,
    Open,
    Subscribe,
    broker_header,
    encode_error,
    parse_client_header,
    parse_credit,
    parse_heartbeat,
    parse_unsubscribe,
)
from appliance.gateway.limits import RECEIVED_MAX, new_window, opened, outstanding_max, sent_max
from appliance.gateway.outgoing import Outgoing
from appliance.gateway.pushing import Pushing
from appliance.gateway.received import Wire, api_key, client_of, joined, key_of
from appliance.gateway.session import GatewaySession, begin_session
from appliance.gateway.session_numbers import SessionNumbers, new_mark
from appliance.gateway.subscription import Subscription
from appliance.gateway.window import Outstanding
from appliance.ipc.process_table import BYTES_IN, ERRORS, REQUESTS
from appliance.journal import RateLimited
from appliance.requests.apis import SERVED_AFTER_CLOSE
from appliance.requests.session import Session
from appliance.requests.transport import TransportHost

_log: Final = logging.getLogger(__name__)

TURN_MESSAGES: Final = 64
"""Messages read from one door in one turn."""
OWED_BYTES_MAX: Final = 16 * 1024
KEPT_BYTES_MAX: Final = 16 * 1024
BOUND_PART: Final = 4
SWEEP_MS: Final = 1000
TIDY_MS: Final = 20_000
LINGER_MS: Final = 300
_NOBLOCK: Final = int(zmq.NOBLOCK)
# An enum's member is looked up each time that it is named, which is much for each message.
_OPEN: Final = int(Kind.OPEN)
_REQUEST: Final = int(Kind.REQUEST)
_CREDIT: Final = int(Kind.CREDIT)
_AUTOMATIC: Final = 0
"""First byte of a routing id that ZeroMQ has chosen. No library lets a client choose one that begins so."""


class Gateway:
    """The ZeroMQ transport of one network process.

    Raises:
        HostFault: an endpoint cannot be bound.
    """

    def __init__(self, host: TransportHost) -> None:
        process = host.process
        settings = process.settings
        self._host = host
        self._pool = host.pool
        self._apis = host.apis
        self._clock = process.clock
        self._cells = process.attachment.row.cells
        self._settings = settings
        self._zeromq = settings.zeromq
        self._request_bytes_max = settings.network.request_max_bytes
        self._requests_max = settings.network.requests_in_flight_per_connection
        self._bound_bytes = host.pool.size_bytes // BOUND_PART
        self._timeout_ns = settings.zeromq.session_timeout_ms * NS_PER_MS
        self._numbers = SessionNumbers(process.role.index, process.generation)
        self._outgoing = Outgoing(self._cells, say_closed=host.say_closed, lost=self._end)
        self._pushing = Pushing(
            host, self._outgoing, self._numbers, end_for=self._end_for, contain=self.contain
        )
        # A context of its own: a flood of a client's does not hold up the controller's messages in its I/O thread.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._doorkeeper = make_doorkeeper(
            self._context,
            settings.zeromq,
            RateLimited(process.warn, process.clock, interval_ms=1000),
            not_admitted if host.auditing is None else host.auditing.not_admitted,
        )
        self._doors = open_doors(
            self._context,
            settings.zeromq,
            netproc=process.role.index,
            message_bytes_max=self._request_bytes_max,
            sent_max=sent_max(settings),
            received_max=RECEIVED_MAX,
        )
        self._by_connection: dict[tuple[int, bytes], GatewaySession] = {}
        self._ready: set[int] = set()  # descriptors
        self._starved: set[GatewaySession] = set()
        self._held_bytes = self._owed_bytes = 0
        self._outstanding = Outstanding(outstanding_max(settings))
        self._cuts = Cuts(host.cycle.timers)
        self._may_read = True
        self._is_draining = self._is_sweeping = False
        self._tidied_ns = self._keys_version = self._reported = 0
        self._knocking = self._doorkeeper.fileno()
        watch(host.cycle.epoll, self._doorkeeper, self._doors)
        host.cycle.add_inbox(self)

    @property
    def sessions(self) -> int:
        """How many sessions there are."""
        return len(self._by_connection)

    # The cycle

    def is_empty(self) -> bool:
        """Inbox: whether the process may sleep.

        ZeroMQ's descriptors tell of changes, and a send may have swallowed one: so it looks at each door here, and
        remembers which one has something.
        """
        for door in self._doors:
            if not door.is_quiet and not door.is_empty():
                self._ready.add(door.descriptor)
        if not self._may_read or self._starved:
            return True
        return (
            not self._ready
            and not self._outgoing.unsent
            and not any(door.is_skipping for door in self._doors)
        )

    def on_ready(self, descriptor: int) -> None:
        """One of our descriptors is ready."""
        self._ready.add(descriptor)

    def turn(self, *, may_read: bool) -> None:
        """Answer handshakes, go on with what waited, read what clients sent."""
        self._may_read = may_read
        ready = self._ready
        if self._knocking in ready:
            ready.discard(self._knocking)
            if self._doorkeeper.answer():
                ready.add(self._knocking)
        if may_read:
            outgoing = self._outgoing
            if outgoing.unsent:
                unsent, outgoing.unsent = outgoing.unsent, set()
                for session in unsent:
                    self.send(session)
            for session in list(self._starved):
                self._starved.discard(session)
                self._advance(session)
        for door in self._doors:
            if door.connections.descriptor in ready and not door.connections.turn(self._wires):
                ready.discard(door.connections.descriptor)
            if door.descriptor in ready or door.is_skipping:
                ready.discard(door.descriptor)
                door.is_quiet = False
                # The descriptor stays readable until somebody receives, or asks for the events.
                if may_read and not self._starved:
                    self._read(door)
                else:
                    door.is_empty()
        if len(self._by_connection) != self._reported:
            self._reported = len(self._by_connection)
            self._host.report_sessions(self._reported)

    # Receiving

    def _read(self, door: Door) -> None:
        router = door.router
        if door.is_skipping and (door.is_empty() or not door.skip() or door.is_empty()):
            return
        now_ns = self._clock.monotonic_ns()
        for _ in range(TURN_MESSAGES):
            door.is_quiet = False
            try:
                routing_id = router.recv(_NOBLOCK)
            except zmq.Again:  # the descriptor told of something else
                return
            header = frame = router.recv(_NOBLOCK, copy=False)
            frames: list[zmq.Frame] = []
            while frame.more and len(frames) < FRAMES_MAX - 1:
                frame = router.recv(_NOBLOCK, copy=False)
                frames.append(frame)
            if frame.more:
                self._malformed(door, routing_id, f"a message of more than {FRAMES_MAX} frames")
                if not door.skip() or door.is_empty():
                    return
                continue
            self._hear(door, routing_id, header, frames, now_ns)
            if self._starved or door.is_empty():
                return

    def _hear(
        self, door: Door, routing_id: bytes, header: zmq.Frame, frames: list[zmq.Frame], now_ns: int
    ) -> None:
        """Act on a message."""
        try:
            version, kind, token = parse_client_header(header.buffer)
        except MalformedFrame as fault:
            self._malformed(door, routing_id, str(fault))
            return
        session = self._by_connection.get((door.descriptor, routing_id))
        if version != VERSION:
            self._refuse(door, routing_id, Code.VERSION, f"version {version}; this broker speaks {VERSION}")
        elif kind == _OPEN:
            self._open(door, routing_id, header, joined(frames), now_ns)
        elif session is None or token != session.token:
            if kind != int(Kind.CLOSE):
                self._refuse(
                    door, routing_id, Code.UNKNOWN_SESSION, "this connection has no session with this token"
                )
        else:
            session.last_active_ns = now_ns
            try:
                self._hear_session(session, kind, frames, now_ns)
            except Exception as error:
                self.contain(session, error)

    def _hear_session(self, session: GatewaySession, kind: int, frames: list[zmq.Frame], now_ns: int) -> None:
        if kind == _REQUEST:
            self._request(session, frames)
        elif kind == _CREDIT:
            session.window.credit(*parse_credit(joined(frames)))
            self.send(session)
            self._pushing.push_all(session)
        elif kind == Kind.HEARTBEAT:
            self._heartbeat(session, parse_heartbeat(joined(frames)), now_ns)
        elif kind == Kind.CLOSE:
            self._leave(session)
        elif kind == Kind.SUBSCRIBE:
            self._pushing.subscribe(session, Subscribe.parse(joined(frames)), now_ns)
        elif kind == Kind.UNSUBSCRIBE:
            self._pushing.unsubscribe(session, parse_unsubscribe(joined(frames)))
        else:
            raise MalformedFrame(f"a message of kind {kind}")

    def _request(self, session: GatewaySession, frames: list[zmq.Frame]) -> None:
        size = sum(map(len, frames))
        if session.is_leaving or self._is_draining:
            return
        if size > self._request_bytes_max:
            self._end_for(session, Code.LIMIT_EXCEEDED, f"a request of {size} bytes")
            return
        if len(session.sizes) >= self._requests_max:
            self._end_for(session, Code.LIMIT_EXCEEDED, f"more than {self._requests_max} unanswered requests")
            return
        if session.sizes and session.bytes_in_flight + size > self._zeromq.bytes_in_flight_max:
            self._end_for(
                session,
                Code.LIMIT_EXCEEDED,
                f"more than {self._zeromq.bytes_in_flight_max} bytes of unanswered requests",
            )
            return
        self._cells[BYTES_IN] += size
        session.sizes.append(size)
        session.bytes_in_flight += size
        session.held.append((frames, size))
        session.held_bytes += size
        self._held_bytes += size
        self._advance(session)
        if self._held_bytes > self._bound_bytes and not self._starved:
            greediest = max(self._by_connection.values(), key=lambda each: each.held_bytes)
            self._end_for(greediest, Code.OVERLOADED, "its waiting requests held too much memory")

    def _advance(self, session: GatewaySession) -> None:
        """Begin the requests of a session that may begin."""
        while session.held and not session.closed and not self._is_draining:
            frames, size = session.held[0]
            key = api_key(frames)
            if (
                session.throttled_until_ns
                or session.must_wait(not key)
                or (session.owed_bytes > OWED_BYTES_MAX and session.out)
            ):
                return
            if session.is_leaving and key not in SERVED_AFTER_CLOSE:
                break
            if not self._may_read:
                self._starved.add(session)
                return
            block = self._pool.take(max(size, 1))
            if block is None:
                self._starved.add(session)
                self._sweep_later()
                return
            session.held.popleft()
            session.held_bytes -= size
            self._held_bytes -= size
            view, position = block.view, 0
            for frame in frames:
                end = position + len(frame)
                view[position:end] = frame.buffer
                position = end
            self._cells[REQUESTS] += 1
            try:
                self._apis.serve(session, block, 0, size)
            except Exception as error:
                self.contain(session, error)
                return
        if session.is_leaving and not session.closed:
            self._end(session)

    def _heartbeat(self, session: GatewaySession, mark: int, now_ns: int) -> None:
        if session.heartbeat_mark and mark != session.heartbeat_mark:
            # The last answer is not read yet. A client that is busy need not send heartbeats, so only one that does
            # shows by its mark that it has read nothing for too long.
            if now_ns - session.heartbeat_sent_ns > self._timeout_ns:
                self._end_silent(session)
            return
        session.heartbeat_mark = new_mark()
        session.heartbeat_sent_ns = now_ns
        self._outgoing.put(session, broker_header(Kind.HEARTBEAT, mark=session.heartbeat_mark))

    # Sessions

    def _open(self, door: Door, routing_id: bytes, header: zmq.Frame, body: bytes, now_ns: int) -> None:
        known = self._by_connection.get((door.descriptor, routing_id))
        if known is not None:
            self._end(known)
        try:
            wanted = Open.parse(body)
        except MalformedFrame as fault:
            self._malformed(door, routing_id, str(fault))
            return
        zeromq, slots = self._zeromq, self._settings.slots
        if routing_id[0] != _AUTOMATIC:
            self._refuse(door, routing_id, Code.REFUSED, "the socket has set ZMQ_ROUTING_ID")
        elif self._is_draining:
            self._refuse(door, routing_id, Code.STOPPING, "the appliance stops")
        elif not self._host.is_ready():
            self._refuse(door, routing_id, Code.NOT_READY, "the appliance starts")
        elif not 0 <= wanted.broker_id < slots:
            self._refuse(door, routing_id, Code.UNKNOWN_BROKER, f"broker {wanted.broker_id} of {slots}")
        elif not self._may_open(header):
            self._refuse(door, routing_id, Code.REFUSED, "its key is not admitted any more")
        elif len(self._by_connection) >= zeromq.sessions_max:
            self._refuse(door, routing_id, Code.OVERLOADED, f"zeromq.sessions.max = {zeromq.sessions_max}")
        else:
            session = self._new_session(door, routing_id, header, wanted, now_ns)
            self._outgoing.put(
                session, broker_header(Kind.OPENED), opened(session.token, self._settings).encode()
            )
            self._sweep_later()

    def _wires(self) -> set[Wire]:
        return {session.wire for session in self._by_connection.values()}

    def _may_open(self, header: zmq.Frame) -> bool:
        """Return whether a client may still have a session. Its handshake may be long past."""
        key = key_of(header)
        if not key:
            return True
        self._doorkeeper.keys_version()
        return self._doorkeeper.is_admitted(client_of(header)[0], key)

    def _new_session(
        self, door: Door, routing_id: bytes, header: zmq.Frame, wanted: Open, now_ns: int
    ) -> GatewaySession:
        session = begin_session(
            door,
            routing_id,
            header,
            window=new_window(wanted.window, self._settings, self._outstanding),
            connection_id=self._numbers.new_id(),
            number=self._numbers.take(),
            slot=wanted.broker_id,
            tells_arrival_address=self._settings.tells_arrival_address,
            now_ns=now_ns,
        )
        if wanted.client_id:
            session.name_client(wanted.client_id)
        if self._host.auditing is not None:
            self._host.auditing.authenticated(session, mechanism="CURVE" if door.is_tcp else "uid")
        self._by_connection[door.descriptor, routing_id] = session
        return session

    def _leave(self, session: GatewaySession) -> None:
        """The client has closed. What it produced or committed, or that it leaves its group, is still taken."""
        session.is_leaving = session.hung_up = True
        self._apis.end_waits(session)
        self._advance(session)

    def end(self, session: Session) -> None:
        """End a session without a line."""
        self._end(_client(session))

    def _end_silent(self, session: GatewaySession) -> None:
        """End a session whose client does not read, and its connection, or ZeroMQ would keep what it is owed."""
        if session.window.outstanding_bytes > KEPT_BYTES_MAX:
            self._cuts.cut(session.wire)
        self._end(session)

    def _end(self, session: GatewaySession) -> None:
        if session.closed:
            return
        session.closed = True
        del self._by_connection[session.door.descriptor, session.routing_id]
        self._numbers.give_back(session.number)
        self._outgoing.unsent.discard(session)
        self._starved.discard(session)
        self._held_bytes -= session.held_bytes
        self._owed_bytes -= session.owed_bytes
        session.held.clear()
        session.window.forget()
        session.abandon()
        for subscription in list(session.subscriptions.values()):
            self._pushing.end(subscription)
        self._host.end_requests(session)

    def fault(self, session: Session, why: str) -> None:
        """End a session with one log line, because of what its client sent."""
        self._end_for(_client(session), Code.MALFORMED, why)

    def contain(self, session: Session, error: Exception) -> None:
        """End a session, a request of which could not be served, by its client's fault or by an internal error."""
        if isinstance(error, ClientFault):
            self._end_for(_client(session), Code.MALFORMED, str(error))
        else:
            _log.error("internal error in a request of %s (traceback follows)", session, exc_info=error)
            self._end_for(_client(session), Code.INTERNAL, "internal error, see the broker's log")

    def _end_for(self, session: GatewaySession, code: Code, why: str) -> None:
        if session.closed:
            return
        self._cells[ERRORS] += 1
        self._host.say_closed(f"{session} ended: {why}")
        with suppress(OSError, StorageFault):  # what was asked before it may leave
            self._outgoing.send_answers(session)
        if not session.closed:
            self._outgoing.put(session, broker_header(Kind.ERROR), encode_error(code, why))
        is_unread = session.window.outstanding_bytes > KEPT_BYTES_MAX
        self._end(session)
        if is_unread:  # it has as long to read the ERROR as a session has without a message
            timers = self._host.cycle.timers
            timers.after_ms(self._zeromq.session_timeout_ms, partial(self._cut, session.wire))

    def _cut(self, wire: Wire) -> None:
        if wire not in self._wires():
            self._cuts.cut(wire)

    def _malformed(self, door: Door, routing_id: bytes, why: str) -> None:
        session = self._by_connection.get((door.descriptor, routing_id))
        if session is not None:
            self._end_for(session, Code.MALFORMED, why)
        else:
            self._cells[ERRORS] += 1
            self._refuse(door, routing_id, Code.MALFORMED, why)

    def _refuse(self, door: Door, routing_id: bytes, code: Code, why: str) -> None:
        """Tell a connection that it has no session, and end the one that it may have."""
        session = self._by_connection.get((door.descriptor, routing_id))
        if session is not None:
            self._end(session)
        door.tell(routing_id, Kind.ERROR, encode_error(code, why))

    # Sending

    def send(self, session: Session) -> None:
        """Send what is answered and fits the window, then begin what waited for it."""
        if session.closed:
            return
        if isinstance(session, Subscription):
            self._pushing.push(session)
            return
        assert isinstance(session, GatewaySession)
        try:
            self._outgoing.send_answers(session)
        except (StorageFault, OSError) as fault:
            self._end_for(session, Code.INTERNAL, str(fault))
        self._go_on(session)

    def _go_on(self, session: GatewaySession) -> None:
        """What could be sent is sent: begin what waited for it."""
        if session.closed:
            return
        if session.owed_bytes and not session.out and not session.queue:
            self._owed_bytes -= session.owed_bytes
            session.owed_bytes = 0
        if session.held:
            self._advance(session)
        if session.queue and session.queue[0].answer is not None and session.window.is_open:
            self._outgoing.unsent.add(
                session
            )  # what began now and is answered already leaves in the next turn

    def resume(self, session: Session) -> None:
        """Begin the requests that waited until now, or fetch again for a subscription."""
        if isinstance(session, Subscription):
            self._pushing.resume(session)
            return
        assert isinstance(session, GatewaySession)
        self._advance(session)
        self._go_on(session)

    def owe(self, session: Session, owed_bytes: int) -> None:
        """An answer was given that may be large where its request was small."""
        if isinstance(session, GatewaySession):
            session.owed_bytes += owed_bytes
            self._owed_bytes += owed_bytes

    # Time

    def _sweep_later(self) -> None:
        if not self._is_sweeping:
            self._is_sweeping = True
            self._host.cycle.timers.after_ms(SWEEP_MS, self._sweep)

    def _sweep(self) -> None:
        """End sessions that say nothing, are not admitted any more, or are owed too much."""
        self._is_sweeping = False
        now_ns = self._clock.monotonic_ns()
        before_ns = now_ns - self._timeout_ns
        keys_version = self._doorkeeper.keys_version()
        keys_changed, self._keys_version = keys_version != self._keys_version, keys_version
        for session in list(self._by_connection.values()):
            if session.last_active_ns < before_ns:
                self._end_silent(session)
            elif keys_changed and not self._doorkeeper.is_admitted(session.principal, session.key):
                self._end_for(session, Code.REFUSED, "its key is not admitted any more")
        self._pushing.look(list(self._by_connection.values()))
        self._relieve()
        if now_ns - self._tidied_ns > TIDY_MS * NS_PER_MS:
            self._tidied_ns = now_ns
            self._host.tidy()
        if self._by_connection:
            self._sweep_later()

    def _relieve(self) -> None:
        """End the sessions that are owed most, as long as all together are owed too much."""
        if self._owed_bytes <= self._bound_bytes:
            return
        for session in sorted(self._by_connection.values(), key=lambda each: -each.owed_bytes):
            if self._owed_bytes <= self._bound_bytes:
                return
            self._end_for(
                session, Code.OVERLOADED, "it does not read its answers, and there are too many of them"
            )

    # The end

    def drain(self, *, late: bool) -> bool:
        """Take nothing more; return whether everything is answered and sent. `late`: end what is not."""
        self._is_draining = self._pushing.is_draining = True
        for session in list(self._by_connection.values()):
            if late or not (session.queue or session.out):
                self._outgoing.put(
                    session, broker_header(Kind.ERROR), encode_error(Code.STOPPING, "the appliance stops")
                )
                self._end(session)
        return not self._by_connection

    def close(self) -> None:
        """Let go of everything; what was sent has a moment to leave."""
        for session in list(self._by_connection.values()):
            self._end(session)
        unwatch(self._host.cycle.epoll, self._doorkeeper, self._doors)
        close_doors(self._doors, linger_ms=LINGER_MS)
        self._doorkeeper.close()
        self._context.term()


def _client(session: Session) -> GatewaySession:
    """Return the session of the client, which is itself or has the subscription."""
    if isinstance(session, Subscription):
        return session.owner
    assert isinstance(session, GatewaySession)
    return session
