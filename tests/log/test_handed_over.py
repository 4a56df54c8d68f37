"""A log goes from one process of a slot to the other: nothing that a producer may send again is forgotten."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.log.config import LogSettings
from appliance.log.log_directory import LogDirectory
from appliance.log.producer_recall import LOOK_BACK_BYTES
from appliance.log.segment_file import SMALL_BATCH_BYTES
from appliance.log.shares import FOLLOWERS, LEADERS, WHOLE, Share
from tests.log.batches import NOW_MS, batch_of

PARTITION = TopicPartition("t", 0)
TOPIC_ID = uuid4()


def half(path: Path, which: Share) -> LogDirectory:
    return LogDirectory.open(path, node_id=0, cluster_id="c", clock=ManualClock(NOW_MS), share=which)


def sequence(number: int) -> memoryview:
    return batch_of(producer_id=7, producer_epoch=0, base_sequence=number)


def test_a_producer_s_last_five_batches_are_known_to_the_next_process(tmp_path: Path) -> None:
    followers, leaders = half(tmp_path, FOLLOWERS), half(tmp_path, LEADERS)
    log = followers.open_partition(PARTITION, TOPIC_ID, LogSettings())
    for number in range(7):
        log.append(sequence(number), leader_epoch=0)
    followers.hand_over(PARTITION)
    opened = leaders.open_partition(PARTITION, TOPIC_ID, LogSettings(), closed=True)
    assert opened.log_end_offset == 7
    for number in range(2, 7):
        again = opened.append(sequence(number), leader_epoch=1)
        assert (again.duplicate, again.base_offset) == (True, number)
    assert opened.append(sequence(7), leader_epoch=1).base_offset == 7
    opened.check()


def test_the_next_process_goes_on_in_the_room_that_the_last_one_took(tmp_path: Path) -> None:
    followers, leaders = half(tmp_path, FOLLOWERS), half(tmp_path, LEADERS)
    settings = LogSettings(index_interval_bytes=200)
    log = followers.open_partition(PARTITION, TOPIC_ID, settings)
    for number in range(20):
        log.append(sequence(number), leader_epoch=0)
    before = log.statistics()
    files = {path.name: path.stat() for path in log.directory.iterdir()}
    followers.hand_over(PARTITION)
    opened = leaders.open_partition(PARTITION, TOPIC_ID, settings, closed=True)
    opened.check()
    opened.append(sequence(20), leader_epoch=0)
    assert opened.log_end_offset == 21
    for name, known in files.items():
        now = (log.directory / name).stat()
        assert (now.st_ino, now.st_size) == (known.st_ino, known.st_size), name
    assert opened.statistics().allocated_bytes == before.allocated_bytes
    opened.release()
    opened.check()
    assert opened.statistics().allocated_bytes == opened.statistics().size_bytes


def test_the_first_batch_that_the_next_process_copies_may_be_a_large_one(tmp_path: Path) -> None:
    leaders, followers = half(tmp_path, LEADERS), half(tmp_path, FOLLOWERS)
    leaders.open_partition(PARTITION, TOPIC_ID, LogSettings()).append(batch_of(), leader_epoch=0)
    leaders.hand_over(PARTITION)
    opened = followers.open_partition(PARTITION, TOPIC_ID, LogSettings(), closed=True)
    large = batch_of([bytes(2 * SMALL_BATCH_BYTES)], base_offset=1, leader_epoch=0)
    opened.append_as_follower(large, segment_base_offset=0)
    assert opened.log_end_offset == 2
    opened.check()


def test_what_was_handed_over_is_believed_only_where_the_files_can_hold_it(tmp_path: Path) -> None:
    followers, leaders = half(tmp_path, FOLLOWERS), half(tmp_path, LEADERS)
    log = followers.open_partition(PARTITION, TOPIC_ID, LogSettings())
    for number in range(3):
        log.append(sequence(number), leader_epoch=0)
    followers.hand_over(PARTITION)
    segment = log.directory / "00000000000000000000.log"
    segment.write_bytes(segment.read_bytes()[: log.size_bytes - 1])
    opened = leaders.open_partition(PARTITION, TOPIC_ID, LogSettings(), closed=True)
    assert opened.log_end_offset == 2
    opened.check()


def test_an_epoch_whose_file_is_due_is_known_to_the_next_process(tmp_path: Path) -> None:
    followers, leaders = half(tmp_path, FOLLOWERS), half(tmp_path, LEADERS)
    log = followers.open_partition(PARTITION, TOPIC_ID, LogSettings())
    for number in range(5):
        log.append(sequence(number), leader_epoch=number)
    assert log.leader_epochs.is_due
    followers.hand_over(PARTITION)
    opened = leaders.open_partition(PARTITION, TOPIC_ID, LogSettings(), closed=True)
    assert opened.leader_epochs.entries() == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]


def test_what_was_not_forced_to_the_disk_stays_to_be_recovered_after_a_power_cut(tmp_path: Path) -> None:
    followers, leaders = half(tmp_path, FOLLOWERS), half(tmp_path, LEADERS)
    followers.open_partition(PARTITION, TOPIC_ID, LogSettings()).append(sequence(0), leader_epoch=0)
    followers.hand_over(PARTITION)
    opened = leaders.open_partition(PARTITION, TOPIC_ID, LogSettings(), closed=True)
    assert opened.recovery_point == 0
    leaders.flush_task()()
    assert opened.recovery_point == 1


def test_checkpoints_of_both_halves_stand_side_by_side(tmp_path: Path) -> None:
    followers, leaders = half(tmp_path, FOLLOWERS), half(tmp_path, LEADERS)
    other = TopicPartition("u", 3)
    followers.open_partition(PARTITION, TOPIC_ID, LogSettings())
    leaders.open_partition(other, uuid4(), LogSettings())
    followers.write_checkpoints({PARTITION: 5})
    leaders.write_checkpoints({other: 6})
    followers.write_checkpoints({PARTITION: 7})
    assert leaders.checkpoints.high_watermark(other) == 0
    leaders.close({other: 6})
    followers.close({PARTITION: 7})
    text = (tmp_path / "replication-offset-checkpoint").read_text()
    assert text == "0\n2\nt 0 7\nu 3 6\n"


def test_a_directory_is_clean_only_when_both_halves_have_closed(tmp_path: Path) -> None:
    followers, leaders = half(tmp_path, FOLLOWERS), half(tmp_path, LEADERS)
    followers.open_partition(PARTITION, TOPIC_ID, LogSettings())
    leaders.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    leaders = half(tmp_path, LEADERS)
    followers.close()
    leaders.close()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_deleted_partition_s_lines_leave_the_checkpoints_for_its_successor(tmp_path: Path) -> None:
    followers, leaders = half(tmp_path, FOLLOWERS), half(tmp_path, LEADERS)
    followers.open_partition(PARTITION, TOPIC_ID, LogSettings()).append(sequence(0), leader_epoch=0)
    followers.write_checkpoints({PARTITION: 1})
    followers.delete_partition(PARTITION, TOPIC_ID)
    successor = leaders.open_partition(PARTITION, uuid4(), LogSettings())
    assert (successor.recovery_point, leaders.checkpoints.high_watermark(PARTITION)) == (0, 0)


def test_a_producer_s_last_five_batches_are_known_after_a_stop_and_a_start(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=600)
    whole = half(tmp_path, WHOLE)
    log = whole.open_partition(PARTITION, TOPIC_ID, settings)
    for number in range(40):
        log.append(sequence(number), leader_epoch=0)
        log.append(batch_of([b"of nobody" * 10]), leader_epoch=0)
    whole.close()
    opened = half(tmp_path, WHOLE).open_partition(PARTITION, TOPIC_ID, LogSettings())
    for number in range(37, 40):
        assert opened.append(sequence(number), leader_epoch=0).duplicate
    assert opened.append(sequence(40), leader_epoch=0).base_offset == 80


def test_large_ones_are_known_too(tmp_path: Path) -> None:
    whole = half(tmp_path, WHOLE)
    log = whole.open_partition(PARTITION, TOPIC_ID, LogSettings())
    value = bytes(LOOK_BACK_BYTES)
    large = [batch_of([value], producer_id=7, producer_epoch=0, base_sequence=number) for number in range(9)]
    for batch in large:
        log.append(batch, leader_epoch=0)
    whole.close()
    opened = half(tmp_path, WHOLE).open_partition(PARTITION, TOPIC_ID, LogSettings())
    assert all(opened.append(batch, leader_epoch=0).duplicate for batch in large[4:])
    opened.release()


def test_they_are_known_after_a_cut(tmp_path: Path) -> None:
    log = half(tmp_path, WHOLE).open_partition(PARTITION, TOPIC_ID, LogSettings())
    for number in range(10):
        log.append(sequence(number), leader_epoch=0)
        if number == 5:
            log.roll()
    log.truncate_to(7)
    for number in range(2, 7):
        assert log.append(sequence(number), leader_epoch=0).duplicate
