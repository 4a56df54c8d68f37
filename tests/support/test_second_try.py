"""The second try of a failed test, seen at work in test runs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.second_try import LOST, ROOMS, SAVED

REPOSITORY: Final = Path(__file__).parents[2]
GATE: Final = ("--reruns", "1", "--max-suite-reruns", "3")

ONCE: Final = """
import pathlib

def test_late():
    seen = pathlib.Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("a process was late")
"""
ALWAYS: Final = """
def test_wrong():
    raise AssertionError("it is wrong")
"""
FORKING: Final = """
import pathlib
import pytest

@pytest.fixture
def fork():
    return None

def test_late(fork):
    seen = pathlib.Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("a process was late")
"""


SHARED: Final = """
import pathlib
import pytest

def once(name):
    seen = pathlib.Path(__file__).with_suffix(name)
    if not seen.exists():
        seen.touch()
        raise AssertionError(f"{name} was late")

@pytest.fixture(scope="module")
def broker():
    once(".start")
    yield "broker"
    pathlib.Path(__file__).with_suffix(".stopped").open("a").write("stopped")

@pytest.fixture
def topic(broker):
    yield broker
    once(".teardown")

def test_start(broker):
    pass

def test_teardown(topic):
    pass

def test_last(broker):
    once(".call")
"""


def run(tree: Path, tests: dict[str, str], *options: str) -> tuple[int, str]:
    """Exit code and output of pytest over these files below `tests`."""
    (tree / "pytest.ini").write_text("[pytest]\n")
    for path, text in tests.items():
        file = tree / "tests" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-p",
                "tests.support.second_try",
            ),
            *(*options, "tests"),
        ],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_test_with_processes_that_passes_at_the_second_try_is_named_with_its_first_failure(
    tmp_path: Path,
) -> None:
    code, output = run(tmp_path, {"system/test_a.py": ONCE}, *GATE)
    assert code == 0, output
    told = output[output.index(SAVED) :]
    assert "AssertionError: a process was late" in told
    assert "SECOND TRY tests/system/test_a.py::test_late" in told
    assert "the machine: " in told
    assert "1 passed, 1 rerun" in told


def test_what_a_room_shares_is_made_again_where_it_failed_and_stopped_once(tmp_path: Path) -> None:
    code, output = run(tmp_path, {"system/test_a.py": SHARED}, *GATE)
    assert code == 0, output
    assert "3 rerun" in output
    assert (tmp_path / "tests/system/test_a.stopped").read_text() == "stopped"
    for place in (".start", ".teardown", ".call"):
        assert f"AssertionError: {place} was late" in output


def test_a_test_that_fails_twice_is_red_and_both_failures_are_told(tmp_path: Path) -> None:
    code, output = run(tmp_path, {"system/test_a.py": ALWAYS}, *GATE)
    assert code == 1
    assert SAVED not in output
    assert output.count("AssertionError: it is wrong") >= 2
    assert LOST in output
    assert "the machine: " in output


def test_of_four_tests_that_would_pass_at_the_second_try_the_fourth_is_red(tmp_path: Path) -> None:
    code, output = run(tmp_path, {f"system/test_{name}.py": ONCE for name in "abcd"}, *GATE)
    assert code == 1
    assert "1 failed, 3 passed, 3 rerun" in output
    assert "SECOND TRY tests/system/test_d.py" not in output


def test_a_test_without_processes_has_no_second_try(tmp_path: Path) -> None:
    quiet = (
        "protocol/test_a.py",
        "log/test_b.py",
        "control/coordinator/test_c.py",
        "ipc/test_d.py",
        "test_e.py",
    )
    code, output = run(tmp_path, {**dict.fromkeys(quiet, ONCE), "ipc/test_f.py": FORKING}, *GATE)
    assert code == 1
    assert "5 failed, 1 passed, 1 rerun" in output


def test_a_run_by_hand_has_no_second_try(tmp_path: Path) -> None:
    code, output = run(tmp_path, {"system/test_a.py": ONCE})
    assert code == 1
    assert "1 failed" in output
    assert "rerun" not in output


def test_a_failure_that_speaks_of_lost_records_has_no_second_try(tmp_path: Path) -> None:
    tests = {"system/test_a.py": ONCE.replace("a process was late", "t-0: acknowledged and lost: [7]")}
    code, output = run(tmp_path, tests, *GATE)
    assert code == 1
    assert "1 failed" in output
    assert "rerun" not in output


SYSTEM: Final = tuple(f"system-{letters}" for letters in ("a-c", "d-k", "l-r", "s-z"))
CLIENTS: Final = ("clients-a-j", "clients-k-z")
WITH_PROCESSES: Final = (
    "unit-native",
    "unit-waits",
    "system-waits",
    "unit-control",
    "unit-rooms",
    "unit-spark",
    *CLIENTS,
    *SYSTEM,
    "crash",
)
PARTS: Final = ("unit-pure", "installation", *WITH_PROCESSES)
"""What the gate runs of the tests."""


def commands(target: str) -> str:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", "--dry-run", target],
        cwd=REPOSITORY,
        env=bare,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_gate_asks_for_one_second_try_and_test_all_for_none() -> None:
    gate = commands("test")
    for part in PARTS:
        assert part in gate
    for part in WITH_PROCESSES:
        assert " ".join(GATE) in commands(part)
    everything = commands("test-all")
    assert "pytest" in everything
    assert "--reruns" not in everything


def test_each_room_whose_tests_start_a_broker_has_the_second_try() -> None:
    """But for tests/support, which are tests of the tools."""
    rooms = {
        path.relative_to(REPOSITORY / "tests").parts[0]
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        if "from tests.support.broker import" in path.read_text()
    }
    assert {"system", "native"} <= rooms
    assert rooms - {"support"} <= ROOMS


def test_each_test_is_in_one_part_of_the_gate() -> None:
    """By file, since the parts choose files and folders."""
    files = {path.relative_to(REPOSITORY) for path in (REPOSITORY / "tests").rglob("test_*.py")}
    parts = {part: run_by(part, files) for part in PARTS}
    found = {file: [part for part, has in parts.items() if file in has] for file in files}
    assert {file: names for file, names in found.items() if len(names) != 1} == {}


def run_by(part: str, files: set[Path]) -> set[Path]:
    """The files of tests that a part runs, by the arguments of its pytest."""
    (line,) = [line for line in commands(part).splitlines() if " -m pytest " in line]
    words = line.split()
    ignored = [Path(word.removeprefix("--ignore=")) for word in words if word.startswith("--ignore=")]
    named = [Path(word) for word in words if word.startswith("tests/")] or [Path("tests")]
    return {
        file
        for file in files
        if any(file.is_relative_to(each) for each in named)
        and not any(file.is_relative_to(each) for each in ignored)
    }
