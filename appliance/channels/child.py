"""What a process is given by the supervisor when it is forked."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.channels.roles import Role
from appliance.channels.supervision import SupervisionSocket
from appliance.channels.wiring import Attachment, Wiring
from appliance.config import Settings


@dataclass(frozen=True, slots=True)
class Child:
    """One life of one process: the argument of its `run(child) -> int`, whose result is its exit code.

    `run` sends Ready over `supervision` once it serves (or Failed, and returns CANNOT_START), obeys
    Stop, answers Heartbeat with the same Heartbeat, and ends in good order when `supervision` reports
    end of file. `appliance.process` does all of that. SIGINT and SIGTERM are ignored: only the supervisor
    orders a stop. An OperatorFault that leaves `run` counts as Failed(fatal) and ends the appliance with
    its text, any other ApplianceError as Failed, anything else as a defect whose traceback is logged.

    Beside `run`, the module may have a `before_fork()`: the supervisor calls it once, before its first fork, so
    that what every life needs is built once and its pages are shared.

    Args:
        role: which process this is.
        generation: 1 for the first life, one more for each restart.
        peers: the generation of every other role that has one. A peer may not serve yet: PeerUp is said
            of each generation once it does, at the first start too; PeerDown when it died.
        held: to the controller, those of them that were killed and run no more, but that the kernel does not let end.
        wiring: names and sizes of everything shared.
        supervision: this end of the supervision socket.
        listeners: name of a listener and slot → listening socket, non-blocking; empty for all but the acceptor.
    """

    role: Role
    generation: int
    peers: Mapping[Role, int]
    wiring: Wiring
    supervision: SupervisionSocket
    listeners: Mapping[tuple[str, int], socket.socket] = field(default_factory=dict)
    held: frozenset[Role] = frozenset()

    @property
    def settings(self) -> Settings:
        return self.wiring.settings

    def attach(self) -> Attachment:
        """Attaches to the instance's shared memory as this generation."""
        return Attachment(self.wiring, self.role, self.generation, self.peers)


# Exit codes of a child, as the supervisor tells them apart in the log.
EXIT_CLEAN = 0
EXIT_CANNOT_START = 69  # it said why with Failed (EX_UNAVAILABLE)
EXIT_DEFECT = 70  # an unhandled exception, its traceback is in the log (EX_SOFTWARE)
