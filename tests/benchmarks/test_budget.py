"""The budget of one request: as tables, where they stand."""

from __future__ import annotations

from benchmarks.micro.budget import README, tables
from benchmarks.publish import between


def test_the_tables_tell_both_builds_by_process_and_the_pure_one_by_step() -> None:
    text = tables(
        {("produce", "pure"): [16.7, 14.9, 15.1, 46.7], ("fetch", "pure"): [26.1, 11.0, 24.5, 61.6]},
        {"produce": {"else": 0.5, "check the batch": 4.8}, "fetch": {"else": 0.4, "check the batch": 0.01}},
    )
    assert "| produce, pure | 16.7 | 14.9 | 15.1 | 46.7 |" in text
    assert text.endswith(
        "| µs | produce | fetch |\n|---|--:|--:|\n| check the batch | 4.8 |  |\n| else | 0.5 | 0.4 |"
    )


def test_the_readme_has_a_place_for_them() -> None:
    kept = between(README.read_text(), "budget", "here")
    assert "<!-- budget: begin -->\nhere\n<!-- budget: end -->" in kept
