"""The export: bounds, plan, one task for each range, progress. Threads of this process run the tasks, or Spark does."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final

from appliance.errors import ApplianceError, HostFault
from spark_connector.bounds import end_offset
from spark_connector.directory import Directories, Isolation, PartitionView
from spark_connector.export.ledger import Done, Ledger, Range, Run, Subject
from spark_connector.export.range_files import RangeTask, export_range
from spark_connector.lease import ReaderLease, take_lease
from spark_connector.planning import OffsetRange, plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S: Final = 0.2
THREADS_MAX: Final = 8
"""Each holds up to `range_files.HELD_BYTES_MAX` of rows, and a buffer of segments."""
SPLIT_BYTES: Final = 128 << 20


class ExportFailed(HostFault):
    """Some ranges could not be exported; the others are, and the next run takes up the rest."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come: ranges, those done, and what came of them."""

    ranges: int
    done: int
    rows: int
    files: int
    size_bytes: int
    lost: int = 0


def export_parquet(
    spark: SparkSession | None,
    topic: str,
    *,
    paths: Sequence[str],
    to: Path,
    isolation: Isolation = Isolation.READ_COMMITTED,
    headers: bool = True,
    durable: bool = False,
    codec: str = "zstd",
    skip_lost: bool = False,
    split_bytes: int = SPLIT_BYTES,
    tell: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Exports what of `topic` is not exported to `to` yet, up to its end as it is now; first what a killed run left.

    Args:
        spark: runs the tasks; None: threads of this process, as many as it has cores, THREADS_MAX at most.
        paths: the appliance's data directory, or those of its slots, as the source's option `path`.
        durable: only what will be there after a power cut.
        codec: of the Parquet files: zstd, lz4, snappy, gzip, none.
        skip_lost: go on where records were deleted before they were exported, and count them as lost.
        tell: called now and then, from this thread.

    Returns what this call has exported.

    Raises:
        ExportFailed: with the reason of the first range that failed.
        OperatorFault, ConnectorError, OSError: it could not begin.
    """
    directories, ledger = Directories(paths), Ledger(to)
    with ledger.held():
        views = directories.partitions(topic)
        topic_id = next((str(view.topic_id) for view in views if view.topic_id is not None), "")
        subject = Subject(topic, topic_id, isolation.value, headers)
        ledger.undertake(subject)
        how = _How(spark, ledger, subject, codec, skip_lost, tell)
        total = Progress(0, 0, 0, 0, 0)
        left = ledger.run()
        if left is not None and len(ledger.done(left)) < len(left.ranges):
            total = _carry_out(how, left, views, again=True)
        begin = {} if left is None else left.ends
        lease = take_lease(
            [(view, begin.get(view.partition, view.log_start_offset)) for view in views],
            owner=_owner(topic),
        )
        try:
            # Looked at anew: the log start may have moved before the lease was there.
            views = directories.partitions(topic)
            ends = {view.partition: end_offset(view, isolation, durable=durable) for view in views}
            run, lost = _planned(how, views, begin, ends=ends, split_bytes=split_bytes)
            total = replace(total, lost=total.lost + lost)
            return (
                total if run is None else _sum(total, _carry_out(how, run, views, again=False, lease=lease))
            )
        finally:
            lease.release()


@dataclass(frozen=True, slots=True)
class _How:
    """What does not change during a call."""

    spark: SparkSession | None
    ledger: Ledger
    subject: Subject
    codec: str
    skip_lost: bool
    tell: Callable[[Progress], None]


def _planned(
    how: _How,
    views: Sequence[PartitionView],
    begin: dict[int, int],
    *,
    ends: dict[int, int],
    split_bytes: int,
) -> tuple[Run | None, int]:
    """The next run, written down; None where there is nothing new. And how many offsets it leaves out as lost."""
    wanted, lost = [], 0
    for view in views:
        start = begin.get(view.partition, view.log_start_offset)
        if how.skip_lost and start < view.log_start_offset:
            lost += view.log_start_offset - start
            start = view.log_start_offset
        wanted.append(OffsetRange(view.topic, view.partition, start, ends[view.partition]))
    tasks = plan(views, wanted, isolation=Isolation(how.subject.isolation), split_bytes=split_bytes)
    ranges = [Range(task.partition, task.start, task.end) for task in tasks]
    if not ranges:
        return None, lost
    return how.ledger.plan(
        ranges, begin | {each.partition: max(each.start, each.end) for each in wanted}
    ), lost


def _carry_out(
    how: _How, run: Run, views: Sequence[PartitionView], *, again: bool, lease: ReaderLease | None = None
) -> Progress:
    """Exports what of a run is not done. Raises ExportFailed."""
    before = how.ledger.done(run)
    due = [each for each in run.ranges if each not in before]
    if lease is None:
        starts = {each.partition: each.start for each in sorted(due, reverse=True)}
        held = [(view, starts[view.partition]) for view in views if view.partition in starts]
        lease = take_lease(held, owner=_owner(how.subject.topic))
    tasks = [
        RangeTask(
            paths=views[0].homes,
            target=str(how.ledger.directory),
            marks=str(how.ledger.marks(run)),
            subject=how.subject,
            range=each,
            lease=lease.ref,
            codec=how.codec,
            again=again,
            skip_lost=how.skip_lost,
        )
        for each in due
    ]

    def so_far() -> Progress:
        return _progress(
            len(due), [done for each, done in how.ledger.done(run).items() if each not in before]
        )

    faults = _results(how, tasks, lease, lambda: how.tell(so_far()))
    result = so_far()
    how.tell(result)
    if faults:
        raise ExportFailed(
            f"{len(faults)} of {len(tasks)} ranges of {how.subject.topic} are not exported: {faults[0]}"
        )
    return result


def _results(
    how: _How, tasks: Sequence[RangeTask], lease: ReaderLease, look: Callable[[], None]
) -> list[str]:
    """Runs the tasks; the faults of those that failed. Calls `look` now and then."""
    with lease.held():
        if how.spark is None:
            return _by_threads(tasks, look)
        return _by_spark(how.spark, tasks, look)


def _by_threads(tasks: Sequence[RangeTask], look: Callable[[], None]) -> list[str]:
    """Decoding and compression run outside of the interpreter's lock for the most part."""
    threads = max(1, min(len(os.sched_getaffinity(0)), THREADS_MAX, len(tasks)))
    stop = Event()
    with ThreadPoolExecutor(threads, thread_name_prefix="export") as pool:
        try:
            left = {pool.submit(_attempt_here, task, stop) for task in tasks}
            faults = []
            while left:
                done, left = wait(left, timeout=LOOK_S, return_when=FIRST_COMPLETED)
                faults += [fault for each in done if (fault := each.result())]
                look()
            return faults
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _attempt_here(task: RangeTask, stop: Event) -> str:
    try:
        export_range(task, stop=stop)
    except (ApplianceError, OSError) as fault:
        return _said(task, fault)
    return ""


def _by_spark(spark: SparkSession, tasks: Sequence[RangeTask], look: Callable[[], None]) -> list[str]:
    context = spark.sparkContext
    with ThreadPoolExecutor(1, thread_name_prefix="export") as thread:
        job = thread.submit(lambda: context.parallelize(tasks, max(1, len(tasks))).map(_attempt).collect())
        try:
            while wait([job], timeout=LOOK_S).not_done:
                look()
            return [fault for fault in job.result() if fault]
        except BaseException:
            context.cancelAllJobs()
            raise


def _attempt(task: RangeTask) -> str:
    """In the executor. Returns why it failed, or nothing; what is a mistake of ours is raised."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        task = replace(task, again=True)
    try:
        export_range(task)
    except (ApplianceError, OSError) as fault:
        return _said(task, fault)
    return ""


def _said(task: RangeTask, fault: Exception) -> str:
    return f"partition {task.range.partition}, offsets {task.range.start} to {task.range.end - 1}: {fault}"


def _progress(ranges: int, found: Sequence[Done]) -> Progress:
    return Progress(
        ranges,
        len(found),
        sum(done.rows for done in found),
        sum(done.files for done in found),
        sum(done.size_bytes for done in found),
        sum(done.lost for done in found),
    )


def _sum(one: Progress, other: Progress) -> Progress:
    return Progress(
        one.ranges + other.ranges,
        one.done + other.done,
        one.rows + other.rows,
        one.files + other.files,
        one.size_bytes + other.size_bytes,
        one.lost + other.lost,
    )


def _owner(topic: str) -> str:
    return f"export of {topic}, process {os.getpid()} on {socket.gethostname()}"
