"""The console's short history: rates, its bound, and readers that are slow."""

from __future__ import annotations

import threading
from dataclasses import replace

from appliance.console.history import NS_PER_S, POINTS_MAX, SERIES, History, Totals, rates

FIRST = Totals(
    monotonic_ns=NS_PER_S,
    time_ms=1000,
    bytes_in=100,
    bytes_out=50,
    records_in=10,
    requests=7,
    network_idle_ns=0,
    network_processes=2,
    worker_idle_ns=0,
    worker_processes=1,
    connections=3,
)


def later(seconds: int) -> Totals:
    return replace(
        FIRST,
        monotonic_ns=FIRST.monotonic_ns + seconds * NS_PER_S,
        time_ms=FIRST.time_ms + 1000 * seconds,
        bytes_in=FIRST.bytes_in + 1000 * seconds,
        network_idle_ns=NS_PER_S * seconds,
        worker_idle_ns=NS_PER_S * seconds,
    )


def test_rates_are_differences_over_the_time_between() -> None:
    found = rates(FIRST, later(4))
    assert found["bytes_in"] == 1000
    assert found["bytes_out"] == 0
    assert found["network_busy"] == 0.5  # two processes, one of them asleep
    assert found["worker_busy"] == 0
    assert found["connections"] == 3
    assert set(found) == set(SERIES)


def test_the_history_is_bounded_and_numbers_grow() -> None:
    history = History()
    for second in range(POINTS_MAX + 10):
        history.add(later(second))
    points = history.points()
    assert len(points) == POINTS_MAX
    assert [each.number for each in points] == list(range(10, POINTS_MAX + 10))


def test_a_slow_reader_gets_the_newest_and_no_queue() -> None:
    history = History()
    for second in range(5):
        history.add(later(second))
    found = history.wait(1, 0)
    assert found is not None
    assert found.number == 4
    assert history.wait(4, 0) is None


def test_the_end_wakes_those_who_wait() -> None:
    history = History()
    found: list[object] = []
    waiter = threading.Thread(target=lambda: found.append(history.wait(0, 60)))
    waiter.start()
    history.close()
    waiter.join(10)
    assert found == [None]


def test_a_sample_of_the_same_moment_is_no_point() -> None:
    history = History()
    history.add(FIRST)
    history.add(FIRST)
    assert history.points() == []
