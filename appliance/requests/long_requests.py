"""Requests that may take long: worked on in pieces, in turns, with other connections served between the pieces.

    begin ─→ first slice ─→ done: nearly always
                 │ asks the controller, or pauses: its next slice is like a first one
                 ↓
             SHORT_NS in all, in the rotation of short ones ─→ done
                 ↓
             to the end, in the rotation of long ones, or of long ones with large frames ─→ done

A connection has one such request at a time (decision 0077), so turns between requests are turns between connections,
and a turn is a length of time: the cost of a request is not what others wait for. A request that has had little time
goes before one that has had much. A half-done request is memory, so a rotation has room for a number of requests and of
bytes of their frames; others wait for it in order.

| in one turn of the duty cycle, together | at most |
|---|---|
| first slices | FRESH_NS |
| and short requests | SHORT_TURN_NS |
| and long ones, which have one slice in any case | TURN_NS |

A request whose connection has closed is dropped wherever it is: its generator is closed, what the controller answers is
not waited for, and what it has not been asked yet is not asked (decision 0078).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from appliance.channels.control_channel import Body
from appliance.clock import NS_PER_MS, Clock
from appliance.ipc.buffer_pool import BufferPool
from appliance.requests.meter import Meter
from appliance.requests.questions import ControllerRequests, PendingRequest
from appliance.requests.session import Request, Session
from appliance.requests.steps import Ask, Steps

TURN_NS: Final = 2_000_000
SLICE_NS: Final = 500_000
FRESH_NS: Final = 1_000_000
SHORT_TURN_NS: Final = 1_500_000
SHORT_NS: Final = 20_000_000
SHORT_MAX: Final = 64
LONG_MAX: Final = 8
LARGE_BYTES: Final = 64 << 10
LARGE_BYTES_MAX: Final = 2 << 20


class _Task:
    __slots__ = (
        "answer",
        "drop",
        "due_ns",
        "is_over",
        "is_paused",
        "pending",
        "question",
        "rotation",
        "size_bytes",
        "spent_ns",
        "steps",
    )

    def __init__(self, pending: Request, steps: Steps[None], size_bytes: int) -> None:
        self.pending = pending
        self.steps = steps
        self.size_bytes = size_bytes
        self.answer: Body | None = None
        self.due_ns = 0
        self.spent_ns = 0
        self.question: PendingRequest | None = None
        self.drop: Callable[[], None] | None = None
        self.is_paused = False
        self.rotation: _Rotation | None = None
        self.is_over = False


class _Rotation:
    """Requests that have turns, one after the other, and others that wait for room. A pause keeps its room."""

    __slots__ = ("_bytes", "_bytes_max", "_count_max", "count", "ready", "waiting")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self.count = 0
        self.ready: deque[_Task] = deque()
        self.waiting: deque[_Task] = deque()

    def enter(self, task: _Task) -> None:
        self.waiting.append(task)
        self._admit()

    def leave(self, task: _Task) -> None:
        """It is over, or has had what is had here."""
        task.rotation = None
        self.count -= 1
        self._bytes -= task.size_bytes
        self._admit()

    def _admit(self) -> None:
        """As many as there is room for; one in any case."""
        waiting = self.waiting
        while waiting:
            task = waiting[0]
            if not task.is_over:
                if self.count and (
                    self.count >= self._count_max or self._bytes + task.size_bytes > self._bytes_max
                ):
                    return
                task.rotation = self
                self.count += 1
                self._bytes += task.size_bytes
                self.ready.append(task)
            waiting.popleft()


class LongRequests:
    """Those of one network process. An inbox of its duty cycle: while pieces can be worked on, it does not sleep.

    Args:
        contain: hears what a request's work raised; closes its connection.
    """

    __slots__ = (
        "_clock",
        "_contain",
        "_fresh",
        "_large",
        "_large_next",
        "_long",
        "_pool",
        "_questions",
        "_short",
        "_spent_ns",
        "_tasks",
        "meter",
        "wants_turn",
    )

    def __init__(
        self,
        pool: BufferPool,
        questions: ControllerRequests,
        *,
        contain: Callable[[Session, Exception], None],
        clock: Clock,
    ) -> None:
        self._pool = pool
        self._questions = questions
        self._contain = contain
        self._clock = clock
        self._tasks: dict[Request, _Task] = {}
        self._fresh: deque[_Task] = deque()
        no_limit = 1 << 62
        self._short = _Rotation(SHORT_MAX, no_limit)
        self._long = _Rotation(LONG_MAX, no_limit)
        self._large = _Rotation(LONG_MAX, LARGE_BYTES_MAX)
        self._large_next = False
        self._spent_ns = 0
        self.meter: Meter | None = None  # while there are quotas
        self.wants_turn = False  # or there is something to count anew

    def begin(self, pending: Request, steps: Steps[None], size_bytes: int) -> None:
        """Work on a request of `size_bytes` on the wire. It holds its block until its steps give it, or are over."""
        task = self._tasks[pending] = _Task(pending, steps, size_bytes)
        pending.drop = task.drop = partial(self._drop, task)
        self.wants_turn = True
        if self._fresh or self._spent_ns >= FRESH_NS:
            self._fresh.append(task)
        else:
            self._slice(task)

    def resume(self, pending: Request) -> None:
        """What a request's steps paused for has come. Nothing happens where they have not paused."""
        task = self._tasks.get(pending)
        if task is not None and task.is_paused:
            task.is_paused = False
            self._ready(task)

    def contain(self, pending: Request, error: Exception) -> None:
        """Close the connection of a request that could not be served, and give its block back."""
        pending.give_block(self._pool)
        self._contain(pending.session, error)

    def is_empty(self) -> bool:
        """Whether no piece can be worked on."""
        return not (self._fresh or self._short.ready or self._long.ready or self._large.ready)

    def run(self) -> None:
        """Works on what is there, TURN_NS at most; called once in each turn of the duty cycle."""
        self._spent_ns = 0
        while self._fresh and self._spent_ns < FRESH_NS:
            self._later_slice(self._fresh.popleft())
        while self._short.ready and self._spent_ns < SHORT_TURN_NS:
            self._later_slice(self._short.ready.popleft())
        while (task := self._next_long()) is not None:
            self._later_slice(task)
            if self._spent_ns >= TURN_NS:
                break
        self.wants_turn = self._spent_ns > 0 or not self.is_empty()

    def _next_long(self) -> _Task | None:
        """Of those with large frames and the others in turn."""
        self._large_next = not self._large_next
        first, second = (self._large, self._long) if self._large_next else (self._long, self._large)
        ready = first.ready or second.ready
        return ready.popleft() if ready else None

    def unfinished(self) -> list[Session]:
        """Whose requests are past their first slice and not done, for a stop that cannot wait for them."""
        return [task.pending.session for task in self._tasks.values() if task.spent_ns >= SLICE_NS]

    def _ready(self, task: _Task) -> None:
        """It can go on, after a pause or with an answer."""
        self.wants_turn = True
        if task.rotation is None:
            self._fresh.append(task)
        else:
            task.rotation.ready.append(task)

    def _later_slice(self, task: _Task) -> None:
        """A slice outside of `begin`, whose time nobody else counts for a quota."""
        before_ns = task.spent_ns
        self._slice(task)
        if self.meter is not None:
            self.meter.served(task.pending.session, task.spent_ns - before_ns)

    def _slice(self, task: _Task) -> None:
        if task.is_over:
            return  # dropped while it was in a queue
        monotonic_ns = self._clock.monotonic_ns
        began_ns = now_ns = monotonic_ns()
        until_ns = began_ns + SLICE_NS
        send = task.steps.send
        try:
            while now_ns < until_ns:
                step = send(task.answer)
                task.answer = None
                if step is not None:
                    if isinstance(step, Ask):
                        self._ask(task, step)
                    else:
                        task.is_paused = True
                    return
                now_ns = monotonic_ns()
        except StopIteration:
            self._over(task)
            return
        except Exception as error:
            self._over(task)
            self._contain(task.pending.session, error)
            return
        finally:
            spent_ns = monotonic_ns() - began_ns
            self._spent_ns += spent_ns
            task.spent_ns += spent_ns
        self._turn_over(task)

    def _turn_over(self, task: _Task) -> None:
        """It has had its slice, and goes on in the rotation in which it belongs by now."""
        if task.spent_ns < SHORT_NS:
            rotation = self._short
        else:
            rotation = self._large if task.size_bytes > LARGE_BYTES else self._long
        if task.rotation is rotation:
            rotation.ready.append(task)
            return
        if task.rotation is not None:
            task.rotation.leave(task)
        rotation.enter(task)

    def _ask(self, task: _Task, ask: Ask) -> None:
        now_ns = self._clock.monotonic_ns()
        if not task.due_ns:
            task.due_ns = now_ns + ask.timeout_ms * NS_PER_MS
        elif now_ns >= task.due_ns:
            self._answered(task, None)
            return
        task.question = self._questions.ask(ask.body, due_ns=task.due_ns, done=partial(self._answered, task))

    def _answered(self, task: _Task, answer: Body | None) -> None:
        if not task.is_over:
            task.question = None
            task.answer = answer
            self._ready(task)

    def _over(self, task: _Task) -> None:
        task.is_over = True
        del self._tasks[task.pending]
        if task.pending.drop is task.drop:  # else its last piece has put one of its own there
            task.pending.drop = None
        task.drop = None  # it refers to the task, which only the collector would free
        task.pending.give_block(self._pool)
        if task.rotation is not None:
            task.rotation.leave(task)

    def _drop(self, task: _Task) -> None:
        """The connection is closed."""
        if task.is_over:
            return
        self._over(task)
        if task.question is not None:
            self._questions.forget(task.question)
        task.steps.close()

    def statistics(self) -> dict[str, int]:
        return {
            "all": len(self._tasks),
            "fresh": len(self._fresh),
            "short": self._short.count,
            "long": self._long.count,
            "large": self._large.count,
            "waiting": sum(len(each.waiting) for each in (self._short, self._long, self._large)),
        }
