"""What the skeleton makes of the supervisor's messages, with an agent that only notes what it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from appliance.channels.child import Child
from appliance.channels.counter_names import named_counters
from appliance.channels.roles import CONTROLLER, PURGATORY, Role, RoleKind
from appliance.channels.supervision import (
    Failed,
    Heartbeat,
    Message,
    PeerDown,
    PeerHeld,
    PeerUp,
    Ready,
    Stop,
    SupervisionSocket,
    socket_pair,
)
from appliance.channels.wiring import Wiring
from appliance.clock import ManualClock
from appliance.config import load_settings
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.shared_memory import remove_directory
from appliance.process.agent import BEAT_MS, COUNTERS_MS, AgentProcess
from tests.support.private_directory import new_private_directory

IOPROC = Role(RoleKind.IOPROC, 0, 0)
NETPROC = Role(RoleKind.NETPROC)


class NotingAgent:
    """Notes what it is asked, and whether the rings of a dead peer are attached meanwhile."""

    def __init__(self, process: AgentProcess) -> None:
        self._process = process
        self.notes: list[tuple[object, ...]] = []

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        self.notes.append(("up", peer, new_rings))

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        assert (peer in self._process.attachment.inbound) == had_rings
        self.notes.append(("down", peer, generation, had_rings))

    def stop(self, within_ms: int) -> None:
        self.notes.append(("stop", within_ms))


class Played:
    """The purgatory's skeleton, and the supervisor's end of its socket."""

    def __init__(self, data_dir: Path) -> None:
        settings = load_settings(None, {"data.dir": str(data_dir), "network.processes": "1"})
        roles = (PURGATORY, IOPROC, NETPROC)
        bells = {role: Doorbell.create_eventfd() for role in roles}
        self.wiring = Wiring(settings, "appliance-test", new_private_directory(), bells)
        self.wiring.create_standing_regions()
        peers = {IOPROC: 1, NETPROC: 1}
        self.wiring.create_for(PURGATORY, 1, {})
        self.wiring.create_for(IOPROC, 1, {PURGATORY: 1})
        self.wiring.create_for(NETPROC, 1, {PURGATORY: 1})
        ours, theirs = socket_pair()
        self.supervisor = SupervisionSocket(ours)
        self.clock = ManualClock(monotonic_ns=10**12)
        self.warnings: list[str] = []
        child = Child(PURGATORY, 1, {CONTROLLER: 3, **peers}, self.wiring, SupervisionSocket(theirs))
        self.process = AgentProcess(child, warn=self.warnings.append, clock=self.clock)
        self.agent = NotingAgent(self.process)

    def hear(self, *messages: Message) -> list[tuple[object, ...]]:
        """What the agent is asked when the supervisor sends `messages`."""
        for message in messages:
            assert self.supervisor.send(message)
        self.agent.notes.clear()
        self.process.hear(self.agent)
        return self.agent.notes

    def next_life(self, role: Role, generation: int) -> PeerUp:
        self.wiring.create_for(role, generation, {PURGATORY: 1})
        return PeerUp(role.kind, role.index, role.slot, generation)

    def close(self) -> None:
        self.process.close()
        self.supervisor.close()
        self.process.supervision.close()
        remove_directory(self.wiring.runtime_dir)


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    made = Played(tmp_path)
    yield made
    made.close()


def down(role: Role, generation: int) -> PeerDown:
    return PeerDown(role.kind, role.index, role.slot, generation)


def test_rings_of_a_dead_peer_are_attached_until_the_agent_has_let_go(played: Played) -> None:
    assert played.hear(down(IOPROC, 1)) == [("down", IOPROC, 1, True)]
    assert IOPROC not in played.process.attachment.inbound


def test_the_next_life_of_a_peer_has_new_rings(played: Played) -> None:
    up = played.next_life(IOPROC, 2)
    assert played.hear(down(IOPROC, 1), up) == [("down", IOPROC, 1, True), ("up", IOPROC, True)]
    assert played.process.attachment.generations[IOPROC] == 2


def test_a_peer_that_is_attached_since_the_start_serves_without_new_rings(played: Played) -> None:
    assert played.hear(PeerUp(IOPROC.kind, 0, 0, 1)) == [("up", IOPROC, False)]


def test_an_older_generation_ends_before_the_new_one_is_attached(played: Played) -> None:
    up = played.next_life(NETPROC, 2)
    assert played.hear(up) == [("down", NETPROC, 1, True), ("up", NETPROC, True)]


def test_the_late_report_of_an_older_death_changes_nothing(played: Played) -> None:
    played.hear(down(IOPROC, 1), played.next_life(IOPROC, 2))
    assert played.hear(down(IOPROC, 1)) == []
    assert IOPROC in played.process.attachment.inbound


def test_a_process_that_the_kernel_held_ends_once(played: Played) -> None:
    """It is reported when it runs no more, and once more when it has ended."""
    assert played.hear(down(CONTROLLER, 3), down(CONTROLLER, 3)) == [("down", CONTROLLER, 3, False)]


def test_deaths_and_returns_are_known_though_the_agent_does_nothing_with_them(played: Played) -> None:
    assert played.process.peers == {CONTROLLER: 3, IOPROC: 1, NETPROC: 1}
    played.hear(down(CONTROLLER, 3), down(IOPROC, 1), played.next_life(IOPROC, 2))
    assert played.process.peers == {IOPROC: 2, NETPROC: 1}


def test_only_who_asks_for_it_is_told_of_a_held_peer(played: Played) -> None:
    held = PeerHeld(IOPROC.kind, 0, 0, 1)
    assert played.hear(held) == []
    assert "unexpected message from the supervisor" in played.warnings[0]
    told: list[tuple[Role, int]] = []
    played.process.on_peer_held = lambda peer, generation: told.append((peer, generation))
    assert played.hear(held) == []
    assert told == [(IOPROC, 1)]
    assert played.process.held == {IOPROC}
    played.hear(down(IOPROC, 1))
    assert not played.process.held


def test_stop_says_how_much_time_there_is(played: Played) -> None:
    assert played.hear(Stop(300)) == [("stop", 300)]


def test_the_end_of_the_supervisor_is_a_stop_without_time(played: Played) -> None:
    played.supervisor.close()
    assert played.hear() == [("stop", 0)]
    assert played.warnings == ["the supervisor is gone; stopping"]


def test_what_the_process_reports_reaches_the_supervisor(played: Played) -> None:
    played.process.ready()
    played.process.failed("no room", fatal=False)
    played.hear(Heartbeat(9))
    assert played.supervisor.receive() == [Ready(), Failed("no room"), Heartbeat(9)]


def test_long_work_sends_one_heartbeat_in_half_a_second(played: Played) -> None:
    for _ in range(10):
        played.process.beat()
        played.clock.advance(BEAT_MS // 5)
    assert played.supervisor.receive() == [Heartbeat(10**12), Heartbeat(10**12 + BEAT_MS * 1_000_000)]


def test_counters_are_published_by_name_and_stay_current_while_something_happens(played: Played) -> None:
    counted = {"waiting": 1, "expired": 2}
    asked: list[int] = []

    def counters() -> Mapping[str, int]:
        asked.append(counted["waiting"])
        return counted

    def published() -> dict[str, int]:
        return named_counters("purgatory", played.process.attachment.row.snapshot().counters)

    process, cycle = played.process, played.process.cycle
    process.publish_counters(counters)
    cycle.wait(0)
    assert (published()["waiting"], published()["expired"], published()["unsent"]) == (1, 2, 0)
    for waiting in range(2, 12):
        counted["waiting"] = waiting
        cycle.wait(0)
    assert asked == [1], "at most one in COUNTERS_MS"
    played.clock.advance(COUNTERS_MS)
    cycle.wait(0)
    assert published()["waiting"] == 11
