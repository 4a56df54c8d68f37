"""What `serve` refuses because it would lose records or never start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--slots", "3", "--set", "io.workers=2"], "io.workers = 2"),
    ],
)
def test_what_is_not_built_is_refused_by_name(tmp_path: Path, arguments: list[str], named: str) -> None:
    command = [
        sys.executable,
        "-m",
        "appliance",
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        "--port",
        "1",
    ]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Try it" not in done.stdout
    assert not (tmp_path / "data").exists()
