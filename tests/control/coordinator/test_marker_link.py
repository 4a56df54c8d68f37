"""Markers go to the coordinator process to which their partition belongs, and their outcome comes back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.channels.roles import Role, RoleKind, ring_routes
from appliance.channels.wiring import Attachment, Wiring
from appliance.config import Settings
from appliance.control.coordinator.marker_link import UNDER_WAY_MAX, MarkerLink
from appliance.control.coordinator.transaction.effects import Marker
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.shared_memory import remove_directory
from appliance.protocol.errors import ErrorCode
from tests.support.private_directory import new_private_directory

FIRST, SECOND = Role(RoleKind.COORDINATOR, 0), Role(RoleKind.COORDINATOR, 1)
OTHER = {FIRST: SECOND, SECOND: FIRST}
MARKER = Marker(2**40, 7, True, 3, 2)


class Pair:
    """Two coordinator processes' links over real rings. `served` is what each was asked to write."""

    def __init__(self, path: Path, *, ring_slots: int) -> None:
        settings = Settings(data_dir=path)
        settings = replace(
            settings,
            broker=replace(settings.broker, coordinator_processes=2),
            network=replace(settings.network, ring_slots=ring_slots),
        )
        self._memory = new_private_directory()
        self._bells = {role: Doorbell.create_eventfd() for role in OTHER}
        self.wiring = Wiring(settings, "appliance-test", self._memory, self._bells)
        self.wiring.create_standing_regions()
        self.wiring.create_for(FIRST, 1, {})
        self.wiring.create_for(SECOND, 1, {FIRST: 1})
        self.attachments = {
            FIRST: Attachment(self.wiring, FIRST, 1, {SECOND: 1}),
            SECOND: Attachment(self.wiring, SECOND, 1, {FIRST: 1}),
        }
        self.served: dict[Role, list[tuple[int, Marker, Callable[[int], None]]]] = {FIRST: [], SECOND: []}
        self.links: dict[Role, MarkerLink] = {}
        for role in OTHER:
            self.begin(role)

    def begin(self, role: Role) -> None:
        link = self.links[role] = MarkerLink(self.attachments[role], processes=2)
        link.serve = lambda partition, marker, done: self.served[role].append((partition, marker, done))

    def turn(self) -> None:
        for role, other in OTHER.items():
            reader = self.attachments[role].inbound.get(other)
            if reader is not None:
                self.links[role].take(other, reader.drain())
            self.links[role].publish()

    def die(self, role: Role) -> None:
        """The other one hears of it."""
        other = OTHER[role]
        self.attachments[other].peer_down(role)
        self.links[other].peer_down(role)

    def live_again(self, role: Role) -> None:
        other = OTHER[role]
        self.wiring.create_for(role, 2, {other: 1})
        self.attachments[role] = Attachment(self.wiring, role, 2, {other: 1})
        assert self.attachments[other].peer_up(role, 2)
        self.served[role].clear()
        self.begin(role)

    def close(self) -> None:
        for descriptor in self._bells.values():
            os.close(descriptor)
        remove_directory(self._memory)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, ring_slots=4096)
    yield made
    made.close()


@pytest.mark.parametrize("error", [0, int(ErrorCode.INVALID_PRODUCER_EPOCH)])
def test_a_marker_arrives_as_it_was_said_and_its_outcome_comes_back(pair: Pair, error: int) -> None:
    outcomes: list[int] = []
    pair.links[FIRST].ask(49, MARKER, outcomes.append)
    pair.turn()
    pair.turn()
    ((partition, marker, done),) = pair.served[SECOND]
    assert (partition, marker) == (49, MARKER)
    assert outcomes == [], "nobody has written it yet"
    done(error)
    pair.turn()
    pair.turn()
    assert outcomes == [error]
    assert pair.links[FIRST].statistics() == {"asked": 0, "owed": 0}


def test_both_ways_at_once(pair: Pair) -> None:
    outcomes: list[tuple[Role, int]] = []
    pair.links[FIRST].ask(1, MARKER, lambda error: outcomes.append((FIRST, error)))
    pair.links[SECOND].ask(2, MARKER, lambda error: outcomes.append((SECOND, error)))
    pair.turn()
    pair.turn()
    for role in OTHER:
        ((_, _, done),) = pair.served[role]
        done(0)
    pair.turn()
    pair.turn()
    assert sorted(outcomes, key=str) == sorted([(FIRST, 0), (SECOND, 0)], key=str)


def test_death_of_the_asked_one_leaves_the_outcome_open_and_its_next_life_may_be_asked(pair: Pair) -> None:
    outcomes: list[int] = []
    pair.links[FIRST].ask(1, MARKER, outcomes.append)
    pair.turn()
    pair.die(SECOND)
    assert outcomes == [ErrorCode.REQUEST_TIMED_OUT]
    pair.links[FIRST].ask(1, MARKER, outcomes.append)
    assert outcomes[1:] == [ErrorCode.NOT_COORDINATOR]
    pair.live_again(SECOND)
    pair.links[FIRST].ask(1, MARKER, outcomes.append)
    pair.turn()
    pair.turn()
    pair.served[SECOND][0][2](0)
    pair.turn()
    pair.turn()
    assert outcomes[2:] == [0]


def test_what_a_dead_one_had_asked_is_written_and_not_answered_to_its_next_life(pair: Pair) -> None:
    pair.links[FIRST].ask(1, MARKER, lambda _: None)
    pair.turn()
    pair.turn()
    ((_, _, done),) = pair.served[SECOND]
    pair.die(FIRST)
    pair.live_again(FIRST)
    outcomes: list[int] = []
    pair.links[FIRST].ask(3, MARKER, outcomes.append)
    done(0)
    pair.turn()
    pair.turn()
    assert outcomes == [], "the answer to the question of the life before has the same number"


def test_too_many_questions_are_refused_at_once_and_none_is_lost(tmp_path: Path) -> None:
    pair = Pair(tmp_path, ring_slots=64)
    try:
        outcomes: list[int] = []
        for _ in range(100):
            pair.links[FIRST].ask(1, MARKER, outcomes.append)
        refused = outcomes.count(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert refused == len(outcomes) > 0
        for _ in range(6):
            pair.turn()
        taken = 100 - refused
        assert len(pair.served[SECOND]) == taken
        for _, _, done in pair.served[SECOND]:
            done(0)
        for _ in range(6):
            pair.turn()
        assert outcomes.count(0) == taken
        assert not pair.links[SECOND].congested
    finally:
        pair.close()


def test_questions_under_way_are_bounded(pair: Pair) -> None:
    outcomes: list[int] = []
    for _ in range(UNDER_WAY_MAX // 1024):
        for _ in range(1024):
            pair.links[FIRST].ask(1, MARKER, outcomes.append)
        pair.turn()
        pair.turn()
    assert outcomes == []
    pair.links[FIRST].ask(1, MARKER, outcomes.append)
    assert outcomes == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]


def test_one_coordinator_has_no_ring_to_itself(tmp_path: Path) -> None:
    routes = ring_routes(Settings(data_dir=tmp_path))
    assert all(writer is not reader for writer, reader in routes)
    assert (FIRST, FIRST) not in routes
