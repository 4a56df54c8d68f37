"""`appliance backup prune` removes backups only after the person at the terminal has agreed, or with --yes.

Names of directories that do not exist leave nothing behind.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.control.backup.manifest import Manifest, encode, manifest_path
from appliance.control.backup.target import DirectoryTarget
from tests.cli.command import appliance, environment

IDS = [f"2026010{day}T000000.000Z" for day in (1, 2, 3)]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A target with three backups, and a file that none of them needs."""
    place = DirectoryTarget(tmp_path / "target", writes=True)
    for id in IDS:
        place.write(manifest_path(id), [encode(Manifest(id, "cluster", "0.1", 0, (), {0: b"x"}, ()))])
    place.write(f"data/a-0/0.log.0.{IDS[0]}", [b"bytes"])
    place.close()
    return tmp_path / "target"


def left(target: Path) -> list[str]:
    return sorted(path.stem for path in (target / "backups").iterdir())


def at_a_terminal(*arguments: object, answer: bytes) -> tuple[int, str]:
    """The exit code and standard error of a command that a person answers."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "appliance", *map(str, arguments)],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(),
        ) as process:
            os.write(ours, answer)
            _, errors = process.communicate(timeout=60)
            return process.returncode, errors.decode()
    finally:
        os.close(ours)
        os.close(theirs)


def test_prune_without_a_terminal_wants_yes_and_removes_nothing(target: Path) -> None:
    refused = appliance("backup", "prune", target, "--keep", 1, given=b"y\n")
    assert refused.code == 2
    assert "without a terminal give --yes" in refused.errors
    assert left(target) == IDS
    assert (target / "data" / "a-0").exists()
    appliance("backup", "prune", target, "--keep", 1, "--yes").succeeded()
    assert left(target) == IDS[2:]
    assert not (target / "data" / "a-0").exists()


@pytest.mark.parametrize(("answer", "kept"), [(b"n\n", 3), (b"\n", 3), (b"\x04", 3), (b"y\n", 2)])
def test_prune_names_what_goes_and_does_what_the_person_answers(
    target: Path, answer: bytes, kept: int
) -> None:
    code, errors = at_a_terminal("backup", "prune", target, "--keep", 2, answer=answer)
    assert f"Remove 1 backups from {target}" in errors
    assert IDS[0] in errors
    assert IDS[1] not in errors
    assert (code == 0) == (kept == 2)
    assert left(target) == IDS[-kept:]
    assert (target / "data" / "a-0").exists() == (kept == 3)


def test_prune_asks_also_before_it_removes_files_alone(target: Path) -> None:
    code, errors = at_a_terminal("backup", "prune", target, "--keep", 3, answer=b"n\n")
    assert "Remove the files" in errors
    assert code != 0
    assert (target / "data" / "a-0").exists()


def test_prune_of_a_directory_that_is_not_there_makes_none(tmp_path: Path) -> None:
    refused = appliance("backup", "prune", tmp_path / "typo", "--keep", 1, "--yes")
    assert refused.code == 1
    assert "no such directory" in refused.errors
    assert not (tmp_path / "typo").exists()


def test_backup_of_a_directory_that_is_not_there_makes_no_target(tmp_path: Path) -> None:
    refused = appliance("backup", tmp_path / "typo", tmp_path / "target")
    assert refused.code == 1
    assert f"{tmp_path / 'typo'}: no such directory" in refused.errors
    assert list(tmp_path.iterdir()) == []
