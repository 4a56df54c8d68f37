"""Batch reads: the plan is made when Spark plans a query, tasks read on executors.

PySpark refuses a reader that takes filters in a session whose push-down is off, and shows a reader no session. But it
plans with filters in a worker of its own (`pyspark.sql.worker.data_source_pushdown_filters`), so a reader is made by
where it is asked for: `PushedReader` there, `BatchReader` elsewhere, which works in any session and reads it all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from appliance.protocol.columns.chunk import Corruption
from spark_connector.batch_query import LOG, plan_batch, shared
from spark_connector.collector import spare_the_collector, spare_the_collector_of_planning
from spark_connector.columns import Columns
from spark_connector.constraints import Constraints
from spark_connector.filters import constrain, hold_any_time
from spark_connector.options import Options, View
from spark_connector.plain_errors import plain_errors
from spark_connector.planning import ScanRange
from spark_connector.views import ViewTask, plan_view, read_view

_PUSHING_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


@dataclass
class ScanPartition(InputPartition):
    """One Spark task: ranges that are read one after another, each of one partition."""

    tasks: tuple[ScanRange, ...]

    def __init__(self, *tasks: ScanRange) -> None:
        super().__init__(None)
        self.tasks = tasks


@dataclass
class ViewPartition(InputPartition):
    """One Spark task of a view."""

    task: ViewTask

    def __init__(self, task: ViewTask) -> None:
        super().__init__(None)
        self.task = task


class BatchReader(DataSourceReader):
    """Reads records, or a view. Travels to the executors as it is; keeps nothing but values."""

    def __init__(self, options: Options, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._constraints = Constraints()

    def partitions(self) -> list[InputPartition]:
        """The tasks, planned now."""
        with plain_errors():
            return self._planned()

    def _planned(self) -> list[InputPartition]:
        if self._options.ignored:
            LOG.warning("options without effect: %s", ", ".join(self._options.ignored))
        planned: list[InputPartition]
        if self._options.view is not View.RECORDS:
            planned = [ViewPartition(task) for task in plan_view(self._options, self._constraints)]
        else:
            tasks = plan_batch(self._options, self._constraints).tasks
            planned = [ScanPartition(*group) for group in shared(tasks, self._options)]
        spare_the_collector_of_planning()
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The record batches of one task."""
        return read_task(partition, self._columns, skips_corrupt=self._options.skips_corrupt)


class PushedReader(BatchReader):
    """A reader that is told what the query asks of topic, partition, offset and timestamp."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - PySpark's name
        """Takes what can be read by; the rest is Spark's."""
        self._constraints, left = constrain(filters)
        return left


def batch_reader(options: Options, columns: Columns) -> BatchReader:
    """A reader of the kind that the session allows."""
    if not _is_planning_with_filters():
        return BatchReader(options, columns)
    hold_any_time()
    return (PushedReader if options.pushes_down else BatchReader)(options, columns)


def read_task(
    partition: InputPartition, columns: Columns, *, skips_corrupt: bool
) -> Iterator[pa.RecordBatch]:
    """The record batches of one task; none for the empty plan's task, which Spark makes up itself."""
    with plain_errors():
        yield from _read_task(partition, columns, skips_corrupt=skips_corrupt)


def _read_task(
    partition: InputPartition, columns: Columns, *, skips_corrupt: bool
) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, ViewPartition):
        yield from read_view(partition.task, columns.names, columns.arrow)
    if not isinstance(partition, ScanPartition):
        return
    # Not before: it brings numba, which takes longer to load than a query takes to plan.
    from spark_connector.record_batches import record_batches

    corrupt: list[Corruption] | None = [] if skips_corrupt else None
    for task in partition.tasks:
        yield from record_batches(task, columns.names, schema=columns.arrow, corrupt=corrupt)
    for path, position, reason in corrupt or ():
        LOG.warning("%s: batch at position %d skipped: %s", path, position, reason)
    spare_the_collector()


def _is_planning_with_filters() -> bool:
    main: Any = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return _PUSHING_WORKER in sys.modules or getattr(spec, "name", None) == _PUSHING_WORKER
