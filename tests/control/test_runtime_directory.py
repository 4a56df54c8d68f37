"""The private directory of an instance: nobody's name stops it, and nothing that is not its own is removed."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from pathlib import Path

import pytest

from appliance.channels import runtime_directory
from appliance.channels.runtime_directory import RUNTIME_FILE, create, find, hold, remove, remove_dead
from appliance.errors import HostFault
from appliance.ipc.shared_memory import directory_candidate
from tests.support.private_directory import private_directory


def test_a_name_that_is_taken_is_survived_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with private_directory() as taken:
        (taken / "not ours").touch()
        names = [taken, taken, directory_candidate()]
        monkeypatch.setattr(runtime_directory, "directory_candidate", lambda: names.pop(0))
        with caplog.at_level(logging.WARNING):
            made = create(tmp_path)
        assert made != taken
        assert find(tmp_path) == made
        assert [f"{taken} belongs to another user" in line for line in caplog.messages] == [True, True]
        assert remove(tmp_path) == 0
        assert (taken / "not ours").exists()
    assert not made.exists()


def test_without_any_free_name_it_ends_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with private_directory() as taken:
        monkeypatch.setattr(runtime_directory, "directory_candidate", lambda: taken)
        with pytest.raises(HostFault, match="no free name"):
            create(tmp_path)


def test_no_two_lives_have_the_same_name(tmp_path: Path) -> None:
    lives = []
    for _ in range(3):
        lives.append(create(tmp_path))
        assert (tmp_path / RUNTIME_FILE).stat().st_mode & 0o777 == 0o600
        assert lives[-1].stat().st_mode & 0o777 == 0o700
        remove(tmp_path)
    assert len(set(lives)) == 3


def test_a_dead_life_whose_data_directory_went_is_removed_and_no_living_one(tmp_path: Path) -> None:
    directories = {}
    for name in ("living", "dead", "being made"):
        (tmp_path / name).mkdir()
        directories[name] = create(tmp_path / name)
    living, dead = hold(directories["living"]), hold(directories["dead"])
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    os.close(dead)
    assert directories["dead"] not in remove_dead(), "a process of it lives"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert directories["dead"] in remove_dead()
    assert {name for name, path in directories.items() if path.exists()} == {"living", "being made"}
    os.close(living)
    for name in ("living", "being made"):
        remove(tmp_path / name)


@pytest.mark.parametrize(
    "where", ["elsewhere", "another user's", "open to others", "a link", "nonsense", "gone"]
)
def test_what_is_not_a_private_directory_of_ours_is_never_removed(tmp_path: Path, where: str) -> None:
    with private_directory() as victim:
        kept = victim / "kept"
        kept.touch()
        named: bytes = os.fsencode(victim)
        match where:
            case "elsewhere":
                kept = tmp_path / ("appliance-" + "0" * 32) / "kept"
                kept.parent.mkdir(mode=0o700)
                kept.touch()
                named = os.fsencode(kept.parent)
            case "another user's":
                os.chown(victim, 65534, -1)
            case "open to others":
                victim.chmod(0o711)
            case "a link":
                link = directory_candidate()
                link.symlink_to(victim)
                named = os.fsencode(link)
            case "nonsense":
                named = b"\xff/../\n\n/etc"
            case _:
                named = os.fsencode(directory_candidate())
        (tmp_path / RUNTIME_FILE).write_bytes(named + b"\n")
        assert find(tmp_path) is None
        assert remove(tmp_path) == 0
        assert kept.exists()
        if where == "a link":
            link.unlink()


def test_a_copy_of_a_data_directory_that_is_served_leaves_the_original_its_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    made = create(original)
    held = hold(made)
    try:
        shutil.copytree(original, copy)
        with caplog.at_level(logging.WARNING):
            assert remove(copy) == 0
        assert made.exists()
        assert find(original) == made
        assert find(copy) is None
        assert "belongs to a running instance with another data directory; not removed" in caplog.text
    finally:
        os.close(held)
    assert remove(original) > 0
    assert not made.exists()
