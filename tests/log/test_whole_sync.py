"""Many logs are flushed by one call at a clean stop, where that call reports what failed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import pytest

from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.log import flush, log_directory
from appliance.log.file_names import CLEAN_SHUTDOWN
from appliance.log.log_directory import LogDirectory
from appliance.log.whole_sync import WholeSync, _kernel_reports
from tests.log.batches import NOW_MS, batch_of, read_all

TOPIC_ID = UUID(int=7)


@pytest.fixture(autouse=True)
def _a_few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_directory, "WHOLE_SYNC_FROM", 20)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were forced by themselves."""
    files: list[Path] = []
    force = flush.flush_files

    def note(paths: Iterable[Path]) -> None:
        paths = tuple(paths)
        files.extend(paths)
        force(paths)

    monkeypatch.setattr(flush, "flush_files", note)
    return files


def opened(path: Path, partitions: int) -> LogDirectory:
    """A directory whose file system reports what it failed to write, whatever the tests run on."""
    directory = LogDirectory.open(path, node_id=0, cluster_id="c", clock=ManualClock(NOW_MS))
    if directory._whole_sync is None:
        directory._whole_sync = WholeSync(os.open(path, os.O_RDONLY))
    for number in range(partitions):
        directory.open_partition(TopicPartition("t", number), TOPIC_ID)
    return directory


def written(path: Path, partitions: int) -> LogDirectory:
    directory = opened(path, partitions)
    for log in directory.partitions.values():
        log.append(batch_of(producer_id=7, producer_epoch=0, base_sequence=0), leader_epoch=0)
    return directory


def assert_all_is_there(path: Path, partitions: int) -> None:
    assert (path / CLEAN_SHUTDOWN).exists()
    directory = opened(path, partitions)
    assert directory.was_clean
    for log in directory.partitions.values():
        assert log.recovery_point == log.log_end_offset == 1
        assert len(read_all(log)) == 1
        assert log.producer_count == 1
    directory.close()


def test_many_logs_are_flushed_by_one_call(tmp_path: Path, forced: list[Path]) -> None:
    written(tmp_path, 100).close()
    assert forced == []
    assert_all_is_there(tmp_path, 100)


def test_few_logs_do_not_wait_for_what_others_have_written(tmp_path: Path, forced: list[Path]) -> None:
    written(tmp_path, 19).close()
    assert len({path.parent for path in forced}) == 19
    assert_all_is_there(tmp_path, 19)


def test_logs_that_did_not_change_are_not_counted(tmp_path: Path, forced: list[Path]) -> None:
    written(tmp_path, 100).close()
    directory = opened(tmp_path, 100)
    for number in range(3):
        log = directory.partitions[TopicPartition("t", number)]
        log.append(batch_of(producer_id=7, producer_epoch=0, base_sequence=1), leader_epoch=0)
    directory.close()
    assert len({path.parent for path in forced}) == 3


def test_each_file_is_forced_where_the_call_fails(
    tmp_path: Path, forced: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    directory = written(tmp_path, 100)
    assert directory._whole_sync is not None
    directory._whole_sync.close()
    directory._whole_sync = WholeSync(os.open(tmp_path, os.O_PATH | os.O_CLOEXEC))  # syncfs refuses it
    directory.close()
    assert len({path.parent for path in forced}) == 100
    assert "some file of its file system was not written" in caplog.text
    assert_all_is_there(tmp_path, 100)


def test_each_file_is_forced_where_the_file_system_is_not_known_to_report(
    tmp_path: Path, forced: list[Path]
) -> None:
    directory = written(tmp_path, 100)
    assert directory._whole_sync is not None
    directory._whole_sync.close()
    directory._whole_sync = None
    directory.close()
    assert len({path.parent for path in forced}) == 100


def test_proc_is_no_file_system_that_reports() -> None:
    assert WholeSync.open(Path("/proc")) is None
    assert WholeSync.open(Path("/nowhere")) is None


@pytest.mark.parametrize(
    ("release", "reports"),
    [("5.7.19", False), ("4.19.0-26-amd64", False), ("5.8.0", True), ("6.1.0-13-amd64", True), ("x", False)],
)
def test_kernels_report_since_5_8(release: str, reports: bool) -> None:
    assert _kernel_reports(release) is reports


def test_no_descriptor_is_left_open_by_a_close(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    written(tmp_path, 3).close()
    assert len(os.listdir("/proc/self/fd")) == before
