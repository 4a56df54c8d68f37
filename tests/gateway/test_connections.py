"""Clients that only connect do not take every descriptor, and nobody else's file is touched for it."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from appliance.gateway.connections import Connections
from appliance.gateway.received import Wire
from tests.support.wire import free_ports

Context = zmq.Context[zmq.Socket[bytes]]
UNUSED_MAX = 20


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context()
    yield made
    made.destroy(linger=0)


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not true():
        assert time.monotonic() < until
        time.sleep(0.005)


def strangers(address: tuple[str, int] | str, count: int) -> Iterator[socket.socket]:
    """Connect without a word."""
    for _ in range(count):
        sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        sock.settimeout(10)
        sock.connect(address)
        yield sock


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_the_oldest_connections_without_a_session_make_room(
    transport: str, context: Context, tmp_path: Path
) -> None:
    port, path = free_ports(), str(tmp_path / "s")
    endpoint = f"tcp://127.0.0.1:{port}" if transport == "tcp" else f"ipc://{path}"
    router = context.socket(zmq.ROUTER)
    connections = Connections(context, router, endpoint, UNUSED_MAX)
    router.bind(endpoint)
    client = context.socket(zmq.DEALER)
    client.connect(endpoint)
    client.send(b"a session")
    router.recv()
    session = Wire.of(router.recv(copy=False))

    opened: list[socket.socket] = []
    for each in strangers(("127.0.0.1", port) if transport == "tcp" else path, 3 * UNUSED_MAX):
        opened.append(each)
        known = len(connections)
        wait_until(lambda: connections.turn(lambda: {session}) or len(connections) != known)  # noqa: B023
        assert len(connections) <= UNUSED_MAX + 1
    client.send(b"again")
    assert router.recv_multipart()[1] == b"again"  # it is the oldest, and has a session
    ended = [each for each in opened if is_ended(each)]
    assert ended == opened[: len(ended)]
    assert len(opened) - len(ended) <= UNUSED_MAX
    for each in opened:
        each.close()
    wait_until(lambda: connections.turn(lambda: {session}) or len(connections) == 1)
    connections.close()


def test_the_first_connection_wakes_a_loop_that_only_waits(context: Context) -> None:
    endpoint = f"tcp://127.0.0.1:{free_ports()}"
    router = context.socket(zmq.ROUTER)
    connections = Connections(context, router, endpoint, UNUSED_MAX)
    router.bind(endpoint)
    for each in strangers(("127.0.0.1", int(endpoint.rpartition(":")[2])), 3):
        assert select.select([connections.descriptor], [], [], 10)[0]
        wait_until(lambda: connections.turn(tuple) or len(connections) == 1)
        each.close()
        assert select.select([connections.descriptor], [], [], 10)[0]
        wait_until(lambda: connections.turn(tuple) or not len(connections))
    connections.close()


def is_ended(sock: socket.socket) -> bool:
    """Return whether the other side has closed. It says its greeting first."""
    sock.settimeout(0.05)
    try:
        while sock.recv(1000):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True
    return True


def test_a_number_that_belongs_to_another_file_meanwhile_is_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = socket.create_connection(server.getsockname())
        wire = Wire.at(first.fileno())
        number = first.fileno()
        first.close()
        second = socket.create_connection(server.getsockname())
        if second.fileno() != number:
            os.dup2(second.fileno(), number)
        wire.cut()
        second.sendall(b"still there")
        assert wire.address() == second.getsockname()[1]
        second.close()


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with (tmp_path / "file").open("w") as file:
        wire = Wire.at(file.fileno())
        wire.cut()
        assert wire.address() is None
        file.write("written")
    assert Wire.at(-1).address() is None
    assert len(os.listdir("/proc/self/fd")) == descriptors
