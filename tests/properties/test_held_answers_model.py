"""Held answers against a naive list, while the purgatory dies, comes back, falls silent and has no room."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from appliance.delayed.held_answers import OWN_BOUND_MS, REGISTERED_MAX, Deadlines, HeldAnswers
from appliance.ipc.agent import Alarm
from tests.delayed.in_process_purgatory import MS, InProcessPurgatory

KEYS = st.integers(0, 2)


@dataclass
class Naive:
    """One that is held."""

    key: int
    requester: int
    position: int
    due_ms: int


class HeldAnswersModel(RuleBasedStateMachine):
    @initialize()
    def make(self) -> None:
        self.now_ms = 1_000
        self.line = InProcessPurgatory()
        self.deadlines = Deadlines(self.line, Alarm())
        self.held: HeldAnswers[int, int, int] = HeldAnswers(self.deadlines, expired=self.expired)
        self.waiting: dict[int, Naive] = {}
        self.ends = {0: 0, 1: 0, 2: 0}
        self.number = 0

    def expired(self, key: int, requester: int, answer: int) -> None:
        naive = self.waiting.pop(answer)
        assert (naive.key, naive.requester) == (key, requester)
        assert self.now_ms >= naive.due_ms, "early"

    @rule(key=KEYS, requester=st.integers(0, 1), more=st.integers(0, 3), timeout_ms=st.integers(-1, 300))
    def hold(self, key: int, requester: int, more: int, timeout_ms: int) -> None:
        self.number += 1
        self.ends[key] += more
        now_ns, due_ms = self.now_ms * MS, self.now_ms + timeout_ms
        self.held.hold(key, self.ends[key], requester, self.number, now_ns=now_ns, due_ns=due_ms * MS)
        self.waiting[self.number] = Naive(key, requester, self.ends[key], due_ms)

    @rule(key=KEYS, behind=st.integers(0, 4))
    def reach(self, key: int, behind: int) -> None:
        position = self.ends[key] - behind
        left = [answer for *_, answer in self.held.reached(key, position)]
        assert left == [
            n for n, each in self.waiting.items() if each.key == key and each.position <= position
        ]
        for answer in left:
            del self.waiting[answer]

    @rule(key=KEYS)
    def leave(self, key: int) -> None:
        left = [answer for *_, answer in self.held.leave(key)]
        assert left == [number for number, each in self.waiting.items() if each.key == key]
        for answer in left:
            del self.waiting[answer]

    @rule(requester=st.integers(0, 1))
    def drop(self, requester: int) -> None:
        self.held.drop_requester(requester)
        self.waiting = {number: each for number, each in self.waiting.items() if each.requester != requester}

    @rule(steps=st.lists(st.integers(1, 40), min_size=1, max_size=6))
    def pass_time(self, steps: list[int]) -> None:
        """In steps that are no longer than the owner may sleep, or the purgatory's next word."""
        for step_ms in steps:
            for _ in range(step_ms):
                self.now_ms += 1
                self.line.turn(self.now_ms * MS, self.deadlines)

    @rule(room=st.integers(0, 3))
    def bound_the_ring(self, room: int) -> None:
        self.line.ring_slots = room

    @rule()
    def fall_silent(self) -> None:
        self.line.is_silent = True

    @rule()
    def die(self) -> None:
        self.line.die(self.deadlines)

    @rule()
    def live_again(self) -> None:
        if self.line.purgatory is None:
            self.line.live_again(self.now_ms * MS, self.deadlines)

    @invariant()
    def nobody_waits_longer_than_the_owners_bound(self) -> None:
        for naive in self.waiting.values():
            bound_ms = OWN_BOUND_MS if self.line.is_silent else 1
            assert self.now_ms <= naive.due_ms + bound_ms

    @invariant()
    def both_hold_the_same(self) -> None:
        assert len(self.held) == len(self.waiting)
        assert 0 <= len(self.deadlines.registered) <= self.deadlines.outstanding <= REGISTERED_MAX
        for key in self.ends:
            assert self.held.of(key) == sum(each.key == key for each in self.waiting.values())

    @invariant()
    def what_the_purgatory_expires_is_held(self) -> None:
        if self.line.purgatory is not None and not self.line.is_silent:
            assert {each.key for each in self.line.purgatory.operations()} == set(self.deadlines.registered)


TestHeldAnswersModel = HeldAnswersModel.TestCase
TestHeldAnswersModel.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
