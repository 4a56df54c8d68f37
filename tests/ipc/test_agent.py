from __future__ import annotations

import mmap
import os
import select
import time
from collections.abc import Callable, Iterator

import pytest

from appliance.clock import ManualClock
from appliance.ipc.agent import NEVER_NS, DutyCycle, Timers
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.process_table import ProcessRow, ProcessTable, process_table_size_bytes

from .conftest import Fork

MS = 1_000_000
PATIENCE_MS = 30_000  # who is woken by nothing else is woken by this, and fails


class Box:
    """An inbox that tests fill; `on_look` runs when it is asked."""

    def __init__(self) -> None:
        self.filled = False
        self.looks = 0
        self.on_look: Callable[[], None] = lambda: None

    def is_empty(self) -> bool:
        self.looks += 1
        self.on_look()
        return not self.filled


@pytest.fixture
def row() -> ProcessRow:
    return ProcessTable(memoryview(mmap.mmap(-1, process_table_size_bytes(1)))).row(0)


@pytest.fixture
def doorbell(row: ProcessRow) -> Doorbell:
    return Doorbell(Doorbell.create_eventfd(), row.sleeping_cell)


@pytest.fixture
def cycle(doorbell: Doorbell, row: ProcessRow) -> Iterator[DutyCycle]:
    made = DutyCycle(doorbell, row, monotonic_ns=time.monotonic_ns)
    yield made
    made.close()


def test_work_in_an_inbox_keeps_the_process_awake(cycle: DutyCycle, row: ProcessRow) -> None:
    box = Box()
    box.filled = True
    cycle.add_inbox(box)
    assert cycle.wait() == []
    assert row.snapshot().idle_ns == 0
    assert not row.snapshot().sleeping


def test_work_that_comes_between_the_look_and_the_sleep_is_seen(cycle: DutyCycle, doorbell: Doorbell) -> None:
    """The writer looked at the flag before it was set, so nobody rings: only a look after announcing can find it."""
    box = Box()

    def fill_once_announced() -> None:
        box.filled = doorbell.is_sleeping()

    box.on_look = fill_once_announced
    cycle.add_inbox(box)
    assert cycle.wait() == []
    assert box.looks == 1


def test_a_ring_while_asleep_wakes_without_showing_as_an_event(
    cycle: DutyCycle, doorbell: Doorbell, row: ProcessRow, fork: Fork
) -> None:
    def ring_when_asleep() -> None:
        while not doorbell.ring():
            os.sched_yield()

    child = fork(ring_when_asleep)
    assert cycle.wait(PATIENCE_MS) == []
    assert child.join() == 0
    assert row.snapshot().idle_ns < (PATIENCE_MS - 1_000) * MS


def test_every_ring_wakes_though_the_eventfd_is_never_read(cycle: DutyCycle, doorbell: Doorbell) -> None:
    for _ in range(100):
        os.eventfd_write(doorbell.eventfd, 1)
        before = time.monotonic_ns()
        assert cycle.wait(PATIENCE_MS) == []
        assert time.monotonic_ns() - before < (PATIENCE_MS - 1_000) * MS


def test_ready_descriptors_are_returned_with_their_events(cycle: DutyCycle, doorbell: Doorbell) -> None:
    reader, writer = os.pipe()
    cycle.epoll.register(reader, select.EPOLLIN)
    os.write(writer, b"x")
    os.eventfd_write(doorbell.eventfd, 1)
    assert cycle.wait() == [(reader, select.EPOLLIN)]
    os.close(reader)
    os.close(writer)


def test_a_sleeper_wakes_for_its_next_timer_and_runs_it(cycle: DutyCycle) -> None:
    ran: list[tuple[str, int]] = []
    now = time.monotonic_ns()
    cycle.timers.add(now + 30 * MS, lambda: ran.append(("late", time.monotonic_ns())))
    cycle.timers.add(now + 10 * MS, lambda: ran.append(("early", time.monotonic_ns())))
    cycle.timers.add(now + 5 * MS, lambda: ran.append(("never", 0))).cancel()
    while len(ran) < 2:
        before = len(ran)
        cycle.wait(PATIENCE_MS)
        assert len(ran) > before
        assert time.monotonic_ns() - now < (PATIENCE_MS - 1_000) * MS
    (early, early_ns), (late, late_ns) = ran
    assert (early, late) == ("early", "late")
    assert early_ns - now >= 10 * MS
    assert late_ns - now >= 30 * MS


def test_an_idle_process_uses_no_processor_time(cycle: DutyCycle, row: ProcessRow) -> None:
    before = time.thread_time_ns()
    cycle.wait(200)
    assert time.thread_time_ns() - before < 20 * MS
    seen = row.snapshot()
    assert seen.loops == 1
    assert seen.idle_ns >= 199 * MS


def test_busy_and_idle_add_up_to_the_time_that_passed(doorbell: Doorbell, row: ProcessRow) -> None:
    clock = ManualClock()
    cycle = DutyCycle(doorbell, row, monotonic_ns=clock.monotonic_ns)
    clock.advance(7)
    cycle.wait(0)
    clock.advance(5)
    cycle.wait(0)
    assert row.snapshot().busy_ns == 12 * MS
    cycle.close()


def test_a_report_is_made_at_the_end_of_a_turn_and_no_more_than_one_in_its_interval(
    doorbell: Doorbell, row: ProcessRow
) -> None:
    clock, work, reported = ManualClock(), 0, list[int]()
    cycle = DutyCycle(doorbell, row, monotonic_ns=clock.monotonic_ns)
    cycle.report_every(100, lambda: reported.append(work))
    for _ in range(30):
        work += 1
        cycle.wait(0)
        clock.advance(10)
    assert reported == [1, 11, 21]
    cycle.close()


def test_the_last_turn_is_reported_and_then_the_process_sleeps(cycle: DutyCycle, row: ProcessRow) -> None:
    work, reported = 0, list[int]()
    cycle.report_every(20, lambda: reported.append(work))
    for _ in range(5):
        work += 1
        cycle.wait(0)
    began = time.monotonic_ns()
    while reported[-1] != work or cycle.timers.next_due_ns() is not None:
        cycle.wait(PATIENCE_MS)
        assert time.monotonic_ns() - began < PATIENCE_MS * MS
    loops = row.snapshot().loops
    cycle.wait(200)
    assert row.snapshot().loops == loops + 1
    assert row.snapshot().idle_ns >= 199 * MS


def test_timers_run_in_order_and_those_added_meanwhile_wait_for_the_next_call() -> None:
    timers, ran = Timers(), list[int]()

    def again() -> None:
        ran.append(0)
        timers.add(0, again)

    timers.add(20, lambda: ran.append(20))
    timers.add(0, again)
    timers.add(10, lambda: ran.append(10))
    assert timers.run_due(15) == 2
    assert ran == [0, 10]
    assert timers.next_due_ns() == 0
    assert timers.run_due(25) == 2
    assert ran == [0, 10, 0, 20]


def test_a_timer_may_be_set_by_how_long_it_takes() -> None:
    clock = ManualClock(monotonic_ns=7)
    timers, ran = Timers(clock.monotonic_ns), list[int]()
    timers.after_ms(3, lambda: ran.append(3)).cancel()
    timers.after_ms(5, lambda: ran.append(5))
    assert timers.next_due_ns() == 7 + 5 * MS
    assert (timers.run_due(6 + 5 * MS), timers.run_due(7 + 5 * MS)) == (0, 1)
    timers.after_ms(1, lambda: ran.append(1))
    timers.clear()
    assert timers.next_due_ns() is None
    assert ran == [5]


def test_a_cancelled_timer_does_not_wake_anybody() -> None:
    timers = Timers()
    timer = timers.add(5, lambda: None)
    assert timers.next_due_ns() == 5
    timer.cancel()
    assert timers.next_due_ns() is None
    assert timers.run_due(100) == 0


def test_an_alarm_runs_once_when_it_is_due_and_not_where_it_was_before() -> None:
    timers, ran = Timers(), list[int]()
    alarm = timers.alarm
    alarm.action = lambda: ran.append(alarm.due_ns)
    assert timers.next_due_ns() is None
    assert not timers.any
    alarm.due_ns = 10
    alarm.due_ns = 30
    timers.add(40, lambda: ran.append(40))
    assert timers.next_due_ns() == 30
    assert timers.run_due(29) == 0
    assert timers.run_due(30) == 1
    assert ran == [NEVER_NS]
    assert timers.next_due_ns() == 40
    assert timers.run_due(50) == 1


def test_an_alarm_ends_a_sleep(cycle: DutyCycle) -> None:
    ran = list[int]()
    cycle.timers.alarm.action = lambda: ran.append(1)
    cycle.timers.alarm.due_ns = time.monotonic_ns() + 20 * MS
    before = time.monotonic_ns()
    cycle.wait(PATIENCE_MS)
    assert ran == [1]
    assert 20 * MS <= time.monotonic_ns() - before < (PATIENCE_MS - 1_000) * MS
