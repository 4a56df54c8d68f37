"""The commands that look at the appliance's own processes and files: serve, status, log dump."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.build import NAMES, build
from tests.cli.command import appliance, environment
from tests.support.broker import Appliance
from tests.support.store import chosen_options
from tests.support.wire import free_ports

TRIES = 40
"""Tests of the fixture, in another process, start an appliance several times a second for half a minute."""


def produce(broker: Appliance, topic: str, lines: bytes, *arguments: object) -> None:
    appliance("produce", topic, "-b", broker.address, *arguments, given=lines).succeeded()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """An appliance that the tests of this file share and leave as it is."""
    started = Appliance(tmp_path_factory.mktemp("cli") / "data")
    started.start()
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Appliance]:
    """An appliance of this test's own, to be stopped and hurt."""
    started = Appliance(tmp_path / "data")
    started.start()
    try:
        yield started
    finally:
        started.stop()


def test_status_tells_every_process_by_its_living_pid(own: Appliance) -> None:
    told = json.loads(appliance("status", "--data-dir", own.data_dir, "--json").succeeded().output)
    roles = {process["role"]: process for process in told["processes"]}
    assert {
        "supervisor",
        "controller",
        "purgatory",
        "ioproc 0.0",
        "netproc 0",
        "netproc 1",
        "acceptor",
    } <= set(roles)
    assert roles["supervisor"]["pid"] == own.pid
    assert {process["state"] for process in roles.values()} == {"running"}
    assert {process["pid"] for process in roles.values()} == {process.pid for process in own.family()}


def test_status_and_the_first_lines_name_the_build_that_runs(own: Appliance) -> None:
    assert NAMES[build()] in own.output().split("ready", maxsplit=1)[0]
    told = json.loads(appliance("status", "--data-dir", own.data_dir, "--json").succeeded().output)
    assert told["build"] == build()
    assert NAMES[build()] in appliance("status", "--data-dir", own.data_dir).succeeded().text


def test_status_answers_while_every_process_is_stuck(own_broker: Appliance) -> None:
    family = own_broker.family()
    for process in family:
        process.suspend()
    try:
        told = json.loads(appliance("status", "--data-dir", own_broker.data_dir, "--json").succeeded().output)
        assert {process["state"] for process in told["processes"]} == {"stopped"}
        assert len(told["processes"]) == len(family)
    finally:
        for process in family:
            process.resume()


def test_status_counts_a_restart(own_broker: Appliance) -> None:
    victim = own_broker.kill_role("netproc")
    while True:
        told = json.loads(appliance("status", "--data-dir", own_broker.data_dir, "--json").succeeded().output)
        netproc = next(process for process in told["processes"] if process["role"] == "netproc 0")
        if netproc["state"] == "running" and netproc["pid"] != victim:
            break
    assert (netproc["generation"], netproc["restarts"]) == (2, 1)


def test_status_of_a_killed_appliance_says_that_nothing_runs(own_broker: Appliance) -> None:
    """A start of any other appliance removes the shared memory by which a kill is seen, and other tests start some."""
    for _ in range(TRIES):
        own_broker.kill()
        told = appliance("status", "--data-dir", own_broker.data_dir)
        assert (told.code, "no appliance runs" in told.errors) == (1, True)
        own_broker.start()  # the next start cleans up; its stop is checked
        if "was killed; no appliance runs" in told.errors:
            return
    raise AssertionError(f"in {TRIES} tries no status says that it was killed")


def test_log_dump_reads_what_was_produced_while_the_broker_runs(own: Appliance) -> None:
    produce(own, "dumped", b"one\ntwo\n", "-z", "zstd")
    directory = own.data_dir / "slot-0" / "dumped-0"
    told = appliance("log", "dump", "--records", "--json", *directory.glob("*.log")).succeeded()
    facts = [json.loads(line) for line in told.output.splitlines()]
    assert [fact["value"] for fact in facts if fact["kind"] == "record"] == ["one", "two"]
    assert facts[-1]["fault"] is None


def test_indexes_of_a_stopped_broker_agree_with_its_log(own_broker: Appliance) -> None:
    produce(own_broker, "filled", b"".join(b"%d\n" % number for number in range(100_000)))
    own_broker.stop()
    files = sorted(own_broker.data_dir.rglob("filled-0/0*"))
    assert {file.suffix for file in files} >= {".log", ".index", ".timeindex", ".snapshot"}
    told = appliance("log", "dump", "--json", *files).succeeded()
    summaries = [fact for line in told.output.splitlines() if (fact := json.loads(line))["kind"] == "summary"]
    assert [fact["fault"] for fact in summaries] == [None] * len(files)
    assert sum(fact.get("records", 0) for fact in summaries) == 100_000


def test_second_appliance_on_the_same_directory_is_refused_in_one_line(own: Appliance) -> None:
    same_store = [f"--set={name}={value}" for name, value in chosen_options(own.data_dir).items()]
    told = appliance("serve", "--data-dir", own.data_dir, "--port", own.port + 1000, *same_store)
    assert told.code != 0
    assert "in use by another appliance" in told.errors
    assert "Traceback" not in told.errors


def test_ctrl_c_stops_serving_cleanly(own_broker: Appliance) -> None:
    os.kill(own_broker.pid, signal.SIGINT)
    assert own_broker.wait(30) == 0
    own_broker.stop()  # asserts that nothing is left


def test_host_is_where_it_listens_and_nowhere_else(tmp_path: Path) -> None:
    port = free_ports()
    command = ["serve", "--data-dir", str(tmp_path / "data"), "--host", "127.0.0.2", "--port", str(port)]
    store = [f"--set={name}={value}" for name, value in chosen_options(tmp_path / "data").items()]
    serving = subprocess.Popen(
        [sys.executable, "-m", "appliance", *command, *store],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )
    try:
        assert serving.stdout is not None
        told = next(line for line in serving.stdout if line.startswith("appliance ready on"))
        assert f"127.0.0.2:{port}" in told
        appliance("produce", "t", "-b", f"127.0.0.2:{port}", given=b"here\n").succeeded()
        assert appliance("consume", "t", "-b", f"127.0.0.2:{port}").succeeded().text == "here\n"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 30)
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(60) == 0
    finally:
        serving.kill()
        serving.communicate()
