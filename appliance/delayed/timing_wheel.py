"""A hierarchical timing wheel: any number of deadlines, set and cancelled in constant time, expired in order.

A wheel has 20 buckets. The lowest wheel's buckets are 1 ms wide, so it covers the next 20 ms; a bucket of
the wheel above is as wide as the whole wheel below: 20 ms (covers 400 ms), 400 ms (8 s), 8 s (160 s), and
so on, made when first needed. A task goes into the lowest wheel that covers its deadline, into bucket
(deadline / width) mod 20. When a bucket of an upper wheel comes due, its tasks move down; they reach the
lowest wheel before their moment.

Worked example, the clock at 0:

    add(a, due 7)      wheel 0 covers [0, 20)       → wheel 0, bucket 7
    add(b, due 45)     beyond 20; wheel 1: [0, 400)  → wheel 1, bucket 2 (40 to 59)
    add(c, due 1000)   beyond 400; wheel 2: [0, 8000) → wheel 2, bucket 2 (800 to 1199)
    next_expiry_ms()   7: a's bucket begins first
    advance(7)         → [a]; next_expiry_ms() is 40
    advance(40)        → []: b moves to wheel 0, which covers [40, 60) now, bucket 45 mod 20 = 5
    advance(2000)      → [b, c], in the order of their deadlines, however far the clock jumped

Source of the shape: Kafka's `TimingWheel.java` (and Varghese and Lauck, 1987). As there, a heap holds the
buckets that are in use (never the tasks), so that the caller can sleep until the next one instead of
ticking. Unlike there, nothing runs here: the caller says what time it is and gets what is due.

Running time: add and cancel O(1); a task moves down at most once per wheel (log20 of its delay in ms);
advance costs what is due, not what waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from operator import attrgetter
from typing import Generic, TypeVar

import msgspec

from appliance.errors import ApplianceDefect

BUCKETS = 20

Value = TypeVar("Value")

_BY_DEADLINE = attrgetter("due_ms")


class Task(Generic[Value]):
    """A value with its deadline; `waits` until it was handed out or cancelled.

    A value usually refers to the owner of its task: a member's timer calls back into the member. So a task that is over
    drops its value, by `take` or `cancel`; the reference cycle would otherwise stay until the collector runs, and the
    collector of a process runs rarely.
    """

    __slots__ = ("_bucket", "_value", "due_ms")

    def __init__(self, value: Value, due_ms: int) -> None:
        self._value: Value | None = value
        self.due_ms = due_ms
        self._bucket: _Bucket[Value] | None = None

    @property
    def waits(self) -> bool:
        return self._bucket is not None

    def take(self) -> Value:
        """Return the value of a task that was handed out, once: the task drops it.

        Raises:
            ApplianceDefect: it was taken before, or the task was cancelled.
        """
        value, self._value = self._value, None
        if value is None:
            raise ApplianceDefect("the value of a task was taken twice")
        return value

    def cancel(self) -> bool:
        """Take the task off its wheel and drop its value. False when it was handed out or cancelled before."""
        bucket = self._bucket
        if bucket is None:
            return False
        del bucket.tasks[self]
        self._bucket = None
        self._value = None
        return True


class _Bucket(Generic[Value]):
    """Tasks due in [start_ms, start_ms + width): a dict for its order and its constant-time removal."""

    __slots__ = ("is_queued", "start_ms", "tasks")

    def __init__(self) -> None:
        self.start_ms = 0
        self.tasks: dict[Task[Value], None] = {}
        self.is_queued = False


class _Wheel(Generic[Value]):
    __slots__ = ("buckets", "span_ms", "width_ms")

    def __init__(self, width_ms: int) -> None:
        self.width_ms = width_ms
        self.span_ms = width_ms * BUCKETS
        self.buckets: list[_Bucket[Value]] = [_Bucket() for _ in range(BUCKETS)]


class TimingWheelStatistics(msgspec.Struct, frozen=True):
    """`by_wheel` counts the tasks on each wheel, the finest first; `queued_buckets` is the length of the
    heap."""

    now_ms: int
    waiting: int
    by_wheel: tuple[int, ...]
    queued_buckets: int


class TimingWheel(Generic[Value]):
    """Deadlines in milliseconds of one clock that never goes back.

    Args:
        now_ms: the clock's reading now.
    """

    __slots__ = ("_heap", "_now_ms", "_overdue", "_wheels")

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._wheels: list[_Wheel[Value]] = [_Wheel(1)]
        self._heap: list[tuple[int, int]] = []
        # Tasks whose moment had passed when they were added; due at the next advance, whatever its time.
        self._overdue: _Bucket[Value] = _Bucket()

    def add(self, value: Value, due_ms: int) -> Task[Value]:
        """Hands `value` out at the first advance to `due_ms` or later."""
        task = Task(value, due_ms)
        self._place(task)
        return task

    def advance(self, now_ms: int) -> list[Task[Value]]:
        """Everything due at `now_ms`, in the order of the deadlines.

        A clock that seems to go back is taken for standing still.
        """
        expired: list[Task[Value]] = self._empty(self._overdue)
        now_ms = max(now_ms, self._now_ms)
        moving: list[Task[Value]] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            start_ms, level = heappop(heap)
            bucket = self._bucket(level, start_ms)
            bucket.is_queued = False
            moving += self._empty(bucket)
        # Only now: until every due bucket was emptied, a later one must not be filled with what lies in its
        # place.
        self._now_ms = now_ms
        for task in moving:
            if task.due_ms <= now_ms:
                expired.append(task)
            else:
                self._place(task)
        expired.sort(key=_BY_DEADLINE)
        return expired

    def next_expiry_ms(self) -> int | None:
        """When to call `advance` next; None while nothing waits.

        Never after a deadline. It may be before the earliest one, when tasks have to move down a wheel then.
        """
        if self._overdue.tasks:
            return self._now_ms
        while self._heap:
            start_ms, level = self._heap[0]
            bucket = self._bucket(level, start_ms)
            if bucket.tasks:
                return start_ms
            heappop(self._heap)
            bucket.is_queued = False
        return None

    def __len__(self) -> int:
        return len(self._overdue.tasks) + sum(len(bucket.tasks) for bucket in self._buckets())

    def statistics(self) -> TimingWheelStatistics:
        return TimingWheelStatistics(
            now_ms=self._now_ms,
            waiting=len(self),
            by_wheel=tuple(sum(len(b.tasks) for b in wheel.buckets) for wheel in self._wheels),
            queued_buckets=len(self._heap),
        )

    def check(self) -> None:
        """Raises ApplianceDefect unless every task lies where its deadline says and its bucket is in the
        heap."""
        queued = set(self._heap)
        if len(queued) != len(self._heap):
            raise ApplianceDefect("a bucket stands twice in the heap")
        for level, wheel in enumerate(self._wheels):
            for bucket in wheel.buckets:
                if bucket.is_queued != ((bucket.start_ms, level) in queued):
                    raise ApplianceDefect(f"bucket {bucket.start_ms} of wheel {level} and the heap disagree")
                if bucket.tasks and not bucket.is_queued:
                    raise ApplianceDefect(f"bucket {bucket.start_ms} of wheel {level} is not in the heap")
                for task in bucket.tasks:
                    if task.due_ms // wheel.width_ms * wheel.width_ms != bucket.start_ms:
                        raise ApplianceDefect(f"a task due at {task.due_ms} is in bucket {bucket.start_ms}")

    def _place(self, task: Task[Value]) -> None:
        due_ms, now_ms = task.due_ms, self._now_ms
        if due_ms <= now_ms:
            task._bucket = self._overdue
            self._overdue.tasks[task] = None
            return
        for level, wheel in enumerate(self._wheels):  # noqa: B007 (the loop leaves level at the wheel it found)
            # What a wheel covers begins at its bucket of now.
            if due_ms < now_ms - now_ms % wheel.width_ms + wheel.span_ms:
                break
        else:
            level, wheel = self._grow(due_ms)
        width_ms = wheel.width_ms
        bucket = wheel.buckets[due_ms // width_ms % BUCKETS]
        task._bucket = bucket
        bucket.tasks[task] = None
        if not bucket.is_queued:
            bucket.start_ms = due_ms - due_ms % width_ms
            bucket.is_queued = True
            heappush(self._heap, (bucket.start_ms, level))

    def _grow(self, due_ms: int) -> tuple[int, _Wheel[Value]]:
        """Adds the wheels that are missing to cover `due_ms`."""
        while True:
            wheel: _Wheel[Value] = _Wheel(self._wheels[-1].span_ms)
            self._wheels.append(wheel)
            if due_ms < self._now_ms - self._now_ms % wheel.width_ms + wheel.span_ms:
                return len(self._wheels) - 1, wheel

    def _bucket(self, level: int, start_ms: int) -> _Bucket[Value]:
        wheel = self._wheels[level]
        return wheel.buckets[start_ms // wheel.width_ms % BUCKETS]

    def _buckets(self) -> Iterator[_Bucket[Value]]:
        return (bucket for wheel in self._wheels for bucket in wheel.buckets)

    @staticmethod
    def _empty(bucket: _Bucket[Value]) -> list[Task[Value]]:
        tasks = list(bucket.tasks)
        bucket.tasks.clear()
        for task in tasks:
            task._bucket = None
        return tasks
