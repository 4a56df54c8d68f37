"""The case about backup and restore: it has the figures of its rows, and says when something failed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.brokers.appliance import Appliance
from benchmarks.brokers.builds import Kind
from benchmarks.cases import CASES, backup
from benchmarks.cases.case import Bench, Scale
from benchmarks.figures import BY_KEY
from benchmarks.machine import WarmMemory
from benchmarks.void import Void


@pytest.mark.slow
def test_case_has_the_figures_of_its_rows(tmp_path: Path) -> None:
    rows = {figure.name for figure in BY_KEY.values() if figure.case == "backup"}
    (tmp_path / "appliance").mkdir()
    with Appliance(tmp_path / "appliance", kind=Kind.PURE) as broker:
        bench = Bench(broker, Scale(backlog_bytes=8 << 20), WarmMemory(0, folder=tmp_path))
        (case,) = backup.CASES
        assert CASES[case.name] is case
        figures = case.run(bench)
    assert all(value > 0 for name, value in figures.items() if not name.endswith("copied_mb"))
    assert figures["appliance_again_copied_mb"] < 1
    assert figures["appliance_more_copied_mb"] < 2
    absent = set() if shutil.which("rsync") else {name for name in rows if name.startswith("rsync_")}
    assert rows - set(figures) == absent
    assert not (tmp_path / "appliance" / "backups").exists()


def test_each_way_comes_first_in_turn() -> None:
    every: list[backup.Way] = [backup.OfAppliance({}), *backup.COPIERS]
    order = [[way.name for way in backup.rotated(every, turn)] for turn in range(4)]
    assert [turn[0] for turn in order] == ["appliance", "cp", "rsync", "appliance"]
    assert all(sorted(turn) == ["appliance", "cp", "rsync"] for turn in order)


def test_copy_is_whole_and_a_copy_that_fails_makes_the_case_void(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "slot-0").mkdir(parents=True)
    (source / "slot-0" / "file").write_bytes(b"bytes")
    for way in backup.copiers():
        for target in (tmp_path / way.name, tmp_path / way.name):
            assert way.back_up(source, target) > 0
            assert (target / "slot-0" / "file").read_bytes() == b"bytes"
            assert [each.name for each in target.iterdir()] == ["slot-0"]
        with pytest.raises(Void, match="ended with"):
            way.back_up(tmp_path / "nowhere", tmp_path / way.name)
