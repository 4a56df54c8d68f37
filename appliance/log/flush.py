"""Forcing files to the disk beside the requests.

The owner of a log makes a `FlushTask`; any thread may run it, since it touches nothing but the files it names.
When it has run, the log's recovery point moves up to where the task was made, unless the log was cut meanwhile.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from appliance.log.checkpoint import sync_directory
from appliance.log.faults import storage_faults
from appliance.log.flush_times import FLUSH_TIMES

_moving: Final = Lock()
"""Of all recovery points: it is held for two comparisons, and a log has flushes seldom."""


class RecoveryPoint:
    """The offset below which a log needs no checking after a crash. The one thing two threads may move."""

    __slots__ = ("_cuts", "offset")

    def __init__(self, offset: int, *, cuts: int = 0) -> None:
        self.offset = offset
        self._cuts = cuts

    @property
    def cuts(self) -> int:
        """How often the log was cut; a flush begun before a cut proves nothing after it."""
        return self._cuts

    def advance(self, offset: int, cuts: int) -> None:
        """Moves up to `offset` unless the log was cut since `cuts` was read."""
        with _moving:
            if cuts == self._cuts and offset > self.offset:
                self.offset = offset

    def cut(self, offset: int) -> None:
        """The log now ends at `offset`."""
        with _moving:
            self._cuts += 1
            self.offset = min(self.offset, offset)


@dataclass(frozen=True, slots=True)
class FlushTask:
    """Files to force to the disk, and the recovery point that this earns."""

    directory: Path
    paths: tuple[Path, ...]
    offset: int
    point: RecoveryPoint
    cuts: int

    def run(self) -> None:
        """Forces the files; those that are gone by now are passed over.

        Raises:
            StorageFault: it failed; the recovery point stays.
        """
        flush_files(self.paths)
        with storage_faults(self.directory):
            try:
                sync_directory(self.directory)
            except FileNotFoundError:
                return
        self.ran()

    def ran(self) -> None:
        """The files are on the disk: the recovery point moves."""
        self.point.advance(self.offset, self.cuts)


def flush_files(paths: Iterable[Path]) -> None:
    """Forces the content of files to the disk; missing ones are passed over.

    Raises:
        StorageFault: it failed.
    """
    began_ns = time.monotonic_ns()
    for path in paths:
        with storage_faults(path):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
    FLUSH_TIMES.note(began_ns)


class FlushQueue(deque[FlushTask]):
    """The flushes that a log directory has to run. Whoever runs them is told of each one that a log puts in."""

    def __init__(self) -> None:
        super().__init__()
        self.on_due: Callable[[], None] | None = None
        """Called on the thread of the log, in the middle of its work: it may note something and no more."""

    def append(self, task: FlushTask) -> None:
        super().append(task)
        if self.on_due is not None:
            self.on_due()

    def put_by(self, task: FlushTask) -> None:
        """One that may wait for the next checkpoint; from any thread, nobody is told."""
        super().append(task)
