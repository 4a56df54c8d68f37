"""Fixtures for the harness' tests."""

from __future__ import annotations

import pytest

from benchmarks import awake
from benchmarks.awake import Way


@pytest.fixture(autouse=True)
def _cores_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test tries how cores are woken, which all of the machine would feel; `test_awake.py` does by itself."""
    monkeypatch.setattr(awake, "wakes_us", lambda: {Way.HALTING: 1.0})
