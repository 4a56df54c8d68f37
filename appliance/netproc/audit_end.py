"""A network process's end of the audit journal: the way to the process that writes."""

from __future__ import annotations

from typing import Final

from appliance.access.addresses import one_spelling
from appliance.audit.recorder import Recorder
from appliance.channels.audit_channel import AuditLink
from appliance.channels.connection_channel import Assignment
from appliance.process.agent import AgentProcess
from appliance.requests.auditing import Auditing

TLS: Final = "SSL"
"""The mechanism of a client certificate, by Kafka's name of the security protocol."""


class AuditEnd:
    """Exists where `audit.log.events` is set."""

    __slots__ = ("_link", "_recorder", "auditing")

    def __init__(self, process: AgentProcess) -> None:
        self._link = AuditLink(process.wiring, context=process.context)
        self._recorder = Recorder(
            process.settings.audit,
            process.clock,
            process=str(process.role),
            after_ms=process.after_ms,
            send=self._link.send,
        )
        self.auditing = Auditing(self._recorder)

    def failed(self, assignment: Assignment, why: str, *, mechanism: str, claimed: str = "") -> None:
        """Record a connection that was closed before it was a session, in its TLS handshake or its authentication.

        Args:
            mechanism: "" where the client has named none.
            claimed: the principal that its client claims to be, "" where it names none.
        """
        self._recorder.authentication(
            principal=claimed,
            host=one_spelling(assignment.peer_host),
            port=assignment.peer_port,
            listener=assignment.listener,
            mechanism=mechanism,
            connection=assignment.connection_id,
            error=why,
        )

    @property
    def lost(self) -> int:
        """Entries that found no room since the start."""
        return self._recorder.lost

    def close(self) -> None:
        """Send what is left, because the process stops."""
        self._recorder.close()
        self._link.close()
