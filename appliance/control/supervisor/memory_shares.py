"""How much memory each process has to itself, and what it has read from disks and written to them, for the metrics
process, which may not look at others.

    metrics ──MemoryWanted──→ supervisor ──MemoryShare, one for each process, PAUSE_MS apart──→ metrics

The kernel adds up each page's share (PSS), and shows the bytes of disks, only to a process that may trace the other
one. The supervisor may, and it is on no request's way. For the PSS, the kernel walks the page tables of the process for
some milliseconds. Therefore the supervisor looks at one process at a time, and only when it is asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Final

from appliance.channels.roles import SUPERVISOR, Role
from appliance.channels.supervision import MemoryShare
from appliance.control.supervisor.children import ChildRecord

PAUSE_MS: Final = 20
UNKNOWN: Final = -1
_PSS: Final = b"Pss:"
_READ: Final = b"read_bytes:"
_WRITTEN: Final = b"write_bytes:"
_KIB: Final = 1024


class MemoryShares:
    """One round at a time.

    Args:
        children: the records of all processes.
        tell: sends a message to the process of a record.
        after_ms: calls an action after some milliseconds.
    """

    def __init__(
        self,
        children: Callable[[], Iterable[ChildRecord]],
        tell: Callable[[ChildRecord, MemoryShare], None],
        after_ms: Callable[[int, Callable[[], None]], object],
    ) -> None:
        self._children = children
        self._tell = tell
        self._after_ms = after_ms
        self._asker: ChildRecord | None = None
        self._left: list[tuple[Role, ChildRecord | None]] = []

    def begin(self, asker: ChildRecord) -> None:
        """Look at every process for `asker`, unless a round is under way."""
        if self._asker is None:
            self._asker = asker
            self._left = [(SUPERVISOR, None), *((child.role, child) for child in self._children())]
            self._next()

    def _next(self) -> None:
        asker = self._asker
        if asker is None or not asker.is_alive or not self._left:
            self._asker = None
            return
        role, child = self._left.pop(0)
        # A child that has died has no share. Its pid is its own until the supervisor reaps it.
        if child is None or (child.is_alive and child.pid > 0):
            pid = os.getpid() if child is None else child.pid
            share = MemoryShare(
                role.kind,
                role.index,
                role.slot,
                0 if child is None else child.generation,
                proportional_bytes(pid),
                open_files(pid),
                *disk_bytes(pid),
            )
            self._tell(asker, share)
        self._after_ms(PAUSE_MS, self._next)


def proportional_bytes(pid: int) -> int:
    """Return the PSS of a process: each page divided by how many processes have it. UNKNOWN where it cannot be read."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(_PSS):
                    return int(line.split()[1]) * _KIB
    except (OSError, IndexError, ValueError):
        pass
    return UNKNOWN


def open_files(pid: int) -> int:
    """Return how many descriptors a process has open, UNKNOWN where the kernel does not show it."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return UNKNOWN


def disk_bytes(pid: int) -> tuple[int, int]:
    """Return the bytes that a process has had disks read, and those that it has made dirty. UNKNOWN as above.

    What is read from the page cache does not count. Source: proc_pid_io(5).
    """
    found = {_READ: UNKNOWN, _WRITTEN: UNKNOWN}
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            for line in file:
                name, _, value = line.partition(b" ")
                if name in found:
                    found[name] = int(value)
    except (OSError, ValueError):
        return UNKNOWN, UNKNOWN
    return found[_READ], found[_WRITTEN]
