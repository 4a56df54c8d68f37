from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.errors import DataDirectoryInUse, OperatorFault
from appliance.log import file_names as names
from appliance.log.checkpoint import read_offsets
from appliance.log.config import LogSettings
from appliance.log.log_directory import LogDirectory
from appliance.log.partition_metadata import read_topic_id, write_topic_id
from tests.log.batches import NOW_MS, batch_of, read_all
from tests.log.on_disk import partitions_on_disk

ORDERS = TopicPartition("orders", 0)
TOPIC_ID = UUID(int=0x1234)


def opened(path: Path, *, node_id: int = 0, cluster_id: str = "c1") -> LogDirectory:
    return LogDirectory.open(path, node_id=node_id, cluster_id=cluster_id, clock=ManualClock(NOW_MS))


def with_records(path: Path, count: int = 5) -> LogDirectory:
    directory = opened(path)
    log = directory.open_partition(ORDERS, TOPIC_ID)
    for _ in range(count):
        log.append(batch_of(), leader_epoch=0)
    return directory


def test_a_clean_stop_is_seen_once_and_then_forgotten(tmp_path: Path) -> None:
    directory = with_records(tmp_path)
    assert not directory.was_clean
    directory.close({ORDERS: 4})
    assert (tmp_path / names.CLEAN_SHUTDOWN).read_text() == '{"version": 0, "brokerEpoch": -1}'
    directory = opened(tmp_path)
    assert directory.was_clean
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists()
    log = directory.open_partition(ORDERS, TOPIC_ID)
    assert log.log_end_offset == log.recovery_point == 5
    assert directory.checkpoints.high_watermark(ORDERS) == 4
    directory.abandon()
    assert not opened(tmp_path).was_clean


def test_an_opening_after_a_clean_stop_writes_nothing(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    empty = directory.open_partition(ORDERS, TOPIC_ID)
    empty.assign_epoch(0, 0)
    directory.close()
    folder = tmp_path / "orders-0"

    def files() -> dict[str, tuple[int, int]]:
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}

    before = files()
    directory = opened(tmp_path)
    again = directory.open_partition(ORDERS, TOPIC_ID)
    assert again.latest_epoch == -1  # nothing was written in it, as Kafka has it
    again.assign_epoch(0, 0)
    directory.close()
    assert files() == before


def test_a_crash_after_such_an_opening_tells_the_epoch_by_the_batches(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.open_partition(ORDERS, TOPIC_ID).assign_epoch(3, 0)
    directory.close()
    directory = opened(tmp_path)
    log = directory.open_partition(ORDERS, TOPIC_ID)
    log.append(batch_of(), leader_epoch=5)
    directory.abandon()
    log = opened(tmp_path).open_partition(ORDERS, TOPIC_ID)
    assert log.leader_epochs.entries() == [(5, 0)]


def test_everything_is_there_after_the_death_of_the_process(tmp_path: Path) -> None:
    with_records(tmp_path).abandon()
    directory = opened(tmp_path)
    log = directory.open_partition(ORDERS, TOPIC_ID)
    assert len(read_all(log)) == 5
    directory.check()
    directory.close()


def test_a_second_instance_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(DataDirectoryInUse, match="another instance"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_apache_kafka_is_kept_out_as_well(tmp_path: Path) -> None:
    """Java takes a POSIX lock, which an flock does not stand in the way of."""
    directory = opened(tmp_path)
    program = f"import fcntl; fcntl.lockf(open({str(tmp_path / names.LOCK)!r}, 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    assert (
        b"BlockingIOError"
        in subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).stderr
    )
    directory.close()
    subprocess.run([sys.executable, "-c", program], check=True)


def test_another_process_is_refused_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from appliance.clock import SystemClock\n"
        "from appliance.log.log_directory import LogDirectory\n"
        "held = LogDirectory.open(pathlib.Path(sys.argv[1]), node_id=0, cluster_id='c1', clock=SystemClock())\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DataDirectoryInUse):
            opened(tmp_path)
        holder.kill()
    opened(tmp_path).close()


@pytest.mark.parametrize(("node_id", "cluster_id"), [(1, "c1"), (0, "c2")])
def test_a_foreign_directory_is_refused_and_its_lock_given_back(
    tmp_path: Path, node_id: int, cluster_id: str
) -> None:
    opened(tmp_path).close()
    with pytest.raises(OperatorFault, match="belongs to node 0 of cluster c1"):
        opened(tmp_path, node_id=node_id, cluster_id=cluster_id)
    opened(tmp_path).close()


def test_partitions_on_disk_are_listed_with_their_topic_ids(tmp_path: Path) -> None:
    directory = with_records(tmp_path)
    log = directory.open_partition(TopicPartition("with-dash", 3), UUID(int=7))
    assert partitions_on_disk(tmp_path) == {ORDERS: TOPIC_ID, TopicPartition("with-dash", 3): None}
    log.append(batch_of(), leader_epoch=0)
    assert partitions_on_disk(tmp_path) == {ORDERS: TOPIC_ID, TopicPartition("with-dash", 3): UUID(int=7)}
    directory.close()


def test_opening_twice_gives_the_same_log_with_new_settings(tmp_path: Path) -> None:
    directory = with_records(tmp_path)
    log = directory.open_partition(ORDERS, TOPIC_ID, LogSettings(segment_bytes=5000))
    assert log is directory.partitions[ORDERS]
    assert log.settings.segment_bytes == 5000
    directory.close()


def test_a_deleted_partition_is_renamed_then_removed(tmp_path: Path) -> None:
    directory = with_records(tmp_path)
    assert directory.delete_partition(ORDERS)
    assert partitions_on_disk(tmp_path) == {}
    assert [name for name in os.listdir(tmp_path) if name.endswith("-delete")]
    log = directory.open_partition(ORDERS, uuid4())
    assert log.log_end_offset == 0, "a topic made again begins anew"
    assert directory.remove_deleted() == 1
    assert not [name for name in os.listdir(tmp_path) if name.endswith("-delete")]
    assert not directory.delete_partition(TopicPartition("none", 0))
    directory.close()


def test_only_the_named_topics_partition_is_deleted(tmp_path: Path) -> None:
    directory = with_records(tmp_path)
    assert not directory.delete_partition(ORDERS, UUID(int=99))
    assert directory.partitions[ORDERS].log_end_offset == 5
    assert directory.delete_partition(ORDERS, TOPIC_ID)
    directory.close()


def test_a_late_removal_spares_what_another_process_made_of_the_name(tmp_path: Path) -> None:
    late = with_records(tmp_path)
    place = late.partitions[ORDERS].directory
    place.rename(place.with_name("set-aside"))
    place.mkdir()
    write_topic_id(place, UUID(int=99))
    assert not late.delete_partition(ORDERS, TOPIC_ID)
    assert read_topic_id(place) == UUID(int=99)


def test_files_of_another_topic_id_are_set_aside_and_not_served(tmp_path: Path) -> None:
    with_records(tmp_path).close()
    directory = opened(tmp_path)
    log = directory.open_partition(ORDERS, UUID(int=99))
    assert log.log_end_offset == 0
    (stray,) = [name for name in os.listdir(tmp_path) if name.endswith("-stray")]
    assert (tmp_path / stray / "00000000000000000000.log").stat().st_size > 0
    directory.close()


def test_checkpoints_say_how_far_and_only_change_when_something_did(tmp_path: Path) -> None:
    directory = with_records(tmp_path)
    log = directory.partitions[ORDERS]
    directory.flush_task({ORDERS: 5})()
    assert read_offsets(tmp_path / names.RECOVERY_POINTS) == {ORDERS: 0}
    assert read_offsets(tmp_path / names.HIGH_WATERMARKS) == {ORDERS: 5}
    log.roll()
    directory.flush_task({ORDERS: 5})()
    assert read_offsets(tmp_path / names.RECOVERY_POINTS) == {ORDERS: 5}
    before = (tmp_path / names.RECOVERY_POINTS).stat().st_ino
    directory.flush_task({ORDERS: 5})()
    assert (tmp_path / names.RECOVERY_POINTS).stat().st_ino == before
    directory.close()


def test_partitions_that_were_not_opened_keep_their_checkpoints(tmp_path: Path) -> None:
    with_records(tmp_path).close({ORDERS: 3})
    directory = opened(tmp_path)
    directory.open_partition(TopicPartition("other", 0), UUID(int=5)).append(batch_of(), leader_epoch=0)
    directory.write_checkpoints({TopicPartition("other", 0): 1})
    assert read_offsets(tmp_path / names.HIGH_WATERMARKS) == {ORDERS: 3, TopicPartition("other", 0): 1}
    assert read_offsets(tmp_path / names.RECOVERY_POINTS)[ORDERS] == 5
    directory.close()


def test_a_partition_never_opened_after_a_crash_is_not_called_clean(tmp_path: Path) -> None:
    with_records(tmp_path).abandon()
    opened(tmp_path).close()
    assert not opened(tmp_path).was_clean


def test_a_damaged_checkpoint_costs_time_and_nothing_else(tmp_path: Path) -> None:
    with_records(tmp_path).close({ORDERS: 5})
    for name in (names.RECOVERY_POINTS, names.HIGH_WATERMARKS, names.LOG_STARTS):
        (tmp_path / name).write_text("nonsense")
    directory = opened(tmp_path)
    assert len(read_all(directory.open_partition(ORDERS, TOPIC_ID))) == 5
    directory.close({ORDERS: 5})
    assert read_offsets(tmp_path / names.HIGH_WATERMARKS) == {ORDERS: 5}


@pytest.mark.slow
def test_a_thousand_partitions_open_quickly_and_hold_no_descriptor(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    partitions = [TopicPartition("many", number) for number in range(1000)]
    for partition in partitions:
        directory.open_partition(partition, TOPIC_ID).append(batch_of([b"v" * 500] * 10), leader_epoch=0)
    directory.release_idle()
    directory.close(dict.fromkeys(partitions, 10))
    directory = opened(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    started = time.thread_time()
    for partition in partitions:
        directory.open_partition(partition, TOPIC_ID)
    spent_s = time.thread_time() - started
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(log.log_end_offset == 10 for log in directory.partitions.values())
    assert spent_s < 2.0
    directory.close()
