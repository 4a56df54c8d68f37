"""What is done about the modes and owners of directories that exist, before anything in them is opened."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from appliance.config import load_settings
from appliance.control.supervisor.data_directory import DataDirectory
from appliance.control.supervisor.permissions import (
    ReadersGroup,
    check_directory,
    check_log_directories,
    check_path,
    readers_group,
)
from appliance.errors import ConfigurationError, OperatorFault

GID = 4243


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def tree(root: Path) -> Path:
    """A log directory as an earlier version left it."""
    (root / "t-0").mkdir(parents=True)
    for name in ("t-0/00.log", "t-0/00.index", "recovery-point-offset-checkpoint", ".lock"):
        (root / name).touch()
        (root / name).chmod(0o644)
    root.chmod(0o755)
    (root / "t-0").chmod(0o755)
    return root


def test_a_directory_of_ours_that_others_may_read_is_closed_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tree(tmp_path / "data")
    with caplog.at_level(logging.INFO):
        check_directory(data, "data directory", group=None, has_logs=False)
        check_directory(data, "data directory", group=None, has_logs=False)
    assert mode(data) == 0o700
    [line] = caplog.messages
    assert f"data directory {data} had mode 0755; it is now 0700" in line


def test_a_directory_that_everybody_may_write_is_refused_and_unchanged(tmp_path: Path) -> None:
    data = tree(tmp_path / "data")
    data.chmod(0o1777)
    with pytest.raises(OperatorFault, match="may be written by everybody"):
        DataDirectory.hold(data, patience_ms=0)
    assert mode(data) == 0o1777
    assert (data / ".lock").read_bytes() == b""


def test_a_directory_of_another_user_is_refused_by_name(tmp_path: Path) -> None:
    data = tree(tmp_path / "data")
    os.chown(data, 65534, -1)
    with pytest.raises(OperatorFault, match=r"belongs to user nobody, and the appliance runs as root.*chown"):
        DataDirectory.hold(data, patience_ms=0)


def test_files_of_a_data_directory_become_private_and_hard_links_stay(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in ("metadata.db", "metadata.db-wal", "run.json"):
        (data / name).touch()
        (data / name).chmod(0o644)
    kafka = tmp_path / "kafkas"
    kafka.touch()
    kafka.chmod(0o644)
    os.link(kafka, data / "linked")
    DataDirectory.hold(data, patience_ms=0).release()
    assert {path.name: mode(path) for path in data.iterdir()} == {
        "metadata.db": 0o600,
        "metadata.db-wal": 0o600,
        ".lock": 0o600,
        "linked": 0o644,
    }
    assert mode(kafka) == 0o644


def test_a_symbolic_link_in_the_lock_s_place_is_not_followed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OperatorFault):
        DataDirectory.hold(data, patience_ms=0)
    assert not (tmp_path / "elsewhere").exists()


def test_a_group_may_read_logs_but_no_lock_and_no_linked_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs = tree(tmp_path / "logs")
    kafka = tmp_path / "kafkas"
    kafka.touch()
    kafka.chmod(0o604)
    os.link(kafka, logs / "t-0" / "01.log")
    group = ReadersGroup("readers", GID, is_own=False)
    with caplog.at_level(logging.WARNING):
        check_directory(logs, "log directory", group=group, has_logs=True)
    assert (mode(logs), mode(logs / "t-0")) == (0o2750, 0o2750)
    for name in ("t-0/00.log", "t-0/00.index", "recovery-point-offset-checkpoint"):
        assert (mode(logs / name), (logs / name).stat().st_gid) == (0o640, GID)
    assert (logs / ".lock").stat().st_gid != GID
    assert (mode(kafka), kafka.stat().st_gid) == (0o604, os.getegid())
    [line] = caplog.messages
    assert "1 files have other hard links" in line


def test_a_group_that_is_gone_from_the_configuration_reads_nothing_more(tmp_path: Path) -> None:
    settings = load_settings(None, {"data.dir": str(tmp_path)})
    logs = tree(settings.slot_directory(0))
    check_directory(logs, "log directory", group=ReadersGroup("readers", GID, is_own=False), has_logs=True)
    check_log_directories(settings, None)
    assert mode(logs) == 0o700


def test_an_unknown_group_is_refused_by_name(tmp_path: Path) -> None:
    settings = load_settings(None, {"data.dir": str(tmp_path), "data.directory.group": "no-such-group"})
    with pytest.raises(ConfigurationError, match="no-such-group"):
        readers_group(settings)


NOBODY = 65534


def test_a_link_of_another_user_in_the_path_is_refused_and_what_it_names_untouched(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir(mode=0o755)
    sticky = tmp_path / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    (sticky / "data").symlink_to(ours)
    os.lchown(sticky / "data", NOBODY, NOBODY)
    for path in (sticky / "data", sticky / "data" / "below"):
        with pytest.raises(OperatorFault, match="is a symbolic link of user"):
            DataDirectory.hold(path, patience_ms=0)
    assert (mode(ours), list(ours.iterdir())) == (0o755, [])


def test_a_link_of_ours_in_the_path_is_followed(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "data").symlink_to("ours")
    DataDirectory.hold(tmp_path / "data", patience_ms=0).release()
    assert (tmp_path / "ours" / ".lock").exists()


def test_a_parent_in_which_others_can_rename_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, owner, bits in (("open", 0, 0o777), ("theirs", NOBODY, 0o755), ("sticky", 0, 0o1777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(bits)
        os.chown(tmp_path / name, owner, owner)
        check_path(tmp_path / name / "data", "data directory")
    assert len(caplog.messages) == 2
    assert f"everybody can rename what is in {tmp_path}/open" in caplog.messages[0]
    assert f"can rename what is in {tmp_path}/theirs" in caplog.messages[1]


def test_the_lock_that_children_inherit_cannot_be_written_with(tmp_path: Path) -> None:
    held = DataDirectory.hold(tmp_path / "data", patience_ms=0)
    assert (tmp_path / "data" / ".lock").read_text() == f"{os.getpid()}\n"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(held.lock, b"x")
    held.release()
    assert (tmp_path / "data" / ".lock").read_text() == ""
