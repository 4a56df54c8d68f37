"""Of a log of one segment an opening takes the last process's word for what it would have read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.errors import CorruptFile, StorageFault
from appliance.log.config import LogSettings
from appliance.log.file_names import (
    LOG,
    MOVES_TO,
    OFFSET_INDEX,
    PARTITION_METADATA,
    PRODUCER_SNAPSHOT,
    segment_file_name,
)
from appliance.log.handed_over import HandedOver, decode_handed_over
from appliance.log.log_directories import LogDirectories
from appliance.log.log_directory import LogDirectory
from appliance.log.partition_log import PartitionLog
from appliance.log.partition_metadata import write_topic_id
from appliance.log.shares import FOLLOWERS, LEADERS, WHOLE, Share
from tests.log.batches import NOW_MS, batch_of

PARTITION = TopicPartition("t", 0)
TOPIC_ID = UUID(int=7)
SETTINGS = LogSettings(index_interval_bytes=200)


def half(path: Path, which: Share) -> LogDirectory:
    return LogDirectory.open(path, node_id=0, cluster_id="c", clock=ManualClock(NOW_MS), share=which)


def handed_over(
    path: Path,
    change: Callable[[PartitionLog], object],
    before: Callable[[PartitionLog], object] | None = None,
) -> HandedOver:
    """What is left of a log that was changed so; `before` a stop in good order and a start, which leave a snapshot."""
    if before is not None:
        whole = half(path, WHOLE)
        before(whole.open_partition(PARTITION, TOPIC_ID, SETTINGS))
        whole.close()
    # Only who leads believes in a clean stop; a follower looks at what it has.
    one_half = half(path, FOLLOWERS if before is None else LEADERS)
    change(one_half.open_partition(PARTITION, TOPIC_ID, SETTINGS))
    lefts: list[bytes] = []

    def leave(state: bytes) -> bool:
        lefts.append(state)
        return True

    one_half.hand_over(PARTITION, leave)
    one_half.abandon()
    left = decode_handed_over(lefts[-1])
    assert left is not None
    return left


def opened(path: Path, left: HandedOver) -> PartitionLog:
    found = left.as_found(str(path / str(PARTITION)))
    return half(path, LEADERS).open_partition(PARTITION, TOPIC_ID, SETTINGS, closed=True, left=found)


def having_looked(left: HandedOver) -> HandedOver:
    """The same, where it says nothing that the files say."""
    return replace(left, only=None, epochs=left.epochs if left.epochs_are_due else [])


def known_of(log: PartitionLog) -> list[object]:
    active = log.segments_since(log.log_end_offset)[-1]
    return [
        (log.log_start_offset, log.log_end_offset, log.latest_epoch, log.recovery_point, log.topic_id),
        log.leader_epochs.entries(),
        [(entry.producer_id, entry.epoch, list(entry.batches)) for entry in log.producers.entries()],
        log.statistics(),
        active.max_timestamp(),
        active.first_timestamp_ms,
        active.tail(),
        log.last_stable_offset,
        sorted(path.name for path in log.directory.iterdir() if path.suffix == PRODUCER_SNAPSHOT),
    ]


APPEND = st.tuples(
    st.just("append"), st.integers(0, 3), st.integers(-1, 2), st.sampled_from([1, 9, 90]), st.integers(-9, 9)
)
STEP = st.one_of(
    APPEND,
    APPEND,
    APPEND,
    st.tuples(st.just("roll")),
    st.tuples(st.just("cut"), st.integers(0, 30)),
    st.tuples(st.just("anew"), st.integers(0, 30)),
    st.tuples(st.just("start"), st.integers(0, 10)),
)


class Changes:
    """What happens to a log, the same each time; `has_one_file` says whether it was never of several segments."""

    def __init__(self, steps: list[tuple[object, ...]]) -> None:
        self.steps = steps
        self.has_one_file = True
        self._sequences = dict.fromkeys(range(-1, 3), 0)
        self._epoch = 0

    def __call__(self, log: PartitionLog) -> None:
        for name, *arguments in self.steps:
            getattr(self, f"_{name}")(log, *arguments)

    def _append(self, log: PartitionLog, epochs: int, producer_id: int, count: int, later_ms: int) -> None:
        self._epoch += epochs
        batch = batch_of(
            [b"x" * 20] * count,
            timestamp_ms=NOW_MS + later_ms,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=self._sequences[producer_id] if producer_id >= 0 else -1,
        )
        self._sequences[producer_id] += count
        log.append(batch, leader_epoch=self._epoch)

    def _roll(self, log: PartitionLog) -> None:
        self.has_one_file &= log.log_end_offset == log.active_base_offset
        log.roll()

    def _cut(self, log: PartitionLog, offset: int) -> None:
        if log.first_base_offset <= offset < log.log_end_offset:
            log.truncate_to(max(offset, log.log_start_offset))
            self._sequences = {each: self._sequences[each] + 1000 for each in self._sequences}
            self._sequences |= {
                entry.producer_id: (entry.batches[-1].last_sequence + 1) if entry.batches else 0
                for entry in log.producers.entries()
            }

    def _anew(self, log: PartitionLog, offset: int) -> None:
        log.start_anew_at(offset)
        self.has_one_file = False
        self._sequences = dict.fromkeys(range(-1, 3), 0)

    def _start(self, log: PartitionLog, offset: int) -> None:
        log.advance_start(min(offset, log.log_end_offset))


@given(st.lists(STEP, min_size=1, max_size=12), st.booleans())
@settings(max_examples=150, deadline=None)
def test_who_takes_another_s_word_knows_what_it_would_have_read(
    steps: list[tuple[object, ...]], has_restarted: bool
) -> None:
    with TemporaryDirectory() as name:
        path, copy = Path(name) / "told", Path(name) / "looked"
        changes = Changes([("append", 1, -1, 1, 0), *steps])
        left = handed_over(path, changes, appended if has_restarted else None)
        assert (left.only is not None) == changes.has_one_file
        shutil.copytree(path, copy)
        told, looked = opened(path, left), opened(copy, having_looked(left))
        assert known_of(told) == known_of(looked)
        for log in (told, looked):
            log.append(batch_of(), leader_epoch=99)
            log.roll()
            log.check()
        assert known_of(told) == known_of(looked)


def appended(log: PartitionLog, count: int = 3) -> None:
    for _ in range(count):
        log.append(batch_of(), leader_epoch=0)


def test_no_other_file_is_looked_at(tmp_path: Path) -> None:
    left = handed_over(tmp_path, appended)
    (tmp_path / "t-0" / PARTITION_METADATA).write_text("not to be read")
    leaders = half(tmp_path, LEADERS)
    with pytest.raises(CorruptFile):
        leaders.open_partition(PARTITION, TOPIC_ID, SETTINGS, closed=True, left=having_looked(left))
    log = leaders.open_partition(PARTITION, TOPIC_ID, SETTINGS, closed=True, left=left)
    assert log.log_end_offset == 3


def test_files_that_are_not_as_they_were_left_are_looked_at(tmp_path: Path) -> None:
    left = handed_over(tmp_path, appended)
    segment = tmp_path / "t-0" / segment_file_name(0, LOG)
    segment.write_bytes(segment.read_bytes()[: len(batch_of()) + 50])
    log = opened(tmp_path, left)
    assert log.log_end_offset == 1
    log.check()


def test_what_was_left_of_a_file_that_has_gone_says_nothing(tmp_path: Path) -> None:
    left = handed_over(tmp_path, appended)
    (tmp_path / "t-0" / segment_file_name(0, LOG)).unlink()
    assert opened(tmp_path, left).log_end_offset == 0


def test_another_topic_s_copy_is_looked_at(tmp_path: Path) -> None:
    left = handed_over(tmp_path, appended)
    other = half(tmp_path, LEADERS).open_partition(PARTITION, UUID(int=8), SETTINGS, closed=True, left=left)
    assert (other.log_end_offset, other.topic_id) == (0, UUID(int=8))
    assert any(path.name.endswith("-stray") for path in tmp_path.iterdir())


class Disks:
    """A slot of two log directories, and its two halves."""

    def __init__(self, path: Path) -> None:
        self.paths = [path / "a", path / "b"]
        self.followers, self.leaders = self._half(FOLLOWERS), self._half(LEADERS)
        self.left: bytes | None = None

    def _half(self, share: Share) -> LogDirectories:
        return LogDirectories.open(
            self.paths, node_id=0, cluster_id="c", clock=ManualClock(NOW_MS), share=share
        )

    def open(self, half: LogDirectories, *, closed: bool | None = True) -> PartitionLog:
        return half.open_partition(
            PARTITION, TOPIC_ID, SETTINGS, is_new=closed is None, closed=closed, left=self.left
        )

    def hand_over(self, half: LogDirectories) -> None:
        half.hand_over(PARTITION, partial(self._leave))

    def _leave(self, state: bytes) -> bool:
        self.left = state
        return True

    def is_told(self) -> bool:
        """Whether the next one need not look."""
        left = decode_handed_over(self.left or b"")
        return left is not None and left.only is not None


def test_a_move_that_was_begun_is_looked_for_by_all_who_come_after(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    appended(disks.open(disks.followers, closed=None))
    home = disks.followers.index_of(PARTITION)
    disks.hand_over(disks.followers)
    disks.open(disks.leaders)
    disks.hand_over(disks.leaders)
    assert disks.is_told()
    disks.open(disks.leaders)
    disks.leaders.begin_move(PARTITION, 1 - home)
    disks.hand_over(disks.leaders)
    assert not disks.is_told()
    for half_of_it, other in ((disks.followers, disks.leaders), (disks.leaders, disks.followers)):
        disks.open(half_of_it)
        assert PARTITION in half_of_it.futures
        assert PARTITION not in other.futures
        disks.hand_over(half_of_it)
        assert not disks.is_told()


def test_a_copy_that_has_moved_is_looked_at_once_more(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    log = disks.open(disks.followers, closed=None)
    appended(log)
    home = disks.followers.index_of(PARTITION)
    future = disks.followers.begin_move(PARTITION, 1 - home)
    for path in log.directory.iterdir():
        if path.name.startswith("0"):
            shutil.copy(path, future)
    disks.followers.expect(PARTITION, recovery_point=0)()
    disks.followers.swap_in(PARTITION, recovery_point=0)  # and dies before it is settled
    disks.hand_over(disks.followers)
    assert not disks.is_told()
    moved = disks.open(disks.leaders)
    assert moved.log_end_offset == 3
    disks.hand_over(disks.leaders)
    assert disks.is_told()


def test_where_a_disk_has_failed_a_mark_may_be_left(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    appended(disks.open(disks.followers, closed=None))
    failed = 1 - disks.followers.index_of(PARTITION)
    disks.leaders.fail(failed, StorageFault("it was pulled out"))
    disks.left = None
    disks.followers.hand_over(PARTITION)
    disks.open(disks.leaders)
    disks.hand_over(disks.leaders)
    assert not disks.is_told()


def test_what_an_index_says_wrong_is_read_again_and_ends_where_the_records_do(tmp_path: Path) -> None:
    left = handed_over(tmp_path, lambda log: appended(log, 20))
    directory = tmp_path / str(PARTITION)
    whole = (directory / segment_file_name(0, LOG)).read_bytes()
    size_bytes = len(batch_of())
    (directory / segment_file_name(0, LOG)).write_bytes(
        whole[: 7 * size_bytes] + bytes(size_bytes) + whole[8 * size_bytes :]
    )
    index = directory / segment_file_name(0, OFFSET_INDEX)
    entries = left.active.offset_entries * 8
    index.write_bytes(
        index.read_bytes()[: entries - 8] + b"\x00\x00\x00\xff\x7f\xff\xff\xff" + bytes(4096 - entries)
    )
    log = opened(tmp_path, left)
    assert log.log_end_offset == 7
    log.check()


def test_a_mark_that_cannot_be_read_is_looked_at_by_all_who_come_after(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    log = disks.open(disks.followers, closed=None)
    appended(log)
    (log.directory / MOVES_TO).write_bytes(b"\xff\xfe")
    disks.followers.hand_over(PARTITION)
    disks.left = None
    disks.open(disks.leaders)
    disks.hand_over(disks.leaders)
    assert not disks.is_told()


def test_files_from_elsewhere_are_looked_at_for_all_that_they_may_be(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    log = disks.open(disks.followers, closed=None)
    appended(log)
    disks.hand_over(disks.followers)
    assert disks.is_told()
    with (log.directory / segment_file_name(0, LOG)).open("ab") as file:
        file.write(bytes(10))
    write_topic_id(log.directory, UUID(int=8))
    assert disks.open(disks.leaders).log_end_offset == 0
    assert any(path.name.endswith("-stray") for path in log.directory.parent.iterdir())


def test_what_cannot_be_read_of_a_hand_over_is_told_and_the_log_recovered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disks = Disks(tmp_path)
    log = disks.open(disks.followers, closed=None)
    appended(log, 1)
    disks.followers.hand_over(PARTITION)  # into a file, which is soon out of date
    appended(disks.open(disks.followers, closed=True), 2)
    disks.hand_over(disks.followers)
    disks.left = b"no hand-over"
    opened = disks.open(disks.leaders)
    assert opened.log_end_offset == 3
    opened.check()
    assert "cannot be read" in caplog.text
