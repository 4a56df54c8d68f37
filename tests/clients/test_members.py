"""The members of the group tests end when they are told to, and with the test run."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.clients.members.arguments import LEAVE_S, SESSION_MS

MAKES = ("aiokafka", "confluent", "kafka_python")
ROOT = Path(__file__).parent.parent.parent

RUNNER = """
import subprocess, sys, time
from tests.support.broker import end_with_the_test_runner
for command in {commands!r}:
    started = subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=end_with_the_test_runner)
    print(started.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def silent_broker() -> Iterator[str]:
    """The address of a broker that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def waits_in_its_client(member: psutil.Process) -> bool:
    return any(connection.status == psutil.CONN_ESTABLISHED for connection in member.net_connections())


def lives(member: psutil.Process) -> bool:
    """A zombie has ended: it waits for its new parent, which may take its time."""
    try:
        return member.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_members_end_with_a_test_run_that_is_killed_while_their_broker_is_silent(silent_broker: str) -> None:
    commands = [
        [
            sys.executable,
            "-m",
            f"tests.clients.members.{make}",
            silent_broker,
            "g",
            "t",
            make,
            "classic",
            str(SESSION_MS),
        ]
        for make in MAKES
    ]
    program = RUNNER.format(commands=commands)
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as runner:
        assert runner.stdout is not None
        members = [psutil.Process(int(runner.stdout.readline())) for _ in MAKES]
        try:
            deadline = time.monotonic() + 60
            while not all(waits_in_its_client(member) for member in members):
                assert time.monotonic() < deadline, "a member did not connect"
                time.sleep(0.05)
            runner.send_signal(signal.SIGKILL)
            runner.wait()
            deadline = time.monotonic() + LEAVE_S + 20
            while any(lives(member) for member in members):
                assert time.monotonic() < deadline, (
                    f"{[m.cmdline() for m in members if lives(m)]} did not end"
                )
                time.sleep(0.05)
        finally:
            runner.kill()
            for member in members:
                with suppress(psutil.NoSuchProcess):
                    member.kill()
