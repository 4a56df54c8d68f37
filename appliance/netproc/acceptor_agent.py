"""The agent of the acceptor process: it turns the loop around `Acceptor` and keeps the limits on connections current.

Does: accepts, enforces the limits on connections, hands connections to the network processes.
Never: reads a request, keeps a connection, opens a file of the log.
Dies: the listening sockets stay open in the supervisor, so a client that connects meanwhile waits in the backlog; a
connection that is established notices nothing. The next life learns the loads from the network processes' hellos.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.access.client_quotas import IpRates
from appliance.channels.roles import Role, RoleKind
from appliance.config.declaration import INT32_MAX
from appliance.config.dynamic import (
    CONNECTION_RATE,
    CONNECTIONS_MAX,
    CONNECTIONS_MAX_PER_IP,
    CONNECTIONS_PER_IP_OVERRIDES,
    shared_text,
    shared_value,
)
from appliance.config.sections.network import connections_by_address, from_one_address
from appliance.netproc.acceptor import Acceptor
from appliance.process.agent import AgentProcess

if TYPE_CHECKING:
    from appliance.gateway.reception import Reception
    from appliance.netproc.audit_end import AuditEnd


class AcceptorAgent:
    """The acceptor's loop. `run` returns after Stop, when the sockets are closed."""

    def __init__(
        self,
        process: AgentProcess,
        acceptor: Acceptor,
        reception: Reception | None = None,
        audit: AuditEnd | None = None,
    ) -> None:
        self._process = process
        self._audit = audit
        self._acceptor = acceptor
        self._reception = reception  # of ZeroMQ clients, if there is a listener for them
        self._image_version = 0
        self._running = True

    def run(self) -> None:
        """Accept until Stop."""
        process, acceptor, image = self._process, self._acceptor, self._process.attachment.image
        reception = self._reception
        process.ready()
        while self._running:
            for descriptor, events in process.cycle.wait():
                if descriptor == process.supervision_fd:
                    process.hear(self)
                else:
                    acceptor.on_ready(descriptor, events)
            # One load a turn: a limit that was set is enforced from the next connection on.
            if image.version != self._image_version:
                self._set_limits()
            acceptor.after_turn()
            if reception is not None:
                reception.turn()
        process.stopping()
        acceptor.close()
        if reception is not None:
            reception.close()
        if self._audit is not None:
            self._audit.close()
        process.close()

    def _set_limits(self) -> None:
        image, settings = self._process.attachment.image, self._process.settings
        self._image_version = image.version
        stored, quotas = image.limits()
        connections_max = shared_value(settings, stored, CONNECTIONS_MAX)
        per_ip = shared_value(settings, stored, CONNECTIONS_MAX_PER_IP)
        self._acceptor.book.set_limits(
            connections_max=connections_max,
            connections_max_per_ip=from_one_address(connections_max, per_ip),
            overrides=connections_by_address(shared_text(settings, stored, CONNECTIONS_PER_IP_OVERRIDES)),
        )
        rate = shared_value(settings, stored, CONNECTION_RATE)
        bound = None if rate == INT32_MAX else rate
        self._acceptor.rates.set_bounds(bound, {}, IpRates(quotas))

    # The supervisor and the peers

    def stop(self, within_ms: int) -> None:
        """End after this turn. The network processes own what was handed over."""
        self._running = False

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """Do nothing: a network process says hello."""

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        """Forget the connections of a dead network process."""
        if peer.kind is RoleKind.NETPROC:
            self._acceptor.netproc_down(peer.index, generation)
