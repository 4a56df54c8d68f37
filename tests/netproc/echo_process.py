"""Stand-in network process: takes connections from the fan-out and echoes what they send.

It starts every echo on a connection with the process's own name, so a test sees who serves it.
"""

from __future__ import annotations

import select
import socket

import zmq

from appliance.channels.child import EXIT_CLEAN, Child
from appliance.channels.roles import RoleKind
from appliance.channels.supervision import Heartbeat, PeerUp, Ready, Stop
from appliance.clock import SystemClock
from appliance.netproc.fan_out import FanOut


def run(child: Child) -> int:
    """Echoes until told to stop."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    fan_out = FanOut(child.wiring, child.role, child.generation, context=context, clock=SystemClock())
    name = f"{child.role.token}.g{child.generation}".encode()
    connections: dict[int, tuple[str, socket.SocketType]] = {}
    epoll = select.epoll()
    epoll.register(fan_out.fileno(), select.EPOLLIN)
    epoll.register(child.supervision.fileno(), select.EPOLLIN)
    fan_out.connect()
    child.supervision.send(Ready())
    is_serving = True
    while is_serving:
        closed: list[str] = []
        for descriptor, _ in epoll.poll(-1 if fan_out.is_empty() else 0):
            if descriptor == child.supervision.fileno():
                is_serving = hear(child, fan_out)
            elif descriptor in connections and not echo(connections[descriptor][1], name):
                host, sock = connections.pop(descriptor)
                sock.close()
                closed.append(host)
        if closed:
            fan_out.report_closed(closed)
        for assignment, sock in fan_out.accepted():
            connections[sock.fileno()] = (assignment.peer_host, sock)
            epoll.register(sock.fileno(), select.EPOLLIN)
    fan_out.close()
    context.term()
    return EXIT_CLEAN


def hear(child: Child, fan_out: FanOut) -> bool:
    """Obeys the supervisor. Whether to go on."""
    messages = child.supervision.receive()
    for message in messages or ():
        match message:
            case Stop():
                return False
            case Heartbeat():
                child.supervision.send(message)
            case PeerUp(kind=RoleKind.ACCEPTOR):
                fan_out.connect()
    return messages is not None


def echo(sock: socket.SocketType, name: bytes) -> bool:
    """Answers one request. Whether the connection stays."""
    try:
        data = sock.recv(65536)
        if data:
            sock.sendall(name + b":" + data)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return bool(data)
