"""The supervisor keeps an instance: real forks of stand-in processes, killed for real."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from tests.control.conftest import StartInstance
from tests.control.instances import PATIENCE_S, Instance, Note, kill_and_wait
from tests.support.pace import Pace
from tests.support.wire import free_ports

# In start order, and how many rings each has with two network processes and one worker.
RINGS = {
    "controller": 0,
    "purgatory": 6,
    "ioproc 0.0": 10,
    "coordinator": 6,
    "cleaner": 2,
    "netproc 0": 6,
    "netproc 1": 6,
    "acceptor": 0,
}
STOP_ORDER = (
    {"acceptor"},
    {"netproc 0", "netproc 1"},
    {"coordinator", "cleaner"},
    {"ioproc 0.0"},
    {"purgatory"},
    {"controller"},
)

# Takes a terminal as its own, as a shell's job has one, and becomes the command after it. The test run may be under
# nohup itself.
IN_TERMINAL = (
    "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); os.open(sys.argv[1], os.O_RDWR); "
    "os.execvp(sys.argv[2], sys.argv[2:])"
)


def roles(notes: list[Note]) -> list[str]:
    return [note["role"] for note in notes]


def others(role: str) -> set[str]:
    return set(RINGS) - {role}


# Start


def test_ready_is_said_once_every_process_serves(start_instance: StartInstance) -> None:
    instance = start_instance()
    line = instance.wait_ready()
    assert line == (
        f"appliance ready on 127.0.0.1:{instance.port} (data {instance.data_dir}, pid {instance.process.pid})\n"
    )
    for role, rings in RINGS.items():
        assert instance.wait_event(role, "attached")["rings"] == rings
        assert set(instance.wait_event(role, "born")["peers"].items()) == {(peer, 1) for peer in others(role)}


def test_each_process_carries_its_role_as_title(start_instance: StartInstance) -> None:
    instance = start_instance()
    instance.wait_ready()
    assert set(instance.children()) == set(RINGS)
    assert psutil.Process(instance.process.pid).cmdline()[0].strip() == "appliance: supervisor"


def test_each_peer_is_announced_when_it_serves(start_instance: StartInstance) -> None:
    instance = start_instance()
    wanted = {(role, peer) for role in RINGS for peer in others(role)}
    told = instance.wait_for(lambda note: note["event"] == "up", count=len(wanted))
    assert {(note["role"], note["peer"]) for note in told} == wanted


def test_nothing_runs_beside_the_main_thread_before_the_first_fork(start_instance: StartInstance) -> None:
    instance = start_instance()
    instance.wait_ready()
    assert len(os.listdir(f"/proc/{instance.process.pid}/task")) == 1
    instance.stop()
    assert "threads run" not in instance.errors()


def test_what_a_module_prepares_before_the_fork_is_there_in_every_life(start_instance: StartInstance) -> None:
    instance = start_instance()
    instance.wait_ready()
    instance.kill("purgatory")
    prepared_by = instance.wait_event("purgatory", "born", 2)["prepared_by"]
    # Once for each kind of role that names this module, and never in a child.
    assert set(prepared_by) == {instance.process.pid}
    assert len(prepared_by) == 7


def test_all_code_is_loaded_before_the_first_fork(start_instance: StartInstance) -> None:
    instance = start_instance()
    born = {role: instance.wait_event(role, "born") for role in RINGS}
    assert len({len(note["prepared_by"]) for note in born.values()}) == 1
    assert all(
        note["collects"] for note in born.values()
    )  # in spite of its parent, which did not while it started


def test_child_keeps_only_its_own_descriptors(start_instance: StartInstance) -> None:
    instance = start_instance()
    instance.wait_ready()
    for role, child in instance.children().items():
        directory = f"/proc/{child.pid}/fd"
        targets = [os.readlink(f"{directory}/{entry}") for entry in os.listdir(directory)]
        # Its diary and its supervision socket; the acceptor the listening socket too.
        sockets = 3 if role == "acceptor" else 2
        assert sum(target.startswith("socket:") for target in targets) == sockets, (role, targets)
        assert sum("eventpoll" in target or "pidfd" in target for target in targets) == 0, (role, targets)
        # Its own doorbell, and those of the processes that it shares rings with: two rings for each of them.
        assert sum("eventfd" in target for target in targets) == 1 + RINGS[role] // 2, (role, targets)
        assert str(instance.data_dir / ".lock") in targets


def test_run_file_tells_where_the_instance_listens(start_instance: StartInstance) -> None:
    instance = start_instance()
    instance.wait_ready()
    facts = json.loads((instance.data_dir / "run.json").read_text())
    assert facts["pid"] == instance.process.pid
    assert facts["port"] == instance.port
    assert facts["instance"].startswith("appliance-")


def test_idle_supervisor_is_never_woken(start_instance: StartInstance) -> None:
    instance = start_instance()
    instance.wait_ready()
    for role in RINGS:
        instance.wait_told(role, "up", 1, count=5)
    supervisor = psutil.Process(instance.process.pid)
    before = supervisor.num_ctx_switches()
    # The one wait that is a measurement: a second without an event.
    time.sleep(1)
    assert supervisor.num_ctx_switches().voluntary - before.voluntary <= 1


# Deaths


@pytest.mark.parametrize("role", list(RINGS))
def test_killed_process_serves_again_at_once_as_next_generation(
    start_instance: StartInstance, role: str
) -> None:
    instance = start_instance()
    instance.wait_ready()
    pace = Pace()
    killed_ns = time.monotonic_ns()
    instance.kill(role)
    last_ns = killed_ns
    for peer in others(role):
        instance.wait_told(peer, "down", 1)
        up = instance.wait_told(peer, "up", 2)[0]
        assert up["rings"] == RINGS[peer]
        last_ns = max(last_ns, up["at_ns"])
    pace.check((last_ns - killed_ns) / 1e9, within_s=1.0)
    assert instance.wait_event(role, "attached", 2)["rings"] == RINGS[role]
    assert instance.stop() == 0, instance.errors()


def test_two_deaths_at_once_leave_rings_between_the_next_lives(start_instance: StartInstance) -> None:
    instance = start_instance()
    instance.wait_ready()
    dead = ("netproc 0", "ioproc 0.0", "purgatory")
    supervisor = psutil.Process(instance.process.pid)
    supervisor.suspend()
    while supervisor.status() != psutil.STATUS_STOPPED:
        os.sched_yield()
    instance.kill_all(*dead)
    supervisor.resume()
    for role in dead:
        born = instance.wait_event(role, "born", 2)
        assert {peer: born["peers"][peer] for peer in dead if peer != role} == {
            peer: 2 for peer in dead if peer != role
        }
        assert instance.wait_event(role, "attached", 2)["rings"] == RINGS[role]
    ups = instance.wait_told("netproc 1", "up", 2, count=len(dead))
    assert ups[-1]["rings"] == RINGS["netproc 1"]


def test_dead_generation_leaves_no_shared_memory(start_instance: StartInstance) -> None:
    instance = start_instance()
    instance.wait_ready()
    before = len(instance.names())
    for generation in (1, 2):
        instance.kill("ioproc 0.0", generation)
        instance.wait_told("controller", "up", generation + 1)
    names = instance.names()
    assert len(names) == before
    assert not [name for name in names if "ioproc0.0.g1" in name or "ioproc0.0.g2" in name]


def test_process_that_keeps_dying_is_restarted_ever_more_slowly(start_instance: StartInstance) -> None:
    instance = start_instance(
        "process.restart.backoff.ms=40",
        "process.restart.backoff.max.ms=100",
        behaviours={"purgatory": "leaves 5"},
    )
    instance.wait_event("purgatory", "attached", 6)
    births_ms = [instance.wait_event("purgatory", "born", n)["at_ns"] / 1e6 for n in range(1, 7)]
    pauses_ms = [later - earlier for earlier, later in pairwise(births_ms)]
    assert all(
        pause_ms >= least_ms for pause_ms, least_ms in zip(pauses_ms, (0, 40, 80, 100, 100), strict=True)
    )
    instance.stop()
    said = re.findall(r"exited with code 7; restarted (.*)", instance.errors())
    assert said == ["at once", "in 40 ms", "in 80 ms", "in 100 ms", "in 100 ms"]


def test_no_word_of_a_child_harms_the_supervisor(start_instance: StartInstance) -> None:
    instance = start_instance(behaviours={"purgatory": "babbles"})
    instance.wait_event("purgatory", "attached", 2)
    instance.wait_told("controller", "up", 2)
    assert instance.stop() == 0, instance.errors()
    assert "purgatory sent an invalid message" in instance.errors()
    assert "purgatory reported Ready twice" in instance.errors()


def test_only_the_controller_sets_the_log_levels_of_all(start_instance: StartInstance) -> None:
    instance = start_instance(behaviours={"netproc0": "levels DEBUG", "controller": "levels WARN"})
    told = instance.wait_for(lambda note: note["event"] == "levels", count=len(others("controller")))
    instance.wait_said("unexpected message from netproc 0: LogLevels")
    assert {note["role"] for note in told} == others("controller")
    assert {note["levels"]["root"] for note in instance.events("levels")} == {"WARN"}
    assert instance.stop() == 0, instance.errors()


def test_restart_of_a_failed_start_succeeds_once_the_reason_is_gone(start_instance: StartInstance) -> None:
    # It is tried five times at most: so many pauses, each twice the last, are ours to take the reason away.
    instance = start_instance("process.restart.backoff.ms=300", behaviours={"controller": "fails"})
    instance.wait_event("controller", "born", 2)
    instance.behave("controller", "")
    instance.wait_ready()
    assert instance.stop() == 0
    assert "the stand-in has no wish to start; restarted" in instance.errors()


def test_process_that_never_serves_ends_the_appliance(start_instance: StartInstance) -> None:
    instance = start_instance("process.restart.backoff.ms=1", behaviours={"ioproc0.0": "crash"})
    assert instance.process.wait(PATIENCE_S) == 1
    errors = instance.errors()
    assert "times without serving; the appliance stops" in errors
    assert "unhandled exception; the process ends (traceback follows)\n  | Traceback" in errors
    assert r"the stand-in was told to" in errors
    assert instance.names() == []


def test_fatal_fault_ends_the_appliance_with_its_sentence_and_without_a_restart(
    start_instance: StartInstance,
) -> None:
    instance = start_instance(behaviours={"ioproc0.0": "fatal"})
    assert instance.process.wait(PATIENCE_S) == 1
    assert (
        "ioproc 0.0 cannot start: the log directory belongs to another cluster; the appliance stops"
        in instance.errors()
    )
    assert {note["generation"] for note in instance.events("born")} == {1}


def test_killed_supervisor_takes_its_children_along(start_instance: StartInstance) -> None:
    instance = start_instance()
    instance.wait_ready()
    children = [psutil.Process(instance.pid_of(role)) for role in RINGS]
    instance.process.kill()
    instance.wait_for(lambda note: note["event"] == "orphaned", count=len(RINGS), outlived=True)
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []


# Stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_follows_the_written_order_and_leaves_nothing(
    start_instance: StartInstance, number: signal.Signals
) -> None:
    instance = start_instance()
    instance.wait_ready()
    runtime_dir = instance.runtime_dir
    assert instance.stop(number) == 0
    stops = instance.wait_for(lambda note: note["event"] == "stop", count=len(RINGS))
    order = roles(sorted(stops, key=lambda note: note["at_ns"]))
    for stage in STOP_ORDER:
        assert set(order[: len(stage)]) == stage
        del order[: len(stage)]
    assert instance.names() == []
    assert not (instance.data_dir / "run.json").exists()
    assert not runtime_dir.exists()


def test_ctrl_c_in_a_terminal_stops_in_good_order(start_instance: StartInstance) -> None:
    instance = start_instance()
    instance.wait_ready()
    os.killpg(instance.process.pid, signal.SIGINT)
    assert instance.process.wait(PATIENCE_S) == 0
    assert len(instance.wait_for(lambda note: note["event"] == "stop", count=len(RINGS))) == len(RINGS)


def test_sighup_without_a_configuration_file_changes_nothing_and_says_so(
    start_instance: StartInstance,
) -> None:
    instance = start_instance()
    instance.wait_ready()
    for _ in range(2):
        instance.process.send_signal(signal.SIGHUP)
    instance.wait_said("there is no configuration file")
    assert instance.events("stop") == []
    instance.kill("purgatory")
    instance.wait_event("purgatory", "attached", 2)
    assert instance.stop() == 0


@pytest.mark.parametrize("shell", [(), ("nohup",)], ids=["in the foreground", "under nohup"])
def test_closed_terminal_stops_what_was_not_told_to_outlive_it(
    start_instance: StartInstance, shell: tuple[str, ...]
) -> None:
    near, far = pty.openpty()
    instance = start_instance(wrapper=(sys.executable, "-c", IN_TERMINAL, os.ttyname(far), *shell))
    instance.wait_ready()
    os.close(far)
    os.close(near)
    if shell:
        # No terminal ever told it; a signal that is sent by hand stops nothing.
        instance.process.send_signal(signal.SIGHUP)
        instance.wait_said("there is no configuration file")
        assert instance.stop() == 0
        return
    assert instance.process.wait(PATIENCE_S) == 0, instance.errors()
    assert "the terminal was closed (SIGHUP): stopping" in instance.errors()


def test_stop_before_ready_is_clean(start_instance: StartInstance) -> None:
    instance = start_instance("process.restart.backoff.ms=60000", behaviours={"controller": "fails"})
    instance.wait_event("controller", "born", 2)
    instance.wait_event("acceptor", "attached")
    assert instance.stop() == 0, instance.errors()


def test_process_that_ignores_stop_is_killed_within_the_whole_time(start_instance: StartInstance) -> None:
    instance = start_instance(
        "shutdown.timeout.ms=1000", behaviours={"ioproc0.0": "deaf", "netproc0": "deaf"}
    )
    instance.wait_ready()
    pace = Pace()
    began = time.monotonic()
    assert instance.stop() == 4
    pace.check(time.monotonic() - began, within_s=1.5)
    assert "ioproc 0.0 did not stop in time and was killed" in instance.errors()
    # Who comes later in the order was asked in good order all the same.
    assert roles(instance.wait_for(lambda note: note["event"] == "stop" and note["role"] == "controller"))


def test_a_stop_goes_on_without_a_process_that_the_kernel_holds(start_instance: StartInstance) -> None:
    instance = start_instance(
        "shutdown.timeout.ms=1000", "unkillable=netproc0", behaviours={"netproc0": "deaf"}
    )
    instance.wait_ready()
    held = instance.children()["netproc 0"].pid
    assert instance.stop() == 4
    kill_and_wait(held)  # who holds the standard error open holds up whoever reads it to its end
    assert "netproc 0" in instance.errors()
    assert "was killed but still exists; stopping without it" in instance.errors()
    assert roles(instance.wait_for(lambda note: note["event"] == "stop" and note["role"] == "controller"))


def test_ports_are_closed_before_the_last_process_stops(start_instance: StartInstance) -> None:
    instance = start_instance(behaviours={"purgatory": "slow 300"})
    instance.wait_ready()
    instance.process.send_signal(signal.SIGTERM)
    instance.wait_event("purgatory", "stop")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", instance.port), 5)
    assert instance.process.wait(PATIENCE_S) == 0


def test_acceptor_that_loses_its_processor_for_a_second_is_not_killed_in_a_stop(
    start_instance: StartInstance,
) -> None:
    instance = start_instance(behaviours={"acceptor": "slow 1000"})
    instance.wait_ready()
    assert instance.stop() == 0, instance.errors()


def test_second_ctrl_c_hurries(start_instance: StartInstance) -> None:
    instance = start_instance("shutdown.timeout.ms=60000", behaviours={"netproc1": "slow 50000"})
    instance.wait_ready()
    pace = Pace()
    instance.process.send_signal(signal.SIGINT)
    instance.wait_event("netproc 1", "stop")
    began = time.monotonic()
    assert instance.stop(signal.SIGINT) == 4
    pace.check(time.monotonic() - began, within_s=1.5)


def test_crash_during_a_stop_is_told_to_those_who_wait_for_it(start_instance: StartInstance) -> None:
    instance = start_instance("shutdown.timeout.ms=60000", behaviours={"acceptor": "slow 2000"})
    instance.wait_ready()
    instance.process.send_signal(signal.SIGTERM)
    instance.wait_event("acceptor", "stop")
    instance.kill("ioproc 0.0")
    instance.wait_for(lambda note: (note["role"], note["event"]) == ("netproc 0", "down"))
    assert instance.process.wait(PATIENCE_S) == 4
    assert max(note["generation"] for note in instance.events("born")) == 1


# Two instances


def test_second_instance_is_refused_naming_the_first(start_instance: StartInstance) -> None:
    first = start_instance()
    first.wait_ready()
    second = start_instance()
    assert second.process.wait(PATIENCE_S) == 3
    assert f"is in use by another appliance (pid {first.process.pid})" in second.errors()
    assert len(second.errors().splitlines()) == 1
    assert first.stop() == 0


def test_start_after_a_killed_instance_waits_for_its_children_and_cleans_up(
    start_instance: StartInstance,
) -> None:
    first = start_instance(behaviours={"ioproc0.0": "slow 400"})
    first.wait_ready()
    first.process.kill()
    second = start_instance()
    second.wait_ready()
    orphaned = first.wait_event("ioproc 0.0", "orphaned")
    assert second.wait_event("controller", "born")["at_ns"] - orphaned["at_ns"] >= 400_000_000
    assert re.search(r"removed \d+ shared memory files", second.errors())
    assert second.stop() == 0
    assert second.names() == []


def test_start_refuses_orphans_that_never_leave_and_names_them(start_instance: StartInstance) -> None:
    first = start_instance(behaviours={"purgatory": "deaf"})
    first.wait_ready()
    obedient = [psutil.Process(first.pid_of(role)) for role in others("purgatory")]
    first.process.kill()
    assert psutil.wait_procs(obedient, timeout=PATIENCE_S)[1] == []
    second = start_instance("shutdown.timeout.ms=100")
    assert second.process.wait(PATIENCE_S) == 3
    wanted = f"an earlier appliance left: pid {first.pid_of('purgatory')} (appliance: purgatory, user "
    assert wanted in second.errors()


def test_taken_port_is_named(start_instance: StartInstance, tmp_path: Path) -> None:
    first = start_instance()
    first.wait_ready()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    second = Instance(elsewhere, port=first.port)
    try:
        assert second.process.wait(PATIENCE_S) == 5
        assert f"port {first.port} is taken" in second.errors()
    finally:
        second.close()


def test_taken_port_of_a_later_slot_is_named(start_instance: StartInstance, tmp_path: Path) -> None:
    port = free_ports(2)
    first = start_instance(port=port + 1)
    first.wait_ready()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    second = Instance(elsewhere, "slots=2", port=port)
    try:
        assert second.process.wait(PATIENCE_S) == 5
        assert f"port {first.port} is taken" in second.errors()
        assert "(slot 1)" in second.errors()
    finally:
        second.close()
