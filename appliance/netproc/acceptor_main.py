"""The acceptor process: wires its sockets and turns its loop.

What it does: accepts, enforces the limits on connections, fans connections out to the network processes.
What it never does: read a request, keep a connection, open a file of the log.
How it fails: the listening sockets stay open in the supervisor, so who connects meanwhile waits in the
backlog; nothing already connected notices. The next life learns the loads from the network processes' hellos.
"""

from __future__ import annotations

import os
import select

import zmq

from appliance.channels.child import EXIT_CLEAN, Child
from appliance.channels.roles import RoleKind
from appliance.channels.supervision import Heartbeat, PeerDown, Ready, Stop
from appliance.clock import SystemClock
from appliance.config.dynamic import CONNECTIONS_MAX, CONNECTIONS_MAX_PER_IP, shared_value
from appliance.config.sections.network import from_one_address
from appliance.ipc.agent import DutyCycle, freeze_garbage
from appliance.ipc.process_table import ProcessState
from appliance.netproc.acceptor import Acceptor
from appliance.netproc.acceptor_book import ConnectionBook


def run(child: Child) -> int:
    """Serves until the supervisor says Stop or is gone."""
    clock = SystemClock()
    network = child.settings.network
    attachment = child.attach()
    row = attachment.row
    row.start(os.getpid(), child.generation, now_ms=clock.now_ms(), now_ns=clock.monotonic_ns())
    cycle = DutyCycle(attachment.doorbell, row, monotonic_ns=clock.monotonic_ns)
    book = ConnectionBook(
        child.generation,
        connections_max=network.connections_max,
        connections_max_per_ip=network.connections_from_one_address,
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    acceptor = Acceptor(
        child.listeners,
        book,
        cycle=cycle,
        context=context,
        zmq_address=child.wiring.zmq_address("acceptor.zmq"),
        channel_path=child.wiring.socket_path("acceptor.fd"),
        row=row,
        clock=clock,
        expected=network.processes,
    )
    supervision = child.supervision.fileno()
    cycle.epoll.register(supervision, select.EPOLLIN)
    row.set_state(ProcessState.RUNNING)
    child.supervision.send(Ready())
    freeze_garbage()

    image = attachment.image
    image_version = 0
    is_serving = True
    while is_serving:
        for descriptor, events in cycle.wait():
            if descriptor == supervision:
                is_serving = _hear(child, acceptor)
            else:
                acceptor.on_ready(descriptor, events)
        # One load a turn; who set a limit finds it kept from the next connection on.
        if image.version != image_version:
            image_version = image.version
            stored = image.broker_configs()
            connections_max = shared_value(child.settings, stored, CONNECTIONS_MAX)
            per_ip = shared_value(child.settings, stored, CONNECTIONS_MAX_PER_IP)
            book.set_limits(
                connections_max=connections_max,
                connections_max_per_ip=from_one_address(connections_max, per_ip),
            )
        acceptor.after_turn()
    row.set_state(ProcessState.STOPPING)
    acceptor.close()
    context.term()
    return EXIT_CLEAN


def _hear(child: Child, acceptor: Acceptor) -> bool:
    """Obeys the supervisor. Whether to go on."""
    messages = child.supervision.receive()
    if messages is None:
        return False
    for message in messages:
        match message:
            case PeerDown(kind=RoleKind.NETPROC):
                acceptor.netproc_down(message.index, message.generation)
            case Heartbeat():
                child.supervision.send(message)
            case Stop():
                return False
    return True
