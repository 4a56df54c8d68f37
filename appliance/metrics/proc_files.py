"""Processor time and memory of the appliance's processes, from /proc. Only what the kernel shows to everybody.

PSS is not among it: /proc/PID/smaps_rollup needs the right to trace the process, and this process has given that up
(`process/confinement.py`).

What a life of a process has used is kept in shared memory, so that processor time never falls when this process or the
other one starts again: three words for each process, in a part of the region `traffic` that this process alone writes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from appliance.ipc.process_table import ProcessSnapshot

WORDS: Final = 3
_GENERATION: Final = 0
_BEFORE_TICKS: Final = 1
_TICKS: Final = 2

# Of /proc/PID/stat, behind the name: see proc_pid_stat(5).
_STATE: Final = 0
_PARENT: Final = 1
_USER_TICKS: Final = 11
_SYSTEM_TICKS: Final = 12

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process uses."""

    is_running: bool
    cpu_seconds: float
    """Of all lives of the process, user and system."""
    resident_bytes: int


class ProcFiles:
    """Reads /proc.

    Args:
        kept: the words that are kept, WORDS for each process.
        parent: the supervisor. The kernel gives the id of a dead process to another one, but that is no child of it.
    """

    def __init__(self, kept: memoryview, *, parent: int) -> None:
        self._kept = kept
        self._parent = parent
        self._greatest: dict[int, int] = {}

    def usage(self, index: int, row: ProcessSnapshot) -> Usage:
        """Return what the process of a row uses."""
        found = self._ticks_and_pages(row.pid) if row.pid else None
        if found is None:
            return Usage(False, self._all_lives(index, 0, 0) / _TICKS_PER_SECOND, 0)
        ticks, pages = found
        return Usage(
            True, self._all_lives(index, row.generation, ticks) / _TICKS_PER_SECOND, pages * _PAGE_BYTES
        )

    def _ticks_and_pages(self, pid: int) -> tuple[int, int] | None:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # `pid (name) state parent …`: the name may hold anything.
                fields = file.read().rpartition(b")")[2].split()
            with open(f"/proc/{pid}/statm", "rb") as file:
                pages = int(file.read().split()[1])
        except (OSError, IndexError, ValueError):
            return None
        if fields[_STATE] in {b"Z", b"X"} or int(fields[_PARENT]) != self._parent:
            return None
        return int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS]), pages

    def _all_lives(self, index: int, generation: int, ticks: int) -> int:
        kept, at = self._kept, index * WORDS
        if at + WORDS > len(kept):
            return ticks
        if generation and kept[at + _GENERATION] != generation:
            kept[at + _BEFORE_TICKS] += kept[at + _TICKS]
            kept[at + _TICKS] = 0
            kept[at + _GENERATION] = generation
        kept[at + _TICKS] = max(kept[at + _TICKS], ticks)
        return int(kept[at + _BEFORE_TICKS] + kept[at + _TICKS])

    def never_less(self, index: int, amount: int) -> int:
        """Return the greatest amount that was seen for a process.

        A process that wakes has not yet added the time of its sleep; for a moment its row says less than a page did.
        """
        greatest = self._greatest[index] = max(amount, self._greatest.get(index, 0))
        return greatest
