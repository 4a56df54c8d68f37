"""Threads that force files to the disk for one log directory, beside the duty cycle.

    worker ── submit(work) ──→ queue ──→ thread: fdatasync, which gives the interpreter's lock up
    worker ←── ended, eventfd ──────────── thread

Work is a call that raises StorageFault or nothing. What it came to is noted and the worker's eventfd is written,
always: the doorbell's fence is for a process's one thread. Threads begin with the first work; a directory
without `durability = "fsync"` has none. There are several because files flushed at the same time share the commits of
the file system's journal (decision 0020, figures), and few because each needs the interpreter's lock to begin and end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Final

from appliance.errors import StorageFault

THREADS: Final = 4
SWITCH_INTERVAL_S: Final = 0.0005

Ended = Callable[[StorageFault | None], None]


class Flusher:
    """The threads of one directory. `ended` is called on them, so it may do no more than note what it is told."""

    __slots__ = ("_count", "_eventfd", "_name", "_queue", "_threads")

    def __init__(self, name: str, *, eventfd: int, threads: int = THREADS) -> None:
        self._name = name
        self._count = threads
        self._eventfd = eventfd
        self._queue: SimpleQueue[tuple[Callable[[], None], Ended] | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def submit(self, work: Callable[[], None], ended: Ended) -> None:
        """Runs `work` soon, then tells `ended` its fault, or None."""
        self.begin()
        self._queue.put((work, ended))

    def begin(self) -> None:
        """Starts the threads before the first work, for who will submit that on a thread that goes behind others: Linux
        gives its place in the queue to those that it starts, for good."""
        if self._threads:
            return
        # A busy worker gives the interpreter's lock up after this long: what a flush's end may wait for.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._threads = [
            Thread(target=self._run, name=f"flush {self._name} {number}", daemon=True)
            for number in range(self._count)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, ended = item
            fault: StorageFault | None = None
            try:
                work()
            except StorageFault as error:
                fault = error
            ended(fault)
            with suppress(BlockingIOError):  # full: then it is readable, and the worker wakes
                os.eventfd_write(self._eventfd, 1)

    def close(self) -> None:
        """Ends the threads after what they have to do."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []
