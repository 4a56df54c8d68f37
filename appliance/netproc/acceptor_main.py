"""The acceptor process: wires the agent to the supervisor, the listening sockets and the network processes."""

from __future__ import annotations

from appliance.channels.child import Child
from appliance.netproc.acceptor import Acceptor
from appliance.netproc.acceptor_agent import AcceptorAgent
from appliance.netproc.acceptor_book import ConnectionBook
from appliance.process.agent import AgentProcess, run_agent


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
        )
        return AcceptorAgent(process, acceptor)

    return run_agent(child, wire)
