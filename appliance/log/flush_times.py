"""How long this process's flushes took, until somebody takes it: the metrics show it.

Threads note, and the duty cycle takes; `deque` lets both do so at once. Of more than KEPT_MAX that nobody takes, the
oldest are forgotten.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

KEPT_MAX: Final = 4096


class FlushTimes:
    """Durations in ns."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[int] = deque(maxlen=KEPT_MAX)

    def note(self, began_ns: int) -> None:
        """A flush that began at `began_ns` (monotonic) has ended. Any thread may call it."""
        self._kept.append(time.monotonic_ns() - began_ns)

    def take(self) -> list[int]:
        """Return those that have ended since the last call."""
        kept = self._kept
        return [kept.popleft() for _ in range(len(kept))]


FLUSH_TIMES: Final = FlushTimes()
"""Of this process."""
