"""One thread for what can take long, so that the process that asks for it need not wait."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Aside(Generic[T]):
    """Does one piece of work after another, in a thread that the first one starts.

    Args:
        name: that of the thread.
        work: must not raise.
    """

    def __init__(self, name: str, work: Callable[[T], None]) -> None:
        self._name = name
        self._work = work
        self._queue: SimpleQueue[T] = SimpleQueue()
        self._done: deque[None] = deque()
        self._thread: threading.Thread | None = None

    def put(self, piece: T) -> None:
        """Have this done."""
        self._queue.put(piece)
        if self._thread is None:
            # A daemon, because the end of the process must not wait for it. Then the kernel does not wait either.
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            with suppress(RuntimeError):  # the host has no thread left: the next call tries again
                thread.start()
                self._thread = thread

    def take_done(self) -> int:
        """Return how many pieces were done since the last call."""
        count = len(self._done)
        for _ in range(count):
            self._done.popleft()
        return count

    def _run(self) -> None:
        while True:
            self._work(self._queue.get())
            self._done.append(None)
