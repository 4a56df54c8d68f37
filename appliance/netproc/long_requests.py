"""Requests that may take long: worked on in pieces, in turns, with other connections served between the pieces.

    begin ─→ first slice ─→ done: nearly always
                 │
                 ├─→ asks the controller, or pauses ─→ next slice, as a first one
                 ↓
              waiting ─→ in rotation ─→ done

A connection has one such request at a time (decision 0077), so turns between requests are turns between connections,
and a turn is a length of time: the cost of a request is not what others wait for.

| bound | why |
|---|---|
| all slices of one turn of the duty cycle: TURN_NS | what a produce or fetch request waits for |
| first slices of one turn: FRESH_NS; each SLICE_NS | a small request is done before long ones go on, and they do |
| in rotation: ROTATION_MAX requests, or ROTATION_BYTES of frames | a request and its answer, half done, are memory |

A request whose connection has closed is dropped wherever it is: its generator is closed, what the controller answers is
not waited for, and what it has not been asked yet is not asked (decision 0078).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from appliance.channels.control_channel import Body
from appliance.clock import Clock
from appliance.ipc.buffer_pool import BufferPool
from appliance.netproc.connection import Connection, Pending
from appliance.netproc.questions import Question, Questions
from appliance.netproc.steps import Ask, Steps

TURN_NS: Final = 2_000_000
SLICE_NS: Final = 500_000
FRESH_NS: Final = TURN_NS - SLICE_NS
ROTATION_MAX: Final = 8
ROTATION_BYTES: Final = 2 << 20
_NS_PER_MS: Final = 1_000_000


class _Task:
    __slots__ = (
        "answer",
        "due_ns",
        "in_rotation",
        "is_over",
        "is_paused",
        "pending",
        "question",
        "size_bytes",
        "steps",
    )

    def __init__(self, pending: Pending, steps: Steps[None], size_bytes: int) -> None:
        self.pending = pending
        self.steps = steps
        self.size_bytes = size_bytes
        self.answer: Body | None = None
        self.due_ns = 0
        self.question: Question | None = None
        self.is_paused = False
        self.in_rotation = False
        self.is_over = False


class LongRequests:
    """Those of one network process. An inbox of its duty cycle: while pieces can be worked on, it does not sleep.

    Args:
        contain: hears what a request's work raised; closes its connection.
    """

    __slots__ = (
        "_clock",
        "_contain",
        "_fresh",
        "_pool",
        "_questions",
        "_rotation",
        "_rotation_bytes",
        "_rotation_size",
        "_spent_ns",
        "_tasks",
        "_waiting",
        "wants_turn",
    )

    def __init__(
        self,
        pool: BufferPool,
        questions: Questions,
        *,
        contain: Callable[[Connection, Exception], None],
        clock: Clock,
    ) -> None:
        self._pool = pool
        self._questions = questions
        self._contain = contain
        self._clock = clock
        self._tasks: dict[Pending, _Task] = {}
        self._fresh: deque[_Task] = deque()
        self._waiting: deque[_Task] = deque()
        self._rotation: deque[_Task] = deque()
        self._rotation_size = 0  # with those that ask or pause
        self._rotation_bytes = 0
        self._spent_ns = 0
        self.wants_turn = False  # or there is something to count anew

    def begin(self, pending: Pending, steps: Steps[None], size_bytes: int) -> None:
        """Work on a request of `size_bytes` on the wire. It holds its block until its steps give it, or are over."""
        task = self._tasks[pending] = _Task(pending, steps, size_bytes)
        pending.drop = partial(self._drop, task)
        self.wants_turn = True
        if self._fresh or self._spent_ns >= FRESH_NS:
            self._fresh.append(task)
        else:
            self._slice(task)

    def resume(self, pending: Pending) -> None:
        """What a request's steps paused for has come. Nothing happens where they have not paused."""
        task = self._tasks.get(pending)
        if task is not None and task.is_paused:
            task.is_paused = False
            self._ready(task)

    def is_empty(self) -> bool:
        """Whether no piece can be worked on."""
        return not (self._fresh or self._rotation)

    def run(self) -> None:
        """Works on what is there, TURN_NS at most; called once in each turn of the duty cycle."""
        self._spent_ns = 0
        while self._fresh and self._spent_ns < FRESH_NS:
            self._slice(self._fresh.popleft())
        while self._rotation and self._spent_ns < TURN_NS:
            self._slice(self._rotation.popleft())
        self.wants_turn = self._spent_ns > 0 or not self.is_empty()

    def unfinished(self) -> list[Connection]:
        """Whose requests are past their first slice and not done, for a stop that cannot wait for them."""
        return [
            task.pending.connection
            for task in self._tasks.values()
            if task.in_rotation or task in self._waiting
        ]

    def _admit(self) -> None:
        """As many of those that wait as may be half done at a time."""
        waiting = self._waiting
        while waiting:
            task = waiting[0]
            if not task.is_over:
                if self._rotation_size and (
                    self._rotation_size >= ROTATION_MAX
                    or self._rotation_bytes + task.size_bytes > ROTATION_BYTES
                ):
                    return
                task.in_rotation = True
                self._rotation_size += 1
                self._rotation_bytes += task.size_bytes
                self._rotation.append(task)
            waiting.popleft()

    def _ready(self, task: _Task) -> None:
        """It can go on, after a pause or with an answer."""
        self.wants_turn = True
        if task.in_rotation:
            self._rotation.append(task)
        else:
            self._fresh.append(task)

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
            self._contain(task.pending.connection, error)
            return
        finally:
            self._spent_ns += monotonic_ns() - began_ns
        if task.in_rotation:
            self._rotation.append(task)
        else:
            self._waiting.append(task)
            self._admit()

    def _ask(self, task: _Task, ask: Ask) -> None:
        now_ns = self._clock.monotonic_ns()
        if not task.due_ns:
            task.due_ns = now_ns + ask.timeout_ms * _NS_PER_MS
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
        task.pending.drop = None
        task.pending.give_block(self._pool)
        if task.in_rotation:
            self._rotation_size -= 1
            self._rotation_bytes -= task.size_bytes
            self._admit()

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
            "long": len(self._tasks),
            "fresh": len(self._fresh),
            "in rotation": self._rotation_size,
            "waiting": len(self._waiting),
        }
