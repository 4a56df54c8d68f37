"""The README's block is made from a kept run."""

from __future__ import annotations

from benchmarks.readme import block
from tests.benchmarks.test_results import run


def test_the_readme_marks_a_missing_rival_and_a_missed_goal() -> None:
    text = block(run([{"latency.p50_us": 70.0}]))
    assert (
        "| one record at a time: p50 | 70 µs | missing | missing | ≤ 60: **missed**, ≤ 0.2× kafka: no ratio |"
        in text
    )
