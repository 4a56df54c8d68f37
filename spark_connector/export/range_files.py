"""One range of offsets, read and written as Parquet: what a task of the export does, without Spark.

Records go straight from the segment into Arrow's writer; the Java side never sees them, which halves the processor
time. Rows are laid by the UTC day of their timestamp. A range with records of many days has a file for each; how much
is open at a time is bounded, and beyond it a day goes on in another file, numbered. The same range gives the same
files again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_connector.arrow_schema import schema_of
from spark_connector.directory import Directories, Isolation, PartitionView
from spark_connector.errors import ConnectorError
from spark_connector.export.ledger import Done, Range, Subject, flush_directory, write_whole
from spark_connector.lease import LeaseRef
from spark_connector.planning import OffsetRange, clip, plan
from spark_connector.record_batches import record_batches

OPEN_FILES_MAX: Final = 64
HELD_BYTES_MAX: Final = 256 << 20
"""Of rows that writers hold in memory: what is open is closed then, and the next file of its day begun."""
DAY_US: Final = 86_400_000_000
WHOLE: Final = 1 << 62

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


@dataclass(frozen=True, slots=True)
class RangeTask:
    """All that a task must know; travels to wherever it runs.

    Attributes:
        paths: the directories that the topic lies in; `target`: the export's; `marks`: where to say that it is done.
        again: an earlier attempt may have left files of this range.
        skip_lost: export what is there of a range of which some is deleted, and count the rest.
    """

    paths: tuple[str, ...]
    target: str
    marks: str
    subject: Subject
    range: Range
    lease: LeaseRef | None
    codec: str
    again: bool
    skip_lost: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the files, in order; the day is in their directory's name."""
        return (*COLUMNS, "headers") if self.subject.headers else COLUMNS


class Stopped(ConnectorError):
    """The export was interrupted; the next run takes the range up again."""


def export_range(task: RangeTask, *, stop: Event | None = None) -> Done:
    """Write the range's files, put them in their places and mark the range as done.

    Args:
        stop: set by another thread to end the export early.

    Raises ConnectorError, OSError: the range is not marked as done then, and may be exported again.
    """
    stem = task.range.stem(task.subject.topic)
    if task.again:
        _remove(Path(task.target), stem)
    writers = _Writers(Path(task.target), stem, schema_of(task.columns), task.codec)
    try:
        wanted, view, lost = _there(task)
        for batch in _batches(task, wanted, view):
            if stop is not None and stop.is_set():
                raise Stopped(f"{stem} is not exported: the export was interrupted")
            writers.write(batch)
        done = writers.finish(lost)
    except BaseException:
        writers.abandon()
        raise
    write_whole(
        Path(task.marks, task.range.mark), asdict(done), aside=Path(task.target, "_appliance", "work")
    )
    return done


def _there(task: RangeTask) -> tuple[OffsetRange, PartitionView, int]:
    """What to read, where it lies, and how many offsets are lost."""
    view = Directories(task.paths).partition(task.subject.topic, task.range.partition)
    wanted = OffsetRange(task.subject.topic, task.range.partition, task.range.start, task.range.end)
    if not task.skip_lost:
        return wanted, view, 0
    there, lost = clip(view, wanted)
    return there, view, lost


def _batches(task: RangeTask, wanted: OffsetRange, view: PartitionView) -> Iterator[pa.RecordBatch]:
    # Planned where it is read: segments may have been compacted since, and a task tried again tomorrow works too.
    isolation = Isolation(task.subject.isolation)
    for each in plan([view], [wanted], isolation=isolation, lease=task.lease, split_bytes=WHOLE):
        yield from record_batches(each, task.columns)


class _Writers:
    """The open files of one range, by day."""

    __slots__ = (
        "_bytes",
        "_codec",
        "_files",
        "_held",
        "_open",
        "_rows",
        "_schema",
        "_stem",
        "_target",
        "_work",
    )

    def __init__(self, target: Path, stem: str, schema: pa.Schema, codec: str) -> None:
        self._target = target
        self._work = target / "_appliance" / "work"
        self._stem = stem
        self._schema = schema
        self._codec = codec
        self._open: dict[int, tuple[Path, Any]] = {}
        self._files: dict[int, list[Path]] = {}
        self._held = 0
        self._rows = 0
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Its rows, in order, each to its day."""
        days = np.floor_divide(np.asarray(batch.column("timestamp").cast(pa.int64())), DAY_US)
        present = np.unique(days)
        for day in present.tolist():
            part = batch if len(present) == 1 else batch.filter(pa.array(days == day))
            self._writer(day).write_batch(part)
            self._held += part.nbytes
            if self._held > HELD_BYTES_MAX:
                self._close_all()
        self._rows += batch.num_rows

    def finish(self, lost: int) -> Done:
        """Flushes everything and gives it its names."""
        self._close_all()
        directories = []
        for day, files in self._files.items():
            place = self._target / f"date={np.datetime64(day, 'D')}"
            place.mkdir(exist_ok=True)
            directories.append(place)
            for number, path in enumerate(files):
                _flush(path)
                self._bytes += path.stat().st_size
                os.replace(path, place / f"{self._stem}{number}.parquet")
        for place in directories:
            flush_directory(place)
        flush_directory(self._target)
        return Done(self._rows, sum(map(len, self._files.values())), self._bytes, lost)

    def abandon(self) -> None:
        """Leaves nothing of what was not finished."""
        with suppress(Exception):
            self._close_all()
        for files in self._files.values():
            for path in files:
                path.unlink(missing_ok=True)

    def _writer(self, day: int) -> Any:
        found = self._open.get(day)
        if found is not None:
            return found[1]
        if len(self._open) >= OPEN_FILES_MAX:
            self._close_all()
        self._work.mkdir(exist_ok=True)
        # Two attempts at one range may run at a time; each writes files of its own.
        path = self._work / f"{self._stem}{uuid4().hex}"
        writer = pq.ParquetWriter(path, self._schema, compression=self._codec, use_dictionary=["topic"])
        self._files.setdefault(day, []).append(path)
        self._open[day] = path, writer
        return writer

    def _close_all(self) -> None:
        for _, writer in self._open.values():
            writer.close()
        self._open.clear()
        self._held = 0


def _remove(target: Path, stem: str) -> None:
    """Files of an earlier attempt: of a topic that was compacted since, they may hold what is not there any more."""
    for day in target.glob("date=*"):
        for path in day.glob(f"{stem}*.parquet"):
            path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
