"""Conversations with brokers as coroutines, without any I/O: results, tasks, and a clock that is handed in.

The core is written as `async def`, because a conversation such as "find the coordinator, ask for an id, try again in
100 ms" reads from top to bottom that way. What runs it is this file and not asyncio: the sync face has no event loop,
and a test moves the clock by hand. `run(now_s)` steps every task that can go on and returns; `next_s()` is when it
must be called again. Nothing here waits.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from itertools import count
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Cancelled(BaseException):
    """Thrown into a task that is cancelled. Not an Exception, so that no `except Exception` swallows it."""


class Outcome(Generic[T]):
    """What something will come to: a value or an error, once. Tasks await it; callbacks are called with it."""

    __slots__ = ("_callbacks", "_error", "_value", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Outcome[T]], None]] = []

    def resolve(self, value: T) -> None:
        """Set the value; a second one is ignored."""
        if not self.done:
            self._value = value
            self._finish()

    def reject(self, error: BaseException) -> None:
        """Set the error; ignored where there is a value or an error already."""
        if not self.done:
            self._error = error
            self._finish()

    def _finish(self) -> None:
        self.done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def when_done(self, callback: Callable[[Outcome[T]], None]) -> None:
        """Call back with this outcome, at once where it is done."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def result(self) -> T:
        """The value, or the error raised. Only after `done`."""
        assert self.done
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    @property
    def error(self) -> BaseException | None:
        return self._error

    def __await__(self) -> Generator[Outcome[Any], None, T]:
        if not self.done:
            yield self
        return self.result()


class Task(Outcome[T]):
    """A coroutine under way. Its outcome is what the coroutine returns or raises."""

    __slots__ = ("_awaited", "_coroutine", "_scheduler", "cancelled")

    def __init__(self, scheduler: Scheduler, coroutine: Coroutine[Any, Any, T]) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._coroutine = coroutine
        self._awaited: Outcome[Any] | None = None
        self.cancelled = False

    def cancel(self) -> None:
        """Raise Cancelled where the coroutine waits, at the scheduler's next run."""
        if not self.done and not self.cancelled:
            self.cancelled = True
            self._awaited = None
            self._scheduler.ready(self)

    def wake(self, outcome: Outcome[Any]) -> None:
        """Go on at the scheduler's next run, where this outcome is what is still awaited."""
        if self._awaited is outcome:
            self._awaited = None
            self._scheduler.ready(self)

    def step(self) -> None:
        """Run the coroutine until it waits again or ends."""
        if self.done or self._awaited is not None:
            return
        try:
            coroutine = self._coroutine
            awaited = coroutine.throw(Cancelled()) if self.cancelled else coroutine.send(None)
        except StopIteration as end:
            self.resolve(end.value)
        except Cancelled as error:
            self.reject(error)
        except Exception as error:
            self.reject(error)
        else:
            self.cancelled = False
            self._awaited = awaited
            awaited.when_done(self.wake)


class Scheduler:
    """Runs tasks and timers against a clock that is handed in. One thread at a time."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self._ready: deque[Task[Any]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Task[T]:
        """Start a coroutine; it runs with the next `run`."""
        task = Task(self, coroutine)
        self._ready.append(task)
        return task

    def ready(self, task: Task[Any]) -> None:
        """Step this task with the next `run`."""
        self._ready.append(task)

    def call_at(self, due_s: float, call: Callable[[], None]) -> None:
        """Call at a time, with the first `run` at or after it."""
        heapq.heappush(self._timers, (due_s, next(self._numbers), call))

    def sleep(self, seconds: float) -> Outcome[None]:
        """An outcome that is done after that time."""
        outcome: Outcome[None] = Outcome()
        self.call_at(self.now_s + seconds, lambda: outcome.resolve(None))
        return outcome

    def advance(self, now_s: float) -> None:
        """Move the clock, which never goes back, and run nothing."""
        self.now_s = max(self.now_s, now_s)

    def run(self, now_s: float) -> None:
        """Call what is due and step every task that can go on, until none can."""
        self.advance(now_s)
        timers = self._timers
        while True:
            while timers and timers[0][0] <= self.now_s:
                heapq.heappop(timers)[2]()
            if not self._ready:
                return
            while self._ready:
                self._ready.popleft().step()

    def next_s(self) -> float | None:
        """When `run` must be called again; None where only news can bring something on."""
        if self._ready:
            return self.now_s
        return self._timers[0][0] if self._timers else None


class Event:
    """Wakes every task that waits; goes on being set until it is cleared."""

    __slots__ = ("_outcome",)

    def __init__(self) -> None:
        self._outcome: Outcome[None] = Outcome()

    def set(self) -> None:
        """Wake whoever waits."""
        self._outcome.resolve(None)

    def clear(self) -> None:
        """Let the next one wait."""
        if self._outcome.done:
            self._outcome = Outcome()

    @property
    def is_set(self) -> bool:
        return self._outcome.done

    def wait(self) -> Outcome[None]:
        """Done when the event is set."""
        return self._outcome


def first_of(*awaited: Outcome[Any]) -> Outcome[None]:
    """Done when any of these is."""
    either: Outcome[None] = Outcome()
    for each in awaited:
        each.when_done(lambda _: either.resolve(None))
    return either
