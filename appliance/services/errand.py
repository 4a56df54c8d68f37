"""A task of a services process that reads and appends one after the other, written as a generator.

    work ── yields Reading, Appending, Trimming or Pause ──→ errand ── asks ──→ the owner of the log
         ←───────────────── is sent the answer ─────────────         ←─ answers ─

At most one question is outstanding. If the work raises, or returns, it begins again after AGAIN_MS. So a defect in it
does not end the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple, TypeAlias

from appliance.clock import NS_PER_MS, Clock
from appliance.log.producer_state import AppendOrigin
from appliance.partition_access.access import PartitionAccess, Read
from appliance.partition_access.places import LogPlace

AGAIN_MS: Final = 10_000
NO_ROOM_MS: Final = 50

_logger: Final = logging.getLogger(__name__)


class Reading(NamedTuple):
    """The answer is a `Read`."""

    place: LogPlace
    offset: int
    bytes_max: int
    headers_only: bool = False


class Appending(NamedTuple):
    """The answer is 0, or an error code."""

    place: LogPlace
    batch: bytes


class Trimming(NamedTuple):
    """Move the log start; the answer is 0, or an error code."""

    place: LogPlace
    offset: int


class Pause(NamedTuple):
    """Go on after `pause_ms`; 0: in the next turn. None: only when `wake` is called."""

    pause_ms: int | None


Step: TypeAlias = Reading | Appending | Trimming | Pause
Work: TypeAlias = Generator[Step, Any, None]


class Errand:
    """Drives one work.

    Args:
        begin: makes the work.
        name: what the log calls it.
    """

    __slots__ = (
        "_answer",
        "_begin",
        "_clock",
        "_is_answered",
        "_is_asked",
        "_logs",
        "_name",
        "_not_before_ns",
        "_step",
        "_work",
    )

    def __init__(self, begin: Callable[[], Work], logs: PartitionAccess, clock: Clock, *, name: str) -> None:
        self._begin = begin
        self._logs = logs
        self._clock = clock
        self._name = name
        self._work: Work | None = None
        self._step: Step | None = None
        self._is_asked = False
        self._is_answered = False
        self._answer: Any = None
        self._not_before_ns: int | None = 0

    def turn(self) -> None:
        """Go on as far as possible now."""
        while self._can_go_on():
            if not self._advance():
                return

    def wake(self) -> None:
        """End a pause that has no end."""
        if self._not_before_ns is None:
            self._not_before_ns = 0

    def next_look_ms(self) -> int | None:
        """Return in how many milliseconds `turn` has something to do by itself; None: after an answer, or a wake."""
        if self._not_before_ns is None or self.is_asking:
            return None
        return max(self._not_before_ns - self._clock.monotonic_ns(), 0) // NS_PER_MS + 1

    @property
    def is_asking(self) -> bool:
        """Whether an answer is outstanding."""
        return self._is_asked and not self._is_answered

    def stop(self) -> None:
        """Begin nothing more."""
        self._not_before_ns = None
        if self._work is not None and not self.is_asking:
            self._work.close()
            self._work = None

    def _can_go_on(self) -> bool:
        if self.is_asking or self._not_before_ns is None:
            return False
        return self._clock.monotonic_ns() >= self._not_before_ns

    def _advance(self) -> bool:
        """Return whether to go on in this turn."""
        if self._step is not None:  # it found no room on a ring
            self._ask(self._step)
            return True
        try:
            if self._work is None:
                self._work = self._begin()
                step = next(self._work)
            else:
                answer, self._answer = self._answer, None
                self._is_asked = self._is_answered = False
                step = self._work.send(answer)
        except StopIteration:
            self._again()
            return False
        except Exception as error:
            _logger.error("internal error in %s, which begins again: %r", self._name, error, exc_info=error)
            self._again()
            return False
        if isinstance(step, Pause):
            self._not_before_ns = (
                None if step.pause_ms is None else self._clock.monotonic_ns() + step.pause_ms * NS_PER_MS
            )
            return False
        self._ask(step)
        return True

    def _again(self) -> None:
        self._work = None
        self._is_asked = self._is_answered = False
        self._answer = None
        self._not_before_ns = self._clock.monotonic_ns() + AGAIN_MS * NS_PER_MS

    def _ask(self, step: Step) -> None:
        self._step = None
        self._is_asked, self._is_answered = True, False
        if isinstance(step, Reading):
            is_asked = self._logs.read(
                step.place,
                step.offset,
                self._answered,
                bytes_max=step.bytes_max,
                headers_only=step.headers_only,
            )
        elif isinstance(step, Appending):
            is_asked = self._logs.append(step.place, step.batch, self._answered, origin=AppendOrigin.CLIENT)
        else:
            assert isinstance(step, Trimming)
            is_asked = self._logs.delete_records(step.place, step.offset, self._answered)
        if not is_asked:
            self._is_asked = False
            self._step = step
            self._not_before_ns = self._clock.monotonic_ns() + NO_ROOM_MS * NS_PER_MS

    def _answered(self, answer: Read | int) -> None:
        self._answer = answer
        self._is_answered = True
