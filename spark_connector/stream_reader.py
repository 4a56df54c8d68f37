"""Streaming reads: what Spark calls, over `stream_query`.

Spark asks twice where a fresh query begins and keeps neither answer: the first thing in its log is where the first
micro-batch ends. So the first micro-batch of a fresh query is an empty one, which ends where it begins; from then on
the begin stands in the log, and a query that died starts again exactly there.

    initialOffset → {"orders": 6920}       kept in this object: the second answer is the first
    latestOffset  → {"orders": 6920}       micro-batch 0, empty, written to Spark's log
    latestOffset  → {"orders": 7050}       micro-batch 1
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from spark_connector.batch_query import LOG
from spark_connector.batch_reader import ScanPartition, read_task
from spark_connector.columns import Columns
from spark_connector.lag import LagReport
from spark_connector.options import Options
from spark_connector.plain_errors import is_worker, plain_errors
from spark_connector.stream_offsets import StreamOffsets, decode_offsets
from spark_connector.stream_query import StreamQuery


def stop_on_sigterm() -> None:
    """Let a query's process of the driver end in good order, by way of `StreamReader.stop`.

    Spark stops a streaming query by SIGTERM to that process, and PySpark leaves the signal's default in place, which
    ends a process at once.
    """
    is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_worker() and is_default and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end_once)


def _end_once(_number: int, _frame: FrameType | None) -> None:
    """End by SystemExit, and ignore further signals of the kind.

    Spark's `PythonStreamingSourceRunner.stop` sends two: one for the worker, one as it stops the worker's factory. The
    second one would interrupt `StreamReader.stop` before the lease is released.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives as long as its query in a process of the driver; its `read` runs on executors, from values alone."""

    def __init__(self, options: Options, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._query: StreamQuery | None = None
        self._lag: LagReport | None = None
        self._initial: StreamOffsets | None = None
        self._is_pinned = False
        self._until: StreamOffsets | None = None
        self._stops_at_what_is_there = False
        stop_on_sigterm()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - PySpark's name
        """Where a fresh query begins; always the same answer."""
        if self._initial is None:
            with plain_errors():
                self._initial = self._asked().initial()
        return self._initial.encode()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The options' limits. Spark knows no limit of two sides: the lower one is kept besides the upper one."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query is to end at what is there now."""
        self._stops_at_what_is_there = True
        self._until = None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the micro-batch that begins at `start`."""
        with plain_errors():
            return self._latest_offset(start, limit)

    def _latest_offset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = decode_offsets(start)
        query = self._asked()
        if self._stops_at_what_is_there and self._until is None:
            self._until = query.ends(begin)
        if self._initial is not None and not self._is_pinned:
            self._is_pinned = True
            if begin == self._initial:
                return start
        end = query.next(
            begin,
            most=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            waits=not isinstance(limit, ReadAllAvailable) and not self._stops_at_what_is_there,
            until=self._until,
        )
        return start if end == begin else end.encode()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """What was there at the last micro-batch, for the query's progress."""
        latest = None if self._query is None else self._query.latest
        return None if latest is None else latest.encode()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch; the same records at every replay."""
        if start == end:
            return []
        with plain_errors():
            tasks = self._asked().tasks(decode_offsets(start), decode_offsets(end))
        return [ScanPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The record batches of one task."""
        return read_task(partition, self._columns, skips_corrupt=self._options.skips_corrupt)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark will not ask for anything below `end` again: the lease lets go of it, and the group is told."""
        position = decode_offsets(end)
        self._asked().done(position)
        if self._options.commit_group is not None:
            if self._lag is None:
                self._lag = LagReport(self._options.commit_group, self._options.client)
            self._lag.commit({name: position.marks[name].offset for name in position})

    def stop(self) -> None:
        """Release the lease, or leave it for as long as a restart takes where records are left to read."""
        if self._query is not None:
            self._query.stop()
        if self._lag is not None:
            self._lag.close()
            self._lag = None

    def _asked(self) -> StreamQuery:
        if self._query is None:
            if self._options.ignored:
                LOG.warning("options without effect: %s", ", ".join(self._options.ignored))
            self._query = StreamQuery(self._options)
        return self._query
