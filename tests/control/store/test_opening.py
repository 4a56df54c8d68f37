"""Which directory the copy of the embedded store is kept in."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.clock import SystemClock
from appliance.config import Settings
from appliance.control.store.embedded_store import DATABASE_NAME
from appliance.control.store.metadata_copy import COPY_NAME
from appliance.control.store.opening import copy_directories, open_store


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on another file system than `tmp_path`."""
    path = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="appliance-test-"))
    assert path.stat().st_dev != tmp_path.stat().st_dev
    yield path
    shutil.rmtree(path)


def test_copy_lies_on_another_file_system_where_a_log_directory_does(
    tmp_path: Path, other_disk: Path
) -> None:
    data_dir = tmp_path / "data"
    settings = Settings(data_dir=data_dir, log_dirs=f"slot-{{slot}},{other_disk}/slot-{{slot}}", slots=2)
    store = open_store(settings, SystemClock())
    store.create("/a", b"kept")
    store.close()
    assert (data_dir / COPY_NAME).exists()
    for slot in range(2):
        for directory in settings.log_directories(slot):
            directory.mkdir()
    assert copy_directories(settings)[0] == other_disk / "slot-0"
    open_store(settings, SystemClock()).close()
    assert not (data_dir / COPY_NAME).exists()
    shutil.rmtree(data_dir)
    store = open_store(settings, SystemClock())
    assert store.get("/a").data == b"kept"
    store.close()


def test_copy_that_its_directory_lost_is_found_in_the_data_directory(
    tmp_path: Path, other_disk: Path
) -> None:
    data_dir = tmp_path / "data"
    store = open_store(Settings(data_dir=data_dir), SystemClock())
    store.create("/a", b"kept")
    store.close()
    (data_dir / DATABASE_NAME).unlink()
    (other_disk / "slot-0").mkdir()
    settings = Settings(data_dir=data_dir, log_dirs=f"{other_disk}/slot-{{slot}}")
    store = open_store(settings, SystemClock())
    assert store.get("/a").data == b"kept"
    store.close()
    assert (other_disk / "slot-0" / COPY_NAME).exists()
