"""A run that is slow because of the machine is not stuck, and one that is stuck is found on any machine."""

from __future__ import annotations

import pytest

from tests.checker.patience import SLOWER_MAX, STUCK_S, await_patiently


class Played:
    """A clock, and someone who makes progress at a time."""

    def __init__(self, progress_s: float, slowness: float) -> None:
        self.now_s = 0.0
        self._progress_s = progress_s
        self._slowness = slowness

    def await_progress(self, timeout_s: float) -> list[str]:
        assert timeout_s > 0
        if self._progress_s <= self.now_s + timeout_s:
            self.now_s = max(self.now_s, self._progress_s)
            return []
        self.now_s += timeout_s
        return ["writer"]

    def slowness(self) -> float:
        return self._slowness

    def late(self) -> list[str]:
        return await_patiently(self.await_progress, slowness=self.slowness, clock=lambda: self.now_s)


@pytest.mark.parametrize("slowness", [1.0, 2.5, 100.0])
def test_what_never_goes_on_is_stuck(slowness: float) -> None:
    played = Played(1e9, slowness)
    assert played.late() == ["writer"]
    assert played.now_s == pytest.approx(STUCK_S * min(slowness, SLOWER_MAX))


def test_progress_ends_the_wait() -> None:
    played = Played(7.0, 100.0)
    assert played.late() == []
    assert played.now_s == 7.0


def test_who_waits_no_more_is_not_asked_again() -> None:
    """Another client has failed, for example, so the run is over."""
    asked: list[float] = []

    def gives_up(timeout_s: float) -> list[str]:
        asked.append(timeout_s)
        return ["writer"]

    assert await_patiently(gives_up, slowness=lambda: 100.0, clock=lambda: 3.0) == ["writer"]
    assert asked == [STUCK_S]


def test_on_an_idle_machine_the_bound_is_as_written() -> None:
    assert Played(STUCK_S + 1, 1.0).late() == ["writer"]
    assert Played(STUCK_S - 1, 1.0).late() == []


def test_a_machine_that_takes_twice_as_long_gets_twice_the_time() -> None:
    assert Played(STUCK_S + 1, 2.0).late() == []
    assert Played(2 * STUCK_S + 1, 2.0).late() == ["writer"]
