"""Directories that may not be read are named in a line, without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import environment

# Root may read everything, unless it gives that up.
AS_ANYBODY = (
    ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--"] if os.geteuid() == 0 else []
)


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A data directory below one that nobody may enter."""
    parent = tmp_path / "closed"
    (parent / "data").mkdir(parents=True)
    parent.chmod(0)
    yield parent / "data"
    parent.chmod(0o700)


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "--data-dir"),
        ("status", "--data-dir"),
        ("log", "verify", "--data-dir"),
        ("export", "segments", "t", "--to", "out", "--data-dir"),
    ],
    ids=" ".join,
)
def test_parent_that_cannot_be_read_is_one_line(closed: Path, command: tuple[str, ...]) -> None:
    told = subprocess.run(
        [*AS_ANYBODY, sys.executable, "-m", "appliance", *command, str(closed)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment(),
    )
    assert told.returncode in {1, 2}
    assert "Traceback" not in told.stderr
    assert "Permission denied" in told.stderr
    assert str(closed) in told.stderr
