"""A new log has no segment files before its first batch; whoever finds it like that finds an empty log."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from uuid import UUID

import pytest

from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.errors import DiskFull
from appliance.log.config import LogSettings
from appliance.log.future_log import FutureLog
from appliance.log.log_directories import LogDirectories
from appliance.log.log_directory import LogDirectory
from appliance.log.partition_log import PartitionLog
from appliance.log.partition_metadata import read_topic_id, write_topic_id
from appliance.log.shares import FOLLOWERS, LEADERS, WHOLE, Share
from tests.log.batches import NOW_MS, batch_of, crash, open_log, read_all
from tests.log.test_full_disk import files_at_most

FIRST = "00000000000000000000"
FILES = {FIRST + suffix for suffix in (".log", ".index", ".timeindex")}
ORDERS = TopicPartition("orders", 0)
TOPIC_ID = UUID(int=0x1234)


def segment_files(directory: Path) -> set[str]:
    return {name for name in os.listdir(directory) if name[0].isdigit()}


def half(path: Path, which: Share) -> LogDirectory:
    return LogDirectory.open(path, node_id=0, cluster_id="c", clock=ManualClock(NOW_MS), share=which)


def test_the_first_batch_brings_the_files(tmp_path: Path) -> None:
    log = open_log(tmp_path / "a-0")
    assert segment_files(log.directory) == set()
    log.check()
    log.append(batch_of(), leader_epoch=0)
    assert segment_files(log.directory) == FILES
    log.check()


def test_the_first_batch_of_a_new_log_opens_each_of_its_files_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = half(tmp_path, WHOLE).open_partition(ORDERS, TOPIC_ID, LogSettings(), is_absent=True)
    made, opened = os.open, list[str]()

    def counted(path: Path, *arguments: int) -> int:
        opened.append(os.path.basename(path))
        return made(path, *arguments)

    with monkeypatch.context() as counting:
        counting.setattr(os, "open", counted)
        log.append(batch_of(), leader_epoch=0)
    assert sorted(opened) == sorted({*FILES, "partition.metadata.tmp"})
    assert read_topic_id(log.directory) == TOPIC_ID
    log.check()


def test_a_directory_that_was_not_expected_keeps_the_topic_id_that_it_says(tmp_path: Path) -> None:
    other = UUID(int=0x5678)
    (tmp_path / "orders-0").mkdir()
    write_topic_id(tmp_path / "orders-0", other)
    log = half(tmp_path, WHOLE).open_partition(ORDERS, TOPIC_ID, LogSettings(), is_absent=True)
    log.append(batch_of(), leader_epoch=0)
    assert read_topic_id(log.directory) == other


def test_the_first_copied_batch_brings_them_too(tmp_path: Path) -> None:
    log = open_log(tmp_path / "a-0")
    log.append_as_follower(batch_of(leader_epoch=3), segment_base_offset=0)
    assert segment_files(log.directory) == FILES
    log.check()


@pytest.mark.parametrize("clean", [True, False])
def test_an_empty_log_is_closed_and_opened_without_any(tmp_path: Path, *, clean: bool) -> None:
    log = open_log(tmp_path / "a-0")
    log.flush()
    log.release()
    log.close(clean=clean)
    assert segment_files(log.directory) == set()
    again = open_log(tmp_path / "a-0", clean=clean)
    assert (again.log_start_offset, again.log_end_offset, again.size_bytes) == (0, 0, 0)
    assert segment_files(log.directory) == set()
    again.append(batch_of([b"first"]), leader_epoch=1)
    assert [record.value for record in read_all(again)] == [b"first"]
    again.check()


@pytest.mark.parametrize("there", [(".log",), (".log", ".index"), (".log", ".index", ".timeindex")])
def test_who_dies_between_two_of_them_leaves_an_empty_log(tmp_path: Path, there: tuple[str, ...]) -> None:
    log = open_log(tmp_path / "a-0")
    crash(log)
    for suffix in there:
        (log.directory / (FIRST + suffix)).touch()
    again = open_log(tmp_path / "a-0")
    assert again.log_end_offset == 0
    again.append(batch_of(), leader_epoch=0)
    assert segment_files(log.directory) == FILES
    again.check()


def test_a_disk_that_has_no_room_for_them_refuses_the_batch_and_takes_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path / "a-0")
    made = os.open

    def no_room(path: Path, *arguments: int) -> int:
        if str(path).endswith(".timeindex"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return made(path, *arguments)

    with monkeypatch.context() as full:
        full.setattr(os, "open", no_room)
        with pytest.raises(DiskFull):
            log.append(batch_of(), leader_epoch=0)
    assert segment_files(log.directory) == set()
    with files_at_most(10), pytest.raises(DiskFull):
        log.append(batch_of(), leader_epoch=0)
    assert log.append(batch_of(), leader_epoch=0).base_offset == 0
    log.check()
    crash(log)
    assert open_log(tmp_path / "a-0").log_end_offset == 1


def test_a_copy_that_begins_later_than_its_leader_has_the_empty_segment_too(tmp_path: Path) -> None:
    log = open_log(tmp_path / "a-0")
    log.append_as_follower(batch_of(leader_epoch=0, base_offset=40), segment_base_offset=40)
    assert segment_files(log.directory) >= FILES
    crash(log)
    again = open_log(tmp_path / "a-0")
    assert (again.first_base_offset, again.log_end_offset) == (0, 41)


def test_a_log_that_begins_beyond_0_says_so_by_a_file(tmp_path: Path) -> None:
    log = open_log(tmp_path / "a-0")
    log.start_anew_at(17)
    crash(log)
    again = open_log(tmp_path / "a-0")
    assert (again.log_start_offset, again.log_end_offset) == (17, 17)
    begun = PartitionLog.open(
        tmp_path / "b-0", settings=LogSettings(), clock=ManualClock(NOW_MS), log_start=23
    )
    assert segment_files(begun.directory) == {name.replace(FIRST, f"{23:020d}") for name in FILES}


def test_an_empty_log_is_handed_over_without_a_word(tmp_path: Path) -> None:
    followers, leaders = half(tmp_path, FOLLOWERS), half(tmp_path, LEADERS)
    directory = followers.open_partition(ORDERS, TOPIC_ID, LogSettings()).directory
    followers.hand_over(ORDERS)
    assert os.listdir(directory) == []
    opened = leaders.open_partition(ORDERS, TOPIC_ID, LogSettings(), closed=True)
    opened.append(batch_of(producer_id=7, producer_epoch=0, base_sequence=0), leader_epoch=1)
    leaders.hand_over(ORDERS)
    back = followers.open_partition(ORDERS, TOPIC_ID, LogSettings(), closed=True)
    assert back.log_end_offset == 1
    back.check()


def test_an_empty_log_moves_and_gets_its_files_in_the_new_place(tmp_path: Path) -> None:
    paths = (tmp_path / "a", tmp_path / "b")
    directories = LogDirectories.open(paths, node_id=0, cluster_id="c", clock=ManualClock(NOW_MS))
    log = directories.open_partition(ORDERS, TOPIC_ID, LogSettings())
    directories.begin_move(ORDERS, 1)
    future = FutureLog(log, directories.futures[ORDERS][1])
    while (piece := future.next_slice()) is not None:
        piece.run()
        future.copied(piece)
    directories.expect(ORDERS, recovery_point=future.forced_to)()
    future.copy_rest()
    directories.swap_in(ORDERS, recovery_point=future.forced_to).run()
    assert log.directory == paths[1] / "orders-0"
    log.append(batch_of(), leader_epoch=0)
    assert segment_files(log.directory) == FILES
    log.check()
    directories.abandon()


def test_the_topic_id_is_there_before_the_first_segment_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = half(tmp_path, WHOLE)
    log = directory.open_partition(ORDERS, TOPIC_ID, LogSettings())
    assert os.listdir(log.directory) == []
    found = []
    made = os.open

    def look(path: Path, *arguments: int) -> int:
        if str(path).endswith(".log"):
            found.append(read_topic_id(log.directory))
        return made(path, *arguments)

    with monkeypatch.context() as looking:
        looking.setattr(os, "open", look)
        log.append(batch_of(), leader_epoch=0)
    assert found[0] == TOPIC_ID
    directory.abandon()


def test_an_empty_directory_that_another_topic_left_is_whoever_s_comes_next(tmp_path: Path) -> None:
    directory = half(tmp_path, WHOLE)
    directory.open_partition(ORDERS, TOPIC_ID, LogSettings())
    directory.abandon()
    directory = half(tmp_path, WHOLE)
    other = UUID(int=0x5678)
    log = directory.open_partition(ORDERS, other, LogSettings())
    assert not directory.delete_partition(ORDERS, TOPIC_ID), "that topic is not this one"
    log.append(batch_of(), leader_epoch=0)
    assert read_topic_id(log.directory) == other
    log.start_anew_at(0)
    log.check()
    directory.abandon()
    assert [path.name for path in tmp_path.glob("*-*")] == ["orders-0"], "nothing was set aside"


def test_an_epoch_without_records_is_not_written(tmp_path: Path) -> None:
    log = open_log(tmp_path / "a-0")
    log.assign_epoch(4, 0)
    log.write_due_epochs()
    assert os.listdir(log.directory) == []
    log.append(batch_of(), leader_epoch=4)
    log.write_due_epochs()
    assert (log.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n4 0\n"


def test_an_epoch_with_records_is_written_though_the_latest_has_none(tmp_path: Path) -> None:
    log = open_log(tmp_path / "a-0")
    log.append_as_follower(batch_of(leader_epoch=4), segment_base_offset=0)
    log.leader_epochs.follow(5, log.log_end_offset)  # and its first batch found no room
    log.write_due_epochs()
    assert "4 0\n" in (log.directory / "leader-epoch-checkpoint").read_text()
