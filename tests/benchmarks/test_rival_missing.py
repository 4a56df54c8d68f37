"""A rival that cannot be had: ours runs alone, and the page says so. Runs the harness and a real broker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import rounds
from benchmarks.cases import CASES
from benchmarks.cases.case import QUICK
from benchmarks.page import page
from benchmarks.plan import Plan
from benchmarks.results import Run

pytestmark = pytest.mark.slow


def run_beside_kafka(monkeypatch: pytest.MonkeyPatch, libs: Path) -> Run:
    monkeypatch.setenv("KAFKA_LIBS", str(libs))
    plan = Plan(
        brokers=("pure", "kafka"),
        cases=(CASES["requests_64"],),
        rounds=1,
        scale=replace(QUICK, busy_limit_share=float("inf"), held_bytes=0),
    )
    return rounds.run(plan, lambda _line: None)


def test_ours_runs_alone_when_the_rivals_jars_are_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = run_beside_kafka(monkeypatch, tmp_path)
    assert done.taken["pure"][0]["requests_64.requests_s"] > 0
    assert [(void.round, void.broker) for void in done.voids] == [(0, "kafka")]
    assert not any(done.taken["kafka"])


def test_the_page_marks_the_ratios_of_a_missing_rival(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "kafka_2.13-0.jar").write_bytes(b"no jar")
    done = run_beside_kafka(monkeypatch, tmp_path)
    text = page(replace(done, taken={"appliance": done.taken["pure"], "kafka": []}))
    assert "**kafka is missing.** This page has no ratios to it." in text
    assert "| ≥ 2× kafka | ratio missing |" in text
    assert "| missing |" in text
