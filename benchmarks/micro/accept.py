"""What a new connection costs: connect → accept → hand over → first byte answered, through the real acceptor.

Two network processes that echo stand behind the acceptor; beside them, in the same run, one process that accepts
and echoes by itself: the least that any server costs. `python -m benchmarks.micro.accept`, on a quiet machine.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles

import zmq

from appliance.channels.child import EXIT_CLEAN, Child
from appliance.channels.roles import RoleKind
from appliance.channels.supervision import PeerUp, Ready, Stop
from appliance.clock import SystemClock
from appliance.config import load_settings
from appliance.control.supervisor.entry_points import ENTRY_POINTS
from appliance.control.supervisor.main import run
from appliance.netproc.fan_out import FanOut

CONNECTIONS = 4_000
AT_ONCE = (1, 16, 64)
ROUNDS = 3


def idle(child: Child) -> int:
    """A role that is not measured."""
    child.supervision.send(Ready())
    while True:
        select.select([child.supervision], [], [])
        messages = child.supervision.receive()
        if messages is None or any(isinstance(message, Stop) for message in messages):
            return EXIT_CLEAN


def echo(child: Child) -> int:
    """A network process that echoes."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    fan_out = FanOut(child.wiring, child.role, child.generation, context=context, clock=SystemClock())
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
            if descriptor in connections:
                if not _echoed(connections[descriptor][1]):
                    host, sock = connections.pop(descriptor)
                    sock.close()
                    closed.append(host)
            elif descriptor == child.supervision.fileno():
                for message in child.supervision.receive() or (Stop(0),):
                    if isinstance(message, PeerUp) and message.kind is RoleKind.ACCEPTOR:
                        fan_out.connect()
                    is_serving = is_serving and not isinstance(message, Stop)
        for assignment, sock in fan_out.accepted():
            connections[sock.fileno()] = (assignment.peer_host, sock)
            epoll.register(sock.fileno(), select.EPOLLIN)
        if closed:
            fan_out.report_closed(closed)
    return EXIT_CLEAN


def _echoed(sock: socket.SocketType) -> bool:
    try:
        data = sock.recv(64)
    except BlockingIOError:
        return True
    except OSError:
        return False
    if data:
        sock.sendall(data)
    return bool(data)


def serve_handing_over(port: int, data_dir: str) -> None:
    """The real supervisor and acceptor; everything else as little as possible."""
    entry_points = dict.fromkeys(RoleKind, f"{__name__}:idle") | {
        RoleKind.NETPROC: f"{__name__}:echo",
        RoleKind.ACCEPTOR: ENTRY_POINTS[RoleKind.ACCEPTOR],
    }
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(run(load_settings(None, {"data.dir": data_dir, "port": str(port)}), entry_points=entry_points))


def serve_alone(port: int, _data_dir: str) -> None:
    """One process, one epoll set: accept and echo."""
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    listener.setblocking(False)
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    while True:
        for descriptor, _ in epoll.poll():
            if descriptor == listener.fileno():
                try:
                    sock, _ = listener.accept()
                except BlockingIOError:
                    continue
                sock.setblocking(False)
                connections[sock.fileno()] = sock
                epoll.register(sock.fileno(), select.EPOLLIN)
            elif not _echoed(connections[descriptor]):
                connections.pop(descriptor).close()


def measure(port: int, at_once: int) -> tuple[float, list[float]]:
    """CONNECTIONS connections, `at_once` of them under way: (connections/s, µs from connect to first answer)."""
    epoll = select.epoll()
    began: dict[int, tuple[socket.socket, float]] = {}
    took_us: list[float] = []
    left = CONNECTIONS
    start = time.perf_counter()
    while len(took_us) < CONNECTIONS:
        while left and len(began) < at_once:
            at = time.perf_counter()
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(b"x")
            began[sock.fileno()] = (sock, at)
            epoll.register(sock.fileno(), select.EPOLLIN)
            left -= 1
        for descriptor, _ in epoll.poll():
            sock, at = began.pop(descriptor)
            assert sock.recv(1) == b"x"
            took_us.append((time.perf_counter() - at) * 1e6)
            sock.close()
    return CONNECTIONS / (time.perf_counter() - start), took_us


def main() -> None:
    """Prints a line for each number of connections at once."""
    ways = {"handed over": serve_handing_over, "accepted alone": serve_alone}
    spawn = get_context("spawn")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as the supervisor asks for, but this file imports numpy first
    with tempfile.TemporaryDirectory() as directory:
        servers = {}
        for name, serve in ways.items():
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            process = spawn.Process(target=serve, args=(port, str(Path(directory, "data"))))
            process.start()
            servers[name] = (process, port)
        for _, port in servers.values():
            _wait_until_it_answers(port)
        print(f"{'at once':>8} {'way':>15} {'conn/s':>8} {'p50 µs':>8} {'p99 µs':>8}")
        for at_once in AT_ONCE:
            for name, (_, port) in servers.items():
                rounds = [measure(port, at_once) for _ in range(ROUNDS)]
                per_s = median(rate for rate, _ in rounds)
                cuts = quantiles([each for _, took in rounds for each in took], n=100)
                print(f"{at_once:>8} {name:>15} {per_s:>8.0f} {cuts[49]:>8.0f} {cuts[98]:>8.0f}")
        for process, _ in servers.values():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGTERM)
            process.join()


def _wait_until_it_answers(port: int) -> None:
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 10) as sock:
                sock.sendall(b"x")
                sock.recv(1)
                return
        except ConnectionRefusedError:
            time.sleep(0.02)


if __name__ == "__main__":
    main()
