"""The case `fixture`: what it starts serves, and each broker's time is its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from benchmarks.brokers.mock import Mock
from benchmarks.cases import CASES
from benchmarks.places import ROOT
from benchmarks.void import Void


def test_each_broker_of_the_fixture_serves_one_record_and_has_its_own_time() -> None:
    program = ROOT / "benchmarks" / "load" / "fixtures.py"
    done = subprocess.run(
        [sys.executable, "-P", str(program), "2"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)
    assert 0 < second < first, "the second broker is forked from a process that has loaded the code"


def test_a_broker_without_a_fixture_says_so() -> None:
    assert "mock" in CASES["fixture"].not_for
    with pytest.raises(Void, match="no fixture"):
        Mock(ROOT).fixture_seconds(1)
