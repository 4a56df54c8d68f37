"""The purgatory: operations wait here, are watched by key, and leave exactly once.

Two indexes over the same waiting operations: a watch list for each key (whom does a poke concern?) and the
timing wheel (whose time is up?). Whoever leaves by one is taken out of the other at once, so nothing is
left to purge: a watch list is a dict and forgetting a watcher is one deletion of about 50 ns. (Kafka leaves
completed watchers in place and purges them by the thousand, because its lists have no cheap removal.)

Everything here is told, nothing asks: `poke` says how far a key has come, `expire` says what time it is.
What they return has left; answering is the caller's.

Running time: `wait` and leaving O(keys of the operation); `poke` O(watchers of the key); `expire` O(those
that expire).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

from appliance.delayed.delayed_operation import DelayedOperation, Event, State, after
from appliance.delayed.timing_wheel import Task, TimingWheel
from appliance.errors import ApplianceDefect

Operation = TypeVar("Operation", bound=DelayedOperation)


class _Waiting(Generic[Operation]):
    """A waiting operation and what it has been told so far."""

    __slots__ = ("appended_bytes", "operation", "reached", "state", "task")

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.state = State.WAITING
        self.reached: dict[int, int] = {}
        self.appended_bytes = 0
        self.task: Task[_Waiting[Operation]] | None = None


class PurgatoryStatistics(msgspec.Struct, frozen=True):
    """`watched_keys` have at least one watcher; the last three count since the start."""

    waiting: int
    watched_keys: int
    satisfied: int
    expired: int
    cancelled: int


class Purgatory(Generic[Operation]):
    """Args: now_ms: the reading of the clock that deadlines are given in."""

    __slots__ = ("_ended", "_waiting", "_watchers", "_wheel")

    def __init__(self, now_ms: int) -> None:
        self._wheel: TimingWheel[_Waiting[Operation]] = TimingWheel(now_ms)
        self._waiting: dict[int, _Waiting[Operation]] = {}
        self._watchers: dict[int, dict[_Waiting[Operation], None]] = {}
        self._ended = dict.fromkeys((State.SATISFIED, State.EXPIRED, State.CANCELLED), 0)

    def wait(self, operation: Operation, due_ms: int) -> None:
        """Lets `operation` wait until it is satisfied, at most until `due_ms`.

        Raises:
            ApplianceDefect: one of the same key waits already.
        """
        if operation.key in self._waiting:
            raise ApplianceDefect(f"operation {operation.key} waits already")
        waiting = _Waiting(operation)
        self._waiting[operation.key] = waiting
        for key in operation.watches:
            self._watchers.setdefault(key, {})[waiting] = None
        waiting.task = self._wheel.add(waiting, due_ms)

    def poke(self, key: int, position: int, appended_bytes: int = 0) -> list[Operation]:
        """`key` has come to `position`, `appended_bytes` further; who is satisfied by that has left."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return []
        done: list[_Waiting[Operation]] = []
        for waiting in watchers:
            reached = waiting.reached
            if position > reached.get(key, -1):
                reached[key] = position
            waiting.appended_bytes += appended_bytes
            if waiting.operation.satisfied(reached, waiting.appended_bytes):
                done.append(waiting)
        return [waiting.operation for waiting in done if self._leave(waiting, Event.POKE)]

    def satisfy(self, operation_key: int) -> Operation | None:
        """The caller found out by itself that the wait is over; None when the operation has left before."""
        return self._end(operation_key, Event.POKE)

    def cancel(self, operation_key: int) -> Operation | None:
        """Nobody wants the answer any more; None when the operation has left before."""
        return self._end(operation_key, Event.CANCEL)

    def expire(self, now_ms: int) -> list[Operation]:
        """Those whose time is up at `now_ms`, in the order of their deadlines; they have left."""
        due = [task.take() for task in self._wheel.advance(now_ms)]
        return [waiting.operation for waiting in due if self._leave(waiting, Event.CLOCK)]

    def next_expiry_ms(self) -> int | None:
        """When `expire` should be called next; None while nobody waits."""
        return self._wheel.next_expiry_ms()

    def watching(self, key: int) -> list[Operation]:
        """Who watches `key`, the longest first."""
        return [waiting.operation for waiting in self._watchers.get(key, ())]

    def watchers(self, key: int) -> int:
        """How many operations watch `key`."""
        return len(self._watchers.get(key, ()))

    def watched_keys(self) -> Iterable[int]:
        return self._watchers.keys()

    def operations(self) -> list[Operation]:
        """Everybody who waits, the longest first."""
        return [waiting.operation for waiting in self._waiting.values()]

    def __len__(self) -> int:
        return len(self._waiting)

    def statistics(self) -> PurgatoryStatistics:
        return PurgatoryStatistics(
            waiting=len(self._waiting),
            watched_keys=len(self._watchers),
            satisfied=self._ended[State.SATISFIED],
            expired=self._ended[State.EXPIRED],
            cancelled=self._ended[State.CANCELLED],
        )

    def check(self) -> None:
        """Raises ApplianceDefect unless both indexes hold exactly those who wait. O(watches)."""
        self._wheel.check()
        if len(self._wheel) != len(self._waiting):
            raise ApplianceDefect(f"{len(self._wheel)} on the wheel, {len(self._waiting)} waiting")
        watched: dict[int, set[int]] = {
            key: {waiting.operation.key for waiting in watchers} for key, watchers in self._watchers.items()
        }
        expected: dict[int, set[int]] = {}
        for waiting in self._waiting.values():
            if waiting.state is not State.WAITING or waiting.task is None or not waiting.task.waits:
                raise ApplianceDefect(f"operation {waiting.operation.key} has ended and still waits")
            for key in waiting.operation.watches:
                expected.setdefault(key, set()).add(waiting.operation.key)
        if watched != expected:
            raise ApplianceDefect("the watch lists do not hold exactly those who wait")

    def _end(self, operation_key: int, event: Event) -> Operation | None:
        waiting = self._waiting.get(operation_key)
        if waiting is None or not self._leave(waiting, event):
            return None
        return waiting.operation

    def _leave(self, waiting: _Waiting[Operation], event: Event) -> bool:
        """The only way out. False when the operation has ended before."""
        state = after(waiting.state, event)
        if state is None:
            return False
        waiting.state = state
        self._ended[state] += 1
        operation = waiting.operation
        del self._waiting[operation.key]
        task, waiting.task = waiting.task, None
        if task is not None:
            task.cancel()
        for key in operation.watches:
            watchers = self._watchers[key]
            del watchers[waiting]
            if not watchers:
                del self._watchers[key]
        return True
