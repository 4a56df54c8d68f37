"""status reads shared memory and /proc; nothing that runs is asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from appliance.channels import runtime_directory
from appliance.channels.roles import planned_roles
from appliance.channels.wiring import PROCESSES, instance_name
from appliance.cli.status import living_process, role_names
from appliance.config import IoSettings, NetworkSettings, Settings
from appliance.ipc.process_table import process_table_size_bytes
from appliance.ipc.shared_memory import Region
from tests.cli.command import appliance

SETTINGS = Settings(network=NetworkSettings(processes=2), io=IoSettings(workers=2))
ROLES = [str(role) for role in planned_roles(SETTINGS)]

# A process that does what each process of the appliance does at its start, and then nothing.
RESIDENT = """
import os, sys, time
import setproctitle
from appliance.ipc.process_table import ProcessState, ProcessTable
from appliance.ipc.shared_memory import Region
name, row, generation, role = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
setproctitle.setproctitle(f"appliance: {role}")
table_row = ProcessTable(Region.open(name).view).row(row)
table_row.start(os.getpid(), generation, now_ms=time.time_ns() // 1_000_000, now_ns=time.monotonic_ns())
table_row.set_queue_depth(9)
table_row.set_queue_depth(4)
table_row.sleeping_cell[0] = 1
table_row.set_state(ProcessState.RUNNING)
print("started", flush=True)
sys.stdin.read()
"""


class Instance:
    """Shared memory of an appliance, and processes that live in its rows."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        data_dir.chmod(0o700)
        self.memory = runtime_directory.create(data_dir)
        self.name = f"{self.memory}/{PROCESSES}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        Region.create(self.name, process_table_size_bytes(len(ROLES))).close()

    def start(self, role: str, *, generation: int = 1) -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", RESIDENT, self.name, str(ROLES.index(role)), str(generation), role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.processes[role] = process
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        return process.pid

    def kill(self, role: str) -> None:
        process = self.processes.pop(role)
        process.kill()
        process.communicate()

    def close(self) -> None:
        for role in list(self.processes):
            self.kill(role)
        runtime_directory.remove(self.data_dir)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    made = Instance(tmp_path)
    try:
        yield made
    finally:
        made.close()


def told(data_dir: Path, *, code: int = 0) -> dict[str, dict[str, object]]:
    outcome = appliance("status", "--data-dir", data_dir, "--json")
    assert outcome.code == code, outcome
    answer = json.loads(outcome.output)
    assert answer["running"] == (code == 0)
    assert answer["data_dir"] == str(data_dir)
    assert answer["instance"] == instance_name(data_dir)
    return {process["role"]: process for process in answer["processes"]}


def test_each_living_process_is_told_by_its_role(instance: Instance) -> None:
    pids = {role: instance.start(role) for role in ("controller", "ioproc 0.1", "netproc 1")}
    processes = told(instance.data_dir)
    assert {role: process["pid"] for role, process in processes.items()} == pids
    netproc = processes["netproc 1"]
    assert (netproc["state"], netproc["generation"], netproc["restarts"]) == ("running", 1, 0)
    assert (netproc["queue_depth"], netproc["queue_depth_max"]) == (4, 9)
    assert netproc["idle_share"] == 1.0


def test_restarted_process_is_told_with_its_restarts(instance: Instance) -> None:
    instance.start("netproc 0", generation=4)
    assert told(instance.data_dir)["netproc 0"]["restarts"] == 3


def test_dead_process_keeps_its_role_and_loses_its_pid(instance: Instance) -> None:
    instance.start("controller")
    instance.start("netproc 0")
    instance.start("netproc 1")
    instance.kill("netproc 0")
    processes = told(instance.data_dir)
    assert (processes["netproc 0"]["state"], processes["netproc 0"]["pid"]) == ("dead", None)
    assert processes["netproc 1"]["state"] == "running"


def test_stopped_processes_are_shown_as_such_and_answer_is_not_held_up(instance: Instance) -> None:
    for role in ("controller", "netproc 0"):
        os.kill(instance.start(role), signal.SIGSTOP)
    processes = told(instance.data_dir)
    assert {process["state"] for process in processes.values()} == {"stopped"}


def test_table_for_people_has_a_line_a_process(instance: Instance) -> None:
    pid = instance.start("ioproc 0.0")
    instance.start("acceptor")
    outcome = appliance("status", "--data-dir", instance.data_dir).succeeded()
    heading, *lines = outcome.text.splitlines()
    assert heading.split()[:4] == ["PROCESS", "PID", "STATE", "RESTARTS"]
    assert [line.split()[0] for line in lines] == ["ioproc", "acceptor"]
    assert str(pid) in lines[0]


def test_nothing_running_is_said_clearly(tmp_path: Path) -> None:
    outcome = appliance("status", "--data-dir", tmp_path)
    assert (outcome.code, outcome.output) == (1, b"")
    assert outcome.errors == f"appliance: no appliance runs on {tmp_path}\n"
    assert told(tmp_path, code=1) == {}


def test_killed_instance_is_told_apart_from_a_running_one(instance: Instance) -> None:
    instance.start("controller")
    instance.kill("controller")
    outcome = appliance("status", "--data-dir", instance.data_dir)
    assert (outcome.code, outcome.output) == (1, b"")
    assert "was killed; no appliance runs" in outcome.errors
    told(instance.data_dir, code=1)


def test_missing_directory_is_named(tmp_path: Path) -> None:
    outcome = appliance("status", "--data-dir", tmp_path / "none")
    assert (outcome.code, outcome.errors) == (1, f"appliance: {tmp_path / 'none'}: no such directory\n")


def test_process_id_used_again_by_a_stranger_is_no_process_of_ours() -> None:
    assert living_process(os.getpid()) is None
    assert living_process(0) is None
    assert living_process(2**22 + 1) is None


@pytest.mark.parametrize(("slots", "workers", "processes"), list(product((1, 2, 5), (1, 3), (1, 2, 7))))
def test_roles_follow_from_the_length_of_the_table_and_a_few_titles(
    slots: int, workers: int, processes: int
) -> None:
    settings = Settings(
        slots=slots, io=IoSettings(workers=workers), network=NetworkSettings(processes=processes)
    )
    plan = [str(role) for role in planned_roles(settings)]
    living = {index: role for index, role in enumerate(plan) if role.startswith(("ioproc", "netproc"))}
    assert role_names(len(plan), living, slots=slots) == plan
    assert role_names(len(plan), living) == plan


def test_roles_that_cannot_be_told_are_numbered() -> None:
    assert role_names(3, {1: "stranger"}) == ["process 0", "stranger", "process 2"]
