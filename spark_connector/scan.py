"""Reading a task's stretches: `pread` into one buffer, every batch checked, and the end proved.

    open      the file that was planned, under its name or as `.deleted`; another one in its place: planned anew, from
              the offset that was reached
    read      only below the planned byte, and never by a mapping (a file that is cut under a mapping kills the process)
    check     format, length, checksum, offsets that rise
    drop      what lies outside of the bounds, control batches, aborted transactions
    prove     that the stretch was read to its end

**The end check.** A stretch [start, end) is read to its end when one of these was seen; a file that ends earlier, shows
zeros, is missing or is another one is looked for again, after a pause: planned anew by offset if compaction has been
there since or the partition lies in another directory only, and else the very bytes that were planned; when no attempt
helps the scan fails. It never ends early without saying so: that one rule catches a network file system's stale sizes,
truncation, zeros that were allocated ahead, wrong bounds and wrong indexes.

| seen | proves the end because |
|---|---|
| a batch that ends with `end - 1` or later | everything before it lies before it in the file |
| a batch that begins with `end` or later | so did everything that is not there any more (compaction) |
| a batch that ends where the next segment begins | nothing can lie between |
| the byte where a batch began, or the file ended, when it was planned | what lay before it was compacted away |

After the last byte the partition's state is looked at once more: where the log lost records meanwhile (another
incarnation) or the topic was made anew, what was read may be neither the old log nor the new one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from appliance.errors import ApplianceError
from appliance.log.partition_state import read_state
from appliance.protocol.columns.batch_headers import Batches
from appliance.protocol.columns.chunk import Chunk, Corruption
from spark_connector.directory import Directories, PartitionView
from spark_connector.epochs import holds
from spark_connector.errors import (
    DataLost,
    LeaseRevoked,
    NotALogDirectory,
    NotReadable,
    ShortRead,
    UnknownTopic,
)
from spark_connector.lease import TaskLease, is_revoked, take_lease, task_done
from spark_connector.planning import OffsetRange, ScanRange, plan
from spark_connector.stretch_reading import Gone, StretchReader, Window, open_planned

BUFFER_BYTES: Final = 4 << 20
PAUSES_S: Final = (0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Before each further attempt."""
NOBODY_SAID: Final = 0
"""The incarnation of a log whose owner writes no state."""
OnCorrupt = Literal["fail", "skip"]


def scan(
    task: ScanRange,
    *,
    buffer_bytes: int = BUFFER_BYTES,
    on_corrupt: OnCorrupt = "fail",
    corrupt: list[Corruption] | None = None,
) -> Iterator[Chunk]:
    """The batches of a task in order. Ends normally only when its end was proved.

    Args:
        buffer_bytes: of the one buffer; it grows for a batch that is larger.
        on_corrupt: "skip" leaves out batches that do not hold, and reads on where the next one is found.
        corrupt: gets what was skipped.

    Raises:
        CorruptSegment: a batch does not hold. UnsupportedFormat: a message of format v0 or v1.
        ShortRead: the end could not be reached.
        DataLost, LeaseRevoked: what was planned does not exist any more.
        StorageFault, OSError: a file cannot be read.
    """
    reading = _Reading(task, buffer_bytes, on_corrupt == "skip", corrupt)
    for window in reading.windows():
        batches = window.wanted(task, check=True)
        if len(batches):
            yield Chunk(window.data, batches, task.start, task.end, window.path, window.file_position)


def headers(
    task: ScanRange,
    *,
    buffer_bytes: int = BUFFER_BYTES,
    on_corrupt: OnCorrupt = "fail",
    corrupt: list[Corruption] | None = None,
) -> Iterator[Batches]:
    """The headers of a task's batches, in order: control batches and aborted ones too. No checksum is looked at.

    Where batches are large, nothing but the headers is read.
    The first and the last batch may reach beyond the task's bounds.

    Raises:
        As `scan`.
    """
    reading = _Reading(task, buffer_bytes, on_corrupt == "skip", corrupt, headers_only=True)
    for window in reading.windows():
        batches = window.batches
        inside = (batches["last_offset"] >= window.start) & (batches["base_offset"] < task.end)
        batches = batches[inside]
        if len(batches):
            yield batches


class _Reading:
    """Goes through a task's stretches, and plans anew what has changed under it."""

    __slots__ = ("_lease", "_reader", "_task")

    def __init__(
        self,
        task: ScanRange,
        buffer_bytes: int,
        skips: bool,
        corrupt: list[Corruption] | None,
        *,
        headers_only: bool = False,
    ) -> None:
        self._task = task
        self._lease = (
            None
            if task.lease is None
            else TaskLease(task.lease, task.homes, name=task.name, directory=task.directory)
        )
        self._reader = StretchReader(
            buffer_bytes,
            skips,
            corrupt,
            attempts=len(PAUSES_S),
            reached=task.start,
            lies_in=task.directory,
            headers_only=headers_only,
        )

    def windows(self) -> Iterator[Window]:
        """All batches, until the end is proved."""
        if self._lease is None or self._task.lease is None:
            yield from self._windows()
            return
        with self._lease.held():
            yield from self._windows()
        task_done(self._task.lease, self._task.homes, self._task.number)

    def _windows(self) -> Iterator[Window]:
        tasks = [self._task]
        while tasks:
            task = tasks[0]
            try:
                for stretch in task.stretches:
                    if stretch.end > self._reader.reached:
                        yield from self._reader.windows(stretch, task.aborted)
                tasks.pop(0)
            except Gone as gone:
                tasks = self._anew(tasks, str(gone))
            except OSError as fault:
                tasks = self._elsewhere(fault)
        self._still_the_same()

    def _anew(self, tasks: list[ScanRange], reason: str) -> list[ScanRange]:
        """What is left, as the directory holds it now; by offset where compaction has been there since."""
        task = self._task
        while True:
            if self._reader.attempt == len(PAUSES_S):
                self._ask_lease(reason)
                raise ShortRead(f"{task.name}: offsets {self._reader.reached} to {task.end - 1}: {reason}")
            time.sleep(PAUSES_S[self._reader.attempt])
            self._reader.attempt += 1
            try:
                view = _homes(task).partition(task.topic, task.partition, prefer=task.directory)
                if view.directory != task.directory:
                    return self._in_another_directory(view)
                self._check(view)
                if view.clean_generation != task.clean_generation or (
                    view.active_bytes < 0 and view.is_compacted
                ):
                    wanted = OffsetRange(task.topic, task.partition, self._reader.reached, task.end)
                    still = replace(view, log_start_offset=min(view.log_start_offset, self._reader.reached))
                    return plan([still], [wanted], isolation=task.isolation, timestamps_ms=task.timestamps_ms)
            except UnknownTopic as gone:
                self._ask_lease(reason)
                raise DataLost(f"{task.name}: its directory is gone: {reason}") from gone
            except DataLost:
                self._ask_lease(reason)
                raise
            except (ApplianceError, OSError) as fault:
                reason = str(fault)
                continue
            return tasks  # the same bytes lie at the same place

    def _elsewhere(self, fault: OSError) -> list[ScanRange]:
        """What is left, in another copy than the one that cannot be read.

        Raises `fault` where there is none.
        """
        task = self._task
        if self._reader.attempt == len(PAUSES_S):
            raise fault
        self._reader.attempt += 1
        try:
            view = _homes(task).partition(task.topic, task.partition, avoid=task.directory)
            return self._in_another_directory(view)
        except (ApplianceError, OSError):
            raise fault from None

    def _in_another_directory(self, view: PartitionView) -> list[ScanRange]:
        """What is left, where the partition moved to or another slot has a copy: by offset, for each copy has segments
        of its own.

        Raises:
            NotReadable: it has not come to know yet that it has all of it. DataLost: another log, or it begins later.
        """
        task = self._task
        if view.topic_id != task.topic_id:
            raise DataLost(f"topic {task.topic} was deleted and created again: it has another id")
        if not holds(view, task.end, epoch=task.leader_epoch):
            raise NotReadable(f"{view.directory} is not known to hold the same records up to {task.end}")
        self._move_to(view)
        wanted = OffsetRange(task.topic, task.partition, self._reader.reached, task.end)
        return plan([view], [wanted], isolation=task.isolation, timestamps_ms=task.timestamps_ms)

    def _move_to(self, view: PartitionView) -> None:
        """Reads in another directory from now on, under the lease, of which none was there.

        It holds all of the partition: other tasks of the query may come to it too.
        """
        self._task = replace(
            self._task,
            directory=view.directory,
            incarnation=view.incarnation,
            clean_generation=view.clean_generation,
        )
        lease = self._task.lease
        if lease is not None:
            wanted = [(view, view.log_start_offset)]
            take_lease(wanted, owner=f"process {os.getpid()}", ttl_ms=lease.ttl_ms, id=lease.id)
            if self._lease is not None:
                self._lease.move(view.directory)

    def _check(self, view: PartitionView) -> None:
        task = self._task
        if view.topic_id != task.topic_id:
            raise DataLost(f"topic {task.topic} was deleted and created again: it has another id")
        if NOBODY_SAID != task.incarnation != view.incarnation:
            raise DataLost(f"{task.name}: the log was cut below what readers could see")
        if view.log_start_offset > self._reader.reached and not _lies_there(task, self._reader.reached):
            raise DataLost(
                f"{task.name}: offsets {self._reader.reached} to {view.log_start_offset - 1} were deleted while they"
                " were read"
            )

    def _ask_lease(self, reason: str) -> None:
        lease, task = self._task.lease, self._task
        if lease is not None and is_revoked(lease, task.homes, task.name):
            raise LeaseRevoked(
                f"{task.name}: the broker revoked lease {lease.id}, which had reached the cap of what readers may"
                f" hold (reader.lease.max.bytes, reader.lease.max.ms): {reason}"
            )

    def _still_the_same(self) -> None:
        task = self._task
        if task.incarnation == NOBODY_SAID:
            return
        try:
            # A copy that was deleted has a directory of another name; under this one there may be a later copy.
            state = read_state(Path(self._reader.lies_in))
        except ApplianceError:
            return  # being written, or gone by now: all that was read was read from the files that were planned
        if state is None:
            return
        if state.topic_id == task.topic_id and state.incarnation != task.incarnation:
            raise DataLost(f"{task.name}: the log was cut below what readers could see while it was read")


def _homes(task: ScanRange) -> Directories:
    """Those of the log directories that are there still.

    Raises:
        NotALogDirectory: none is.
    """
    there = []
    for home in task.homes:
        with suppress(NotALogDirectory):
            Directories([home])
            there.append(home)
    return Directories(there or task.homes)


def _lies_there(task: ScanRange, offset: int) -> bool:
    """Whether the file that holds `offset` can still be opened."""
    for stretch in task.stretches:
        if stretch.end > offset:
            try:
                open_planned(stretch)[0].close()
            except Gone:
                return False
            return True
    return True
