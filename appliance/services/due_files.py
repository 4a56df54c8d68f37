"""Looks up what waits in the files of the due indexes, while a services process writes and removes them.

    position ─── run file ───┼─── run file ───┼─── tail file ───┤ end       behind it, the log must be read

Files are never changed. One can be replaced by another that covers the same records, or be removed because nothing
that it has waits. So a look-up takes the files that follow one another, and looks again if one has gone meanwhile.

A file says what waited when it was written. Which of that is delivered since, the state record says; the record itself
says the rest, because two ids can have the same fingerprint. So nothing that is found here counts before it was read.

This file writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import merge
from pathlib import Path
from typing import Final
from uuid import UUID

import numpy as np

from appliance.services.due_index import SUFFIX, TAIL_SUFFIX, Run, read_run
from appliance.services.due_keys import Key

TRIES: Final = 10
PIECE_MIN: Final = 16
PIECE_MAX: Final = 4_096
"""Entries of a file that are taken at a time."""


class DueFiles:
    """What the files say of one log. It covers its records from `first` to before `end`."""

    def __init__(self, runs: list[Run], position: int) -> None:
        self._runs = runs
        self.first = runs[0].first if runs else position
        self.end = runs[-1].end if runs else position

    def find(self, fingerprints: list[int], frontier: Key) -> list[int]:
        """Return the offsets of records behind the frontier that may have one of these ids.

        Time: logarithmic for each id and file.
        """
        wanted = np.array(fingerprints, np.uint64)
        return sorted({key[1] for run in self._runs for _, key in run.find(wanted) if key > frontier})

    def soonest(self, topics: Collection[UUID], frontier: Key) -> Iterator[Key]:
        """Yield the entries of topics behind the frontier, in order. Time: linear in what waits, at 5 ns each."""
        return merge(*(_soonest(run, topics, frontier) for run in self._runs))

    def counts(self, frontier: Key) -> dict[UUID, int]:
        """Return topic id → entries behind the frontier."""
        found: dict[UUID, int] = {}
        for run in self._runs:
            table = run.topics.table
            numbers = np.bincount(run.topics.numbers[run.after(frontier) :], minlength=len(table))
            for topic_id, count in zip(table, numbers.tolist(), strict=True):
                if count:
                    found[topic_id] = found.get(topic_id, 0) + count
        return found


def _soonest(run: Run, topics: Collection[UUID], frontier: Key) -> Iterator[Key]:
    numbers = [number for number, topic_id in enumerate(run.topics.table) if topic_id in topics]
    if not numbers:
        return
    has_others = len(numbers) < len(run.topics.table)
    begin, count = run.after(frontier), PIECE_MAX if has_others else PIECE_MIN
    while begin < len(run):
        piece = slice(begin, begin + count)
        dues, offsets = run.dues[piece], run.offsets[piece]
        if has_others:
            wanted = np.isin(run.topics.numbers[piece], numbers)
            dues, offsets = dues[wanted], offsets[wanted]
        yield from zip(dues.tolist(), offsets.tolist(), strict=True)
        begin, count = begin + count, min(2 * count, PIECE_MAX)


def due_files(directory: Path, name: str, position: int) -> DueFiles:
    """Return what the files of one index say; nothing if they do not reach back to a position.

    Args:
        position: below it, all is delivered.

    Raises:
        OSError: the directory cannot be read.
    """
    for _ in range(TRIES):
        found = _chain(directory, name, position)
        if found is not None:
            return DueFiles(found, position)
    return DueFiles([], position)


def _chain(directory: Path, name: str, position: int) -> list[Run] | None:
    """Return the files that follow one another; None if one has gone meanwhile, or is no run file."""
    begins: dict[int, tuple[int, Path]] = {}
    for path in directory.iterdir():
        span = _span(path, name)
        if span is not None and span[1] > begins.get(span[0], (-1, path))[0]:
            begins[span[0]] = span[1], path
    runs: list[Run] = []
    at = max((first for first in begins if first <= position), default=-1)
    while at in begins:
        at, path = begins[at]
        run = read_run(path, is_checked=False)
        if run is None:
            return None
        runs.append(run)
    return runs


def _span(path: Path, name: str) -> tuple[int, int] | None:
    """Return (first offset, end) by the name of a file; None if it is none of this index."""
    begin, _, rest = path.stem.rpartition("-")
    prefix, _, first = begin.rpartition("-")
    if prefix != name or path.suffix not in {SUFFIX, TAIL_SUFFIX}:
        return None
    if not (first.isdigit() and rest.isdigit()) or int(first) >= int(rest):
        return None
    return int(first), int(rest)
