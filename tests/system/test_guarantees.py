"""`examples/guarantees`: three programs are killed while they work, and only one of them is right afterwards."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import environment
from tests.support.judge import running_broker

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "guarantees" / "demo.py"
KILLS, ORDERS = 3, 600
KILLS_SHOWN, ORDERS_SHOWN = 10, 3000
"""What `make demo-exactly-once` does without arguments."""
BATCH = int(re.findall(r"^BATCH = (\d+)$", DEMO.with_name("orders.py").read_text(), re.MULTILINE)[0])
"""Orders that a program takes at once."""


def test_at_most_once_loses_at_least_once_repeats_and_exactly_once_does_neither(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        done = subprocess.run(
            [
                *(sys.executable, str(DEMO), "--at", broker.address, "--json"),
                *("--kills", str(KILLS), "--orders", str(ORDERS)),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=environment(),
        )
    assert done.returncode == 0, done.stdout + done.stderr
    most, least, exactly = json.loads(done.stdout)
    assert (most["program"], most["duplicates"], most["lost"] > 0) == ("at_most_once", 0, True), most
    assert (least["program"], least["lost"], least["duplicates"] > 0) == ("at_least_once", 0, True), least
    assert (exactly["program"], exactly["lost"], exactly["duplicates"]) == ("exactly_once", 0, 0)
    assert {each["kills"] for each in (most, least, exactly)} == {KILLS}


@pytest.mark.slow
def test_demo_prints_what_ten_kills_cost_each_of_the_three(tmp_path: Path) -> None:
    """As `make demo-exactly-once` runs it: with a broker of its own, and the table that a reader sees."""
    assert "$(BIN)/python examples/guarantees/demo.py\n" in (ROOT / "Makefile").read_text()
    done = subprocess.run(
        [sys.executable, str(DEMO)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env=environment({"TMPDIR": str(tmp_path)}),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {
        name: [int(number) for number in numbers.split()]
        for name, numbers in re.findall(r"^(\w+)((?: +\d+){4})$", done.stdout, re.MULTILINE)
    }
    assert list(rows) == ["at_most_once", "at_least_once", "exactly_once"], done.stdout
    assert {(kills, orders) for kills, orders, _, _ in rows.values()} == {(KILLS_SHOWN, ORDERS_SHOWN)}
    _, _, lost, duplicates = rows["at_most_once"]
    assert duplicates == 0
    # A kill costs the batch in hand; it costs nothing if it meets the program between two.
    assert 0 < lost <= KILLS_SHOWN * BATCH
    _, _, lost, duplicates = rows["at_least_once"]
    assert lost == 0
    assert 0 < duplicates <= KILLS_SHOWN * BATCH
    assert rows["exactly_once"][2:] == [0, 0]
    assert not list(tmp_path.glob("demo-exactly-once-*")), "it removes its directory"
