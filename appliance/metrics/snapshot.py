"""One look at shared memory: what a page is made of. Nobody is asked, and no process waits for it.

Words are copied in whole blocks, because reading ten thousand single words would take most of a page's time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import Final

from appliance.channels.counter_names import COUNTER_NAMES
from appliance.channels.partition_table import (
    HIGH_WATERMARK,
    LAST_STABLE_OFFSET,
    LOG_START,
    SERVING_INCARNATION,
    SLOT_LOG_END,
    PartitionTable,
)
from appliance.channels.roles import Role, RoleKind
from appliance.channels.supervision import MemoryShare
from appliance.channels.traffic_table import (
    API_WORDS,
    APIS,
    BYTES_IN,
    COLUMNS,
    FAILED_FETCHES,
    FLUSH_TIME,
    HISTOGRAM_WORDS,
    LATENESS,
    LOG_BYTES,
    LOG_SEGMENTS,
    LOG_WORDS,
    OF_INCARNATION,
    STAGE_WORDS,
    TrafficPart,
    stages_at,
)
from appliance.channels.wiring import Attachment
from appliance.cluster import NO_LEADER
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

STAGES_AT: Final = APIS * API_WORDS
"""Where in `Snapshot.apis` the histograms of the workers begin."""

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


class Columns:
    """Words of every partition, as lists by row of the partition table. What is of another incarnation is 0.

    Args:
        topology: says which incarnation each row has.
        counts: one list for each of COLUMN_NAMES.
    """

    __slots__ = (
        "counts",
        "high_watermark",
        "last_stable_offset",
        "log_bytes",
        "log_start",
        "segments",
        "serving",
        "table",
    )

    def __init__(
        self, topology: Topology, table: PartitionTable, logs: memoryview, parts: Sequence[TrafficPart]
    ) -> None:
        rows, expected = topology.rows, topology.expected
        self.table = table
        used = table.cells[: rows * table.row_words]
        self.serving = used[SERVING_INCARNATION :: table.row_words].tolist()
        self.log_start = used[LOG_START :: table.row_words].tolist()
        self.high_watermark = used[HIGH_WATERMARK :: table.row_words].tolist()
        self.last_stable_offset = used[LAST_STABLE_OFFSET :: table.row_words].tolist()
        _clear(self.serving, expected, self.log_start, self.high_watermark, self.last_stable_offset)
        words = logs[: rows * LOG_WORDS].tolist()
        self.log_bytes, self.segments = words[LOG_BYTES::LOG_WORDS], words[LOG_SEGMENTS::LOG_WORDS]
        _clear(words[::LOG_WORDS], expected, self.log_bytes, self.segments)
        self.counts = [[0] * rows for _ in COLUMN_NAMES]
        for part in parts:
            words = part.columns(rows)
            counted = [words[column::COLUMNS] for column in range(BYTES_IN, COLUMNS)]
            _clear(words[OF_INCARNATION::COLUMNS], expected, *counted)
            self.counts = [
                list(map(add, before, more)) for before, more in zip(self.counts, counted, strict=True)
            ]


def _clear(incarnations: list[int], expected: list[int], *columns: list[int]) -> None:
    """Set to 0 what belongs to other incarnations than those that are expected."""
    if incarnations != expected:
        for row, (found, wanted) in enumerate(zip(incarnations, expected, strict=True)):
            if found != wanted:
                for column in columns:
                    column[row] = 0


@dataclass(slots=True)
class TopicState:
    """A topic and its part of the columns."""

    topic: Topic
    columns: Columns

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.topic.name

    def total(self, column: int) -> int:
        """Return the sum of a column, counted from BYTES_IN on."""
        return self.topic.total(self.columns.counts[column])

    @property
    def log_bytes(self) -> int:
        """Bytes of the leaders' logs."""
        return self.topic.total(self.columns.log_bytes)

    @property
    def segments(self) -> int:
        """Segments of the leaders' logs."""
        return self.topic.total(self.columns.segments)

    @property
    def records(self) -> int:
        """Offsets between log start and high watermark."""
        columns = self.columns
        return max(0, self.topic.total(columns.high_watermark) - self.topic.total(columns.log_start))

    @property
    def partitions(self) -> list[PartitionState]:
        """The partitions one by one, which takes time: for pages with series of partitions."""
        columns, table = self.columns, self.columns.table
        found: list[PartitionState] = []
        for each in self.topic.partitions:
            row, leader = each.row, each.leader
            is_served = columns.serving[row] == each.incarnation
            found.append(
                PartitionState(
                    each.partition,
                    leader,
                    len(each.replicas),
                    len(each.isr),
                    bool(each.replicas) and each.replicas[0] == leader,
                    is_served,
                    columns.log_start[row],
                    columns.high_watermark[row],
                    columns.last_stable_offset[row],
                    table.cells[table.slot_at(row, leader) + SLOT_LOG_END]
                    if is_served and leader >= 0
                    else 0,
                    columns.log_bytes[row],
                )
            )
        return found


@dataclass(slots=True)
class Snapshot:
    """Everything that the pages show, as of one moment."""

    topology: Topology
    processes: list[Process]
    topics: list[TopicState]
    columns: Columns
    head: list[int]
    """Sums of the heads of all network processes (`channels.traffic_table`)."""
    apis: list[int]
    """Sums of their blocks. From STAGES_AT on, sums of the workers' histograms."""
    flushes: dict[int, list[int]]
    """By slot, the histogram of its workers' flushes."""
    lateness: list[int]
    """The histogram of how late services processes have delivered."""
    offline_partitions: int
    """Partitions without a leader, or whose leader's storage has failed."""
    served: bool
    """Whether every partition that has a leader is served, or its storage has failed."""
    log_bytes: dict[int, int]
    segments: dict[int, int]
    """By slot, of the logs that it leads."""
    monotonic_ns: int

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

    def note_share(self, share: MemoryShare) -> None:
        """Keep what a process has read from disks and written to them. The supervisor has no row."""
        if share.role.kind is not RoleKind.SUPERVISOR:
            self._proc_files.note_disk(
                self._attachment.wiring.process_row(share.role),
                share.generation,
                read_bytes=share.read_bytes,
                written_bytes=share.written_bytes,
            )

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
        columns = Columns(topology, self._attachment.partitions, self._logs, self._parts)
        offline, served = topology.leaderless, True
        if columns.serving != topology.expected:
            for row, incarnation, leader in topology.places:
                serving = columns.serving[row]
                if serving == -incarnation:
                    offline += leader != NO_LEADER
                elif serving != incarnation and leader != NO_LEADER:
                    served = False
        stages = self._stages()
        apis = _sums([part.apis() for part in self._parts]) + _sums([words for _, words in stages])
        flushes: dict[int, list[int]] = {}
        for slot, words in stages:
            taken = words[FLUSH_TIME : FLUSH_TIME + HISTOGRAM_WORDS]
            flushes[slot] = _sums([flushes[slot], taken]) if slot in flushes else taken
        return Snapshot(
            topology=topology,
            processes=self.processes(),
            topics=[TopicState(each, columns) for each in topology.topics],
            columns=columns,
            head=_sums([part.head() for part in self._parts]),
            apis=apis,
            flushes=flushes,
            lateness=self._lateness(),
            offline_partitions=offline,
            served=served,
            log_bytes={slot: led.total(columns.log_bytes) for slot, led in topology.led.items()},
            segments={slot: led.total(columns.segments) for slot, led in topology.led.items()},
            monotonic_ns=time.monotonic_ns(),
        )

    def _stages(self) -> list[tuple[int, list[int]]]:
        """Return slot and histograms of each worker."""
        settings = self._settings
        found: list[tuple[int, list[int]]] = []
        for number in range(settings.slots * settings.io.workers):
            at = stages_at(number, rows=settings.broker.max_partitions)
            found.append((number // settings.io.workers, self._logs[at : at + STAGE_WORDS].tolist()))
        return found

    def _lateness(self) -> list[int]:
        """Return the sum of the histograms of all services processes."""
        settings = self._settings
        workers = settings.slots * settings.io.workers
        found = [[0] * HISTOGRAM_WORDS]
        for number in range(settings.services.processes):
            at = stages_at(workers + number, rows=settings.broker.max_partitions) + LATENESS
            found.append(self._logs[at : at + HISTOGRAM_WORDS].tolist())
        return _sums(found)

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


def _sums(blocks: Sequence[list[int]]) -> list[int]:
    """Return the sums of the words of several blocks."""
    first, *others = blocks
    for other in others:
        first = list(map(add, first, other))
    return first
