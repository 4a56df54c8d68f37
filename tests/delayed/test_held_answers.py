"""Held answers: each leaves once, the purgatory expires those that wait long, and nothing hangs without it."""

from __future__ import annotations

import pytest

from appliance.delayed.held_answers import (
    GRACE_MS,
    LOOK_MAX_MS,
    OWN_BOUND_MS,
    REGISTERED_MAX,
    Deadlines,
    HeldAnswers,
)
from appliance.ipc.agent import NEVER_NS, Alarm
from tests.delayed.in_process_purgatory import MS, InProcessPurgatory

LONG_MS = 1_000


class Owner:
    """A process that holds numbers for its requesters, and sleeps as long as its deadlines let it."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.line = InProcessPurgatory()
        self.deadlines = Deadlines(self.line, Alarm())
        self.expired: list[tuple[int, int]] = []
        """When and what."""
        self.held: HeldAnswers[str, str, int] = HeldAnswers(self.deadlines, expired=self._expired)

    def _expired(self, _key: str, _requester: str, answer: int) -> None:
        self.expired.append((self.now_ms, answer))

    def hold(
        self,
        answer: int,
        *,
        key: str = "a",
        requester: str = "x",
        position: int = 0,
        timeout_ms: int = LONG_MS,
    ) -> None:
        now_ns = self.now_ms * MS
        due_ns = now_ns + timeout_ms * MS
        self.held.hold(key, position or answer, requester, answer, now_ns=now_ns, due_ns=due_ns)

    def reached(self, position: int, key: str = "a") -> list[int]:
        return [answer for _, _, _, _, answer in self.held.reached(key, position)]

    def pass_ms(self, ms: int) -> None:
        for _ in range(ms):
            self.now_ms += 1
            self.line.turn(self.now_ms * MS, self.deadlines)

    @property
    def registrations(self) -> int:
        return self.deadlines.registrations


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_an_answer_leaves_once_its_position_is_reached_and_in_order(owner: Owner) -> None:
    for answer in (1, 2, 3):
        owner.hold(answer)
    assert owner.reached(0) == []
    assert owner.reached(2) == [1, 2]
    assert owner.reached(3, key="b") == []
    assert owner.reached(3) == [3]
    owner.pass_ms(2 * LONG_MS)
    assert owner.expired == []


def test_what_is_answered_within_milliseconds_is_never_registered(owner: Owner) -> None:
    for answer in range(3_000):
        owner.hold(answer + 1)
        owner.pass_ms(2)
        assert owner.reached(answer + 1) == [answer + 1]
    assert owner.registrations == 0
    for answer in range(3_000, 6_000):
        owner.hold(answer + 1)
        owner.pass_ms(1)
        assert len(owner.reached(answer - 2)) == (answer > 3_002)
    assert owner.registrations == 0


def test_nobody_wakes_up_for_answers_that_have_left(owner: Owner) -> None:
    owner.hold(1)
    assert owner.deadlines.alarm.due_ns == GRACE_MS * MS
    owner.reached(1)
    assert owner.deadlines.alarm.due_ns == NEVER_NS


def test_what_waits_longer_is_expired_by_the_purgatory(owner: Owner) -> None:
    owner.hold(1)
    owner.pass_ms(GRACE_MS)
    assert owner.registrations == 1
    owner.hold(2, timeout_ms=300)
    owner.pass_ms(2 * LONG_MS)
    assert owner.expired == [(GRACE_MS + 300, 2), (LONG_MS, 1)]
    assert owner.deadlines.expired_by_purgatory == 2
    assert owner.deadlines.expired_by_owner == 0
    assert owner.deadlines.alarm.due_ns == NEVER_NS
    assert owner.deadlines.outstanding == 0


def test_who_answers_releases_the_registration(owner: Owner) -> None:
    purgatory = owner.line.purgatory
    assert purgatory is not None
    owner.hold(1)
    owner.hold(2)
    owner.pass_ms(GRACE_MS * 2)
    assert len(purgatory) == 2
    assert owner.reached(1) == [1]
    assert len(purgatory) == 1
    assert [answer for *_, answer in owner.held.leave("a")] == [2]
    assert len(purgatory) == 0
    owner.pass_ms(2 * LONG_MS)
    assert owner.expired == []
    assert owner.deadlines.outstanding == 0


def test_a_deadline_that_is_sooner_than_a_registration_is_kept_by_the_owner(owner: Owner) -> None:
    owner.hold(1)
    owner.hold(2, timeout_ms=2)
    owner.hold(3, timeout_ms=0)
    owner.hold(4, timeout_ms=-7)
    assert owner.deadlines.alarm.due_ns <= 0
    owner.pass_ms(3)
    assert owner.expired == [(1, 3), (1, 4), (2, 2)]
    assert owner.registrations == 0


@pytest.mark.parametrize("ring_slots", [0, 1])
def test_a_full_ring_leaves_the_deadline_with_the_owner(owner: Owner, ring_slots: int) -> None:
    owner.line.ring_slots = ring_slots
    for answer in (1, 2, 3):
        owner.hold(answer)
    owner.pass_ms(LONG_MS)
    assert owner.expired == [(LONG_MS, 1), (LONG_MS, 2), (LONG_MS, 3)]
    assert owner.deadlines.expired_by_purgatory == ring_slots


def test_a_silent_purgatory_delays_and_loses_nothing(owner: Owner) -> None:
    owner.hold(1)
    owner.pass_ms(GRACE_MS)
    owner.line.is_silent = True
    owner.pass_ms(LONG_MS + OWN_BOUND_MS)
    assert owner.expired == [(LONG_MS + OWN_BOUND_MS, 1)]
    owner.line.is_silent = False
    owner.pass_ms(10)
    assert len(owner.expired) == 1
    assert owner.deadlines.outstanding == 0


def test_when_the_purgatory_dies_the_owner_expires_what_waits(owner: Owner) -> None:
    owner.hold(1)
    owner.pass_ms(GRACE_MS)
    owner.line.die(owner.deadlines)
    owner.hold(2)
    owner.pass_ms(LONG_MS + GRACE_MS)
    assert owner.expired == [(LONG_MS, 1), (LONG_MS + GRACE_MS, 2)]
    assert owner.deadlines.expired_by_owner == 2


def test_the_next_life_of_the_purgatory_expires_what_waited_before(owner: Owner) -> None:
    owner.hold(1)
    owner.pass_ms(GRACE_MS)
    owner.line.die(owner.deadlines)
    owner.hold(2)
    owner.pass_ms(100)
    owner.line.live_again(owner.now_ms * MS, owner.deadlines)
    owner.pass_ms(GRACE_MS)
    assert owner.line.purgatory is not None
    assert len(owner.line.purgatory) == 2
    owner.pass_ms(LONG_MS)
    assert owner.expired == [(LONG_MS, 1), (LONG_MS + GRACE_MS, 2)]
    assert owner.deadlines.expired_by_purgatory == 2


def test_registrations_are_bounded_and_the_rest_expires_all_the_same(owner: Owner) -> None:
    count = REGISTERED_MAX + 10
    for answer in range(count):
        owner.hold(answer + 1)
    owner.pass_ms(2 * GRACE_MS)
    assert owner.registrations == owner.deadlines.outstanding == REGISTERED_MAX
    owner.pass_ms(LONG_MS)
    assert sorted(answer for _, answer in owner.expired) == list(range(1, count + 1))
    assert {when for when, _ in owner.expired} == {LONG_MS}


def test_a_requester_that_died_gets_nothing(owner: Owner) -> None:
    owner.hold(1)
    owner.hold(2, requester="y")
    owner.hold(3, key="b")
    owner.pass_ms(GRACE_MS)
    owner.held.drop_requester("x")
    assert len(owner.held) == 1
    owner.pass_ms(LONG_MS)
    assert owner.expired == [(LONG_MS, 2)]


def test_the_longest_deadline_a_client_can_ask_for_is_no_longer_sleep_than_epoll_takes(owner: Owner) -> None:
    owner.hold(1, timeout_ms=2**31 - 1)
    owner.pass_ms(2 * GRACE_MS)
    assert owner.deadlines.alarm.due_ns <= (owner.now_ms + LOOK_MAX_MS) * MS
