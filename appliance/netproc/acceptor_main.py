"""The acceptor process: wires the agent to the supervisor, the listening sockets and the network processes."""

from __future__ import annotations

import zmq

from appliance.channels.child import EXIT_CLEAN, Child
from appliance.ipc.agent import freeze_garbage
from appliance.netproc.acceptor import Acceptor
from appliance.netproc.acceptor_agent import AcceptorAgent
from appliance.netproc.acceptor_book import ConnectionBook
from appliance.process.agent import AgentProcess


def run(child: Child) -> int:
    """The life of the acceptor; its exit code."""
    process = AgentProcess(child)
    network = child.settings.network
    book = ConnectionBook(
        child.generation,
        connections_max=network.connections_max,
        connections_max_per_ip=network.connections_from_one_address,
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    acceptor = Acceptor(
        child.listeners,
        book,
        cycle=process.cycle,
        context=context,
        zmq_address=child.wiring.zmq_address("acceptor.zmq"),
        channel_path=child.wiring.socket_path("acceptor.fd"),
        row=process.attachment.row,
        clock=process.clock,
        expected=network.processes,
    )
    agent = AcceptorAgent(process, acceptor)
    freeze_garbage()
    agent.run()
    context.term()
    return EXIT_CLEAN
