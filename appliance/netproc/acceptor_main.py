"""The acceptor process: wires the agent to the supervisor, the listening sockets and the network processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.channels.child import Child
from appliance.errors import HostFault
from appliance.netproc.acceptor import Acceptor
from appliance.netproc.acceptor_agent import AcceptorAgent
from appliance.netproc.acceptor_book import ConnectionBook
from appliance.process.agent import AgentProcess, run_agent

if TYPE_CHECKING:
    from appliance.lane.door import LaneDoor


def run(child: Child) -> int:
    """The life of the acceptor; its exit code."""

    def wire(process: AgentProcess) -> AcceptorAgent:
        network = process.settings.network
        book = ConnectionBook(
            process.generation,
            connections_max=network.connections_max,
            connections_max_per_ip=network.connections_from_one_address,
        )
        acceptor = Acceptor(
            child.listeners,
            book,
            cycle=process.cycle,
            context=process.context,
            zmq_address=process.wiring.zmq_address("acceptor.zmq"),
            channel_path=process.wiring.socket_path("acceptor.fd"),
            row=process.attachment.row,
            clock=process.clock,
            expected=network.processes,
            lane_door=_lane_door(process),
        )
        if not process.settings.zeromq.listeners:
            return AcceptorAgent(process, acceptor)
        # Imported where it is used: without a listener for ZeroMQ clients the process does not load it.
        from appliance.gateway.admission import not_admitted
        from appliance.gateway.reception import Reception

        audit = None
        if process.settings.audit.is_on:
            from appliance.netproc.audit_end import AuditEnd

            audit = AuditEnd(process)

        reception = Reception(
            process.settings,
            book.promise_session,
            cycle=process.cycle,
            clock=process.clock,
            warn=process.warn,
            refused=not_admitted if audit is None else audit.auditing.not_admitted,
        )
        return AcceptorAgent(process, acceptor, reception, audit)

    return run_agent(child, wire)


def _lane_door(process: AgentProcess) -> LaneDoor | None:
    """Open the door to the lanes, where there are any. If it cannot be opened, log that and serve all other clients."""
    shared_memory = process.settings.shared_memory
    if not shared_memory.lanes_max:
        return None
    from appliance.lane.door import LaneDoor

    try:
        return LaneDoor(
            process.settings.data_dir, lanes_max=shared_memory.lanes_max, group=shared_memory.group
        )
    except HostFault as fault:
        process.warn(f"no client gets a shared-memory lane: {fault}")
        return None
