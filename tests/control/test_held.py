"""Who was killed and runs no more: told by the states of its threads, and never of one that may still run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from appliance.channels.roles import Role, RoleKind
from appliance.control.supervisor.back_off import BackOff
from appliance.control.supervisor.children import ChildRecord
from appliance.control.supervisor.held import runs_no_more
from tests.system.raw import wait_until

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
WAITS, SLEEPS, ENDED = "D (disk sleep)", "S (sleeping)", "Z (zombie)"
KILLED, NOT_KILLED = "0000000000000100", "0000000000004000"


def test_who_sleeps_or_has_ended_is_held_by_nobody() -> None:
    process = subprocess.Popen(SLEEP)
    try:
        assert not runs_no_more(process.pid)
    finally:
        process.kill()
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, "it ended", timeout_s=30)
    assert not runs_no_more(process.pid), "its pidfd tells of that end"
    process.wait()
    assert not runs_no_more(process.pid)


def test_who_is_stopped_is_not_held_when_it_is_killed_but_ends() -> None:
    process = subprocess.Popen(SLEEP)
    process.send_signal(signal.SIGSTOP)
    process.kill()
    assert process.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("threads", "held"),
    [
        ([(WAITS, KILLED)], True),
        ([(ENDED, NOT_KILLED), (WAITS, KILLED), (WAITS, KILLED)], True),
        ([(WAITS, NOT_KILLED)], False),
        ([(WAITS, KILLED), (SLEEPS, KILLED)], False),
        ([(WAITS, KILLED), ("R (running)", KILLED)], False),
        ([(WAITS, KILLED), ("T (stopped)", KILLED)], False),
        ([(ENDED, NOT_KILLED)], False),
        ([], False),
    ],
)
def test_each_thread_that_is_left_has_to_wait_in_the_kernel_with_its_death_pending(
    tmp_path: Path, threads: list[tuple[str, str]], *, held: bool
) -> None:
    (tmp_path / "7" / "task").mkdir(parents=True)
    for number, (state, pending) in enumerate(threads):
        thread = tmp_path / "7" / "task" / str(7 + number)
        thread.mkdir()
        (thread / "status").write_text(f"Name:\tappliance\nState:\t{state}\nSigPnd:\t{pending}\n")
    assert runs_no_more(7, proc=tmp_path) is held


def test_a_thread_that_goes_while_it_is_looked_at_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "7" / "task" / "7").mkdir(parents=True)
    assert not runs_no_more(7, proc=tmp_path)


def test_who_has_ended_is_held_no_more_before_its_next_life_begins() -> None:
    # Who is forked in between is told of those that are held, and gets no rings with them.
    record = ChildRecord(Role(RoleKind.IOPROC, 0, 0), BackOff(100, 1000))
    process = subprocess.Popen(SLEEP)
    record.pid, record.pidfd = process.pid, os.pidfd_open(process.pid)
    record.kill()
    record.held = True
    assert record.reap() == "was killed by SIGKILL"
    assert (record.killed, record.held) == (False, False)
    process.wait()
