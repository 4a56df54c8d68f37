"""Processor time and memory of the appliance's processes, from /proc. Only what the kernel shows to everybody.

PSS and the bytes of disks are not among it: /proc/PID/smaps_rollup and /proc/PID/io need the right to trace the
process, and this process has given that up (`process/confinement.py`). The supervisor says them.

What a life of a process has used, and how long it has slept, is kept in shared memory, so that nothing falls when this
process or the other one starts again: KEPT_WORDS for each process, in pages of the region `traffic` that this process
alone writes. Three words each: a generation, what the lives before it had used, and what this one has used.
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

# Of a sum over all lives, from its first word.
_GENERATION: Final = 0
_BEFORE: Final = 1
_NOW: Final = 2

_TICKS_AT: Final = 0
_IDLE_GENERATION: Final = 3
_IDLE_NS: Final = 4
_IDLE_LOST_NS: Final = 5
_READ_AT: Final = 6
_WRITTEN_AT: Final = 9

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
    read_bytes: int
    """What all lives have had disks read, as far as it was noted; `written_bytes`: what they have made dirty."""
    written_bytes: int


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
        ticks, pages = found or (0, 0)
        generation = 0 if found is None else row.generation
        return Usage(
            found is not None,
            self._all_lives(index, _TICKS_AT, generation, ticks) / _TICKS_PER_SECOND,
            pages * _PAGE_BYTES,
            self._all_lives(index, _READ_AT, 0, 0),
            self._all_lives(index, _WRITTEN_AT, 0, 0),
        )

    def note_disk(self, index: int, generation: int, *, read_bytes: int, written_bytes: int) -> None:
        """Keep what a life of the process of a row has read and written, as the supervisor says it."""
        if read_bytes >= 0 and written_bytes >= 0:
            self._all_lives(index, _READ_AT, generation, read_bytes)
            self._all_lives(index, _WRITTEN_AT, generation, written_bytes)

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

    def _all_lives(self, index: int, first: int, generation: int, used: int) -> int:
        """Note what a life has used, and return the sum of all lives. With generation 0 nothing is noted."""
        kept, place = self._place(index)
        at = place + first
        if generation:
            if kept[at + _GENERATION] != generation:
                kept[at + _BEFORE] += kept[at + _NOW]
                kept[at + _NOW] = 0
                kept[at + _GENERATION] = generation
            kept[at + _NOW] = max(kept[at + _NOW], used)
        return int(kept[at + _BEFORE] + kept[at + _NOW])

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
