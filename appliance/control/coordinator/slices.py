"""Work that may be long, done in slices of time: heartbeats and commits are served between two slices.

    begin ──→ first in the row ──one slice──→ done, or last in the row ──→ …

What has just begun has the next slice. So what is short is done in the turn in which it begins, however much long work
is under way. What is long goes on when its turn comes; all take the same slices.

An answer is made element by element; when its slice is over, what there is of it is encoded (`array_in_pieces`). One
answer may be for many clients that have asked the same. Work for clients that have all gone ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from appliance.control.coordinator.request_queue import Reply
from appliance.protocol.array_in_pieces import ArrayInPieces

SLICE_NS: Final = 1_000_000
"""Of one job, before the next one's turn."""
TURN_NS: Final = 2_000_000
"""Of all jobs, before others are served."""
JOBS_MAX: Final = 64
"""With more under way, no costly request is begun."""


class Job(Protocol):
    """Something that takes time."""

    def run(self, until_ns: int) -> bool:
        """Go on until `until_ns`, by the clock of `Slices`; whether it is done."""
        ...

    def closed(self, connection: int) -> None:
        """A connection is gone, by `Reply.key`."""
        ...


class AnswerJob:
    """Makes one answer, for all of `replies`, each of another connection.

    Args:
        encode: elements → the frame of the response with just these, for the first of the replies.
        send: gets the frame, and who still waits for it.
        drop: hears of each reply whose connection closed first.
    """

    __slots__ = ("_array", "_drop", "_elements", "_encode", "_monotonic_ns", "_replies", "_send")

    def __init__(
        self,
        replies: list[Reply],
        elements: Iterator[Any],
        *,
        encode: Callable[[tuple[Any, ...]], bytes],
        send: Callable[[bytes, list[Reply]], None],
        drop: Callable[[Reply], None],
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._replies = {reply.key: reply for reply in replies}
        self._elements = elements
        self._encode = encode
        self._send = send
        self._drop = drop
        self._monotonic_ns = monotonic_ns
        self._array: ArrayInPieces | None = None

    def run(self, until_ns: int) -> bool:
        if not self._replies:
            return True
        some: list[Any] = []
        monotonic_ns = self._monotonic_ns
        for element in self._elements:
            some.append(element)
            if monotonic_ns() >= until_ns:
                if self._array is None:
                    self._array = ArrayInPieces(self._encode)
                self._array.add(tuple(some))
                return False
        if self._array is None:
            frame = self._encode(tuple(some))
        else:
            self._array.add(tuple(some))
            frame = self._array.frame()
        self._send(frame, list(self._replies.values()))
        return True

    def waiting(self) -> list[Reply]:
        """Who waits for the answer."""
        return list(self._replies.values())

    def closed(self, connection: int) -> None:
        reply = self._replies.pop(connection, None)
        if reply is not None:
            self._drop(reply)


class StepJob:
    """One step of a request that goes on later; what it does is done whoever waits for it."""

    __slots__ = ("_step",)

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step

    def run(self, _until_ns: int) -> bool:
        self._step()
        return True

    def closed(self, connection: int) -> None:
        """What was asked for is done."""


class PiecesJob:
    """Work that is done whoever waits for it, in pieces: a generator that yields after each.

    Args:
        monotonic_ns: is asked between two pieces.
    """

    __slots__ = ("_monotonic_ns", "_steps")

    def __init__(self, steps: Iterator[None], monotonic_ns: Callable[[], int]) -> None:
        self._steps = steps
        self._monotonic_ns = monotonic_ns

    def run(self, until_ns: int) -> bool:
        return all(self._monotonic_ns() < until_ns for _ in self._steps)

    def closed(self, connection: int) -> None:
        """What was asked for is done."""


class Slices:
    """The jobs under way, in the order of their next slices.

    Args:
        failed: hears of what a job raised; the job is over.
    """

    __slots__ = ("_failed", "_jobs", "_monotonic_ns")

    def __init__(self, monotonic_ns: Callable[[], int], *, failed: Callable[[Job, Exception], None]) -> None:
        self._monotonic_ns = monotonic_ns
        self._failed = failed
        self._jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def begin(self, job: Job) -> None:
        """Give the next slice to `job`."""
        self._jobs.appendleft(job)

    def later(self, job: Job) -> None:
        """Give a slice to `job` after all others."""
        self._jobs.append(job)

    def closed(self, connection: int) -> None:
        """A connection is gone: nothing more is done for it alone."""
        for job in self._jobs:
            job.closed(connection)

    def run(self, next_job: Callable[[], bool]) -> None:
        """Work for one turn. `next_job` begins another job and tells whether it did; it is asked before each slice.

        At least one slice is worked, however long the turn before was.
        """
        now_ns = self._monotonic_ns()
        end_ns = now_ns + TURN_NS
        while now_ns < end_ns:
            began = len(self._jobs) < JOBS_MAX and next_job()
            if self._jobs:
                self._run_slice(self._jobs.popleft(), now_ns + SLICE_NS)
            elif not began:
                return
            now_ns = self._monotonic_ns()

    def _run_slice(self, job: Job, until_ns: int) -> None:
        try:
            done = job.run(until_ns)
        except Exception as error:
            self._failed(job, error)
            done = True
        if not done:
            self._jobs.append(job)
