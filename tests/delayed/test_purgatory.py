from __future__ import annotations

from itertools import product

import pytest

from appliance.delayed.delayed_operation import (
    TRANSITIONS,
    DelayedAnswer,
    DelayedFetch,
    Event,
    State,
    after,
)
from appliance.delayed.purgatory import Purgatory
from appliance.errors import ApplianceDefect


def keys(operations: list[DelayedFetch]) -> list[int]:
    return [operation.key for operation in operations]


def test_every_end_is_final() -> None:
    for state, event in product(State, Event):
        assert (after(state, event) is not None) == (state is State.WAITING)
    assert set(TRANSITIONS.values()) == set(State) - {State.WAITING}


def test_a_fetch_waits_for_bytes_of_all_its_partitions_together() -> None:
    purgatory: Purgatory[DelayedFetch] = Purgatory(0)
    purgatory.wait(DelayedFetch(1, {10: 5, 11: 0}, needed_bytes=100), due_ms=500)
    assert purgatory.poke(10, 6, 60) == []
    assert purgatory.poke(12, 99, 1000) == []
    assert keys(purgatory.poke(11, 1, 40)) == [1]
    assert len(purgatory) == 0


def test_bytes_below_the_watched_offset_satisfy_nobody() -> None:
    purgatory: Purgatory[DelayedFetch] = Purgatory(0)
    purgatory.wait(DelayedFetch(1, {10: 5}, needed_bytes=1), due_ms=500)
    assert purgatory.poke(10, 5, 100) == []
    assert keys(purgatory.poke(10, 6, 1)) == [1]


def test_a_late_poke_with_an_older_position_takes_nothing_back() -> None:
    purgatory: Purgatory[DelayedFetch] = Purgatory(0)
    purgatory.wait(DelayedFetch(1, {10: 5, 11: 7}, needed_bytes=2), due_ms=500)
    assert purgatory.poke(10, 6, 1) == []
    assert keys(purgatory.poke(10, 2, 1)) == [1]


def test_an_answer_waits_for_the_clock_or_its_owner_and_for_no_partition() -> None:
    purgatory: Purgatory[DelayedFetch | DelayedAnswer] = Purgatory(0)
    purgatory.wait(DelayedFetch(1, {10: 5}, needed_bytes=1), due_ms=500)
    for key in (2, 3):
        purgatory.wait(DelayedAnswer(key), due_ms=10)
    assert [operation.key for operation in purgatory.poke(10, 6, 1)] == [1]
    answered = purgatory.satisfy(2)
    assert answered is not None
    assert answered.key == 2
    assert [operation.key for operation in purgatory.expire(10)] == [3]
    purgatory.check()
    assert len(purgatory) == 0


def test_one_poke_completes_everybody_it_satisfies_and_nobody_else() -> None:
    purgatory: Purgatory[DelayedFetch] = Purgatory(0)
    for number in range(100):
        purgatory.wait(DelayedFetch(number, {7: number % 2 * 10}, needed_bytes=1), due_ms=500)
    assert keys(purgatory.poke(7, 5, 1)) == list(range(0, 100, 2))
    assert purgatory.watchers(7) == 50
    purgatory.check()


def test_whoever_is_satisfied_does_not_expire_and_the_other_way_round() -> None:
    purgatory: Purgatory[DelayedFetch] = Purgatory(0)
    purgatory.wait(DelayedFetch(1, {7: 0}, needed_bytes=1), due_ms=10)
    purgatory.wait(DelayedFetch(2, {8: 0}, needed_bytes=1), due_ms=10)
    assert keys(purgatory.poke(7, 1, 1)) == [1]
    assert keys(purgatory.expire(10)) == [2]
    assert purgatory.poke(8, 1, 1) == []
    assert purgatory.cancel(1) is None
    assert purgatory.next_expiry_ms() is None
    statistics = purgatory.statistics()
    assert (statistics.satisfied, statistics.expired, statistics.cancelled) == (1, 1, 0)


def test_nothing_is_left_of_those_who_left() -> None:
    """No purge is needed: memory follows what waits now, not what ever waited."""
    purgatory: Purgatory[DelayedFetch] = Purgatory(0)
    for number in range(5_000):
        purgatory.wait(DelayedFetch(number, {number % 100: 0, 200: 0}, needed_bytes=1), due_ms=10_000)
        purgatory.cancel(number)
    statistics = purgatory.statistics()
    assert (statistics.waiting, statistics.watched_keys, statistics.cancelled) == (0, 0, 5_000)
    purgatory.check()


def test_two_of_one_name_cannot_wait_together() -> None:
    purgatory: Purgatory[DelayedFetch] = Purgatory(0)
    purgatory.wait(DelayedFetch(1, {7: 0}, needed_bytes=1), due_ms=10)
    with pytest.raises(ApplianceDefect, match="waits already"):
        purgatory.wait(DelayedFetch(1, {8: 0}, needed_bytes=1), due_ms=10)
    purgatory.check()
