"""A network process's end of the audit journal: who authenticated, and the way to the process that writes.

Every way to authenticate calls `authenticated` when a session has its principal, and `failed` where a client could not
prove who it is.
"""

from __future__ import annotations

from typing import Final

from appliance.access.addresses import one_spelling
from appliance.audit.recorder import Recorder
from appliance.channels.audit_channel import AuditLink
from appliance.channels.connection_channel import Assignment
from appliance.process.agent import AgentProcess
from appliance.requests.session import ANONYMOUS, Session

TLS: Final = "SSL"
"""The mechanism of a client certificate, by Kafka's name of the security protocol."""


class AuditEnd:
    """Exists where `audit.log.events` is set."""

    __slots__ = ("_link", "recorder")

    def __init__(self, process: AgentProcess) -> None:
        self._link = AuditLink(process.wiring, context=process.context)
        self.recorder = Recorder(
            process.settings.audit,
            process.clock,
            process=str(process.role),
            after_ms=process.after_ms,
            send=self._link.send,
        )

    def authenticated(self, session: Session, *, mechanism: str) -> None:
        """Record that a session has its principal now. A client without a certificate has proved nothing."""
        if session.principal == ANONYMOUS:
            return
        self.recorder.authentication(
            principal=session.principal,
            host=session.host,
            port=session.peer_port,
            listener=session.listener,
            mechanism=mechanism,
            connection=session.connection_id,
        )

    def failed(self, session: Session, *, mechanism: str, claimed: str, why: str) -> None:
        """Record that a session's client has not proved who it is.

        Args:
            claimed: the principal that it claims to be, "" where it names none.
            why: what the operator should know, without any secret.
        """
        self.recorder.authentication(
            principal=claimed,
            host=session.host,
            port=session.peer_port,
            listener=session.listener,
            mechanism=mechanism,
            connection=session.connection_id,
            error=why,
        )

    def handshake_failed(self, assignment: Assignment, why: str) -> None:
        """Record a connection that was closed in its TLS handshake, before it was a session."""
        self.recorder.authentication(
            principal="",
            host=one_spelling(assignment.peer_host),
            port=assignment.peer_port,
            listener=assignment.listener,
            mechanism=TLS,
            connection=assignment.connection_id,
            error=why,
        )

    def close(self) -> None:
        """Send what is left, because the process stops."""
        self.recorder.close()
        self._link.close()
