"""The look-out before sleep: how long it looks, and when it stops paying."""

from __future__ import annotations

import os

import pytest

from appliance.ipc.brief_wait import LIMIT_NS, BriefWait
from appliance.ipc.while_it_pays import VAIN_MAX


class Letterbox:
    """An inbox that is empty until it was looked at so many times."""

    def __init__(self, *, comes_after: int) -> None:
        self.comes_after = comes_after
        self.looks = 0

    def is_empty(self) -> bool:
        self.looks += 1
        return self.looks <= self.comes_after


class SteppingClock:
    """Each reading is `step_ns` later than the last."""

    def __init__(self, step_ns: int) -> None:
        self.now_ns = 0
        self.step_ns = step_ns

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


def looks_of(brief_wait: BriefWait, tries: int) -> int:
    """How many of so many look-outs looked at all."""
    box = Letterbox(comes_after=1 << 62)
    looked = 0
    for _ in range(tries):
        before = box.looks
        assert not brief_wait.look_out([box])
        looked += box.looks > before
    return looked


def test_message_that_comes_within_the_limit_is_found() -> None:
    box = Letterbox(comes_after=20)
    assert BriefWait(SteppingClock(1_000)).look_out([Letterbox(comes_after=1 << 62), box])
    assert box.looks > 20


def test_look_out_ends_at_its_limit() -> None:
    clock = SteppingClock(1_000)
    assert not BriefWait(clock).look_out([Letterbox(comes_after=1 << 62)])
    assert LIMIT_NS <= clock.now_ns <= LIMIT_NS + 3_000


def test_look_outs_in_vain_become_rare() -> None:
    brief_wait = BriefWait(SteppingClock(LIMIT_NS))
    looks_of(brief_wait, 1_000)
    assert looks_of(brief_wait, 1 << VAIN_MAX) == 1


def test_one_found_in_time_makes_the_next_as_eager_as_the_first() -> None:
    clock = SteppingClock(LIMIT_NS)
    brief_wait = BriefWait(clock)
    looks_of(brief_wait, 1_000)
    clock.step_ns = 1
    while not brief_wait.look_out([Letterbox(comes_after=0)]):
        pass
    for _ in range(10):
        assert brief_wait.look_out([Letterbox(comes_after=0)])


def test_core_lost_to_a_stranger_for_a_time_slice_counts_as_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteppingClock(1)
    brief_wait = BriefWait(clock)

    def lose_the_core() -> None:
        clock.now_ns += 3_000_000

    monkeypatch.setattr(os, "sched_yield", lose_the_core)
    # What was looked for came meanwhile: it is found, and yet the look-out did not pay.
    assert brief_wait.look_out([Letterbox(comes_after=4)])
    assert not brief_wait.look_out([Letterbox(comes_after=0)])
