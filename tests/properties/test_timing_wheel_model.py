"""A timing wheel against a plain list of deadlines, for any order of adding, cancelling and passing time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from appliance.delayed.timing_wheel import Task, TimingWheel

# Around the borders of the first wheels, far beyond them, and in the past.
DELAYS_MS = st.one_of(
    st.integers(-50, 60), st.integers(380, 420), st.integers(7_900, 8_100), st.integers(0, 2**40)
)


class TimingWheelModel(RuleBasedStateMachine):
    tasks = Bundle("tasks")

    @initialize(now_ms=st.integers(0, 2**41))
    def make(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.wheel: TimingWheel[int] = TimingWheel(now_ms)
        self.waiting: dict[Task[int], int] = {}
        self.number = 0

    @rule(target=tasks, delay_ms=DELAYS_MS)
    def add(self, delay_ms: int) -> Task[int]:
        self.number += 1
        task = self.wheel.add(self.number, self.now_ms + delay_ms)
        self.waiting[task] = self.now_ms + delay_ms
        return task

    @rule(task=tasks)
    def cancel(self, task: Task[int]) -> None:
        assert task.cancel() == (self.waiting.pop(task, None) is not None)
        assert not task.waits

    @rule(step_ms=DELAYS_MS)
    def advance(self, step_ms: int) -> None:
        self.now_ms = max(self.now_ms, self.now_ms + step_ms)
        self._expect(self.wheel.advance(self.now_ms))

    @rule()
    def sleep_until_told(self) -> None:
        """Sleeping until `next_expiry_ms` again and again never oversleeps a deadline and ends with one due."""
        if not self.waiting:
            assert self.wheel.next_expiry_ms() is None
            return
        earliest = min(self.waiting.values())
        for _ in range(12):
            due = self.wheel.next_expiry_ms()
            assert due is not None
            assert due <= max(earliest, self.now_ms)
            self.now_ms = max(self.now_ms, due)
            expired = self.wheel.advance(self.now_ms)
            self._expect(expired)
            if expired:
                return
        raise AssertionError("a dozen wakes and nothing was due")

    def _expect(self, expired: list[Task[int]]) -> None:
        expected = {task for task, due_ms in self.waiting.items() if due_ms <= self.now_ms}
        assert set(expired) == expected
        assert len(expired) == len(expected)
        assert [task.due_ms for task in expired] == sorted(task.due_ms for task in expired)
        for task in expired:
            assert self.waiting.pop(task) == task.due_ms
            assert not task.waits

    @invariant()
    def the_wheel_holds_who_waits(self) -> None:
        self.wheel.check()
        assert len(self.wheel) == len(self.waiting)
        assert (self.wheel.next_expiry_ms() is None) == (not self.waiting)


TestTimingWheelModel = TimingWheelModel.TestCase
TestTimingWheelModel.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
