"""Checkpoints that a worker or a replica process writes beside its work, so that its next life reads little again.

    after the first record   log.flush.offset.checkpoint.interval.ms   segments forced, then recovery points and
                                                                       high watermarks
    after a log start moved  log.flush.start.offset.checkpoint…        log starts: whatever leads next, deleted records
                                                                       must not come back
    after a roll             a second (`rolled_flush.py`)              as the first
    after a cut              100 ms                                    as the first: a recovery point on the disk may be
                                                                       beyond what was cut, and what comes in its place
                                                                       would not be checked

The duty cycle never waits for the disk: a thread writes, one at a time. Logs at rest close their descriptors meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from appliance.clock import Clock
from appliance.cluster import TopicPartition
from appliance.config import BrokerSettings
from appliance.errors import StorageFault
from appliance.ipc.agent import Timers
from appliance.journal import RateLimited
from appliance.log.log_directories import LogDirectories
from appliance.log.partition_log import PartitionLog
from appliance.log.state_publisher import StatePublisher
from appliance.partition_host.listener import PartitionListener
from appliance.partition_host.removals import Removals
from appliance.partition_host.rolled_flush import RolledFlush

AGAIN_MS: Final = 100
"""How long the log starts wait for a checkpoint under way."""
CUT_CHECKPOINT_MS: Final = 100


class Checkpointed(Protocol):
    """What the checkpoints need of a partition that is held open."""

    log: PartitionLog

    @property
    def high_watermark(self) -> int: ...

    def tidy(self, *, now_ms: int, is_at_rest: bool) -> None:
        """Do what is done once per checkpoint. `is_at_rest`: it has taken no records since the one before.

        Raises:
            StorageFault: The host refused something; the log is as it was.
        """


class Checkpoints:
    """The checkpoints of one process; nothing is written before `open`.

    Args:
        publisher: Closes the state files of partitions at rest.
        listener: Learns that a checkpoint begins, that the walk over all partitions goes on, and of the producers.
        complain: Reports what the host refused.
    """

    __slots__ = (
        "_clock",
        "_complain",
        "_directories",
        "_held",
        "_is_cut",
        "_is_dirty",
        "_listener",
        "_log_ends",
        "_publisher",
        "_removals",
        "_rolled",
        "_settings",
        "_starts_moved",
        "_timers",
        "_writer",
    )

    def __init__(
        self,
        timers: Timers,
        clock: Clock,
        *,
        settings: BrokerSettings,
        publisher: StatePublisher,
        removals: Removals,
        listener: PartitionListener[Any],
        complain: RateLimited,
    ) -> None:
        self._timers = timers
        self._clock = clock
        self._settings = settings
        self._publisher = publisher
        self._removals = removals
        self._listener = listener
        self._complain = complain
        self._directories: LogDirectories | None = None
        self._held: Mapping[TopicPartition, Checkpointed] = {}
        self._rolled = RolledFlush(timers, clock, begin=self._begin)
        self._log_ends: dict[TopicPartition, int] = {}
        self._is_dirty = False
        self._is_cut = False
        self._starts_moved = False
        self._writer: threading.Thread | None = None

    def open(
        self,
        directories: LogDirectories,
        held: Mapping[TopicPartition, Checkpointed],
        *,
        flushes_rolled: bool,
    ) -> None:
        """Write checkpoints of `held`, whatever is in it at the time, from now on.

        `flushes_rolled`: Force segments to the disk a second after they were rolled.
        """
        self._directories = directories
        self._held = held
        if flushes_rolled:
            directories.on_flush_due(self._rolled.rolled)

    def note_dirty(self) -> None:
        """Note that a log has taken records. Called for each request, so it is cheap."""
        if not self._is_dirty:
            self._is_dirty = True
            self._timers.after_ms(self._settings.log_flush_offset_checkpoint_interval_ms, self._checkpoint)

    def note_cut(self) -> None:
        """Note that a log was cut."""
        if not self._is_cut:
            self._is_cut = True
            self._timers.after_ms(CUT_CHECKPOINT_MS, self._checkpoint)

    def note_start_moved(self) -> None:
        """Note that a log start has moved."""
        if not self._starts_moved:
            self._starts_moved = True
            self._timers.after_ms(
                self._settings.log_flush_start_offset_checkpoint_interval_ms, self._checkpoint_starts
            )

    def join(self) -> None:
        """Wait for the checkpoint under way."""
        if self._writer is not None:
            self._writer.join()

    def _checkpoint(self) -> None:
        """Partitions that took nothing since the last checkpoint close their descriptors. One more checkpoint follows
        the last append, so that in the end all do.
        """
        was_cut = self._is_cut
        self._is_dirty = self._is_cut = False
        if self._directories is None:
            return
        self._listener.checkpoint_begins()
        if self._tidy():
            self.note_dirty()
        else:
            self._publisher.release()
        self._removals.remove_retired()
        if self._begin():
            return
        if was_cut:
            self.note_cut()
        else:
            self.note_dirty()

    def _begin(self) -> bool:
        """Have a thread force what waits for it to the disk, then write the checkpoints. False while one does."""
        if self._directories is None:
            return True
        if self._is_writing():
            return False
        high_watermarks = {name: held.high_watermark for name, held in self._held.items()}
        self._write("flush", self._directories.flush_task(high_watermarks))
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

    def _tidy(self) -> bool:
        """Let partitions at rest close what they hold open. Return whether some took records since the last time."""
        before, self._log_ends = self._log_ends, {}
        now_ms = self._clock.now_ms()
        producers = 0
        for name, held in self._held.items():
            log = held.log
            if log.log_end_offset:
                self._log_ends[name] = log.log_end_offset
            self._listener.work_goes_on()
            try:
                log.expire_producers(now_ms)
                producers += log.producer_count
                is_at_rest = before.get(name, 0) == log.log_end_offset
                held.tidy(now_ms=now_ms, is_at_rest=is_at_rest)
                if is_at_rest:
                    log.release()
            except StorageFault as fault:
                self._complain(f"partition {name}: {fault}")
        self._listener.producers_counted(producers)
        return any(before.get(name, 0) != end for name, end in self._log_ends.items())
