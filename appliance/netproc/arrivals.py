"""Connections on their way to be sessions: from the acceptor through TLS and SASL, as their listener wants.

    accepted ──→ PLAINTEXT ─────────────────────────────────────────→ session
             ├─→ SSL: tls_handshakes ───────────────────────────────→ session
             ├─→ SASL_PLAINTEXT: authentications ───────────────────→ session
             └─→ SASL_SSL: tls_handshakes ──→ authentications ──────→ session
                                          └─ failed: closed, with a line and an entry in the audit journal

A client can have sent its first request with the end of a handshake. Then epoll knows nothing of it, so the connection
first waits for room to send, which is there at once.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from socket import SocketType
from typing import TYPE_CHECKING, Any, Final, cast

from appliance.channels.connection_channel import Assignment
from appliance.config.sections.listeners import host_and_port
from appliance.netproc.address_failures import AddressFailures
from appliance.netproc.arrival_stage import ArrivalStage
from appliance.netproc.audit_end import TLS, AuditEnd
from appliance.netproc.connection import Connection, arrival_host
from appliance.netproc.outlet import unpace
from appliance.process.agent import AgentProcess
from appliance.requests.topic_routes import TopicRoutes

if TYPE_CHECKING:
    # Without a listener that needs them the process loads neither OpenSSL nor the mechanisms.
    from appliance.netproc.authentications import Authentications
    from appliance.netproc.tls_handshakes import Handshakes
    from appliance.netproc.tls_stream import TlsStream
    from appliance.requests.authentication import Authenticated

PLAIN_EVENTS: Final = select.EPOLLIN
ENCRYPTED_EVENTS: Final = select.EPOLLIN | select.EPOLLRDNORM
"""To epoll the same as PLAIN_EVENTS. An encrypted connection waits for both, so that its events are unusual ones: what
it needs beside reading costs the others no look."""


class Arrivals:
    """Those of one network process.

    Args:
        audit: takes what the audit journal records; None where there is no journal.
        failures: of authentications, by address; sessions that authenticate again count there, too.
        add: takes a connection that is a session from now on, and the events to wait for.
        ended: gets the host of a connection that was closed before that, and a line for the log, if there is a fault.
    """

    def __init__(
        self,
        process: AgentProcess,
        routes: TopicRoutes,
        audit: AuditEnd | None,
        *,
        failures: AddressFailures,
        add: Callable[[Connection, int], None],
        ended: Callable[[str, str | None], None],
    ) -> None:
        settings = process.settings
        self._process = process
        self._routes = routes
        self._audit = audit
        self._failures = failures
        self._add = add
        self._ended = ended
        self._clock = process.clock
        self._settings = settings
        self._listeners = {each.name: each for each in settings.listeners}
        self._main_listener = settings.main_listener
        self._handshakes: Handshakes | None = None  # where a listener has TLS
        self._authentications: Authentications | None = None  # where a listener has SASL
        self.stages: tuple[ArrivalStage[Any], ...] = ()

    def add_handshakes(self) -> None:
        """Serve the listeners that have TLS."""
        from appliance.netproc.tls_handshakes import Handshakes, certificates_by_listener

        self._handshakes = Handshakes(
            self._settings.ssl,
            certificates_by_listener(self._settings, self._clock, self._process.warn),
            cycle=self._process.cycle,
            clock=self._clock,
            done=self._encrypted,
            failed=self._stage_failed,
            with_sasl={each.name for each in self._settings.listeners if each.is_sasl},
        )
        self.stages += (self._handshakes,)

    def add_authentications(self) -> None:
        """Serve the listeners that have SASL."""
        from appliance.channels.key_channel import published_keys
        from appliance.netproc.authentications import Authentications
        from appliance.requests.authenticators import Authenticators

        self._authentications = Authentications(
            self._settings.sasl,
            Authenticators(
                self._settings,
                self._routes,
                self._clock,
                self._process.warn,
                keys=published_keys(self._process.wiring),
            ),
            failures=self._failures,
            cycle=self._process.cycle,
            clock=self._clock,
            done=self._authenticated,
            failed=self._stage_failed,
        )
        self.stages += (self._authentications,)

    def take(self, assignment: Assignment, sock: SocketType) -> None:
        """Take a connection that the acceptor has given to this process."""
        listener = self._listeners[assignment.listener]
        if listener.is_tls:
            assert self._handshakes is not None
            self._handshakes.begin(assignment, sock)
        elif listener.is_sasl:
            assert self._authentications is not None
            self._authentications.begin(assignment, sock)
        else:
            self._add(self._plain(assignment, sock), PLAIN_EVENTS)

    def on_ready(self, descriptor: int) -> bool:
        """Note a ready descriptor of a connection that is no session yet; return whether it is one."""
        return any(stage.on_ready(descriptor) for stage in self.stages)

    def close(self) -> None:
        """Close all of them without a line."""
        for stage in self.stages:
            stage.close()

    # From stage to stage

    def _encrypted(self, assignment: Assignment, stream: TlsStream, principal: str) -> None:
        """Take a connection whose TLS handshake is done."""
        if self._listeners[assignment.listener].is_sasl:
            assert self._authentications is not None
            self._authentications.begin(assignment, cast(SocketType, stream), stream)
            return
        connection = self._stream(assignment, stream)
        connection.principal = sys.intern(principal)
        if self._audit is not None:
            self._audit.auditing.authenticated(connection, mechanism=TLS)
        self._add(connection, ENCRYPTED_EVENTS | select.EPOLLOUT)

    def _authenticated(
        self, assignment: Assignment, sock: SocketType, stream: TlsStream | None, client: Authenticated
    ) -> None:
        """Take a connection whose client has proved who it is."""
        from appliance.requests.reauthentications import lifetime_of

        assert self._authentications is not None
        connection = self._plain(assignment, sock) if stream is None else self._stream(assignment, stream)
        connection.principal = sys.intern(client.principal)
        connection.by_token = client.by_token
        connection.name_software(client.software_name, client.software_version)
        connection.lifetime = lifetime_of(self._authentications.makers(assignment.listener), client)
        if self._audit is not None:
            self._audit.auditing.authenticated(connection, mechanism=client.mechanism)
        self._add(connection, PLAIN_EVENTS if stream is None else ENCRYPTED_EVENTS | select.EPOLLOUT)

    # Sessions

    def _plain(self, assignment: Assignment, sock: SocketType) -> Connection:
        """Return a connection that is not encrypted."""
        local_host = sock.getsockname()[0]
        connection = self._connection(assignment, sock, local_host)
        connection.is_local = local_host == assignment.peer_host
        if connection.is_local:
            unpace(sock)
        return connection

    def _stream(self, assignment: Assignment, stream: TlsStream) -> Connection:
        """Return a connection that is encrypted."""
        return self._connection(assignment, cast(SocketType, stream), stream.local_host(), stream)

    def _connection(
        self, assignment: Assignment, sock: SocketType, local_host: str, tls: TlsStream | None = None
    ) -> Connection:
        listener = self._listeners[assignment.listener]
        is_main = listener is self._main_listener
        told_host = None if is_main else listener.client_host
        if listener.tells_arrival_address:
            told_host = arrival_host(local_host)
        return Connection(
            sock,
            connection_id=assignment.connection_id,
            slot=assignment.slot,
            listener=sys.intern(assignment.listener),
            peer_host=sys.intern(assignment.peer_host),  # many are of few
            peer_port=assignment.peer_port,
            now_ns=self._clock.monotonic_ns(),
            told_host=told_host,
            told_port=None if is_main else listener.client_port,
            tls=tls,
        )

    # Failures

    def _stage_failed(self, assignment: Assignment, why: str | None, mechanism: str, claimed: str) -> None:
        if why is not None and self._audit is not None:
            self._audit.failed(assignment, why, mechanism=mechanism, claimed=claimed)
        self._ended(assignment.peer_host, _line(assignment, why))


def _line(assignment: Assignment, why: str | None) -> str | None:
    if why is None:
        return None
    where = host_and_port(assignment.peer_host, assignment.peer_port)
    return f"connection {assignment.connection_id} from {where} on {assignment.listener} closed: {why}"
