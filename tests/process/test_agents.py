"""What every process does alike, asked of each of them: started, told of its peers, stopped, and left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol
from uuid import UUID

import pytest

from appliance.channels.control_channel import AssignedPartition
from appliance.channels.counter_names import COUNTER_NAMES
from appliance.channels.roles import Role, RoleKind, ring_routes
from appliance.channels.supervision import Heartbeat, socket_pair
from appliance.console.agent import ConsoleAgent
from appliance.control.auditor.agent import AuditorAgent
from appliance.control.cleaner.agent import CleanerAgent
from appliance.control.coordinator.agent import CoordinatorAgent
from appliance.control.keys.agent import KeyAgent
from appliance.control.purgatory.agent import PurgatoryAgent
from appliance.control.supervisor.entry_points import ENTRY_POINTS
from appliance.ipc.process_table import ProcessState
from appliance.metrics.agent import MetricsAgent
from appliance.netproc.main import _wire as wire_netproc
from appliance.process.agent import AgentProcess
from appliance.services.agent import ServicesAgent
from tests.process.started import Shared, Started


class Counting(Protocol):
    """An agent that has counters."""

    def counters(self) -> Mapping[str, int]: ...


KINDS = sorted(ENTRY_POINTS)
BOUND_S = 20.0
"""In which a process that leads nothing ends; a fraction of a second where the host is idle."""
TOPIC_ID = UUID(int=7)
MANY = 10_000
"""As many as the partition table holds. An idle host opens 2,000 within the 0.5 s between two heartbeats."""
WIRES: Mapping[RoleKind, Callable[[AgentProcess], Counting]] = {
    RoleKind.NETPROC: wire_netproc,
    RoleKind.PURGATORY: PurgatoryAgent,
    RoleKind.COORDINATOR: CoordinatorAgent,
    RoleKind.CLEANER: CleanerAgent,
    RoleKind.AUDITOR: AuditorAgent,
    RoleKind.KEYS: KeyAgent,
    RoleKind.METRICS: MetricsAgent,
    RoleKind.CONSOLE: ConsoleAgent,
    RoleKind.SERVICES: ServicesAgent,
}


@pytest.fixture(params=KINDS)
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Started]:
    made = Started(request.param, tmp_path)
    yield made
    made.close()


def has_ring(started: Started, peer: Role) -> bool:
    return any({started.role, peer} == set(route) for route in ring_routes(started.wiring.settings))


def test_it_runs_once_it_says_that_it_is_ready(started: Started) -> None:
    started.wait_ready()
    assert started.row.snapshot().state is ProcessState.RUNNING
    assert (started.row.snapshot().pid, started.row.snapshot().generation) == (started.pid, 1)


def test_it_ends_by_itself_when_the_supervisor_is_gone(started: Started) -> None:
    started.wait_ready()
    started.supervision.close()
    assert started.exit_code(within_s=BOUND_S) == 0
    assert started.errors().count("the supervisor is gone; stopping") == 1


def test_stop_is_a_clean_end(started: Started) -> None:
    started.wait_ready()
    started.stop(within_ms=5_000)
    assert started.exit_code(within_s=BOUND_S) == 0
    assert started.row.snapshot().state is ProcessState.STOPPING
    assert "Traceback" not in started.errors()


def test_a_heartbeat_is_sent_back(started: Started) -> None:
    started.wait_ready()
    started.answers(41)
    started.answers(42)


def test_each_peer_may_die_and_come_back(started: Started) -> None:
    started.wait_ready()
    for number, peer in enumerate(started.peers):
        assert started.maps(peer, 1) == has_ring(started, peer)
        started.lose(peer)
        started.answers(2 * number)
        assert not started.maps(peer, 1), f"it keeps what it shared with the dead {peer}"
        started.bring_back(peer)
        started.answers(2 * number + 1)
        assert started.maps(peer, 2) == has_ring(started, peer)
    assert "unexpected message" not in started.errors()
    assert "Traceback" not in started.errors()


def test_what_is_shared_with_an_older_generation_is_released_though_nobody_reported_its_death(
    started: Started,
) -> None:
    started.wait_ready()
    for number, peer in enumerate(started.peers):
        started.bring_back(peer)
        started.answers(number)
        assert not started.maps(peer, 1)
        assert started.maps(peer, 2) == has_ring(started, peer)


@pytest.mark.parametrize(
    ("kind", "partition"),
    [
        (RoleKind.IOPROC, AssignedPartition("t", TOPIC_ID, 0, 0, 1, 0, 0, (0,), (0,), {})),
        (RoleKind.REPLICA, AssignedPartition("t", TOPIC_ID, 0, 0, 1, 1, 0, (1, 0), (1, 0), {})),
    ],
)
def test_heartbeats_go_on_while_it_opens_many_logs(
    tmp_path: Path, kind: RoleKind, partition: AssignedPartition
) -> None:
    """Nobody asks: a process that is asked in the middle of long work must have answered before it looks."""
    many = [_numbered(partition, number) for number in range(MANY)]
    started = Started(kind, tmp_path, partitions=many)
    try:
        said = started.wait_ready()
        unasked = [message for message in said if isinstance(message, Heartbeat)]
        assert len(unasked) >= 2
    finally:
        started.close()


def _numbered(partition: AssignedPartition, number: int) -> AssignedPartition:
    fields = {name: getattr(partition, name) for name in partition.__struct_fields__}
    return AssignedPartition(**{**fields, "partition": number, "row": number})


@pytest.mark.parametrize("kind", WIRES)
def test_all_counters_of_a_kind_of_process_are_published_and_no_others(
    tmp_path: Path, kind: RoleKind
) -> None:
    """Workers write theirs at once, because others act on them; a controller has none before it leads."""
    shared = Shared(kind, tmp_path)
    ours, theirs = socket_pair()
    process = AgentProcess(shared.child(theirs))
    agent = WIRES[kind](process)
    assert set(agent.counters()) == {name for name in COUNTER_NAMES[kind] if name is not None}
    process.close()
    process.context.destroy(linger=0)
    ours.close()
    theirs.close()
    shared.remove()
