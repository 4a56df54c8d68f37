"""Whether a child that owes an answer hangs, or is at work that takes long.

A worker that recovers a large log from a slow disk is silent, and to kill it would only begin the same recovery
again, for ever. What tells the two apart is processor time: one that was stopped, or waits for what never comes,
takes none; one that recovers takes some between any two looks. One that spins takes it too, so patience ends:

    no answer, and no processor time, for `allowed`          hangs
    no answer for SPIN_FACTOR times `allowed`                hangs, whatever it does
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

SPIN_FACTOR: Final = 30


def processor_ns(pid: int) -> int:
    """What the main thread of `pid` has run, nanoseconds (proc(5), schedstat); 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


class Silence:
    """One child's, since it was asked; begun anew by every question and ended by any word.

    Clock: CLOCK_MONOTONIC nanoseconds, as the caller reads it.
    """

    __slots__ = ("_asked_ns", "_ran_ns", "_still_since_ns")

    def __init__(self) -> None:
        self._asked_ns = self._still_since_ns = self._ran_ns = 0

    @property
    def is_owed(self) -> bool:
        """Whether it was asked and has not answered."""
        return self._asked_ns != 0

    def asked(self, now_ns: int, ran_ns: int) -> None:
        """It was asked just now, having run for `ran_ns` so far."""
        self._asked_ns = self._still_since_ns = now_ns
        self._ran_ns = ran_ns

    def answered(self) -> None:
        self._asked_ns = 0

    def is_hang(self, now_ns: int, ran_ns: int, *, allowed_ns: int) -> bool:
        """Whether patience is over. To be called several times within `allowed_ns`."""
        if ran_ns != self._ran_ns:
            self._ran_ns, self._still_since_ns = ran_ns, now_ns
        return (
            now_ns - self._still_since_ns >= allowed_ns or now_ns - self._asked_ns >= SPIN_FACTOR * allowed_ns
        )
