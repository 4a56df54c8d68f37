"""A backlog after a long stop is delivered in due order, at most at the rate that the operator allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.clock import ManualClock
from appliance.services.overdue_rate import OVERDUE_MS, OverdueRate
from tests.services.delivering import Delivering


@pytest.fixture
def house(tmp_path: Path) -> Delivering:
    return Delivering(tmp_path)


@pytest.mark.parametrize("rate", [1, 7, 1_000, 1_000_000])
def test_no_second_has_more_than_the_rate_and_a_burst(rate: int) -> None:
    clock = ManualClock()
    limit = OverdueRate(rate, clock)
    taken, waits = 0, 0
    while clock.monotonic_ns() < 20_000_000_000 and waits < 10_000:
        if taken < 50_000 and limit.take(OVERDUE_MS + 1):
            taken += 1
        else:
            wait_ms = limit.wait_ms()
            assert 1 <= wait_ms <= 200
            clock.advance(wait_ms)
            waits += 1
    seconds = 20
    assert taken <= seconds * rate + max(1, rate // 5)
    assert taken >= min(50_000, seconds * rate - max(1, rate // 5) - 1)


def test_what_is_due_now_is_free() -> None:
    limit = OverdueRate(1, ManualClock())
    assert all(limit.take(late_ms) for late_ms in (-5, 0, OVERDUE_MS) for _ in range(100))
    assert not limit.take(OVERDUE_MS + 1)


@pytest.mark.parametrize("level", ["5s", "exact_1m"])
def test_a_backlog_is_delivered_in_due_order_at_the_rate(house: Delivering, level: str) -> None:
    values = [b"%d" % number for number in range(100)]
    for number, value in enumerate(values):
        house.store(value, level=level, first_offset=number)
        house.clock.advance(10)
    house.clock.advance(60_000)
    house.overdue_rate = OverdueRate(20, house.clock)
    house.new_forwarder()
    counts = []
    for _ in range(7):
        house.pass_ms(1_000)
        counts.append(len(house.delivered()))
    assert counts[-1] == 100
    assert all(later - before <= 24 for before, later in zip([0, *counts], counts, strict=False))
    assert counts[2] <= 64
    assert house.delivered() == values
    house.store(*[b"now"] * 50, level=level, first_offset=100)
    house.pass_ms(5_600)
    assert len(house.delivered()) == 150, "these are not overdue"


def test_without_an_option_a_backlog_comes_at_once(house: Delivering) -> None:
    house.store(*[b"%d" % number for number in range(100)])
    house.clock.advance(60_000)
    house.new_forwarder()
    house.pass_ms(400)
    assert len(house.delivered()) == 100


def test_a_limited_forwarder_sleeps(house: Delivering) -> None:
    house.store(*[b"%d" % number for number in range(100)])
    house.clock.advance(60_000)
    house.overdue_rate = OverdueRate(1, house.clock)
    house.new_forwarder()
    house.run()
    look_ms = house.forwarder.next_look_ms()
    assert look_ms is not None
    assert look_ms >= 100
