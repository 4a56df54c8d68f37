"""A network process whose pool is full gets no new connections while another one has room."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.support.broker import Appliance
from tests.system.raw import MIB, wait_until

REQUEST_BYTES = 3 * MIB
POOL_BYTES = 8 * MIB  # two half-received requests and the reserve
GRACE_MS = 600_000  # nobody is closed for holding memory
FIRST = 8
MORE = 4


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(
        tmp_path / "data",
        settings={
            "network.processes": 2,
            "network.pool.bytes": POOL_BYTES,
            "socket.request.max.bytes": 4 * MIB,
            "network.request.stall.grace.ms": GRACE_MS,
        },
    )
    appliance.start()
    yield appliance
    appliance.stop()


class Clients:
    """Open connections, and which network process holds each."""

    def __init__(self, broker: Appliance, open_until_the_end: ExitStack) -> None:
        self.broker = broker
        self.stack = open_until_the_end
        self.pids = broker.pids("netproc")
        self.sockets: list[socket.socket] = []

    def connect(self) -> socket.socket:
        sock = self.stack.enter_context(socket.create_connection(("127.0.0.1", self.broker.port), 30))
        self.sockets.append(sock)
        wait_until(lambda: sum(map(len, self.held().values())) == len(self.sockets), "it is held by one")
        return sock

    def held(self) -> dict[int, list[socket.socket]]:
        """The connections of each network process."""
        ours = {sock.getsockname()[1]: sock for sock in self.sockets}
        held: dict[int, list[socket.socket]] = {}
        for pid in self.pids:
            ports = [each.raddr.port for each in psutil.Process(pid).net_connections("tcp") if each.raddr]
            held[pid] = [ours[port] for port in ports if port in ours]
        return held


def half_a_request(sock: socket.socket) -> None:
    """Send all of a request but its last byte, as far as the other side takes it."""
    sock.settimeout(0.5)
    with suppress(TimeoutError):
        sock.sendall(struct.pack(">i", REQUEST_BYTES) + bytes(REQUEST_BYTES - 1))


def test_who_connects_is_not_given_to_a_network_process_whose_pool_is_full(broker: Appliance) -> None:
    with ExitStack() as stack:
        clients = Clients(broker, stack)
        for _ in range(FIRST):
            clients.connect()
        full, other = clients.pids
        assert {len(held) for held in clients.held().values()} == {FIRST // 2}
        greedy = clients.held()[full]
        for sock in greedy:
            half_a_request(sock)

        for _ in range(FIRST + MORE):
            clients.connect()
        held = clients.held()
        # The first few may have come before the word that the pool is full.
        assert len(held[other]) - len(held[full]) >= FIRST

        for sock in greedy:
            sock.close()
            clients.sockets.remove(sock)
        wait_until(lambda: len(clients.held()[full]) == len(held[full]) - len(greedy), "it let go of them")
        # It has room again, and fewer connections.
        before = len(clients.held()[full])
        for _ in range(MORE):
            clients.connect()
        wait_until(lambda: len(clients.held()[full]) > before, "it gets some again")
