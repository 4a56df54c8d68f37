"""The network process's end of the fan-out, against an acceptor played by hand."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from appliance.channels.connection_channel import (
    DESCRIPTOR,
    HALF_WAITS_MS,
    Assignment,
    ConnectionMessage,
    Hello,
    Load,
    decode,
    encode,
)
from appliance.channels.roles import Role, RoleKind
from appliance.channels.wiring import Wiring
from appliance.clock import ManualClock
from appliance.config import load_settings
from appliance.ipc.fd_passing import send_descriptor
from appliance.netproc.fan_out import FanOut
from tests.support.ready import is_readable

ROLE = Role(RoleKind.NETPROC, 1)
PATIENCE_S = 30.0


class HandAcceptor:
    """An acceptor's two sockets, moved by the test."""

    def __init__(self, wiring: Wiring, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        path = Path(wiring.socket_path("acceptor.fd"))
        path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.settimeout(PATIENCE_S)
        self.listener.bind(str(path))
        self.listener.listen(1)
        self.router = context.socket(zmq.ROUTER)
        self.router.set(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        self.router.set(zmq.LINGER, 0)
        self.router.set(zmq.ROUTER_MANDATORY, 1)
        self.router.bind(wiring.zmq_address("acceptor.zmq"))
        self.channel: socket.socket | None = None
        self.identity = b""

    def welcome(self) -> Hello:
        """Takes both hellos; the one that came by ZeroMQ."""
        self.channel, _ = self.listener.accept()
        by_channel = decode(self.channel.recv(512))
        by_zeromq = self.hear()
        assert isinstance(by_channel, Hello)
        assert isinstance(by_zeromq, Hello)
        assert by_channel == Hello(by_zeromq.netproc, by_zeromq.generation, by_zeromq.attempt)
        return by_zeromq

    def hear(self) -> ConnectionMessage:
        self.identity, body = self.router.recv_multipart()
        message: ConnectionMessage = decode(body)
        return message

    def assign(self, connection_id: int, peer: str = "127.0.0.1") -> None:
        message = Assignment(connection_id, 0, "PLAINTEXT", peer, 4242)
        self.router.send_multipart((self.identity, encode(message)))

    def give(self, connection_id: int) -> socket.socket:
        """Sends one end of a connection; the other."""
        ours, theirs = connected()
        assert self.channel is not None
        assert send_descriptor(self.channel, theirs.fileno(), DESCRIPTOR.pack(connection_id))
        theirs.close()
        return ours

    def close(self) -> None:
        self.listener.close()
        self.router.close(linger=1000)  # what was sent before the end still arrives
        if self.channel is not None:
            self.channel.close()


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    return ours, theirs


class Bench:
    """A fan-out, its clock, and the acceptor it talks to."""

    def __init__(self, directory: Path) -> None:
        settings = load_settings(None, {"data.dir": str(directory)})
        self.wiring = Wiring(settings, "appliance-test", directory, {})
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.clock = ManualClock()
        self.fan_out = FanOut(self.wiring, ROLE, 7, context=self.context, clock=self.clock)
        self.acceptor = HandAcceptor(self.wiring, self.context)

    def accepted(self, count: int) -> list[tuple[Assignment, socket.SocketType]]:
        """Waits as a network process does until `count` connections are whole."""
        whole: list[tuple[Assignment, socket.SocketType]] = []
        while len(whole) < count:
            if self.fan_out.is_empty():
                assert is_readable(self.fan_out.fileno(), within_s=PATIENCE_S), "no connection came"
            whole += self.fan_out.accepted()
        return whole

    def wait_halves(self, assignments: int, descriptors: int) -> None:
        while True:
            assert self.fan_out.accepted() == []
            statistics = self.fan_out.statistics()
            if (statistics.assignments_waiting, statistics.descriptors_waiting) == (assignments, descriptors):
                return
            assert is_readable(self.fan_out.fileno(), within_s=PATIENCE_S)

    def restart_acceptor(self) -> None:
        self.acceptor.close()
        self.acceptor = HandAcceptor(self.wiring, self.context)

    def close(self) -> None:
        self.fan_out.close()
        self.acceptor.close()
        self.context.term()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_hello_says_who_is_there_on_both_ways(bench: Bench) -> None:
    assert bench.fan_out.connect()
    hello = bench.acceptor.welcome()
    assert (hello.netproc, hello.generation, hello.held) == (1, 7, {})
    assert bench.acceptor.identity == b"netproc1.g7.1"


@pytest.mark.parametrize("descriptor_first", [True, False])
def test_halves_are_matched_in_either_order(bench: Bench, descriptor_first: bool) -> None:
    bench.fan_out.connect()
    bench.acceptor.welcome()
    if descriptor_first:
        peer = bench.acceptor.give(5)
        bench.wait_halves(0, 1)
        bench.acceptor.assign(5)
    else:
        bench.acceptor.assign(5)
        bench.wait_halves(1, 0)
        peer = bench.acceptor.give(5)
    [(assignment, sock)] = bench.accepted(1)
    assert (assignment.connection_id, assignment.peer_port) == (5, 4242)
    assert sock.getblocking() is False
    sock.sendall(b"yes")
    assert peer.recv(3) == b"yes"
    sock.close()
    peer.close()


def test_halves_of_many_connections_find_each_other(bench: Bench) -> None:
    bench.fan_out.connect()
    bench.acceptor.welcome()
    peers = {number: bench.acceptor.give(number) for number in range(100)}
    for number in reversed(range(100)):
        bench.acceptor.assign(number)
    for assignment, sock in bench.accepted(100):
        sock.sendall(str(assignment.connection_id).encode())
        assert peers[assignment.connection_id].recv(9) == str(assignment.connection_id).encode()
        sock.close()
    for peer in peers.values():
        peer.close()


def test_half_that_waits_too_long_is_closed_and_reported(bench: Bench) -> None:
    bench.fan_out.connect()
    bench.acceptor.welcome()
    peer = bench.acceptor.give(1)
    bench.acceptor.assign(2, "10.1.1.1")
    bench.wait_halves(1, 1)
    bench.clock.advance(HALF_WAITS_MS - 1)
    bench.fan_out.accepted()
    assert bench.fan_out.statistics().descriptors_waiting == 1
    bench.clock.advance(1)
    assert bench.fan_out.accepted() == []
    assert bench.fan_out.statistics().descriptors_waiting == 0
    peer.settimeout(PATIENCE_S)
    assert peer.recv(1) == b""
    load = bench.acceptor.hear()
    assert isinstance(load, Load)
    # Of the descriptor it knows nothing: its assignment was never sent, or comes and waits in vain, too.
    assert load.closed == {"10.1.1.1": 1}
    peer.close()


def test_closed_connections_are_reported_with_what_is_left(bench: Bench) -> None:
    bench.fan_out.connect()
    bench.acceptor.welcome()
    peers = [bench.acceptor.give(number) for number in range(3)]
    for number, host in enumerate(("10.1.1.1", "10.1.1.2", "10.1.1.1")):
        bench.acceptor.assign(number, host)
    whole = bench.accepted(3)
    bench.fan_out.report_closed(["10.1.1.1", "10.1.1.2", "10.9.9.9"])
    closed = {"10.1.1.1": 1, "10.1.1.2": 1}
    assert bench.acceptor.hear() == Load(connections=1, closed=closed, paused=False)
    bench.fan_out.report_load(True)
    assert bench.acceptor.hear() == Load(connections=1, closed={}, paused=True)
    for sock in [*peers, *(sock for _, sock in whole)]:
        sock.close()


def test_next_life_of_the_acceptor_is_told_what_is_held(bench: Bench) -> None:
    bench.fan_out.connect()
    bench.acceptor.welcome()
    peers = [bench.acceptor.give(number) for number in (10, 11)]
    bench.acceptor.assign(10, "10.1.1.1")
    bench.acceptor.assign(11, "10.1.1.2")
    whole = bench.accepted(2)
    bench.fan_out.report_load(True)
    bench.restart_acceptor()
    assert bench.fan_out.accepted() == []
    assert not bench.fan_out.statistics().is_connected
    # Nobody is there to hear of it; the hello will not name it.
    bench.fan_out.report_closed(["10.1.1.1"])
    descriptor = bench.fan_out.fileno()
    assert bench.fan_out.connect()
    assert bench.fan_out.fileno() == descriptor
    hello = bench.acceptor.welcome()
    assert (hello.attempt, hello.held) == (2, {"10.1.1.2": 1})
    load = bench.acceptor.hear()
    assert isinstance(load, Load)
    assert load.paused
    peer = bench.acceptor.give(12)
    bench.acceptor.assign(12)
    [(assignment, sock)] = bench.accepted(1)
    assert assignment.connection_id == 12
    for each in [peer, sock, *peers, *(sock for _, sock in whole)]:
        each.close()


def test_second_hello_to_the_same_life_changes_nothing(bench: Bench) -> None:
    bench.fan_out.connect()
    bench.acceptor.welcome()
    peer = bench.acceptor.give(1)
    assert bench.fan_out.connect()
    bench.acceptor.assign(1)
    [(assignment, sock)] = bench.accepted(1)
    assert assignment.connection_id == 1
    sock.close()
    peer.close()


def test_connection_given_whole_by_an_acceptor_that_died_is_kept(bench: Bench) -> None:
    bench.fan_out.connect()
    bench.acceptor.welcome()
    peer = bench.acceptor.give(1)
    bench.acceptor.assign(1)
    # Both halves are here and unread when its next life is. The fan-out's descriptor would say so of either
    # one: the channel's is here since it was sent, ZeroMQ's once its own thread has read it.
    dealer = bench.fan_out._dealer
    assert dealer is not None
    assert dealer.poll(int(PATIENCE_S * 1000))
    bench.restart_acceptor()
    bench.fan_out.connect()
    [(_, sock)] = bench.accepted(1)
    assert bench.acceptor.welcome().held == {"127.0.0.1": 1}
    sock.sendall(b"kept")
    assert peer.recv(4) == b"kept"
    sock.close()
    peer.close()


def test_half_of_a_dead_acceptor_is_dropped_with_the_next_hello(bench: Bench) -> None:
    bench.fan_out.connect()
    bench.acceptor.welcome()
    peer = bench.acceptor.give(1)
    bench.wait_halves(0, 1)
    bench.restart_acceptor()
    bench.fan_out.connect()
    bench.acceptor.welcome()
    assert bench.fan_out.statistics().descriptors_waiting == 0
    peer.settimeout(PATIENCE_S)
    assert peer.recv(1) == b""
    peer.close()


def test_absent_acceptor_is_no_error(bench: Bench) -> None:
    bench.acceptor.close()
    Path(bench.wiring.socket_path("acceptor.fd")).unlink()
    assert not bench.fan_out.connect()
    assert bench.fan_out.accepted() == []
    bench.fan_out.report_closed(["127.0.0.1"])
    bench.fan_out.report_load(True)


class _Farewell(zmq.Socket[bytes]):
    """Its acceptor goes once they shook hands, before anything is sent."""

    acceptor: HandAcceptor

    def connect(self, addr: str) -> None:  # type: ignore[override]
        if self.type != zmq.DEALER:  # the monitor is a socket of the same context
            super().connect(addr)
            return
        monitor = self.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        super().connect(addr)
        assert recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
        self.acceptor.close()
        assert recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED
        self.disable_monitor()
        # The event is told before the way to the peer is closed, and what is sent between the two has a place.
        deadline = time.monotonic() + PATIENCE_S
        while self.poll(0, zmq.POLLOUT):
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_acceptor_that_goes_during_the_hello_holds_nobody_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Farewell, "acceptor", bench.acceptor, raising=False)
    monkeypatch.setattr(bench.context, "_socket_class", _Farewell)
    assert not bench.fan_out.connect()
    assert not bench.fan_out.statistics().is_connected
    monkeypatch.undo()
    bench.restart_acceptor()
    assert bench.fan_out.connect()
    assert bench.acceptor.welcome().attempt == 2


def test_descriptor_lost_at_the_limit_costs_that_connection_only(bench: Bench) -> None:
    bench.fan_out.connect()
    bench.acceptor.welcome()
    lost = bench.acceptor.give(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry) for entry in os.listdir("/proc/self/fd"))
    # The lowest free number is the next to be given: fill the gaps, then close the door.
    fillers = []
    while (filler := os.dup(0)) < highest:
        fillers.append(filler)
    resource.setrlimit(resource.RLIMIT_NOFILE, (filler + 1, hard))
    try:
        assert bench.fan_out.accepted() == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in [filler, *fillers]:
            os.close(descriptor)
    lost.settimeout(PATIENCE_S)
    assert lost.recv(1) == b""
    peer = bench.acceptor.give(2)
    bench.acceptor.assign(2)
    [(assignment, sock)] = bench.accepted(1)
    assert assignment.connection_id == 2
    for each in (lost, peer, sock):
        each.close()
