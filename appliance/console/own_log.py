"""The last lines of the appliance's own log, as the processes keep them in shared memory (`ipc/line_ring.py`).

Each process keeps about 2 KB of lines, also after its death. The supervisor writes nothing into shared memory. It sends
its lines to the console, and sends all that it still has to each new life of the console (`supervisor/own_lines.py`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from appliance.channels.wiring import Attachment, Wiring

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
SUPERVISORS_MAX: Final = 500
SUPERVISORS: Final = -1
"""Stands for the supervisor where other processes have the number of their row."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line. `place`: of the process, and of the line in it; both together name a line once."""

    place: tuple[int, int]
    time: str
    level: str
    process: str
    text: str

    @property
    def level_number(self) -> int:
        """The number of `logging`, for comparisons."""
        return logging.getLevelNamesMapping().get(self.level, logging.INFO)


class OwnLog:
    """All lines that are kept. Threads share it.

    Args:
        attachment: of the console process.
        wiring: says which processes there are.
    """

    def __init__(self, attachment: Attachment, wiring: Wiring) -> None:
        self._table = attachment.process_table
        self._rows = range(len(wiring.planned))
        self._lock = threading.Lock()
        self._supervisors: deque[LogLine] = deque(maxlen=SUPERVISORS_MAX)

    def add_supervisors(self, position: int, text: str) -> None:
        """Keep a line that the supervisor has sent; `position` numbers its lines, from 1 on."""
        line = parsed(text, (SUPERVISORS, position))
        if line is not None:
            with self._lock:
                self._supervisors.append(line)

    def lines(self, *, behind: Mapping[int, int] | None = None) -> list[LogLine]:
        """Return the lines by time.

        Args:
            behind: number of a process → position; its lines up to there are left out.
        """
        seen = behind or {}
        found = [
            line
            for row in self._rows
            for each in self._table.lines(row)
            if each.position > seen.get(row, 0) and (line := parsed(each.text, (row, each.position)))
        ]
        with self._lock:
            found += [each for each in self._supervisors if each.place[1] > seen.get(SUPERVISORS, 0)]
        found.sort(key=lambda each: each.time)
        return found


def parsed(text: str, place: tuple[int, int]) -> LogLine | None:
    """Return a line `TIME LEVEL PROCESS: TEXT`; None if it is none, such as one that was cut by a kill."""
    head, colon, message = text.partition(": ")
    parts = head.split(" ", 2)
    if not colon or len(parts) != 3 or parts[1] not in LEVELS:
        return None
    return LogLine(place, parts[0], parts[1], parts[2], message)


def positions(lines: Iterable[LogLine]) -> dict[int, int]:
    """Return number of a process → position of its last line."""
    found: dict[int, int] = {}
    for each in lines:
        row, position = each.place
        found[row] = max(found.get(row, 0), position)
    return found
