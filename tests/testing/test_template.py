"""The template process that brokers are forked from: quick, replaced when it was killed, and gone with the test run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import appliance
from appliance.testing import Broker, BrokerFailed
from appliance.testing import launcher as launchers
from appliance.testing.launcher import Launcher, environment

READY_S = 0.5
TRIES = 30
"""Of so many starts one is as quick as that, on a machine that others use, too."""
PATIENCE_S = 240.0
EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "testing"


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Launcher:
    """A launcher that no other test uses."""
    launcher = Launcher()
    monkeypatch.setattr(launchers, "_launcher", launcher)
    return launcher


def template_of(broker: Broker) -> psutil.Process:
    found = psutil.Process(broker.pid).parent()
    assert found is not None
    return found


def test_a_broker_is_ready_in_less_than_half_a_second() -> None:
    took_s: list[float] = []
    while len(took_s) < TRIES and min(took_s, default=READY_S) >= READY_S:
        began = time.monotonic()
        with Broker(slots=3):
            took_s.append(time.monotonic() - began)
    assert min(took_s) < READY_S, took_s


def test_brokers_of_one_run_are_children_of_one_template() -> None:
    with Broker() as one, Broker() as two:
        assert template_of(one).pid == template_of(two).pid
        assert template_of(one).ppid() == os.getpid()


def test_a_killed_template_takes_its_brokers_along_and_the_next_broker_gets_another(own: Launcher) -> None:
    with Broker() as broker:
        template = template_of(broker)
        supervisor = psutil.Process(broker.pid)
        template.kill()
        supervisor.wait(PATIENCE_S)
        with Broker() as next_one:
            assert template_of(next_one).pid != template.pid
    own.close()


def test_an_interrupted_launch_leaves_no_broker_and_the_next_one_gets_its_own(own: Launcher) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)  # the template is still loading, and has not answered
        with pytest.raises(KeyboardInterrupt), Broker():
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with Broker(slots=2) as broker:
        supervisor = psutil.Process(broker.pid)
        assert str(broker.data_dir.parent / "held") in [each.path for each in supervisor.open_files()]
        template = template_of(broker)
        deadline = time.monotonic() + PATIENCE_S / 10
        while template.children() != [supervisor]:
            assert time.monotonic() < deadline, template.children()
            time.sleep(0.02)
    assert template.children() == []
    own.close()


def test_a_template_that_cannot_start_says_why(own: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "environment", lambda: environment() | {"PYTHONPATH": "/proc/none"})
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    with pytest.raises(BrokerFailed, match=r"(?s)the template process of brokers ended: .*No module named"):
        Broker().start()
    own.close()


def test_a_forked_process_makes_a_template_of_its_own() -> None:
    with Broker() as broker:
        if (child := os.fork()) == 0:
            code = 1
            try:
                with Broker() as other:
                    code = 0 if template_of(other).ppid() == os.getpid() else 2
                launchers.launcher().close()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert broker.is_running


def test_brokers_may_be_started_by_several_threads_at_the_same_time() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        brokers = list(pool.map(lambda _: Broker(slots=2).start(), range(4)))
    try:
        ports = [broker.port + slot for broker in brokers for slot in range(2)]
        assert len(set(ports)) == 8
    finally:
        for broker in brokers:
            broker.close()


def test_what_is_meant_for_the_test_run_does_not_reach_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONWARNINGS", "PYTHONDONTWRITEBYTECODE", "COV_CORE_SOURCE", "NOTIFY_SOCKET"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("KEPT", "1")
    assert {name for name, value in environment().items() if value == "1"} >= {"KEPT"}
    assert not {"PYTHONWARNINGS", "PYTHONDONTWRITEBYTECODE", "COV_CORE_SOURCE", "NOTIFY_SOCKET"} & set(
        environment()
    )


def test_a_run_ends_at_once_and_without_a_word_although_a_broker_is_left() -> None:
    code = "from appliance.testing import Broker; b = Broker().start(); print(b.data_dir.parent, b.pid)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
        env=os.environ | {"PYTHONPATH": str(Path(appliance.__file__).parent.parent)},
    )
    assert done.stderr == ""
    directory, pid = done.stdout.split()
    deadline = time.monotonic() + PATIENCE_S
    while Path(directory).exists() or psutil.pid_exists(int(pid)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_process_that_the_run_has_forked_does_not_keep_brokers_alive(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from appliance.testing import Broker\n"
        "b = Broker().start()\n"
        "if os.fork() == 0:\n"
        "    time.sleep(60)\n"
        "print(b.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(Path(appliance.__file__).parent.parent)},
    ) as running:
        try:
            assert running.stdout is not None
            pid = int(running.stdout.readline())
            deadline = time.monotonic() + PATIENCE_S / 2
            while psutil.pid_exists(pid):
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            os.killpg(running.pid, signal.SIGKILL)


def run_example(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=os.environ | {"PYTHONPATH": str(Path(appliance.__file__).parent.parent)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_examples_for_pytest_pass(tmp_path: Path) -> None:
    from tests.testing.test_plugin import command

    words = command("--rootdir", str(EXAMPLES), f"--basetemp={tmp_path / 'base'}", "-o", "addopts=", ".")[1:]
    assert "6 passed" in run_example(*words)


def test_the_examples_for_other_runners_pass() -> None:
    assert "OK" in run_example("without_pytest.py")
