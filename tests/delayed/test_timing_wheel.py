from __future__ import annotations

import time

from appliance.delayed.timing_wheel import TimingWheel


def values(wheel: TimingWheel[str], now_ms: int) -> list[str]:
    return [task.take() for task in wheel.advance(now_ms)]


def test_the_worked_example_of_the_head_comment() -> None:
    wheel: TimingWheel[str] = TimingWheel(0)
    wheel.add("a", 7)
    wheel.add("b", 45)
    wheel.add("c", 1000)
    assert wheel.statistics().by_wheel == (1, 1, 1)
    assert wheel.next_expiry_ms() == 7
    assert values(wheel, 7) == ["a"]
    assert wheel.next_expiry_ms() == 40
    assert values(wheel, 40) == []
    assert wheel.statistics().by_wheel == (1, 0, 1)
    assert wheel.next_expiry_ms() == 45
    assert values(wheel, 2000) == ["b", "c"]
    assert wheel.next_expiry_ms() is None


def test_nothing_expires_a_millisecond_early_or_late() -> None:
    for delay_ms in (1, 19, 20, 21, 399, 400, 401, 7_999, 8_000, 8_001, 160_000, 10_000_000):
        for start_ms in (0, 1, 19, 20, 399, 1_234_567):
            wheel: TimingWheel[str] = TimingWheel(start_ms)
            wheel.add("x", start_ms + delay_ms)
            assert values(wheel, start_ms + delay_ms - 1) == []
            assert wheel.next_expiry_ms() == start_ms + delay_ms
            assert values(wheel, start_ms + delay_ms) == ["x"]


def test_what_is_overdue_when_added_is_due_at_once() -> None:
    wheel: TimingWheel[str] = TimingWheel(100)
    wheel.add("past", 5)
    wheel.add("now", 100)
    assert wheel.next_expiry_ms() == 100
    assert values(wheel, 100) == ["past", "now"]


def test_deadlines_are_kept_in_order_across_wheels_however_far_the_clock_jumps() -> None:
    wheel: TimingWheel[str] = TimingWheel(0)
    deadlines = [3, 70_000, 19, 20, 500, 399, 8_001, 21, 400, 170_000]
    for due_ms in deadlines:
        wheel.add(str(due_ms), due_ms)
    assert values(wheel, 1_000_000) == [str(due_ms) for due_ms in sorted(deadlines)]


def test_a_cancelled_task_never_comes_and_wakes_nobody() -> None:
    wheel: TimingWheel[str] = TimingWheel(0)
    task = wheel.add("x", 300)
    assert task.cancel()
    assert not task.cancel()
    assert wheel.next_expiry_ms() is None
    assert values(wheel, 1_000) == []
    wheel.check()


def test_a_task_handed_out_cannot_be_cancelled() -> None:
    wheel: TimingWheel[str] = TimingWheel(0)
    task = wheel.add("x", 3)
    assert values(wheel, 3) == ["x"]
    assert not task.cancel()


def test_a_cancelled_bucket_is_used_again() -> None:
    wheel: TimingWheel[str] = TimingWheel(0)
    for _ in range(5):
        wheel.add("x", 15).cancel()
    wheel.add("y", 15)
    assert wheel.statistics().queued_buckets == 1
    assert values(wheel, 15) == ["y"]


def test_a_clock_that_goes_back_stands_still() -> None:
    wheel: TimingWheel[str] = TimingWheel(1_000)
    wheel.add("x", 1_010)
    assert values(wheel, 1_005) == []
    assert values(wheel, 3) == []
    assert wheel.statistics().now_ms == 1_005
    assert values(wheel, 1_010) == ["x"]


def test_the_heap_holds_buckets_never_tasks() -> None:
    wheel: TimingWheel[str] = TimingWheel(0)
    for number in range(10_000):
        wheel.add("x", 1 + number % 30_000)
    assert len(wheel) == 10_000
    assert wheel.statistics().queued_buckets <= 60


def test_waiting_costs_nothing_and_cancelling_the_same_with_many_or_few() -> None:
    """A ratio within one run: with 100 times the tasks, advance and cancel take about the same processor time."""

    def per_step_ns(tasks: int) -> float:
        wheel: TimingWheel[int] = TimingWheel(0)
        waiting = [wheel.add(number, 100_000 + number % 50_000) for number in range(tasks)]
        start_ns = time.thread_time_ns()
        for now_ms in range(1, 501):
            wheel.advance(now_ms)
            waiting.pop().cancel()
            wheel.next_expiry_ms()
        return (time.thread_time_ns() - start_ns) / 500

    few = min(per_step_ns(1_000) for _ in range(5))
    many = min(per_step_ns(100_000) for _ in range(5))
    assert many < 10 * few
