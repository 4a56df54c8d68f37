"""The cases about TLS, SASL and ACLs: each runs, and what it acknowledges is in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.brokers.appliance import Appliance
from benchmarks.brokers.builds import Kind
from benchmarks.brokers.setting import SETTINGS
from benchmarks.cases import CASES, access
from benchmarks.cases.case import Bench, Scale
from benchmarks.figures import BY_KEY
from benchmarks.machine import WarmMemory


@pytest.mark.slow
def test_each_case_has_the_figures_of_its_rows(tmp_path: Path) -> None:
    rows = {key.removeprefix("secure/") for key in BY_KEY if key.startswith("secure/")}
    found = set()
    with Appliance(tmp_path / "appliance", SETTINGS["secure"], kind=Kind.PURE) as broker:
        bench = Bench(broker, Scale(seconds=0.2), WarmMemory(0, folder=tmp_path))
        for case in access.CASES:
            assert CASES[case.name] is case
            figures = case.run(bench)
            assert all(value > 0 for name, value in figures.items() if not name.endswith("per_connection"))
            found |= {f"{case.name}.{name}" for name in figures}
    assert rows <= found
