"""How network processes join the acceptor: played by hand, message by message."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from appliance.channels.connection_channel import Assignment, Hello, Load, decode, encode
from appliance.clock import SystemClock
from appliance.ipc.agent import DutyCycle
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.fd_passing import receive_descriptor
from appliance.ipc.process_table import ProcessTable, process_table_size_bytes
from appliance.netproc.acceptor import Acceptor
from appliance.netproc.acceptor_book import ConnectionBook
from tests.support.ready import is_readable

PATIENCE_S = 30.0


class Stage:
    """An acceptor in this process, turned by the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.address = self.listener.getsockname()
        self.book = ConnectionBook(1, connections_max=10, connections_max_per_ip=10)
        row = ProcessTable(memoryview(bytearray(process_table_size_bytes(1)))).row(0)
        self.eventfd = Doorbell.create_eventfd()
        self.cycle = DutyCycle(Doorbell(self.eventfd, row.sleeping_cell), row, monotonic_ns=time.monotonic_ns)
        self.acceptor = Acceptor(
            {("PLAINTEXT", 0): self.listener},
            self.book,
            cycle=self.cycle,
            context=self.context,
            zmq_address=f"ipc://{directory}/acceptor.zmq",
            channel_path=str(directory / "acceptor.fd"),
            row=row,
            clock=SystemClock(),
            expected=1,
        )

    def turn(self, times: int = 5) -> None:
        """So many turns, for what must not happen in them."""
        for _ in range(times):
            for descriptor, events in self.cycle.wait(20):
                self.acceptor.on_ready(descriptor, events)
            self.acceptor.after_turn()

    def turn_until(self, is_done: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_done():
            assert time.monotonic() < deadline, "it never happened"
            self.turn(1)

    def dealer(self, identity: bytes) -> zmq.Socket[bytes]:
        dealer = self.context.socket(zmq.DEALER)
        dealer.set(zmq.IDENTITY, identity)
        dealer.set(zmq.LINGER, 0)
        dealer.connect(f"ipc://{self.directory}/acceptor.zmq")
        return dealer

    def channel(self, first_packet: bytes) -> socket.socket:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.connect(str(self.directory / "acceptor.fd"))
        channel.send(first_packet)
        channel.setblocking(False)
        return channel

    def close(self) -> None:
        self.acceptor.close()
        self.cycle.close()
        os.close(self.eventfd)
        self.context.destroy(linger=0)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def joined(stage: Stage) -> set[int]:
    return set(stage.book.statistics().by_netproc)


def test_one_half_alone_gets_no_connection(stage: Stage) -> None:
    channel = stage.channel(encode(Hello(0, 1, 1)))
    with socket.create_connection(stage.address):
        stage.turn()
        assert joined(stage) == set()
        dealer = stage.dealer(b"netproc0")
        dealer.send(encode(Hello(0, 1, 1)))
        stage.turn_until(lambda: stage.book.connections)
        assignment = decode(dealer.recv())
        assert isinstance(assignment, Assignment)
        received = receive_descriptor(channel)
        assert received is not None
        os.close(received[1])
    channel.close()


def test_half_of_an_older_attempt_joins_nobody(stage: Stage) -> None:
    old = stage.dealer(b"netproc0.1")
    old.send(encode(Hello(0, 1, 1)))
    channel = stage.channel(encode(Hello(0, 1, 2)))
    stage.turn()
    assert joined(stage) == set()
    new = stage.dealer(b"netproc0.2")
    new.send(encode(Hello(0, 1, 2)))
    stage.turn_until(lambda: joined(stage) == {0})
    old.send(encode(Hello(0, 1, 1)))
    stage.turn()
    with socket.create_connection(stage.address):
        stage.turn_until(lambda: stage.book.connections)
        assert isinstance(decode(new.recv()), Assignment)
    channel.close()


def test_newer_generation_takes_the_place_of_an_older_one(stage: Stage) -> None:
    dealer = stage.dealer(b"netproc0.g1")
    dealer.send(encode(Hello(0, 1, 1, held={"10.0.0.1": 1})))
    channel = stage.channel(encode(Hello(0, 1, 1)))
    stage.turn_until(lambda: stage.book.connections == 1)
    successor = stage.dealer(b"netproc0.g2")
    successor.send(encode(Hello(0, 2, 1)))
    stage.turn_until(lambda: stage.book.connections == 0)
    # The old one's channel is closed: it learns that it is not wanted any more.
    assert is_readable(channel, within_s=PATIENCE_S)
    assert channel.recv(1) == b""
    channel.close()


def test_connection_closed_between_the_two_hellos_is_not_counted_for_ever(stage: Stage) -> None:
    dealer = stage.dealer(b"netproc0")
    dealer.send(encode(Hello(0, 1, 1, held={"10.0.0.1": 2})))
    dealer.send(encode(Load(1, {"10.0.0.1": 1})))
    stage.turn_until(lambda: [each.held.total for each in stage.acceptor._network_processes.values()] == [1])
    channel = stage.channel(encode(Hello(0, 1, 1)))
    stage.turn_until(lambda: joined(stage) == {0})
    assert stage.book.connections == 1
    channel.close()


def test_end_of_the_channel_is_the_end_of_its_network_process(stage: Stage) -> None:
    dealer = stage.dealer(b"netproc0")
    dealer.send(encode(Hello(0, 1, 1, held={"10.0.0.1": 1})))
    channel = stage.channel(encode(Hello(0, 1, 1)))
    stage.turn_until(lambda: joined(stage) == {0})
    channel.close()
    stage.turn_until(lambda: joined(stage) == set())
    assert stage.book.connections == 0


@pytest.mark.parametrize("garbage", [b"\x00", b"\xff" * 500, encode(Load(1, {}))])
def test_stranger_without_a_hello_is_shown_out(stage: Stage, garbage: bytes) -> None:
    channel = stage.channel(garbage)
    stage.turn_until(lambda: is_readable(channel))
    assert channel.recv(1) == b""
    channel.close()
    dealer = stage.dealer(b"stranger")
    dealer.send(garbage)
    dealer.send_multipart((b"three", b"frames", garbage))
    stage.turn()
    assert joined(stage) == set()
