"""The plan of one batch query: options and constraints in, tasks out. No Spark in it.

look  →  lease  →  look again, where names have changed (a log may have lost its oldest segments before the lease stood)
→  plan
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from appliance.log.reader_leases import READERS, TALLY
from spark_connector.constraints import Constraints
from spark_connector.directory import UNKNOWN, Directories, PartitionView
from spark_connector.errors import PartitionMoved
from spark_connector.lease import BATCH_TTL_MS, Kind, LeaseRef, ReaderLease, take_lease
from spark_connector.offsets import check_named, chosen, end_of, start_of, within
from spark_connector.options import Options
from spark_connector.planning import TOGETHER_BYTES, OffsetRange, ScanRange, plan, together

LOG: Final = logging.getLogger("spark_connector")
_LOOKS: Final = 5
"""Partitions go from slot to slot in seconds, and each of them seldom."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The tasks of a query, the partitions they read as they were seen, and what is missing, in words."""

    tasks: tuple[ScanRange, ...]
    views: tuple[PartitionView, ...]
    ranges: tuple[OffsetRange, ...]
    lost: tuple[str, ...]
    lease: ReaderLease | None = None
    """Ends with the tasks. Release it where the plan is dropped, or where all of it was read."""


def plan_batch(options: Options, constraints: Constraints | None = None) -> Plan:
    """The tasks that read what the options choose and the constraints allow, as of now.

    Raises:
        InvalidOption: an option does not fit what is there.
        NotALogDirectory, UnknownTopic, NotReadable: see there.
        DataLost: offsets were asked for that are not there, and `failOnDataLoss` holds.
        TooManyReaders: a partition takes no further lease.
    """
    for _ in range(_LOOKS - 1):
        try:
            return _planned(options, constraints or Constraints())
        except PartitionMoved as moved:
            LOG.info("%s: retrying", moved)
    return _planned(options, constraints or Constraints())


def _planned(options: Options, constraints: Constraints) -> Plan:
    directories = Directories(options.paths)
    names = chosen(directories, options.choice)
    check_named(options.starting, names)
    check_named(options.ending, names)
    names = [name for name in names if constraints.allows(*name)]
    looks = [directories.partition(*name) for name in names]
    lease = lease_on([(view, start_of(view, options)) for view in looks], options, kind="batch")
    try:
        return _planned_under(lease, directories, looks, options, constraints)
    except BaseException:
        if lease is not None:
            lease.release()
        raise


def _planned_under(
    lease: ReaderLease | None,
    directories: Directories,
    looks: Sequence[PartitionView],
    options: Options,
    constraints: Constraints,
) -> Plan:
    views = [directories.again(view) for view in looks]
    ranges, losses = [], []
    for view in views:
        start, end, lost = within(view, start_of(view, options), end_of(view, options), options=options)
        if lost is not None:
            losses.append(lost)
        first, until = max(start, constraints.offset_from), min(end, constraints.offset_until)
        ranges.append(OffsetRange(view.topic, view.partition, first, max(first, until)))
    for text in losses:
        LOG.warning("%s", text)
    tasks = plan(
        views,
        ranges,
        isolation=options.isolation,
        lease=lease.ref if lease else None,
        split_bytes=options.split_bytes,
        min_splits=options.min_partitions or 1,
        max_records=options.max_records_per_partition,
        timestamps_ms=(constraints.from_ms, constraints.until_ms),
        disorder_ms=options.disorder_ms,
    )
    if lease is not None:
        tasks = _counted(tasks, lease.ref)
        if not tasks:
            lease.release()
    return Plan(tuple(tasks), tuple(views), tuple(ranges), tuple(losses), lease)


def _counted(tasks: Sequence[ScanRange], lease: LeaseRef) -> list[ScanRange]:
    """The tasks under a lease that ends with them."""
    if not tasks:
        return []
    tally = f"{tasks[0].directory}/{READERS}/{lease.id}{TALLY}"
    counting = replace(lease, tasks=len(tasks), tally=tally)
    return [replace(task, lease=counting, number=number) for number, task in enumerate(tasks)]


def shared(tasks: Sequence[ScanRange], options: Options) -> list[tuple[ScanRange, ...]]:
    """The tasks in groups, each for one of Spark's: those that read little share one.

    Not where somebody says how many tasks there are to be, or how large.
    """
    if (options.min_partitions, options.max_records_per_partition) != (None, None):
        return [(task,) for task in tasks]
    return together(tasks, min(TOGETHER_BYTES, options.split_bytes))


def lease_on(
    wanted: Sequence[tuple[PartitionView, int]],
    options: Options,
    *,
    kind: Kind,
    id: str | None = None,
    ttl_ms: int = BATCH_TTL_MS,
) -> ReaderLease | None:
    """A lease on those partitions whose owner knows leases; None where there are none. Says what is unprotected."""
    ours = [(view, offset) for view, offset in wanted if view.durable_offset != UNKNOWN]
    # Those that are not live are exports, of which nothing is deleted.
    if any(view.durable_offset == UNKNOWN and view.is_live for view, _ in wanted):
        LOG.warning(
            "reading a directory of Apache Kafka without a lease: deleted segments disappear after"
            " file.delete.delay.ms"
        )
    if not ours:
        return None
    owner = f"Spark, process {os.getpid()}"
    lease = take_lease(ours, owner=owner, kind=kind, ttl_ms=options.lease_ms or ttl_ms, id=id)
    for text in lease.unprotected:
        LOG.warning(
            "cannot write a lease (%s): deleted segments disappear after file.delete.delay.ms",
            text,
        )
    return lease
