"""Connections are found by their descriptors, which the system uses again; one at rest holds nothing of its own."""

from __future__ import annotations

import random
import socket
import sys

from appliance.ipc.buffer_pool import BufferPool
from appliance.netproc.connection import Connection
from appliance.netproc.connections import Connections
from appliance.netproc.outlet import collect, flush
from appliance.requests.session import Request


def connection_of(sock: socket.socket) -> Connection:
    return Connection(sock, connection_id=1, slot=0, peer_host="h", peer_port=1, now_ns=0)


def test_connections_come_and_go_and_are_found() -> None:
    chance = random.Random(5)
    connections, expected = Connections(), dict[int, Connection]()
    pairs = [socket.socketpair() for _ in range(30)]
    try:
        for _ in range(500):
            sock = chance.choice(pairs)[0]
            known = expected.pop(sock.fileno(), None)
            if known is None:
                known = expected[sock.fileno()] = connection_of(sock)
                connections.add(known)
            else:
                connections.remove(known)
            assert len(connections) == len(expected)
            assert connections.all() == [expected[each] for each in sorted(expected)]
            for descriptor in range(200):
                assert connections.get(descriptor) is expected.get(descriptor)
    finally:
        for pair in pairs:
            for sock in pair:
                sock.close()


def test_a_connection_at_rest_has_no_queues_and_shares_its_words() -> None:
    ours, client = socket.socketpair()
    with ours, client:
        ours.setblocking(False)
        connection, other = connection_of(ours), connection_of(ours)
        pool = BufferPool(memoryview(bytearray(1 << 16)))
        for count in (1, 3):
            for _ in range(count):
                block = pool.take(100)
                assert block is not None
                pending = Request(connection, block, 18, 0, 0)
                connection.enqueue(pending)
                pending.answer = [b"answer"]
            assert connection.in_flight == count
            assert collect(connection)
            assert flush(connection) == 6 * count
            assert client.recv(100) == b"answer" * count
            assert connection.in_flight == 0
            assert connection.queue is None
            assert connection.out is None
        for each in (connection, other):
            each.name_client(bytes([114, 100, 107]).decode())
        assert connection.client_id is other.client_id
        assert connection.client_id is sys.intern("rdk")
