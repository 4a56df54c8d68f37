"""`scripts/side_by_side.py`: steps of the gate run beside each other, and nothing of what they say is lost or mixed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.system.raw import wait_until

SCRIPT = Path(__file__).parents[2] / "scripts" / "side_by_side.py"

STEPS = """
one:
\t@touch one-runs; echo one begins; while [ ! -e two-ran ]; do sleep 0.01; done; echo one ends
two:
\t@echo two; touch two-ran
three:
\t@echo three
counted:
\t@while [ ! -e one-runs ]; do sleep 0.01; done
\t@touch $@-$$$$; sleep 0.3; ls counted-* one-runs 2>/dev/null | wc -l | sed 's/$$/ run/'; rm $@-$$$$
broken:
\t@echo why it is broken; false
long:
\t@trap 'echo tidied up; exit 1' INT; echo long begins; touch begun; sleep 600 & wait
deaf:
\t@trap '' INT TERM; touch begun; sleep 600 & echo $$! > sleeper; while true; do wait; done
"""


def begun(directory: Path, *lanes: str) -> subprocess.Popen[str]:
    (directory / "Makefile").write_text(STEPS)
    return subprocess.Popen(
        [sys.executable, SCRIPT, *lanes],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")},
    )


def ran(directory: Path, *lanes: str) -> tuple[int, str]:
    """Exit code and output; headlines without their times."""
    process = begun(directory, *lanes)
    output = process.communicate(timeout=60)[0]
    return process.returncode, output


def place(output: str, *texts: str) -> list[int]:
    return [output.index(text) for text in texts]


def test_lanes_run_beside_each_other_and_each_step_speaks_by_itself(tmp_path: Path) -> None:
    code, output = ran(tmp_path, "one", "two three")
    assert code == 0, output
    order = place(output, "== two: passed", "two\n", "== three: passed", "three\n")
    assert order == sorted(order)
    assert "one begins\none ends\n" in output, (
        "in one piece, though another step ran and spoke between the two"
    )


def test_so_many_lanes_run_at_once_and_the_next_one_begins_when_one_ends(tmp_path: Path) -> None:
    code, output = ran(tmp_path, "--at-once", "2", "one", "counted", "counted", "two")
    assert code == 0, output
    assert [line for line in output.splitlines() if line.endswith(" run")] == ["2 run", "2 run"]
    order = place(output, "== counted: passed", "one begins\none ends\n")
    assert order == sorted(order), "the first lane waits for what the last one does"


def test_a_lane_beside_the_others_begins_at_once_and_takes_no_place(tmp_path: Path) -> None:
    # `one` ends when `two` has run. As one of the lanes that are counted it would keep `two` waiting for ever.
    code, output = ran(tmp_path, "--at-once", "1", "--beside", "one three", "two", "three")
    assert code == 0
    assert output.count("one: passed") == output.count("two: passed") == 1
    assert output.count("three: passed") == 2


@pytest.mark.parametrize(
    "lanes", [[], [""], ["one", " "], ["--at-once", "0", "one"], ["--beside", "", "one"]]
)
def test_lanes_that_make_no_sense_are_refused(tmp_path: Path, lanes: list[str]) -> None:
    code, output = ran(tmp_path, *lanes)
    assert code == 2
    assert "usage: " in output


def test_a_step_that_fails_is_named_at_once_and_its_output_is_the_last(tmp_path: Path) -> None:
    code, output = ran(tmp_path, "broken three", "one", "two")
    assert code == 1
    order = place(
        output,
        "== broken: FAILED after",
        "one begins\none ends\n",
        "why it is broken\n",
        "== failed: broken; not begun: three",
    )
    assert order == sorted(order)
    assert "three\n" not in output


def interrupted(directory: Path, step: str, number: signal.Signals) -> tuple[int, str]:
    process = begun(directory, step)
    wait_until((directory / "begun").exists, "the step begins")
    process.send_signal(number)
    output = process.communicate(timeout=60)[0]
    return process.returncode, output


def test_an_interrupt_lets_each_step_tidy_up_and_leaves_nothing(tmp_path: Path) -> None:
    code, output = interrupted(tmp_path, "long", signal.SIGINT)
    assert code == 130
    assert "long begins\ntidied up\n" in output


@pytest.mark.slow  # it has 25 seconds to end by itself
def test_a_step_that_hears_no_signal_is_killed_with_all_it_has_started(tmp_path: Path) -> None:
    code, _ = interrupted(tmp_path, "deaf", signal.SIGTERM)
    assert code == 130
    sleeper = int((tmp_path / "sleeper").read_text())
    wait_until(lambda: not psutil.pid_exists(sleeper), "what it has started is gone")
