"""Several workers share a log directory: what each finds, and what a stop of all of them is taken for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.errors import DataDirectoryInUse
from appliance.log import file_names as names
from appliance.log.checkpoint import read_offsets
from appliance.log.config import LogSettings
from appliance.log.known_directories import KnownDirectories
from appliance.log.log_directories import LogDirectories
from appliance.log.log_directory import LogDirectory
from appliance.log.shares import WHOLE, Share
from tests.log.batches import NOW_MS, batch_of, read_all

TOPIC_ID = UUID(int=8)
SETTINGS = LogSettings()


def partition(number: int) -> TopicPartition:
    return TopicPartition("t", number)


class Slot:
    """A log directory and the processes of a slot that share it; partition n belongs to worker n modulo workers."""

    def __init__(self, path: Path, workers: int, *, is_replicated: bool = False) -> None:
        self.path = path
        # As the supervisor does, before the first of them.
        self.seen_by = "this life" if self.is_marked() else ""
        self.shares = [Share(index, workers, is_replicated) for index in range(workers)]
        self.lives = [self.begin(share) for share in self.shares]

    def begin_again(self) -> None:
        """The first lives of an instance that has seen what it has seen."""
        self.lives = [self.begin(share) for share in self.shares]

    def begin(self, share: Share, *, first_life: bool = True) -> LogDirectory:
        return LogDirectory.open(
            self.path,
            node_id=0,
            cluster_id="c",
            clock=ManualClock(NOW_MS),
            share=share,
            clean_seen_by=self.seen_by if first_life else "",
        )

    def append(self, count: int, *, partitions: range) -> None:
        for number in partitions:
            log = self.lives[number % len(self.lives)].open_partition(partition(number), TOPIC_ID, SETTINGS)
            for _ in range(count):
                log.append(batch_of(), leader_epoch=0)

    def kill(self, index: int) -> None:
        """`kill -9`, and the next life of that worker."""
        self.lives[index].abandon()
        self.lives[index] = self.begin(self.shares[index], first_life=False)

    def stop(self) -> None:
        for directory in self.lives:
            directory.close({each: log.log_end_offset for each, log in directory.partitions.items()})

    def is_marked(self) -> bool:
        return (self.path / names.CLEAN_SHUTDOWN).exists()


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("before", [1, 2, 3])
def test_a_clean_stop_is_told_to_each_worker_of_the_next_life(
    tmp_path: Path, before: int, after: int
) -> None:
    slot = Slot(tmp_path, before)
    slot.append(3, partitions=range(6))
    slot.stop()
    assert slot.is_marked()
    slot = Slot(tmp_path, after)
    assert [each.was_clean for each in slot.lives] == [True] * after
    assert not slot.is_marked()
    slot.append(2, partitions=range(6))
    for number in range(6):
        log = slot.lives[number % after].partitions[partition(number)]
        assert len(read_all(log)) == 5
    slot.stop()
    assert slot.is_marked()
    assert set(read_offsets(tmp_path / names.RECOVERY_POINTS).values()) == {5}


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("before", [2, 3])
def test_a_stop_that_one_worker_does_not_live_to_see_is_no_clean_one(
    tmp_path: Path, before: int, after: int
) -> None:
    slot = Slot(tmp_path, before)
    slot.append(3, partitions=range(6))
    slot.lives.pop().abandon()
    slot.stop()
    assert not slot.is_marked()
    slot = Slot(tmp_path, after)
    assert [each.was_clean for each in slot.lives] == [False] * after
    slot.append(1, partitions=range(6))
    slot.stop()
    assert slot.is_marked()


def test_one_that_died_of_workers_that_all_began_clean_is_missed_at_the_stop(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 3)
    slot.append(3, partitions=range(6))
    slot.stop()
    slot = Slot(tmp_path, 3)
    slot.append(1, partitions=range(6))
    slot.lives.pop().abandon()
    slot.stop()
    assert not slot.is_marked()


@pytest.mark.parametrize("other", [WHOLE, Share(0, 2)])
def test_a_crash_of_another_instance_between_look_and_locks_is_no_clean_stop(
    tmp_path: Path, other: Share
) -> None:
    """Workers take the directory when the controller names their partitions, and it may have waited for its store."""
    slot = Slot(tmp_path, 2)
    slot.append(3, partitions=range(4))
    slot.stop()
    slot.seen_by = "this life"
    meanwhile = LogDirectory.open(
        tmp_path,
        node_id=0,
        cluster_id="c",
        clock=ManualClock(NOW_MS),
        share=other,
        clean_seen_by="another life",
    )
    log = meanwhile.open_partition(partition(0), TOPIC_ID, SETTINGS)
    log.append(batch_of(), leader_epoch=0)
    meanwhile.abandon()
    slot.begin_again()
    assert [each.was_clean for each in slot.lives] == [False, False]


def test_a_marker_that_kafka_has_taken_meanwhile_counts_no_more(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 2)
    slot.stop()
    slot.seen_by = "this life"
    (tmp_path / names.CLEAN_SHUTDOWN).unlink()
    slot.begin_again()
    assert [each.was_clean for each in slot.lives] == [False, False]


def test_the_next_life_of_a_worker_that_was_killed_finds_nothing_clean(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 2)
    slot.append(3, partitions=range(4))
    slot.stop()
    slot = Slot(tmp_path, 2)
    slot.kill(1)
    assert [each.was_clean for each in slot.lives] == [True, False]


def test_what_a_killed_worker_did_not_open_again_keeps_a_stop_from_being_clean(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 2)
    slot.append(3, partitions=range(4))
    slot.kill(1)
    slot.lives[1].open_partition(partition(1), TOPIC_ID, SETTINGS)
    slot.stop()
    assert not slot.is_marked()


def test_a_worker_that_recovered_all_of_its_own_closes_them_in_good_order(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 2)
    slot.append(3, partitions=range(4))
    slot.kill(1)
    slot.append(1, partitions=range(4))
    slot.stop()
    assert slot.is_marked()


def test_what_nobody_opened_in_a_clean_life_is_clean_still(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 2)
    slot.append(3, partitions=range(4))
    slot.stop()
    slot = Slot(tmp_path, 2)
    slot.append(1, partitions=range(2))
    slot.stop()
    assert slot.is_marked()


def test_a_partition_that_was_given_up_keeps_a_stop_from_being_clean(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 2)
    slot.append(3, partitions=range(4))
    slot.lives[0].give_up(partition(0))
    slot.stop()
    assert not slot.is_marked()


def test_what_one_said_at_a_stop_holds_no_more_once_another_has_opened_the_directory(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 3)
    slot.append(3, partitions=range(6))
    slot.lives.pop(0).abandon()
    slot.stop()
    # Two workers have said what they closed. The next instance has other shares, and is killed.
    slot = Slot(tmp_path, 2)
    slot.append(1, partitions=range(6))
    for directory in slot.lives:
        directory.abandon()
    # Of its successor two workers never come: what they are known to have closed is of long ago.
    slot = Slot(tmp_path, 3)
    slot.append(1, partitions=range(0, 6, 3))
    slot.lives[2].abandon()
    slot.lives[1].abandon()
    slot.lives[0].close()
    assert not slot.is_marked()


def test_the_replica_of_the_slot_has_to_have_closed_its_own_too(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 2, is_replicated=True)
    slot.append(3, partitions=range(4))
    followers = slot.begin(Share(None, 2, is_replicated=True))
    followed = followers.open_partition(partition(9), TOPIC_ID, SETTINGS)
    followed.append(batch_of(), leader_epoch=0)
    slot.stop()
    assert not slot.is_marked()
    followers.close()
    assert slot.is_marked()


def test_a_clean_stop_leaves_no_word_of_its_steps(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 3)
    slot.append(3, partitions=range(3))
    slot.stop()
    assert not list(tmp_path.glob(".closed-*"))


def test_no_file_of_the_slot_is_taken_for_a_partition(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 3, is_replicated=True)
    slot.begin(Share(None, 3, is_replicated=True)).close()
    slot.stop()
    assert [each for each in os.listdir(tmp_path) if names.parse_partition_directory_name(each)] == []


def test_a_worker_alone_removes_what_several_have_left(tmp_path: Path) -> None:
    slot = Slot(tmp_path / "slot", 2)
    slot.append(3, partitions=range(2))
    slot.lives.pop().abandon()
    slot.stop()
    shared = set(os.listdir(tmp_path / "slot"))
    assert {".lock-worker0", ".lock-worker1", ".lock-checkpoints", ".closed-worker0"} < shared
    whole = LogDirectories.open(
        [tmp_path / "slot"], node_id=0, cluster_id="c", clock=ManualClock(NOW_MS), share=WHOLE
    )
    for number in range(2):
        whole.open_partition(partition(number), TOPIC_ID, SETTINGS)
    whole.close({})
    assert {each for each in os.listdir(tmp_path / "slot") if each.startswith(".")} == {
        names.LOCK,
        names.CLEAN_SHUTDOWN,
    }


JAVAS_LOCK = "import fcntl; fcntl.lockf(open({!r}, 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
WORKER = """
import pathlib, sys
from appliance.clock import SystemClock
from appliance.errors import DataDirectoryInUse
from appliance.log.log_directory import LogDirectory
from appliance.log.shares import Share
path, share = pathlib.Path(sys.argv[1]), Share(int(sys.argv[2]), int(sys.argv[3]))
try:
    held = LogDirectory.open(path, node_id=0, cluster_id="c", clock=SystemClock(), share=share)
except DataDirectoryInUse:
    sys.exit(9)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def worker_process(path: Path, share: Share) -> Iterator[subprocess.Popen[str]]:
    """A worker that has the directory open, in a process of its own: locks of one process do not keep it out itself."""
    command = [sys.executable, "-c", WORKER, str(path), str(share.worker), str(share.workers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.stdin.close()


def test_kafka_is_kept_out_while_any_worker_lives(tmp_path: Path) -> None:
    program = JAVAS_LOCK.format(str(tmp_path / names.LOCK))

    def is_kept_out() -> bool:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
        return done.returncode != 0

    with worker_process(tmp_path, Share(1, 2)) as other:
        with worker_process(tmp_path, Share(0, 2)):
            assert is_kept_out()
        assert is_kept_out()
        other.kill()
        other.wait()
        assert not is_kept_out()


@pytest.mark.parametrize("share", [WHOLE, Share(1, 2), Share(1, 3)])
def test_another_instance_is_kept_out_while_a_worker_lives(tmp_path: Path, share: Share) -> None:
    with worker_process(tmp_path, Share(1, 2)), worker_process(tmp_path, share) as second:
        assert second.wait(30) == 9


@pytest.mark.parametrize("lock", [names.LOCK, f"{names.LOCK}-worker1"])
def test_a_directory_that_others_could_take_has_failed(tmp_path: Path, lock: str) -> None:
    """Whoever makes a lock file that was removed anew, another instance or Kafka, holds it."""
    slot = Slot(tmp_path, 2)
    (tmp_path / lock).unlink()
    assert not slot.lives[1].is_there()
    assert slot.lives[0].is_there() is (lock != names.LOCK)


def test_two_lives_of_one_worker_cannot_be(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 2)
    with pytest.raises(DataDirectoryInUse):
        slot.begin(slot.shares[0])


def test_checkpoints_of_workers_that_write_in_turn_hold_every_partition(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 3)
    slot.append(4, partitions=range(6))
    for _ in range(2):
        for directory in slot.lives:
            directory.flush_task(dict.fromkeys(directory.partitions, 4))()
    marks = read_offsets(tmp_path / names.HIGH_WATERMARKS)
    assert marks == {partition(number): 4 for number in range(6)}
    slot.kill(2)
    slot.lives[2].open_partition(partition(2), TOPIC_ID, SETTINGS)
    assert slot.lives[2].checkpoints.high_watermark(partition(2)) == 4


def test_a_partition_that_another_topic_has_replaced_is_let_go_of_at_its_deletion(tmp_path: Path) -> None:
    """Its checkpoints would be taken for the successor's."""
    slot = Slot(tmp_path, 2)
    slot.append(20, partitions=range(1))
    successor = slot.lives[1].open_partition(partition(0), UUID(int=9), SETTINGS)
    successor.append(batch_of(), leader_epoch=0)
    slot.lives[1].flush_task({partition(0): 1})()
    assert not slot.lives[0].delete_partition(partition(0), TOPIC_ID)
    assert successor.directory.is_dir()
    slot.lives[0].flush_task({partition(0): 20})()
    assert read_offsets(tmp_path / names.HIGH_WATERMARKS) == {partition(0): 1}


def test_workers_that_probe_a_directory_at_once_do_not_meet(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 2)
    (tmp_path / ".probe-worker1.tmp").mkdir()  # the one cannot, and the other can
    slot.lives[0].probe()


def test_one_worker_alone_writes_down_which_directories_are_known(tmp_path: Path) -> None:
    paths, book = [tmp_path / "a", tmp_path / "b"], tmp_path / "known"
    for index in (1, 0):
        known = KnownDirectories(book)
        LogDirectories.open(
            paths,
            node_id=0,
            cluster_id="c",
            clock=ManualClock(NOW_MS),
            known=known,
            share=Share(index, 2),
        )
        assert book.exists() is (index == 0)


def test_a_copy_on_its_way_outlives_the_start_of_another_worker(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]

    def begin(index: int) -> LogDirectories:
        return LogDirectories.open(
            paths, node_id=0, cluster_id="c", clock=ManualClock(NOW_MS), share=Share(index, 2)
        )

    mover = begin(1)
    log = mover.open_partition(partition(1), TOPIC_ID, SETTINGS)
    log.append(batch_of(), leader_epoch=0)
    future = mover.begin_move(partition(1), 1 - mover.index_of(partition(1)))
    begin(0).remove_needless()
    assert future.is_dir()


def test_workers_spread_new_partitions_over_the_directories_together(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    workers = [
        LogDirectories.open(
            paths, node_id=0, cluster_id="c", clock=ManualClock(NOW_MS), share=Share(index, 3)
        )
        for index in range(3)
    ]
    for number in range(6):
        workers[number % 3].open_partition(partition(number), TOPIC_ID, SETTINGS)
    assert [len(list(path.glob("t-*"))) for path in paths] == [2, 2, 2]


def test_what_was_handed_over_and_opened_by_nobody_keeps_a_stop_from_being_clean(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 2)
    slot.append(3, partitions=range(4))
    slot.stop()
    slot = Slot(tmp_path, 2)
    slot.append(1, partitions=range(4))
    slot.lives[0].hand_over(partition(0))
    slot.stop()
    assert not slot.is_marked()
