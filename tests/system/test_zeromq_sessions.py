"""When sessions end: a busy client needs no heartbeats, and one that has stopped reading leaves no memory behind."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import zmq

from appliance.protocol.records.record import Record, encode_batch
from tests.support import zeromq_wire as wire
from tests.support.broker import Appliance
from tests.support.wire import WireSocket, free_ports
from tests.support.zeromq_wire import ZeroMqSession
from tests.system.raw import MIB, produce, pss_bytes, wait_until
from tests.system.test_zeromq import Context, Served, api_versions, fetch_request, is_alive, new_topic

TIMEOUT_MS = 1_500
STOPPED_CLIENTS = 8
DESCRIPTORS = 800
NO_KIND = 99
WINDOW = 16 * MIB


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("zi")
    listener = f"ipc://{home}/s"
    settings: dict[str, object] = {
        "listeners.zeromq": [listener],
        "network.processes": 1,
        "zeromq.session.timeout.ms": TIMEOUT_MS,
    }
    appliance = Appliance(home / "data", settings=settings)
    appliance.start(180)
    try:
        yield Served(appliance, listener)
    finally:
        appliance.stop()


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context()
    yield made
    made.destroy(linger=0)


def test_a_client_that_was_idle_and_is_busy_now_keeps_its_session(served: Served, context: Context) -> None:
    """It owes the mark of the last heartbeat for as long as it sends other messages: nothing asks it for one."""
    with ZeroMqSession(context, served.listener) as session:
        session.heartbeat()
        assert session.receive().kind == wire.HEARTBEAT
        until = time.monotonic() + 2.5 * TIMEOUT_MS / 1000
        while time.monotonic() < until:
            assert is_alive(session)
            time.sleep(0.1)


def stopped_client(listener: str, topic: str, *, is_harmful: bool) -> int:
    """Return the process of a client that asks for 16 MiB and stops itself before it reads them.

    One that `is_harmful` loses its session at once, for what it sends last.
    """
    pid = os.fork()
    if not pid:
        # A client of its own: contexts do not survive a fork.
        try:
            own: Context = zmq.Context()
            own.setsockopt(zmq.RCVHWM, 1)  # or its own ZeroMQ would read all of it
            session = ZeroMqSession(own, listener, window=WINDOW)
            session.dealer.socket.set(zmq.LINGER, 0)
            for _ in range(2):
                session.send(wire.REQUEST, fetch_request(topic, 0))
            session.receive()
            if is_harmful:
                session.send(NO_KIND)
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(0)
    return pid


@pytest.mark.parametrize("is_harmful", [False, True], ids=["silent", "harmful"])
def test_what_a_stopped_client_is_owed_is_freed_after_its_session(
    is_harmful: bool, served: Served, context: Context
) -> None:
    topic = new_topic(served, f"owed-{is_harmful}")
    with WireSocket(served.broker.port) as connection:
        for _ in range(32):
            assert not produce(connection, topic, encode_batch([Record(bytes(MIB // 2))])).error
    (netproc,) = served.broker.pids("netproc")
    before = pss_bytes(netproc)
    process = Path(f"/proc/{netproc}")
    (process / "clear_refs").write_text("5")  # proc(5): the peak counts from now on
    pids = [stopped_client(served.listener, topic, is_harmful=is_harmful) for _ in range(STOPPED_CLIENTS)]
    try:
        for pid in pids:
            assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        # The first sessions may have ended by now, so this looks at the peak.
        status = dict(line.split(":\t") for line in (process / "status").read_text().splitlines())
        assert int(status["VmHWM"].split()[0]) * 1024 - before > 64 * MIB  # so there was something to free
        wait_until(lambda: pss_bytes(netproc) - before < 32 * MIB, "nothing is left", timeout_s=30)
        with ZeroMqSession(context, served.listener) as other:
            assert is_alive(other)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_strangers_who_only_connect_do_not_take_every_descriptor(tmp_path: Path, context: Context) -> None:
    """Nobody knows yet who they are: a key is shown in the handshake, and they say nothing."""
    port = free_ports(2)
    listener = f"tcp://127.0.0.1:{port}"
    appliance = Appliance(
        tmp_path / "data",
        settings={"listeners.zeromq": [listener], "zeromq.tcp.insecure": True, "network.processes": 1},
        wrapper=("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}"),
        is_forked=False,
    )
    appliance.start(180)
    opened: list[socket.socket] = []
    try:
        with ZeroMqSession(context, listener) as session:
            for each in (port, port + 1):
                opened += [socket.create_connection(("127.0.0.1", each), 30) for _ in range(DESCRIPTORS // 2)]
            for role in ("acceptor", "netproc"):
                (pid,) = appliance.pids(role)
                assert psutil.Process(pid).num_fds() < DESCRIPTORS // 2
            assert is_alive(session)
            with ZeroMqSession(context, listener) as other, WireSocket(appliance.port) as connection:
                assert is_alive(other)
                connection.send_frame(api_versions())
                assert connection.read_frame()
    finally:
        for sock in opened:
            sock.close()
        appliance.stop()
