"""A scan whose directory goes away under it: it follows the partition, or reads another slot's copy, or fails."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.log.partition_state import StateFile
from appliance.protocol.records.record import Record, decode_records
from spark_connector import scan, storage
from spark_connector.directory import Directories
from spark_connector.errors import ConnectorError
from spark_connector.lease import LeaseRef, take_lease
from spark_connector.planning import OffsetRange, ScanRange, plan
from tests.log.batches import NOW_MS, batch_of, read_all
from tests.spark.logs import SMALL_SEGMENTS, make_log, publish

OTHER_SEGMENTS = LogSettings(segment_bytes=2000, index_interval_bytes=300)
BATCHES = 60


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "PAUSES_S", (0.001, 0.001, 0.001))


def copy_of(
    slot: Path,
    *,
    leads: bool = False,
    epoch: int = 3,
    batches: int = BATCHES,
    settings: LogSettings = OTHER_SEGMENTS,
) -> PartitionLog:
    """A slot's copy of `orders-0`; all copies of as many batches of one epoch hold the same."""
    log, state_file = make_log(slot, settings=settings)
    for number in range(batches):
        log.append(
            batch_of([b"%d of epoch %d" % (number, epoch)] * 3, timestamp_ms=NOW_MS), leader_epoch=epoch
        )
    publish(log, state_file, leads=leads, leader_epoch=epoch)
    return log


def planned(home: Path, *, lease: LeaseRef | None = None) -> ScanRange:
    """The one task that reads all of it, from the leader's copy in slot-0."""
    view = Directories([home]).partition("orders", 0)
    wanted = OffsetRange("orders", 0, view.log_start_offset, view.high_watermark)
    (task,) = plan([view], [wanted], lease=lease)
    assert Path(task.directory) == home / "slot-0" / "orders-0"
    return task


def records(task: ScanRange) -> Iterator[list[Record]]:
    """As they come, a buffer at a time."""
    for chunk in scan.scan(task, buffer_bytes=4096):
        found: list[Record] = []
        for batch in chunk.batches:
            at, length_bytes = int(batch["position"]), int(batch["length_bytes"])
            found += decode_records(bytes(chunk.data.data[at : at + length_bytes]))
        yield [each for each in found if chunk.start <= each.offset < chunk.end]


def test_the_rest_is_read_from_another_slots_copy(tmp_path: Path) -> None:
    log = copy_of(tmp_path / "slot-0", leads=True, settings=SMALL_SEGMENTS)
    copy_of(tmp_path / "slot-1")
    reading = records(planned(tmp_path))
    found = next(reading)
    expected = read_all(log)
    shutil.rmtree(tmp_path / "slot-0" / "orders-0")
    assert len(found) < len(expected)
    for more in reading:
        found += more
    assert found == expected


def test_a_slot_whose_disk_is_gone_is_done_without(tmp_path: Path) -> None:
    log = copy_of(tmp_path / "slot-0", leads=True)
    copy_of(tmp_path / "slot-1")
    task, expected = planned(tmp_path), read_all(log)
    shutil.rmtree(tmp_path / "slot-0")
    assert [each for found in records(task) for each in found] == expected


def test_a_slot_whose_disk_fails_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = copy_of(tmp_path / "slot-0", leads=True, settings=SMALL_SEGMENTS)
    copy_of(tmp_path / "slot-1", settings=SMALL_SEGMENTS)
    reading = records(planned(tmp_path))
    found = next(reading)
    device = {os.stat(path).st_ino for path in (tmp_path / "slot-0" / "orders-0").iterdir()}
    works = storage.LocalFile.read_into

    def fails(file: storage.LocalFile, view: memoryview, position: int) -> int:
        if file.identity[1] in device:
            raise OSError(errno.EIO, "Input/output error")
        return works(file, view, position)

    monkeypatch.setattr(storage.LocalFile, "read_into", fails)
    for more in reading:
        found += more
    assert found == read_all(log)


def test_a_disk_that_fails_is_told_where_there_is_no_other_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_of(tmp_path / "slot-0", leads=True)
    task = planned(tmp_path)

    def fails(file: storage.LocalFile, view: memoryview, position: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(storage.LocalFile, "read_into", fails)
    with pytest.raises(OSError, match="Input/output"):
        list(records(task))


@pytest.mark.parametrize(
    ("epoch", "batches"), [(3, BATCHES - 1), (2, BATCHES), (4, BATCHES)], ids=["short", "older", "newer"]
)
def test_a_copy_that_is_not_known_to_hold_the_same_is_not_read(
    tmp_path: Path, epoch: int, batches: int
) -> None:
    copy_of(tmp_path / "slot-0", leads=True)
    (tmp_path / "slot-1").mkdir()
    (tmp_path / "slot-1" / "meta.properties").write_text("version=1\n")
    task = planned(tmp_path)
    copy_of(tmp_path / "slot-1", leads=True, epoch=epoch, batches=batches)
    shutil.rmtree(tmp_path / "slot-0" / "orders-0")
    with pytest.raises(ConnectorError, match="not known to hold the same records"):
        list(records(task))


def test_a_partition_that_moved_to_another_directory_is_followed_under_a_lease(tmp_path: Path) -> None:
    log = copy_of(tmp_path / "slot-0", leads=True)
    (tmp_path / "slot-1").mkdir()
    (tmp_path / "slot-1" / "meta.properties").write_text("version=1\n")
    lease = take_lease([(Directories([tmp_path]).partition("orders", 0), 0)], owner="tests")
    task, expected = planned(tmp_path, lease=lease.ref), read_all(log)
    lease.release()
    shutil.copytree(tmp_path / "slot-0" / "orders-0", tmp_path / "slot-1" / "orders-0")
    shutil.rmtree(tmp_path / "slot-0" / "orders-0")
    assert [each for found in records(task) for each in found] == expected
    assert [path.stem for path in tmp_path.glob("slot-1/orders-0/.readers/*.lease")] == [lease.ref.id]


def test_a_copy_that_was_deleted_is_read_to_its_end_beside_a_later_one_of_its_name(tmp_path: Path) -> None:
    log = copy_of(tmp_path / "slot-0", leads=True)
    task, expected = planned(tmp_path), read_all(log)
    log.directory.rename(tmp_path / "slot-0" / f"orders-0.{'0' * 32}-delete")
    copy_of(tmp_path / "slot-0", leads=True, batches=BATCHES + 1)
    (later,) = Directories([tmp_path]).partitions("orders")
    state_file = StateFile(Path(later.directory), UUID(int=1))
    state = state_file.known()
    assert state is not None
    state_file.publish(replace(state, log_end=0, high_watermark=0))  # of another incarnation
    assert [each for found in records(task) for each in found] == expected


def test_a_partition_that_is_nowhere_any_more_is_told(tmp_path: Path) -> None:
    copy_of(tmp_path / "slot-0", leads=True)
    task = planned(tmp_path)
    shutil.rmtree(tmp_path / "slot-0" / "orders-0")
    with pytest.raises(ConnectorError, match="directory is gone"):
        list(records(task))
