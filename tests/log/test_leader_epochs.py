from __future__ import annotations

from pathlib import Path

import pytest

from appliance.errors import CorruptFile
from appliance.log.file_names import LEADER_EPOCHS
from appliance.log.leader_epochs import LeaderEpochs
from appliance.log.partition_log import PartitionLog
from tests.log.batches import batch_of, crash, open_log

HISTORY = [(1, 0), (3, 40), (4, 120)]


def epochs(directory: Path, entries: list[tuple[int, int]] | None = None) -> LeaderEpochs:
    cache = LeaderEpochs.empty(directory)
    for epoch, start in HISTORY if entries is None else entries:
        cache.assign(epoch, start)
    return cache


def test_the_file_has_kafkas_text_and_comes_back(tmp_path: Path) -> None:
    epochs(tmp_path)
    assert (tmp_path / LEADER_EPOCHS).read_text() == "0\n3\n1 0\n3 40\n4 120\n"
    again = LeaderEpochs.load(tmp_path)
    assert again.entries() == HISTORY
    assert again.latest == 4


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(-1, (-1, -1)), (0, (0, 0)), (1, (1, 40)), (2, (1, 40)), (3, (3, 120)), (4, (4, 200)), (5, (-1, -1))],
)
def test_end_offsets_are_those_of_kip_279(tmp_path: Path, asked: int, answer: tuple[int, int]) -> None:
    assert epochs(tmp_path).end_offset(asked, log_end_offset=200) == answer


def test_without_epochs_nothing_is_known(tmp_path: Path) -> None:
    cache = epochs(tmp_path, [])
    assert cache.end_offset(0, log_end_offset=9) == (-1, -1)
    assert cache.latest == -1
    assert cache.epoch_of(5) == -1


@pytest.mark.parametrize(("offset", "epoch"), [(0, 1), (39, 1), (40, 3), (119, 3), (120, 4), (9999, 4)])
def test_an_offset_was_written_in_the_epoch_it_lies_in(tmp_path: Path, offset: int, epoch: int) -> None:
    assert epochs(tmp_path).epoch_of(offset) == epoch


@pytest.mark.parametrize(
    ("epoch", "start", "left"),
    [
        (4, 150, HISTORY),
        (5, 130, [*HISTORY, (5, 130)]),
        (5, 120, [(1, 0), (3, 40), (5, 120)]),
        (5, 40, [(1, 0), (5, 40)]),
        (2, 200, [(1, 0), (2, 200)]),
        (4, 50, [(1, 0), (3, 40), (4, 50)]),
    ],
)
def test_a_new_epoch_drops_what_it_contradicts(
    tmp_path: Path, epoch: int, start: int, left: list[tuple[int, int]]
) -> None:
    cache = epochs(tmp_path)
    cache.assign(epoch, start)
    cache.check()
    assert cache.entries() == left
    assert LeaderEpochs.load(tmp_path).entries() == left


def test_truncating_the_end_forgets_later_epochs(tmp_path: Path) -> None:
    cache = epochs(tmp_path)
    cache.truncate_from_end(120)
    assert cache.entries() == [(1, 0), (3, 40)]
    assert cache.latest == 3
    assert LeaderEpochs.load(tmp_path).entries() == [(1, 0), (3, 40)]
    cache.truncate_from_end(0)
    assert cache.latest == -1


def test_truncating_the_start_moves_the_epoch_it_lies_in(tmp_path: Path) -> None:
    cache = epochs(tmp_path)
    cache.truncate_from_start(50)
    assert cache.entries() == [(3, 50), (4, 120)]
    cache.truncate_from_start(50)
    cache.truncate_from_start(10)
    assert LeaderEpochs.load(tmp_path).entries() == [(3, 50), (4, 120)]


@pytest.mark.parametrize("text", ["0\n1\n1\n", "0\n1\na b\n", "0\n2\n3 0\n1 5\n", "0\n2\n1 9\n2 5\n"])
def test_a_file_that_does_not_rise_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / LEADER_EPOCHS).write_text(text)
    with pytest.raises(CorruptFile):
        LeaderEpochs.load(tmp_path)


def test_the_file_lacks_the_latest_epoch_at_most(tmp_path: Path) -> None:
    cache = epochs(tmp_path)
    cache.assign(6, 150, write=False)
    assert (cache.is_due, LeaderEpochs.load(tmp_path).entries()) == (True, HISTORY)
    cache.assign(7, 160, write=False)
    assert (cache.is_due, LeaderEpochs.load(tmp_path).entries()) == (False, [*HISTORY, (6, 150), (7, 160)])


def test_the_file_has_every_epoch_below_a_recovery_point(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch in range(3):
        log.append(batch_of(), leader_epoch=epoch)
    log.append(batch_of(), leader_epoch=3)
    task = log.flush_task()
    assert LeaderEpochs.load(tmp_path).entries() == [(0, 0), (1, 1), (2, 2), (3, 3)]
    task.run()
    log.append(batch_of(), leader_epoch=4)
    crash(log)
    again = open_log(tmp_path, recovery_point=log.recovery_point)
    assert again.leader_epochs.entries() == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]


def followed(tmp_path: Path) -> PartitionLog:
    """A follower's log of four batches, each of another epoch, as they came."""
    leader = open_log(tmp_path / "leader")
    for epoch in range(4):
        leader.append(batch_of(), leader_epoch=epoch)
    leader.close(clean=True)
    log = open_log(tmp_path / "follower")
    log.append_as_follower(memoryview(leader.segment_path(0).read_bytes()))
    return log


def test_a_follower_writes_no_epoch_file_before_it_is_needed(tmp_path: Path) -> None:
    log = followed(tmp_path)
    assert log.leader_epochs.entries() == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert not (log.directory / LEADER_EPOCHS).exists()
    log.hand_over()
    assert LeaderEpochs.load(log.directory).entries() == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_a_killed_follower_finds_its_epochs_in_the_batches(tmp_path: Path) -> None:
    log = followed(tmp_path)
    crash(log)
    assert open_log(tmp_path / "follower").leader_epochs.entries() == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_a_follower_s_file_has_every_epoch_below_its_recovery_point(tmp_path: Path) -> None:
    log = followed(tmp_path)
    log.flush_task().run()
    assert LeaderEpochs.load(log.directory).entries() == [(0, 0), (1, 1), (2, 2), (3, 3)]


def written(path: Path) -> tuple[int, int, int]:
    """What every write of the file changes, and no reading does."""
    stat = path.stat()
    return (stat.st_ino, stat.st_mtime_ns, stat.st_size)


def test_an_empty_epoch_that_goes_on_costs_no_file(tmp_path: Path) -> None:
    epochs(tmp_path)
    before = written(tmp_path / LEADER_EPOCHS)
    cache = LeaderEpochs.load(tmp_path)
    assert cache.forget_empty(120)
    assert (cache.latest, cache.entries()) == (3, HISTORY[:2])
    cache.assign(4, 120, write=False)
    assert not cache.is_due
    assert written(tmp_path / LEADER_EPOCHS) == before
    assert LeaderEpochs.load(tmp_path).entries() == cache.entries() == HISTORY


def test_another_epoch_in_the_place_of_an_empty_one_is_due(tmp_path: Path) -> None:
    epochs(tmp_path)
    cache = LeaderEpochs.load(tmp_path)
    assert cache.forget_empty(120)
    cache.assign(5, 120, write=False)
    assert cache.is_due
    cache.write()
    assert LeaderEpochs.load(tmp_path).entries() == [*HISTORY[:2], (5, 120)]


@pytest.mark.parametrize("log_end", [121, 119, 40])
def test_only_an_epoch_that_begins_at_the_log_end_is_empty(tmp_path: Path, log_end: int) -> None:
    cache = epochs(tmp_path)
    assert cache.forget_empty(log_end) == (log_end > 120)
    assert cache.entries() == HISTORY
