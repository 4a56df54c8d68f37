"""One look at shared memory: what a page is made of. Nobody is asked, and no process waits for it.

Words are copied in whole blocks, because reading ten thousand single words would take most of a page's time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from appliance.channels.counter_names import COUNTER_NAMES
from appliance.channels.partition_table import (
    HIGH_WATERMARK,
    LAST_STABLE_OFFSET,
    LOG_START,
    ROW_WORDS,
    SERVING_INCARNATION,
    SLOT_LOG_END,
    SLOT_WORDS,
)
from appliance.channels.roles import Role, RoleKind
from appliance.channels.traffic_table import (
    API_WORDS,
    APIS,
    BYTES_IN,
    COLUMNS,
    FAILED_FETCHES,
    HEAD_WORDS,
    LOG_BYTES,
    LOG_SEGMENTS,
    LOG_WORDS,
    TrafficPart,
)
from appliance.channels.wiring import Attachment
from appliance.ipc.process_table import COUNTER_0, IDLE_NS, ProcessSnapshot
from appliance.ipc.shared_memory import Region
from appliance.metrics.proc_files import ProcFiles, Usage
from appliance.metrics.topology import Topic, Topology

COLUMN_NAMES: Final = (
    "produced_bytes",
    "produced_records",
    "fetched_bytes",
    "produce_requests",
    "fetch_requests",
    "failed_produce_requests",
    "failed_fetch_requests",
)
"""The columns of a partition's row (`channels.traffic_table`), in order."""

assert len(COLUMN_NAMES) == FAILED_FETCHES - BYTES_IN + 1


@dataclass(slots=True)
class Process:
    """One process that is to run: its row, and sums over all of its lives."""

    role: Role
    row: ProcessSnapshot
    totals: list[int]
    counters: dict[str, int]
    """As `appliance status` shows them: of this life."""
    counted: dict[str, int]
    """The same names, with what the lives before have counted."""
    generation: int
    idle_ns: int
    """Of all lives, up to now."""
    usage: Usage

    @property
    def name(self) -> str:
        """The role, such as `netproc 1`."""
        return str(self.role)


@dataclass(slots=True)
class PartitionState:
    """Offsets and size of one partition; the offsets are 0 while nobody serves it."""

    partition: int
    leader: int
    replicas: int
    in_sync: int
    is_led_by_preferred: bool
    is_served: bool
    log_start: int
    high_watermark: int
    last_stable_offset: int
    log_end: int
    log_bytes: int
    segments: int
    columns: list[int]


@dataclass(slots=True)
class TopicState:
    """The sums of a topic."""

    name: str
    partitions: list[PartitionState]

    def total(self, column: int) -> int:
        """Return the sum of a column, counted from BYTES_IN on."""
        return sum([each.columns[column] for each in self.partitions])

    @property
    def log_bytes(self) -> int:
        """Bytes of the leaders' logs."""
        return sum([each.log_bytes for each in self.partitions])

    @property
    def segments(self) -> int:
        """Segments of the leaders' logs."""
        return sum([each.segments for each in self.partitions])

    @property
    def records(self) -> int:
        """Offsets between log start and high watermark."""
        return sum([max(0, each.high_watermark - each.log_start) for each in self.partitions])


@dataclass(slots=True)
class Snapshot:
    """Everything that the pages show, as of one moment."""

    topology: Topology
    processes: list[Process]
    topics: list[TopicState]
    head: list[int]
    """Sums of the heads of all network processes (`channels.traffic_table`)."""
    apis: list[int]
    """Sums of their blocks."""
    offline_partitions: int
    """Partitions without a leader, or whose leader's storage has failed."""
    served: bool
    """Whether every partition that has a leader is served, or its storage has failed."""
    log_bytes: dict[int, int] = field(default_factory=dict)
    segments: dict[int, int] = field(default_factory=dict)
    """By slot, of the logs that it leads."""
    monotonic_ns: int = 0

    def of_kind(self, kind: RoleKind) -> list[Process]:
        """Return the processes of a kind."""
        return [process for process in self.processes if process.role.kind is kind]


class Memory:
    """What the metrics process maps, for reading only.

    Args:
        attachment: the process's own.
        proc_files: processor time and memory of other processes.
    """

    def __init__(self, attachment: Attachment, proc_files: ProcFiles) -> None:
        wiring = attachment.wiring
        settings = wiring.settings
        self._settings = settings
        self._attachment = attachment
        self._proc_files = proc_files
        self._running = [(role, wiring.process_row(role)) for role in wiring.running]
        traffic = Region.open(wiring.traffic_name, writable=False)
        rows = settings.broker.max_partitions
        self._parts = [
            TrafficPart(traffic.view, part, rows=rows) for part in range(settings.network.processes)
        ]
        self._logs = Region.open(wiring.logs_name, writable=False).view.cast("q")
        self._topology = Topology()

    @property
    def topology(self) -> Topology:
        """Of the current image; empty before the first one."""
        image = self._attachment.image.current()
        if image is not None and image.version != self._topology.version:
            self._topology = Topology.of(image, self._settings)
        return self._topology

    def look(self) -> Snapshot:
        """Return what there is now."""
        topology = self.topology
        table = self._attachment.partitions
        rows, row_words = topology.rows, table.row_words
        cells = table.cells[: rows * row_words].tolist()
        logs = self._logs[: rows * LOG_WORDS].tolist()
        heads = _sums(part.head() for part in self._parts) or [0] * HEAD_WORDS
        apis = _sums(part.apis() for part in self._parts) or [0] * (APIS * API_WORDS)
        columns = [part.columns(rows) for part in self._parts]
        offline, served = topology.leaderless, True
        log_bytes = dict.fromkeys(topology.brokers, 0)
        segments = dict.fromkeys(topology.brokers, 0)
        for row, incarnation, leader in topology.places:
            serving = cells[row * row_words + SERVING_INCARNATION]
            if serving == -incarnation:
                offline += leader >= 0
            elif serving != incarnation:
                served = served and leader < 0
            at = row * LOG_WORDS
            if logs[at] == incarnation and leader >= 0:
                log_bytes[leader] = log_bytes.get(leader, 0) + logs[at + LOG_BYTES]
                segments[leader] = segments.get(leader, 0) + logs[at + LOG_SEGMENTS]
        return Snapshot(
            topology=topology,
            processes=self.processes(),
            topics=[
                _topic(each, cells, logs, row_words=row_words, columns=columns) for each in topology.topics
            ],
            head=heads,
            apis=apis,
            offline_partitions=offline,
            served=served,
            log_bytes=log_bytes,
            segments=segments,
            monotonic_ns=time.monotonic_ns(),
        )

    def processes(self) -> list[Process]:
        """Return every process but the supervisor, which has no row."""
        table = self._attachment.process_table
        now_ns = time.monotonic_ns()
        found: list[Process] = []
        for role, index in self._running:
            row = table.row(index).snapshot()
            totals = table.totals(index)
            sleeping_ns = now_ns - row.started_ns - row.busy_ns - row.idle_ns if row.sleeping else 0
            names = COUNTER_NAMES.get(role.kind, ())
            places = [(name, place) for place, name in enumerate(names) if name is not None]
            usage = self._proc_files.usage(index, row)
            found.append(
                Process(
                    role=role,
                    row=row,
                    totals=totals,
                    counters={name: row.counters[place] for name, place in places},
                    counted={name: totals[COUNTER_0 + place] for name, place in places},
                    generation=table.generation(index),
                    idle_ns=self._proc_files.idle_ns(
                        index,
                        row.generation,
                        totals[IDLE_NS] + (max(0, sleeping_ns) if usage.is_running else 0),
                    ),
                    usage=usage,
                )
            )
        return found


def _sums(blocks: Iterable[list[int]]) -> list[int]:
    return [sum(words) for words in zip(*blocks, strict=True)]


def _topic(
    topic: Topic, cells: list[int], logs: list[int], *, row_words: int, columns: list[list[int]]
) -> TopicState:
    found: list[PartitionState] = []
    for each in topic.partitions:
        at, incarnation, leader = each.row * row_words, each.incarnation, each.leader
        log_start = high_watermark = stable = log_end = 0
        is_served = cells[at + SERVING_INCARNATION] == incarnation
        if is_served:
            log_start = cells[at + LOG_START]
            high_watermark = cells[at + HIGH_WATERMARK]
            stable = cells[at + LAST_STABLE_OFFSET]
            log_end = cells[at + ROW_WORDS + SLOT_WORDS * leader + SLOT_LOG_END] if leader >= 0 else 0
        log_at, log_bytes, segments = each.row * LOG_WORDS, 0, 0
        if logs[log_at] == incarnation:
            log_bytes, segments = logs[log_at + LOG_BYTES], logs[log_at + LOG_SEGMENTS]
        row_at, counted = each.row * COLUMNS, [0] * len(COLUMN_NAMES)
        for part in columns:
            if part[row_at] == incarnation:
                words = part[row_at + BYTES_IN : row_at + COLUMNS]
                counted = [one + other for one, other in zip(counted, words, strict=True)]
        found.append(
            PartitionState(
                each.partition,
                leader,
                len(each.replicas),
                len(each.isr),
                bool(each.replicas) and each.replicas[0] == leader,
                is_served,
                log_start,
                high_watermark,
                stable,
                log_end,
                log_bytes,
                segments,
                counted,
            )
        )
    return TopicState(topic.name, found)
