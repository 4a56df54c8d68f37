"""Processor time and memory of the appliance's processes, from /proc. Only what the kernel shows to everybody.

PSS is not among it: /proc/PID/smaps_rollup needs the right to trace the process, and this process has given that up
(`process/confinement.py`).

What a life of a process has used, and how long it has slept, is kept in shared memory, so that neither falls when this
process or the other one starts again: six words for each process, in pages of the region `traffic` that this process
alone writes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.channels.traffic_table import KEPT_PER_PAGE, KEPT_WORDS
from appliance.ipc.process_table import ProcessSnapshot

_GENERATION: Final = 0
_BEFORE_TICKS: Final = 1
_TICKS: Final = 2
_IDLE_GENERATION: Final = 3
_IDLE_NS: Final = 4
_IDLE_LOST_NS: Final = 5

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
        kept: pages for the words that are kept (`traffic_table.kept_pages`).
        parent: the supervisor. The kernel gives the id of a dead process to another one, but that is no child of it.
    """

    def __init__(self, kept: Sequence[memoryview], *, parent: int) -> None:
        self._kept = kept
        self._parent = parent

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
        kept, at = self._place(index)
        if generation and kept[at + _GENERATION] != generation:
            kept[at + _BEFORE_TICKS] += kept[at + _TICKS]
            kept[at + _TICKS] = 0
            kept[at + _GENERATION] = generation
        kept[at + _TICKS] = max(kept[at + _TICKS], ticks)
        return int(kept[at + _BEFORE_TICKS] + kept[at + _TICKS])

    def idle_ns(self, index: int, generation: int, counted_ns: int) -> int:
        """Return how long all lives of a process have slept, never less than before.

        Args:
            index: of the process's row.
            generation: of the life that runs or ran last; 0 where another one is beginning.
            counted_ns: what the row says, and what the process has slept since then.

        A process counts a sleep when it wakes. One that is killed in its sleep loses it: the difference to what a page
        has shown is added to what the next life counts.
        """
        kept, at = self._place(index)
        if generation and kept[at + _IDLE_GENERATION] != generation:
            kept[at + _IDLE_LOST_NS] = max(0, kept[at + _IDLE_NS] - counted_ns)
            kept[at + _IDLE_GENERATION] = generation
        idle_ns = counted_ns + kept[at + _IDLE_LOST_NS]
        kept[at + _IDLE_NS] = max(kept[at + _IDLE_NS], idle_ns)
        return int(kept[at + _IDLE_NS])

    def _place(self, index: int) -> tuple[memoryview, int]:
        page, place = divmod(index, KEPT_PER_PAGE)
        return self._kept[page], place * KEPT_WORDS


def age_ms(pid: int) -> int:
    """Return for how long a process has been there. Source: proc_pid_stat(5), `starttime`."""
    fields = (
        Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    )
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return int((time.clock_gettime(time.CLOCK_BOOTTIME) - started_s) * 1000)
