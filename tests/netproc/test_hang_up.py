"""A client's hang-up counts for its own connection, although a new one may have got the same descriptor."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from appliance.channels.roles import RoleKind
from appliance.channels.supervision import socket_pair
from appliance.netproc.connection import Connection
from appliance.netproc.main import _wire
from appliance.netproc.processor import NetworkAgent
from appliance.process.agent import AgentProcess
from appliance.protocol.api_versions import ApiKey
from appliance.requests.session import Request
from tests.process.started import Shared

HUNG_UP = select.EPOLLRDHUP


class Client(NamedTuple):
    """A connection that the network process has accepted, and the client's end."""

    connection: Connection
    socket: socket.socket


class House:
    """A network process whose cycle stands still."""

    def __init__(self, directory: Path) -> None:
        self._shared = Shared(RoleKind.NETPROC, directory)
        self._supervision = socket_pair()
        self._process = AgentProcess(self._shared.child(self._supervision[1]))
        self.agent: NetworkAgent = _wire(self._process)
        self._clients: list[Client] = []

    def accept(self) -> Client:
        sockets = self.agent._sockets
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        number = len(self._clients) + 1
        connection = Connection(ours, connection_id=number, slot=0, peer_host="h", peer_port=1, now_ns=0)
        sockets.connections.add(connection)
        connection.mask = select.EPOLLIN
        sockets._epoll.register(connection.fd, select.EPOLLIN)
        self._clients.append(Client(connection, theirs))
        return self._clients[-1]

    def close(self) -> None:
        for client in self._clients:
            if not client.connection.closed:
                self.agent._close(client.connection)
            client.socket.close()
        self._process.close()
        self._process.context.destroy(linger=0)
        for each in self._supervision:
            each.close()
        self._shared.remove()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.close()


def request(api: ApiKey) -> bytes:
    body = struct.pack(">hhih", api, api.min_version, 1, -1)
    return struct.pack(">i", len(body)) + body


def test_hang_up_of_a_closed_connection_is_not_its_successors(house: House) -> None:
    """The kernel reports the hang-up, the first connection is closed in the same turn, and the second one gets its
    descriptor: it has nothing held whose API could be looked at."""
    first = house.accept()
    descriptor = first.connection.fd
    house.agent._close(first.connection)
    second = house.accept()
    assert second.connection.fd == descriptor
    house.agent._sockets.unusual(second.connection, HUNG_UP)
    assert not second.connection.closed
    second.socket.sendall(b"\0\0\0")  # of the size of a frame: the connection is served on
    house.agent._sockets.read(second.connection)
    assert not second.connection.closed
    house.agent._sockets.unusual(second.connection, HUNG_UP)
    assert not second.connection.closed, "nor does half a frame that nobody holds back say what comes next"


@pytest.mark.parametrize(("behind", "is_served"), [(ApiKey.METADATA, False), (ApiKey.OFFSET_COMMIT, True)])
def test_hang_up_of_a_held_connection_is_its_own(house: House, behind: ApiKey, *, is_served: bool) -> None:
    client = house.accept()
    under_way = house.agent._pool.take(100)
    assert under_way is not None
    client.connection.enqueue(Request(client.connection, under_way, int(ApiKey.METADATA), 0, 1))
    client.socket.sendall(request(behind))
    house.agent._sockets.read(client.connection)
    assert client.connection.held
    house.agent._sockets.unusual(client.connection, HUNG_UP)
    assert client.connection.closed is not is_served
    assert client.connection.hung_up is is_served
