"""What the console reads of shared memory, and of the disks: one look, which pages then read without locks.

The main thread looks once a second while somebody is logged in, else every five seconds, for the charts. A look that
takes long makes the next one later, so that looking never takes more than LOOK_SHARE of a core. A page looks again if
the last look is older than a second, or if the metadata have changed since then, so that a topic is there right after
it was created.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from appliance.channels.roles import RoleKind
from appliance.channels.traffic_table import BYTES_IN, BYTES_OUT, RECORDS_IN
from appliance.channels.wiring import Attachment
from appliance.clock import NS_PER_MS
from appliance.cluster import ClusterImage, TopicImage
from appliance.config import Settings
from appliance.console.history import Totals
from appliance.ipc.process_table import REQUESTS
from appliance.metrics.proc_files import ProcFiles
from appliance.metrics.snapshot import Columns, Memory, Process, Snapshot

LOOK_MS: Final = 1_000
IDLE_LOOK_MS: Final = 5_000
LOOK_SHARE: Final = 0.02
_PAGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition as a page shows it. Offsets are 0 while nobody serves it."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    log_start: int
    high_watermark: int
    log_bytes: int
    segments: int

    @property
    def records(self) -> int:
        """Offsets between log start and high watermark."""
        return max(0, self.high_watermark - self.log_start)

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is out of sync."""
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic as the list shows it."""

    name: str
    is_internal: bool
    partitions: int
    replicas: int
    records: int
    log_bytes: int
    segments: int
    under_replicated: int
    without_leader: int


@dataclass(frozen=True, slots=True)
class Disk:
    """A log directory."""

    slot: int
    path: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Look:
    """What there was at one moment."""

    image: ClusterImage
    snapshot: Snapshot
    disks: Sequence[Disk]

    @property
    def columns(self) -> Columns:
        """Words of every partition."""
        return self.snapshot.columns

    def topic(self, topic: TopicImage) -> TopicRow:
        """Return the sums over a topic's partitions."""
        columns, rows = self.columns, [each.row for each in topic.partitions]
        # A topic that is newer than this look has rows that the look does not have.
        rows = [row for row in rows if row < len(columns.serving)]
        return TopicRow(
            name=topic.name,
            is_internal=topic.internal,
            partitions=len(topic.partitions),
            replicas=max((len(each.replicas) for each in topic.partitions), default=0),
            records=sum(max(0, columns.high_watermark[row] - columns.log_start[row]) for row in rows),
            log_bytes=sum(columns.log_bytes[row] for row in rows),
            segments=sum(columns.segments[row] for row in rows),
            under_replicated=sum(len(each.isr) < len(each.replicas) for each in topic.partitions),
            without_leader=sum(each.leader < 0 for each in topic.partitions),
        )

    def partitions(self, topic: TopicImage, first: int, count: int) -> list[PartitionRow]:
        """Return some partitions of a topic, from index `first` on."""
        columns = self.columns
        found = []
        for each in topic.partitions[first : first + count]:
            row = each.row
            is_there = row < len(columns.serving)
            found.append(
                PartitionRow(
                    each.partition,
                    each.leader,
                    each.replicas,
                    each.isr,
                    columns.log_start[row] if is_there else 0,
                    columns.high_watermark[row] if is_there else 0,
                    columns.log_bytes[row] if is_there else 0,
                    columns.segments[row] if is_there else 0,
                )
            )
        return found

    def end_offset(self, topic: str, partition: int) -> int | None:
        """Return the high watermark; None for a partition that is not there, or that nobody serves now."""
        image = self.image.topics.get(topic)
        if image is None or not 0 <= partition < len(image.partitions):
            return None
        found, columns = image.partitions[partition], self.columns
        is_served = found.row < len(columns.serving) and columns.serving[found.row] == found.incarnation
        return columns.high_watermark[found.row] if is_served else None

    def idle_share(self, process: Process) -> float:
        """Return the share of a process's life that it has slept."""
        return process.row.idle_share(self.snapshot.monotonic_ns)


class Observer:
    """Looks at shared memory; one thread at a time."""

    def __init__(self, attachment: Attachment, settings: Settings, *, processes: int) -> None:
        self._attachment = attachment
        self._settings = settings
        # The metrics process keeps what lives of processes have used in shared memory; here a life of the console is
        # enough, so the words are its own.
        pages = [memoryview(bytearray(_PAGE_BYTES)).cast("q") for _ in range(1 + processes // 32)]
        self._lock = threading.Lock()
        self._last: Look | None = None
        self._memory = Memory(attachment, ProcFiles(pages, parent=os.getppid()))

    def look(self) -> Look | None:
        """Return what there is now; None before there is a metadata image."""
        with self._lock:
            return self._look()

    def recent(self, *, now_ns: int) -> Look | None:
        """Return the last look, or what there is now if the last look is old.

        Args:
            now_ns: of CLOCK_MONOTONIC.
        """
        with self._lock:
            last, image = self._last, self._attachment.image.current()
            if last is None or image is None or last.image.version != image.version:
                return self._look()
            is_old = now_ns - last.snapshot.monotonic_ns > LOOK_MS * NS_PER_MS
            return self._look() if is_old else last

    def _look(self) -> Look | None:
        image = self._attachment.image.current()
        if image is not None:
            self._last = Look(image, self._memory.look(), self._disks())
        return self._last

    def _disks(self) -> list[Disk]:
        found = []
        for slot in range(self._settings.slots):
            for directory in self._settings.log_directories(slot):
                with suppress(OSError):  # a disk that has failed, or that this process may not look at
                    room = os.statvfs(directory)
                    found.append(
                        Disk(
                            slot,
                            str(directory),
                            room.f_bavail * room.f_frsize,
                            room.f_blocks * room.f_frsize,
                        )
                    )
        return found


def totals_of(look: Look, *, time_ms: int) -> Totals:
    """Return what everything has counted."""
    now = look.snapshot
    network, workers = now.of_kind(RoleKind.NETPROC), now.of_kind(RoleKind.IOPROC)
    return Totals(
        monotonic_ns=now.monotonic_ns,
        time_ms=time_ms,
        bytes_in=now.head[BYTES_IN],
        bytes_out=now.head[BYTES_OUT],
        records_in=now.head[RECORDS_IN],
        requests=sum(each.totals[REQUESTS] for each in network),
        network_idle_ns=sum(each.idle_ns for each in network),
        network_processes=len(network),
        worker_idle_ns=sum(each.idle_ns for each in workers),
        worker_processes=len(workers),
        connections=sum(each.row.connections for each in network),
    )
