"""What a worker writes down beside the requests, so that its next life reads little again.

    after the first record   log.flush.offset.checkpoint.interval.ms   segments forced, then recovery points and
                                                                       high watermarks
    after a log start moved  log.flush.start.offset.checkpoint…        log starts
    after a roll             a second (`rolled_flush.py`)              as the first

The duty cycle never waits for the disk: a thread writes, and there is one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from appliance.clock import Clock
from appliance.cluster import TopicPartition
from appliance.config import BrokerSettings
from appliance.errors import StorageFault
from appliance.ioproc.partitions import Partitions
from appliance.ioproc.rolled_flush import RolledFlush
from appliance.ipc.agent import Timers
from appliance.log.log_directories import LogDirectories
from appliance.log.state_publisher import StatePublisher

# How long a checkpoint waits for another one under way.
AGAIN_MS: Final = 100


class Checkpoints:
    """The checkpoints of one worker; nothing is written before `open`.

    Args:
        publisher: lets go of what it holds for partitions at rest.
        look: called before a checkpoint; looks at the log directories.
        beat: called often while all partitions are gone through.
    """

    __slots__ = (
        "_beat",
        "_clock",
        "_count_producers",
        "_directories",
        "_is_dirty",
        "_log_ends",
        "_look",
        "_partitions",
        "_publisher",
        "_rolled",
        "_settings",
        "_starts_moved",
        "_timers",
        "_warn",
        "_writer",
    )

    def __init__(
        self,
        timers: Timers,
        clock: Clock,
        *,
        settings: BrokerSettings,
        publisher: StatePublisher,
        look: Callable[[], None],
        beat: Callable[[], None],
        count_producers: Callable[[int], None],
        warn: Callable[[str], None],
    ) -> None:
        self._count_producers = count_producers
        self._timers = timers
        self._clock = clock
        self._settings = settings
        self._publisher = publisher
        self._look = look
        self._beat = beat
        self._warn = warn
        self._directories: LogDirectories | None = None
        self._partitions: Partitions | None = None
        self._rolled = RolledFlush(timers, clock, begin=self._begin)
        self._log_ends: dict[TopicPartition, int] = {}
        self._is_dirty = False
        self._starts_moved = False
        self._writer: threading.Thread | None = None

    def open(self, directories: LogDirectories, partitions: Partitions) -> None:
        """From now on they are what is written down."""
        self._directories = directories
        self._partitions = partitions
        directories.on_flush_due(self._rolled.rolled)

    def note_dirty(self) -> None:
        """A log has taken records. Once for each request: cheap."""
        if not self._is_dirty:
            self._is_dirty = True
            self._timers.after_ms(self._settings.log_flush_offset_checkpoint_interval_ms, self._checkpoint)

    def note_start_moved(self) -> None:
        """A log start has moved: on disk soon, so that deleted records do not come back with the next life."""
        if not self._starts_moved:
            self._starts_moved = True
            self._timers.after_ms(
                self._settings.log_flush_start_offset_checkpoint_interval_ms, self._checkpoint_starts
            )

    def join(self) -> None:
        """Waits for what is being written."""
        if self._writer is not None:
            self._writer.join()

    def _checkpoint(self) -> None:
        """Partitions that took nothing since the last checkpoint are rolled where they are due and let go of their
        descriptors; one more checkpoint follows the last append, so that all do in the end.
        """
        self._is_dirty = False
        if self._partitions is None:
            return
        self._look()
        if self._tidy(self._partitions):
            self.note_dirty()
        else:
            self._publisher.release()
        if not self._begin():
            self.note_dirty()

    def _begin(self) -> bool:
        """Has a thread force what waits for it to the disk, then write the checkpoints; False while one is at it."""
        if self._directories is None or self._partitions is None:
            return True
        if self._is_writing():
            return False
        self._write("flush", self._directories.flush_task(self._partitions.high_watermarks()))
        return True

    def _checkpoint_starts(self) -> None:
        self._starts_moved = False
        if self._directories is None:
            return
        if self._is_writing():
            self._starts_moved = True
            self._timers.after_ms(AGAIN_MS, self._checkpoint_starts)
        else:
            self._write("log-starts", self._directories.log_starts_task())

    def _is_writing(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def _write(self, name: str, task: Callable[[], None]) -> None:
        self._writer = threading.Thread(target=task, name=name, daemon=True)
        self._writer.start()

    def _tidy(self, partitions: Partitions) -> bool:
        """Lets partitions at rest go of what they hold; whether some took records since the last time."""
        before, self._log_ends = self._log_ends, {}
        now_ms = self._clock.now_ms()
        producers = 0
        for name, partition in partitions.by_name.items():
            log = partition.log
            if log.log_end_offset:
                self._log_ends[name] = log.log_end_offset
            if partition.has_unsaid_flush and not partition.is_marked:
                partition.mark()
            self._beat()
            try:
                log.expire_producers(now_ms)
                producers += log.producer_count
                if before.get(name, 0) == log.log_end_offset:
                    log.maybe_roll_by_time(now_ms)
                    log.release()
            except StorageFault as fault:
                self._warn(f"partition {name}: {fault}")
        self._count_producers(producers)
        return any(before.get(name, 0) != end for name, end in self._log_ends.items())
