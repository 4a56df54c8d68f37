"""The state file: one of its two records always holds, and what it says never runs ahead of the log."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import pytest

from appliance.clock import ManualClock
from appliance.errors import CorruptFile, StorageFault
from appliance.log import state_publisher
from appliance.log.config import LogSettings
from appliance.log.leader_epochs import LeaderEpochs
from appliance.log.partition_log import PartitionLog
from appliance.log.partition_state import (
    PLACE_BYTES,
    RECORD_BYTES,
    STATE,
    Mode,
    PartitionState,
    StateFile,
    decode,
    read_state,
)
from appliance.log.state_publisher import StatePublisher, unpublished
from tests.log.batches import NOW_MS, batch_of, open_log

BOOT = UUID(int=5)


def state(end: int, *, written_ms: int = NOW_MS) -> PartitionState:
    return PartitionState(
        topic_id=UUID(int=7),
        leader_epoch=3,
        log_start=1,
        high_watermark=end,
        last_stable=end - 1,
        log_end=end,
        durable=2,
        active_base=1,
        active_bytes=4711,
        leads=True,
        written_ms=written_ms,
    )


def test_what_was_said_is_read(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    written = StateFile(tmp_path, BOOT).publish(state(10))
    found = read_state(tmp_path)
    assert found == written
    assert (found.high_watermark, found.boot_id, found.mode) == (10, BOOT, Mode.RUNNING)


def test_a_record_that_was_torn_leaves_the_one_before(tmp_path: Path) -> None:
    state_file = StateFile(tmp_path, BOOT)
    for end in (10, 11, 12):
        state_file.publish(state(end))
    whole = (tmp_path / STATE).read_bytes()
    state_file.publish(state(13))
    later = (tmp_path / STATE).read_bytes()
    place = PLACE_BYTES * (3 % 2)
    for cut in range(RECORD_BYTES + 1):
        torn = later[: place + cut] + whole[place + cut :]
        found = decode(torn)
        assert found is not None
        # What a cut leaves of the old record may happen to be what the new one says.
        assert found.high_watermark == (13 if torn == later else 12)


def test_a_file_of_which_nothing_holds_is_an_error_and_its_next_word_is_of_another_incarnation(
    tmp_path: Path,
) -> None:
    before = StateFile(tmp_path, BOOT).publish(state(10))
    (tmp_path / STATE).write_bytes(b"\0" * 1024)
    with pytest.raises(CorruptFile):
        read_state(tmp_path)
    after = StateFile(tmp_path, BOOT).publish(state(10, written_ms=NOW_MS + 1))
    assert after.incarnation != before.incarnation


def test_the_next_owner_goes_on_and_says_so_when_records_are_lost(tmp_path: Path) -> None:
    first = StateFile(tmp_path, BOOT).publish(state(10))
    same = StateFile(tmp_path, BOOT).publish(state(10))
    cut = StateFile(tmp_path, BOOT).publish(state(9))
    assert [same.sequence, cut.sequence] == [first.sequence + 1, first.sequence + 2]
    assert same.incarnation == first.incarnation
    assert cut.incarnation == first.incarnation + 1


def test_a_swap_of_segments_is_said_once(tmp_path: Path) -> None:
    state_file = StateFile(tmp_path, BOOT)
    state_file.files_changed()
    assert [state_file.publish(state(10)).generation for _ in range(2)] == [1, 1]
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    state_file.relocate(moved)
    assert state_file.publish(state(10)).generation == 1
    next_owner = StateFile(moved, BOOT)
    next_owner.expect_unsaid_swap()
    assert next_owner.publish(state(10)).generation == 2


def test_where_it_cannot_be_written_the_fault_is_told_and_nothing_is_said(tmp_path: Path) -> None:
    state_file = StateFile(tmp_path / "missing", BOOT)
    with pytest.raises(StorageFault):
        state_file.publish(state(10))
    (tmp_path / "missing").mkdir()
    assert state_file.publish(state(11)).sequence == 0


class Counted:
    """A partition as the publisher sees it."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.is_marked = True
        self.mark: Callable[[], None] = unpublished
        self.state_file: StateFile | None = None
        self.state_takes: Callable[[], None] = unpublished

    def state(self, *, now_ms: int) -> PartitionState:
        self.state_takes()
        return state(self.log.log_end_offset + 1, written_ms=now_ms)

    def append(self) -> None:
        self.log.append(batch_of(), leader_epoch=0)
        if not self.is_marked:
            self.mark()


class Timers:
    """What the publisher asked to be called for."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.due: list[tuple[int, Callable[[], None]]] = []

    def after_ms(self, pause_ms: int, action: Callable[[], None]) -> None:
        self.due.append((self.clock.now_ms() + pause_ms, action))

    def run(self, pause_ms: int) -> None:
        self.clock.advance(pause_ms)
        due, self.due = self.due, []
        for at_ms, action in due:
            if at_ms <= self.clock.now_ms():
                action()
            else:
                self.due.append((at_ms, action))


def publisher_of(clock: ManualClock, timers: Timers, said: list[str]) -> StatePublisher:
    return StatePublisher(timers.after_ms, clock, interval_ms=20, warn=said.append)


def test_who_is_told_of_records_of_an_epoch_finds_it_in_the_epoch_file(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    timers = Timers(clock)
    publisher = publisher_of(clock, timers, [])
    log = open_log(tmp_path / "a-0")
    partition = Counted(log)
    publisher.take(partition)
    timers.run(20)
    log.append(batch_of(), leader_epoch=7)
    publisher.take(partition)
    assert log.leader_epochs.is_due
    timers.run(20)
    assert LeaderEpochs.load(log.directory).entries() == log.leader_epochs.entries()
    assert not log.leader_epochs.is_due


def test_a_new_partition_says_its_state_at_once_and_leaves_nothing_for_later(tmp_path: Path) -> None:
    clock, said = ManualClock(NOW_MS), list[str]()
    timers = Timers(clock)
    publisher = publisher_of(clock, timers, said)
    partition = Counted(open_log(tmp_path / "a-0"))
    publisher.take_new(partition)
    found = read_state(tmp_path / "a-0")
    assert found is not None
    assert (found.sequence, found.log_end, found.mode) == (0, 1, Mode.RUNNING)
    assert (timers.due, publisher.statistics()) == ([], {"waiting": 0, "open": 0})
    partition.append()
    timers.run(20)
    after = read_state(tmp_path / "a-0")
    assert after is not None
    assert (after.sequence, after.incarnation, after.log_end) == (1, found.incarnation, 2)
    assert said == []


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_who_was_taken_for_new_and_is_not_goes_on_from_what_was_said(tmp_path: Path, policy: str) -> None:
    clock = ManualClock(NOW_MS)
    timers = Timers(clock)
    publisher = publisher_of(clock, timers, [])
    settings = LogSettings(cleanup_policy=frozenset({policy}))
    partition = Counted(open_log(tmp_path / "a-0", settings=settings))
    before = StateFile(tmp_path / "a-0", BOOT).publish(state(1))
    publisher.take_new(partition)
    assert read_state(tmp_path / "a-0") == before
    timers.run(20)
    after = read_state(tmp_path / "a-0")
    assert after is not None
    assert (after.sequence, after.incarnation) == (before.sequence + 1, before.incarnation)
    assert after.generation == before.generation + (policy == "compact")


def test_a_new_partition_that_the_disk_refuses_is_tried_again(tmp_path: Path) -> None:
    clock, said = ManualClock(NOW_MS), list[str]()
    timers = Timers(clock)
    publisher = publisher_of(clock, timers, said)
    partition = Counted(open_log(tmp_path / "a-0"))
    (tmp_path / "a-0").rename(tmp_path / "gone")
    publisher.take_new(partition)
    assert len(said) == 1
    (tmp_path / "gone").rename(tmp_path / "a-0")
    timers.run(5_000)
    timers.run(20)
    found = read_state(tmp_path / "a-0")
    assert found is not None
    assert found.sequence == 0


def test_many_appends_make_one_record_and_none_makes_no_timer(tmp_path: Path) -> None:
    clock, said = ManualClock(NOW_MS), list[str]()
    timers = Timers(clock)
    publisher = publisher_of(clock, timers, said)
    partition = Counted(open_log(tmp_path / "a-0"))
    partition.append()
    publisher.take(partition)
    for _ in range(100):
        partition.append()
    assert read_state(tmp_path / "a-0") is None
    timers.run(20)
    found = read_state(tmp_path / "a-0")
    assert found is not None
    assert (found.sequence, found.high_watermark) == (0, 102)
    assert timers.due == []
    partition.append()
    timers.run(20)
    found = read_state(tmp_path / "a-0")
    assert found is not None
    assert found.sequence == 1
    assert said == []


def test_a_quiet_log_says_an_append_and_its_watermark_at_once_and_a_busy_one_keeps_the_interval(
    tmp_path: Path,
) -> None:
    clock = ManualClock(NOW_MS)
    timers = Timers(clock)
    publisher = publisher_of(clock, timers, [])
    partition = Counted(open_log(tmp_path / "a-0"))
    publisher.take(partition)
    timers.run(1_000)
    timers.run(1_000)

    def sequence() -> int:
        found = read_state(tmp_path / "a-0")
        assert found is not None
        return found.sequence

    quiet = sequence()
    for told in (1, 2, 2):
        partition.append()
        timers.run(0)
        assert sequence() == quiet + told
    before = sequence()
    for _ in range(1_000):
        partition.append()
        timers.run(1)
    assert 40 <= sequence() - before <= 51


class Watch:
    """Says that it waits for a partition, as docs/reading-off-disk.md has it."""

    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / STATE, os.O_RDONLY)
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def sequence_of(directory: Path) -> int:
    found = read_state(directory)
    assert found is not None
    return found.sequence


def test_a_busy_log_says_each_append_at_once_while_a_reader_waits_for_it(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    timers = Timers(clock)
    publisher = publisher_of(clock, timers, [])
    watched, other = Counted(open_log(tmp_path / "a-0")), Counted(open_log(tmp_path / "b-0"))
    for each in (watched, other):
        publisher.take(each)
    timers.run(1_000)

    def told(rounds: int) -> tuple[int, int]:
        before = sequence_of(tmp_path / "a-0"), sequence_of(tmp_path / "b-0")
        for _ in range(rounds):
            watched.append()
            other.append()
            timers.run(1)
        return sequence_of(tmp_path / "a-0") - before[0], sequence_of(tmp_path / "b-0") - before[1]

    told(20)
    with Watch(tmp_path / "a-0"):
        told(25)  # it is noticed with the next record
        assert told(200)[0] == 200
        assert told(200)[1] <= 11
    told(2)
    assert told(200)[0] <= 11


def test_what_others_take_of_the_core_makes_no_pause(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    timers = Timers(clock)
    publisher = StatePublisher(
        timers.after_ms, clock, interval_ms=20, warn=lambda _: None, processor_ns=lambda: 0
    )
    partition = Counted(open_log(tmp_path / "a-0"))
    partition.state_takes = lambda: clock.advance(5)
    publisher.take(partition)
    timers.run(1_000)
    before = sequence_of(tmp_path / "a-0")
    for _ in range(1_000):
        partition.append()
        timers.run(1)
    assert sequence_of(tmp_path / "a-0") - before >= 45


def test_waiting_readers_leave_their_process_four_fifths_of_its_time(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    timers = Timers(clock)
    spent_ns = 0

    def work() -> None:
        nonlocal spent_ns
        spent_ns += 1_000_000

    publisher = StatePublisher(
        timers.after_ms, clock, interval_ms=20, warn=lambda _: None, processor_ns=lambda: spent_ns
    )
    partitions = [Counted(open_log(tmp_path / f"a-{number}")) for number in range(20)]
    for each in partitions:
        publisher.take(each)
        timers.run(1_000)
    with ExitStack() as watches:
        for each in partitions:
            watches.enter_context(Watch(each.log.directory))
            each.append()
        timers.run(2_000)
        for each in partitions:
            each.state_takes = work
        for _ in range(1_000):
            for each in partitions:
                each.append()
            timers.run(1)
    # The work comes on top of the rests: the clock of the test stands still meanwhile.
    assert 0.15 <= spent_ns / (spent_ns + 1e9) <= 0.2


def test_descriptors_are_bounded_and_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_publisher, "OPEN_MAX", 8)
    clock = ManualClock(NOW_MS)
    timers = Timers(clock)
    publisher = publisher_of(clock, timers, [])
    partitions = [Counted(open_log(tmp_path / f"a-{n}")) for n in range(11)]
    for partition in partitions:
        publisher.take(partition)
    while publisher.statistics()["waiting"]:
        timers.run(20)
    assert publisher.statistics()["open"] == 8
    assert all(read_state(partition.log.directory) is not None for partition in partitions)
    publisher.release()
    assert publisher.statistics()["open"] == 0
    for partition in partitions:
        publisher.drop(partition)
        partition.append()
    assert publisher.statistics()["waiting"] == 0


def test_a_record_that_the_disk_refuses_is_tried_again(tmp_path: Path) -> None:
    clock, said = ManualClock(NOW_MS), list[str]()
    timers = Timers(clock)
    publisher = publisher_of(clock, timers, said)
    partition = Counted(open_log(tmp_path / "a-0"))
    (tmp_path / "a-0" / STATE).mkdir()
    publisher.take(partition)
    timers.run(20)
    assert len(said) == 1
    (tmp_path / "a-0" / STATE).rmdir()
    timers.run(5_000)
    timers.run(20)
    assert read_state(tmp_path / "a-0") is not None


def test_an_owner_that_died_with_a_compacted_log_may_have_swapped(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    settings = LogSettings(cleanup_policy=frozenset({"compact"}))
    generations = []
    for clean in (False, True, False):
        timers = Timers(clock)
        publisher = publisher_of(clock, timers, [])
        partition = Counted(open_log(tmp_path / "a-0", settings=settings))
        publisher.take(partition)
        timers.run(20)
        found = read_state(tmp_path / "a-0")
        assert found is not None
        generations.append(found.generation)
        if clean:
            publisher.closed(partition, found)
    assert generations == [0, 1, 1]
