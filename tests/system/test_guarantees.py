"""`examples/guarantees`: three programs are killed while they work, and only one of them is right afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.cli.command import environment
from tests.support.judge import running_broker

DEMO = Path(__file__).resolve().parents[2] / "examples" / "guarantees" / "demo.py"
KILLS, ORDERS = 3, 600


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
