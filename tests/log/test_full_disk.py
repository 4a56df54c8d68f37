"""No room: appends fail as such, reads go on, and so do appends once there is room again."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from appliance.errors import DiskFull
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from tests.log.batches import batch_of, crash, open_log, read_all


@contextmanager
def files_at_most(size_bytes: int) -> Iterator[None]:
    """The kernel refuses to let any file of ours grow beyond this (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fill(log: PartitionLog, size: int) -> int:
    """Appends until there is no room; how many batches were taken."""
    for taken in range(100_000):
        try:
            log.append(batch_of([b"%d" % taken + bytes(size)]), leader_epoch=0)
        except DiskFull:
            return taken
    raise AssertionError("the disk never ran full")


@pytest.mark.parametrize("size", [50, 1000, 3000, 50_000])
def test_a_full_disk_refuses_appends_and_keeps_everything_else(tmp_path: Path, size: int) -> None:
    log = open_log(tmp_path, settings=LogSettings(segment_bytes=1 << 20))
    with files_at_most(300_000):
        taken = fill(log, size)
        assert log.log_end_offset == taken
        with pytest.raises(DiskFull):
            log.append(batch_of([bytes(size)]), leader_epoch=0)
        assert len(read_all(log)) == taken
    assert log.append(batch_of([b"room"]), leader_epoch=0).base_offset == taken
    log.check()
    crash(log)
    log = open_log(tmp_path)
    assert log.log_end_offset == taken + 1
    log.check()


def test_a_full_disk_does_not_waste_what_is_left(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=LogSettings(segment_bytes=1 << 20))
    with files_at_most(300_000):
        fill(log, 1000)
    assert log.statistics().size_bytes > 298_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; without the right to mount one, a limit on file size stands in."""
    at = tmp_path / "disk"
    at.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(at)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        with files_at_most(90_000):
            yield at
        return
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


@pytest.mark.parametrize("size", [100, 5000])
def test_a_file_system_without_room_loses_nothing_and_kills_nobody(small_disk: Path, size: int) -> None:
    settings = LogSettings(segment_bytes=100_000, max_message_bytes=50_000)
    log = open_log(small_disk / "t-0", settings=settings)
    taken = fill(log, size)
    records = read_all(log)
    assert len(records) == taken > 0
    log.check()
    crash(log)
    log = open_log(small_disk / "t-0", settings=settings)
    assert read_all(log) == records
    log.check()
    crash(log)


def test_a_roll_without_room_leaves_the_segment_in_use(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append(batch_of([b"before"]), leader_epoch=0)
    # Closing the segment adds an entry to its time index, which takes room.
    with files_at_most(0), pytest.raises(DiskFull):
        log.roll()
    assert [path.name for path in (tmp_path / "t-0").glob("*.log")] == ["00000000000000000000.log"]
    assert log.append(batch_of([b"after"]), leader_epoch=0).base_offset == 1
    log.roll()
    assert log.append(batch_of([b"next"]), leader_epoch=0).base_offset == 2
    log.check()
    crash(log)
