"""The parts of the gate: each test file of the rooms that are divided runs in one of them, and in one only."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SYSTEM: Final = ("system-a-c", "system-d-k", "system-l-r", "system-s-z", "system-waits")
UNIT: Final = ("unit-pure", "unit-native", "unit-control", "unit-waits", "installation")


def files_of(target: str) -> list[Path]:
    """The test files that a target runs, as make would run it in a tree that is installed."""
    asked = ["make", "--dry-run", "--old-file=.venv/.installed-test", target]
    said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    words = next(line for line in said.splitlines() if " -m pytest " in line).split()
    ignored = [ROOT / word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
    named = [ROOT / word for word in words if word.startswith("tests/")]
    assert [each for each in (*named, *ignored) if not each.exists()] == []
    return [
        file
        for each in named
        for file in ([each] if each.is_file() else each.rglob("test_*.py"))
        if not any(file.is_relative_to(other) for other in ignored)
    ]


@pytest.mark.parametrize(
    ("targets", "rooms"),
    [
        (SYSTEM, ["system"]),
        (("clients-a-j", "clients-k-z"), ["clients"]),
        (UNIT, ["control", "native"]),
    ],
)
def test_each_file_of_a_divided_room_runs_in_one_part(targets: tuple[str, ...], rooms: list[str]) -> None:
    there = sorted(file for room in rooms for file in (ROOT / "tests" / room).rglob("test_*.py"))
    ran = sorted(file for target in targets for file in files_of(target))
    assert [file for file in ran if file in set(there)] == there


def test_every_part_of_step_four_is_in_the_gate() -> None:
    gate = (ROOT / "Makefile").read_text().partition("\ntest: ##")[2].partition("\n\n")[0]
    for target in (*SYSTEM, *UNIT, "clients-a-j", "clients-k-z", "unit-rooms", "unit-spark", "crash"):
        assert target in gate.replace('"', " ").split(), target
