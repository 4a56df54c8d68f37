"""Percentiles of `perf`: near the true ones, in bounded memory."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from appliance.cli.latencies import Latencies


@given(
    durations=st.lists(st.floats(1e-6, 100), min_size=1, max_size=300), percent=st.sampled_from([50, 99, 100])
)
def test_percentile_is_within_half_a_percent_of_the_true_one(durations: list[float], percent: int) -> None:
    seen = Latencies()
    for duration_s in durations:
        seen.add(duration_s)
    true_ms = sorted(durations)[max(1, math.ceil(len(durations) * percent / 100)) - 1] * 1000
    told_ms = seen.percentile_ms(percent)
    assert told_ms is not None
    assert abs(told_ms - true_ms) <= 0.0051 * true_ms + 0.0006


def test_without_any_there_is_none() -> None:
    assert Latencies().percentile_ms(50) is None
    assert Latencies().as_json()["mean"] is None


def test_memory_does_not_grow_with_the_count() -> None:
    seen = Latencies()
    for number in range(200_000):
        seen.add(1e-6 * 1.0001**number)  # from a microsecond to eight minutes
    assert seen.count == 200_000
    assert seen.counters < 9_000
