"""Processes die at any moment; the instance stays whole and nothing piles up."""

from __future__ import annotations

import random
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest

from tests.control.conftest import StartInstance
from tests.control.instances import Instance

KILLS = 60
PATIENCE_S = 30.0


@pytest.fixture
def instance(start_instance: StartInstance) -> Instance:
    started = start_instance(
        "acceptor=real", "netproc=echo", "process.restart.backoff.ms=1", "process.restart.backoff.max.ms=20"
    )
    started.wait_ready()
    return started


def ask(port: int) -> bool:
    """Whether a new connection is served; waits in the backlog if it must."""
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock:
            sock.sendall(b"hello")
            return sock.recv(100).endswith(b":hello")
    except ConnectionError:
        return False


def settle(is_whole: Callable[[], bool]) -> None:
    """Waits until the instance is whole again, woken by nothing but time: the outside view has no event."""
    for _ in range(3000):
        if is_whole():
            return
        signal.sigtimedwait([], 0.01)
    pytest.fail("the instance did not become whole again")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_storm_of_kills_leaves_a_whole_instance(instance: Instance, seed: int) -> None:
    chance = random.Random(seed)
    supervisor = psutil.Process(instance.process.pid)
    roles = set(instance.children())
    names = len(instance.names())
    descriptors = supervisor.num_fds()
    served = 0
    for _ in range(KILLS):
        living = supervisor.children()
        for victim in chance.sample(living, min(len(living), chance.choice((1, 1, 2, 3)))):
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        if chance.random() < 0.5:
            served += ask(instance.port)
    settle(lambda: set(instance.children()) == roles and supervisor.num_fds() == descriptors)
    settle(lambda: len(instance.names()) == names)
    # A connection may have met a dying process; most did not.
    assert served > KILLS / 8
    settle(lambda: ask(instance.port))
    assert instance.stop() == 0, instance.errors()
    assert instance.names() == []


def test_signals_meant_for_the_supervisor_do_not_end_a_child(instance: Instance) -> None:
    children = instance.children()
    for child in children.values():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            child.send_signal(number)
    assert ask(instance.port)
    assert {title: child.pid for title, child in instance.children().items()} == {
        title: child.pid for title, child in children.items()
    }
    assert instance.stop() == 0, instance.errors()


def test_stop_in_the_middle_of_restarts_is_clean(instance: Instance) -> None:
    runtime_dir = instance.runtime_dir
    for child in instance.children().values():
        child.kill()
    code = instance.stop()
    # Who was dead when the stop began is not started for it; who died in it had not been told to.
    assert code in {0, 4}
    assert instance.names() == []
    assert not runtime_dir.exists()
