"""Clients that send descriptors over the socket of a lane: closing one can take as long as its sender likes."""

from __future__ import annotations

import array
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
import pytest

from appliance.lane.closing import QUEUED_MAX, WAITING_MAX, ClosingSockets
from appliance_client import shared_memory as shm
from tests.lane.lane_client import LaneClient
from tests.support.broker import Appliance
from tests.support.wire import API_VERSIONS, WireSocket, answers_api_versions
from tests.system.raw import wait_until

LINGER_S: Final = 60
PATIENCE_S: Final = LINGER_S / 4
LANES_MAX: Final = 8
UNDER_WAY: Final = 300
HELLO: Final = shm.HELLO.pack(shm.MAGIC, shm.VERSION, 0, -1)


@contextmanager
def slow_to_close() -> Iterator[int]:
    """Yield the descriptor of a socket that nobody else has, and whose close waits for `LINGER_S` or for our end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        near = socket.create_connection(server.getsockname())
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        far, _ = server.accept()
    near.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            near.send(bytes(65536))
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
    descriptor = near.detach()
    try:
        yield descriptor
    finally:
        far.close()


def send_away(sock: socket.socket, message: bytes, descriptor: int) -> None:
    """Send a descriptor with a message, and keep no copy."""
    rights = array.array("i", [descriptor])
    sock.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    socket.close(descriptor)


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield a client's socket, and the broker's."""
    client, own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with client, own:
        own.setblocking(False)
        yield client, own


@pytest.mark.parametrize("messages", [[], [b""], [b"x", b"", b"yz"], [b"x"] * (QUEUED_MAX - 1)])
def test_a_socket_without_descriptors_is_closed_at_once(messages: list[bytes]) -> None:
    with pair() as (client, own):
        for message in messages:
            client.send(message)
        closing = ClosingSockets()
        assert closing.close(own)
        assert (own.fileno(), closing.waiting) == (-1, 0)
        with pytest.raises(BrokenPipeError):
            client.send(b"x")


@pytest.mark.parametrize("before", [[], [b""], [b"x", b""], [b"x"] * QUEUED_MAX])
def test_a_socket_with_a_descriptor_is_closed_without_waiting(before: list[bytes]) -> None:
    with slow_to_close() as slow, pair() as (client, own):
        for message in before:
            client.send(message)
        send_away(client, b"", slow)
        closing = ClosingSockets()
        began_s = time.monotonic()
        assert not closing.close(own)
        assert time.monotonic() - began_s < PATIENCE_S
        assert client.recv(1) == b"", "the client does not see that it is gone"
        time.sleep(0.2)
        assert (closing.waiting, closing.take_closed()) == (1, 0)
    wait_until(lambda: closing.take_closed() == 1, "the socket was closed")
    assert closing.waiting == 0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(
        tmp_path_factory.mktemp("lane") / "data", settings={"shared.memory.lanes.max": LANES_MAX}
    )
    appliance.start(180)
    try:
        before = appliance.processes()
        yield appliance
        assert appliance.processes() == before
        assert "Traceback" not in appliance.output()
    finally:
        appliance.stop()


@pytest.fixture
def others(broker: Appliance) -> Iterator[list[WireSocket]]:
    """Clients over TCP, some of each network process."""
    with ExitStack() as stack:
        yield [stack.enter_context(WireSocket(broker.port, timeout_s=PATIENCE_S)) for _ in range(6)]


@contextmanager
def nobody_reads(broker: Appliance) -> Iterator[None]:
    """Stop the processes that read, so that they have the last copy of a descriptor that was sent in between."""
    pids = [row.pid for row in broker.processes() if row.role.startswith(("acceptor", "netproc"))]
    assert len(pids) > 1
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def door(data_dir: Path) -> socket.socket:
    """Return a socket at the door, which has said nothing."""
    sock = shm.say_hello(data_dir)
    sock.settimeout(20)
    return sock


def assert_nobody_noticed(broker: Appliance, others: list[WireSocket]) -> None:
    assert answers_api_versions(broker.port, PATIENCE_S)
    for other in others:
        other.send_request(API_VERSIONS, 0, b"", flexible=False)
    for other in others:
        assert other.read_frame()


@pytest.mark.parametrize("first", [b"", b"x", HELLO])
def test_descriptors_instead_of_a_hello_hold_up_nobody(
    broker: Appliance, others: list[WireSocket], first: bytes
) -> None:
    with ExitStack() as stack:
        with nobody_reads(broker):
            for _ in range(4):
                sock = stack.enter_context(door(broker.data_dir))
                send_away(sock, first, stack.enter_context(slow_to_close()))
        assert_nobody_noticed(broker, others)
        with pytest.raises((shm.LaneEndedError, ConnectionError)):
            shm.receive_lane(sock)


def test_descriptors_over_a_lane_end_it_and_hold_up_nobody(
    broker: Appliance, others: list[WireSocket]
) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(lane_when_there_is_room(broker.data_dir)) for _ in range(4)]
        with nobody_reads(broker):
            for client in clients:
                send_away(client.sock, b"x", stack.enter_context(slow_to_close()))
        for client in clients:
            assert client.is_ended()
        assert_nobody_noticed(broker, others)


def test_a_lane_counts_until_what_its_client_sent_is_closed(
    broker: Appliance, others: list[WireSocket]
) -> None:
    """Else a client could make a network process hold descriptors without a bound."""
    with ExitStack() as stack:
        clients = [stack.enter_context(lane_when_there_is_room(broker.data_dir)) for _ in range(LANES_MAX)]
        with nobody_reads(broker):
            for client in clients:
                send_away(client.sock, b"", stack.enter_context(slow_to_close()))
        for client in clients:
            assert client.is_ended()
        with nobody_reads(broker):  # the acceptor refuses this one, and has its descriptor on its hands
            sock = stack.enter_context(door(broker.data_dir))
            send_away(sock, HELLO, stack.enter_context(slow_to_close()))
        assert_nobody_noticed(broker, others)
        with pytest.raises((shm.LaneEndedError, ConnectionError)):
            LaneClient(broker.data_dir)
    lane_when_there_is_room(broker.data_dir).close()


def test_the_door_is_left_alone_while_it_has_too_many_sockets_to_close(
    broker: Appliance, others: list[WireSocket]
) -> None:
    acceptor = next(psutil.Process(row.pid) for row in broker.processes() if row.role.startswith("acceptor"))
    with ExitStack() as stack:
        for _ in range(LANES_MAX):
            stack.enter_context(lane_when_there_is_room(broker.data_dir))
        before = acceptor.num_fds()
        with nobody_reads(broker):
            for _ in range(WAITING_MAX + 20):
                sock = stack.enter_context(door(broker.data_dir))
                send_away(sock, b"x", stack.enter_context(slow_to_close()))
        # The kernel has taken the descriptor of the one that is being closed.
        wait_until(lambda: acceptor.num_fds() >= before + WAITING_MAX - 1, "they were refused")
        assert_nobody_noticed(broker, others)
        assert acceptor.num_fds() < before + WAITING_MAX + 10
    lane_when_there_is_room(broker.data_dir).close()


def lane_when_there_is_room(data_dir: Path) -> LaneClient:
    """Return a lane as soon as a client gets one."""
    until_s = time.monotonic() + 20
    while True:
        try:
            return LaneClient(data_dir)
        except (shm.LaneEndedError, OSError):
            assert time.monotonic() < until_s, "nobody gets a lane"
            time.sleep(0.05)


def test_a_client_that_cannot_be_handed_over_is_let_go(broker: Appliance) -> None:
    """Before Linux 6.10 a client can make its own socket so. Here too many descriptors of this user are under way."""
    lane_when_there_is_room(broker.data_dir).close()
    acceptor = next(psutil.Process(row.pid) for row in broker.processes() if row.role.startswith("acceptor"))
    limits = acceptor.rlimit(psutil.RLIMIT_NOFILE)
    acceptor.rlimit(psutil.RLIMIT_NOFILE, (UNDER_WAY - 50, limits[1]))
    try:
        with pair() as (sender, receiver):
            receiver.setblocking(True)
            for _ in range(UNDER_WAY // 100):
                rights = array.array("i", [sender.fileno()] * 100)
                sender.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            with pytest.raises((shm.LaneEndedError, ConnectionError)):
                LaneClient(broker.data_dir)
    finally:
        acceptor.rlimit(psutil.RLIMIT_NOFILE, limits)
    assert answers_api_versions(broker.port, PATIENCE_S)
    lane_when_there_is_room(broker.data_dir).close()
