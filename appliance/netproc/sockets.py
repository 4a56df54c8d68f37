"""The clients of one network process that come by TCP: when their sockets are read, muted, sent to and closed.

    readable ─→ intake ─→ whole frames ─→ Apis.serve ··· answer ─→ outlet ─→ writable

A connection that has asked for enough, or that does not read its answers, is *muted*: no further frame of it is cut.
It resumes when its answers have left. An event says so, because its socket has room to send then.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from appliance.clock import NS_PER_MS
from appliance.errors import ClientFault, StorageFault
from appliance.ipc.buffer_pool import BufferPool
from appliance.ipc.process_table import BYTES_IN, BYTES_OUT, CONNECTIONS, ERRORS, REQUESTS
from appliance.netproc.arrivals import ENCRYPTED_EVENTS, PLAIN_EVENTS
from appliance.netproc.connection import Connection
from appliance.netproc.connections import Connections
from appliance.netproc.encrypted_stream import EncryptedStream
from appliance.netproc.intake import CLOSED, STARVED, Intake
from appliance.netproc.memory_relief import MemoryRelief
from appliance.netproc.outlet import abandon, collect, flush
from appliance.process.agent import AgentProcess
from appliance.requests.apis import SERVED_AFTER_CLOSE, Apis
from appliance.requests.session import Session

_log: Final = logging.getLogger(__name__)

_IN: Final = PLAIN_EVENTS
_OUT: Final = select.EPOLLOUT
_HUNG_UP: Final = select.EPOLLRDHUP
_IN_TLS: Final = ENCRYPTED_EVENTS
SWEEP_PARTS: Final = 4
SWEEP_MAX_NS: Final = 20_000_000_000
"""Pool pages that are not in use go back to the system within this time, however long connections may be idle."""
TURN_REQUESTS: Final = 16
"""Requests of one connection in one turn. A client that sends without end shares the turn with all others."""
# Answers are kept for a client that does not read them: of one connection this much and one answer, then no more of
# its frames are cut; of all together this part of the pool's size, then those that read least are closed.
OWED_BYTES_MAX: Final = 16 * 1024
OWED_PART: Final = 2


class Sockets:
    """The connections of one network process.

    Args:
        pool: where frames are received.
        apis: serves the frames.
        say_closed: writes a line about a connection that was closed for what its client sent.
        end_requests: drops what a session that has ended has asked for.
        short: is called when memory is short, or no longer.
        tidy: gives unused memory and files back.
    """

    __slots__ = (
        "_apis",
        "_cells",
        "_clock",
        "_end_requests",
        "_epoll",
        "_idle_ns",
        "_in_flight_max",
        "_intake",
        "_relief",
        "_say_closed",
        "_sweeping",
        "_tidy",
        "_timers",
        "closed_hosts",
        "connections",
        "is_draining",
    )

    def __init__(
        self,
        process: AgentProcess,
        pool: BufferPool,
        apis: Apis,
        *,
        say_closed: Callable[[str], None],
        end_requests: Callable[[Session], None],
        short: Callable[[bool], None],
        tidy: Callable[[], None],
    ) -> None:
        network = process.settings.network
        self.connections = Connections()
        self.closed_hosts: list[str] = []  # of connections that were closed and not reported yet
        self.is_draining = False
        self._apis = apis
        self._cells = process.attachment.row.cells
        self._clock = process.clock
        self._epoll = process.cycle.epoll
        self._timers = process.cycle.timers
        self._say_closed = say_closed
        self._end_requests = end_requests
        self._tidy = tidy
        self._in_flight_max = network.requests_in_flight_per_connection
        self._idle_ns = network.connections_max_idle_ms * NS_PER_MS
        self._sweeping = False
        self._intake = Intake(
            pool,
            frame_bytes_max=network.request_max_bytes,
            grace_ns=network.request_stall_grace_ms * NS_PER_MS,
        )
        self._relief = MemoryRelief(
            self._intake,
            pool,
            self.connections,
            owed_bytes_max=pool.size_bytes // OWED_PART,
            timers=self._timers,
            clock=self._clock,
            fault=self.fault,
            read_again=self._read_again,
            short=short,
        )

    @property
    def is_starved(self) -> bool:
        """Whether connections wait for room in the pool."""
        return bool(self._intake.starved)

    def feed(self) -> None:
        """Read connections again that waited for room in the pool."""
        self._relief.feed()

    # Connections

    def add(self, connection: Connection, events: int) -> None:
        """Take a connection that is a session from now on, and the events to wait for."""
        self.connections.add(connection)
        connection.mask = events
        self._epoll.register(connection.fd, events)
        self._cells[CONNECTIONS] = len(self.connections)
        if not self._sweeping:
            self._sweep_later(connection.last_active_ns)
        _log.debug("%s opened", connection)

    def close(self, connection: Connection) -> None:
        """Close a connection without a line, and drop what it has asked for."""
        if connection.closed:
            return
        connection.closed = True
        self.connections.remove(connection)
        self._epoll.unregister(connection.fd)
        self._intake.release(connection)
        self._relief.owed_bytes -= connection.owed_bytes
        abandon(connection)
        self._end_requests(connection)
        connection.sock.close()
        self._cells[CONNECTIONS] = len(self.connections)
        self.closed_hosts.append(connection.peer_host)
        _log.debug("%s has ended", connection)

    def fault(self, connection: Connection, why: str) -> None:
        """Log one line and close the connection. No other connection is affected."""
        if not connection.closed:
            self._cells[ERRORS] += 1
            self._say_closed(f"{connection} closed: {why}")
            with suppress(OSError, StorageFault):  # what was asked before it may leave
                collect(connection)
                flush(connection)
            self.close(connection)

    def contain(self, connection: Connection, error: Exception) -> None:
        """Close a connection, a request of which could not be served, by its client's fault or by an internal error."""
        if isinstance(error, ClientFault):
            self.fault(connection, str(error))
        else:
            _log.error("internal error in a request of %s (traceback follows)", connection, exc_info=error)
            self.fault(connection, "internal error, see the traceback above")

    def _hung_up(self, connection: Connection) -> bool:
        """The client of a held connection has closed it. Return whether this closes it, too, with all that it asked.

        What it produced or committed, or that it leaves its group, is still taken: it was received, and its client may
        have meant to close behind it without an answer.
        """
        if self._intake.next_api_key(connection) in SERVED_AFTER_CLOSE:
            connection.hung_up = True
            self._apis.end_waits(connection)
            self._watch(connection)
            return False
        self.close(connection)
        return True

    def _watch(self, connection: Connection) -> None:
        """Bring the epoll mask up to what the connection waits for."""
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

    # Events

    def unusual(self, connection: Connection, mask: int) -> None:
        """Act on an event that is not only bytes to read: room to send again, the peer is gone, or any event of an
        encrypted connection.
        """
        if connection.tls is not None:
            self._on_encrypted(connection, connection.tls, mask)
            return
        if mask & ~(_IN | _OUT | _HUNG_UP):
            self.close(connection)
            return
        # The event may be one of a connection that was closed in this turn, and whose descriptor a new one has got.
        if mask & _HUNG_UP and connection.held and self._hung_up(connection):
            return
        self.send(connection)
        if self._may_resume(connection):
            self._resume(connection)
        if mask & _IN and not connection.closed:
            self.read(connection)

    def _on_encrypted(self, connection: Connection, tls: EncryptedStream, mask: int) -> None:
        """Do as `unusual` and `read` for a connection that may have decrypted bytes of which epoll knows nothing."""
        if mask & ~(_IN_TLS | _OUT | _HUNG_UP):
            self.close(connection)
            return
        if mask & _HUNG_UP and connection.held and self._hung_up(connection):
            return
        if connection.out:
            self.send(connection)
        if self._may_resume(connection):
            self._resume(connection)
        if (mask & _IN or tls.has_more) and not connection.closed and not connection.starved:
            self.read(connection)
        if not connection.closed:
            self._watch(connection)

    # Receiving

    def read(self, connection: Connection) -> None:
        """Receive once, and serve the whole frames that are there."""
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
            self.contain(connection, error)
            return
        if count == CLOSED and not connection.muted:
            begun_bytes = self._intake.begun_bytes(connection)
            if begun_bytes:
                self.fault(connection, f"its client left it {begun_bytes} bytes into a request")
            else:
                self.close(connection)
        elif count == STARVED:
            self._watch(connection)
            self._relief.relieve_later()

    def _read_again(self, connection: Connection) -> None:
        self._watch(connection)
        self.read(connection)
        if connection.tls is not None and not connection.closed:
            self._watch(connection)  # decrypted bytes may be left

    def _cut(self, connection: Connection) -> None:
        """Serve the whole frames that are there, as many as fit into a turn; the others wait for the next."""
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
        """Return whether a muted connection's next frames may be cut.

        They are cut in the next turn, so that a connection that always has more does not keep the others waiting.
        Room to send, which is there, is an event.
        """
        return (
            connection.muted
            and not connection.closed
            and not connection.out
            and not connection.owed_bytes
            and not connection.throttled_until_ns
            and connection.in_flight <= (0 if connection.held else self._in_flight_max // 2)
            and not self.is_draining
        )

    def _resume(self, connection: Connection) -> None:
        connection.muted = connection.held = False
        try:
            if self._intake.unstash(connection):
                self._cut(connection)
            else:
                self._relief.relieve_later()
        except Exception as error:
            self.contain(connection, error)
            return
        if not connection.closed:
            self._watch(connection)

    def mute(self, connection: Connection) -> None:
        """Take no further request, because the client is over its quota."""
        if not connection.closed:
            connection.muted = True
            self._intake.settle(connection, self._clock.monotonic_ns())
            self._watch(connection)

    def unmute(self, connection: Connection) -> None:
        """Resume a client that is throttled no more, as soon as nothing else keeps it waiting."""
        if self._may_resume(connection):
            self._resume(connection)
        else:
            self._watch(connection)

    # Answering

    def owe(self, connection: Connection, owed_bytes: int) -> None:
        """An answer was given that may be large where its request was small."""
        relief = self._relief
        relief.owed_bytes += owed_bytes
        connection.owed_bytes += owed_bytes
        if connection.owed_bytes > OWED_BYTES_MAX and not connection.muted:
            connection.muted = True
            self._watch(connection)  # a socket that is watched and not read would keep the cycle spinning
        if relief.owed_bytes > relief.owed_bytes_max:
            relief.relieve_later()

    def send(self, connection: Connection) -> None:
        """Send what is answered, as far as the socket takes it."""
        if connection.closed:
            return
        try:
            while connection.out or collect(connection):
                sent = flush(connection)
                self._cells[BYTES_OUT] += sent
                if connection.out:
                    break
        except StorageFault as fault:
            self.fault(connection, str(fault))
            return
        except OSError:
            self.close(connection)
            return
        if connection.owed_bytes and not connection.out and not connection.queue:
            self._relief.owed_bytes -= connection.owed_bytes
            connection.owed_bytes = 0
        if connection.out or connection.mask != _IN:
            self._watch(connection)

    # Idle connections

    def _sweep_later(self, now_ns: int) -> None:
        self._sweeping = True
        pause_ns = min(max(self._idle_ns // SWEEP_PARTS, NS_PER_MS), SWEEP_MAX_NS)
        self._timers.add(now_ns + pause_ns, self._sweep)

    def _sweep(self) -> None:
        """Close connections that were idle for too long; let unused segments and pool pages go."""
        self._sweeping = False
        now_ns = self._clock.monotonic_ns()
        for connection in self.connections.all():
            if now_ns - connection.last_active_ns > self._idle_ns and (
                connection.out or not connection.queue
            ):
                self.close(connection)
        self._tidy()
        if self.connections:
            self._sweep_later(now_ns)

    # The end

    def drain(self, *, late: bool) -> bool:
        """Close the connections that have nothing under way, or all if it is `late`; return whether none is left."""
        for connection in self.connections.all():
            if late or not (connection.queue or connection.out):
                self.close(connection)
            elif not connection.muted:
                connection.muted = True
                self._watch(connection)
        return not self.connections

    def close_all(self) -> None:
        """Close every connection."""
        for connection in self.connections.all():
            self.close(connection)
