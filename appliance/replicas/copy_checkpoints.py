"""What a replica writes down of its copies, so that its next life reads little again.

    after the first record   log.flush.offset.checkpoint.interval.ms   segments forced, then recovery points and
                                                                       high watermarks
    after a log start moved  log.flush.start.offset.checkpoint…        log starts: this slot may lead next, and deleted
                                                                       records must not come back with it
    after a cut              100 ms                                    as the first: a recovery point on the disk may be
                                                                       beyond what was cut, and what comes in its place
                                                                       would not be checked

A thread writes, one at a time. Copies at rest let go of their descriptors meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from appliance.clock import Clock
from appliance.errors import StorageFault
from appliance.log.log_directories import LogDirectories
from appliance.log.producer_limits import PRODUCER_LIMITS
from appliance.log.state_publisher import StatePublisher
from appliance.replicas.copy_removals import CopyRemovals
from appliance.replicas.followers import Followers

CUT_CHECKPOINT_MS: Final = 100


class CopyCheckpoints:
    """The checkpoints of one replica process; nothing is written before `open`.

    Args:
        after_ms: has something called in so many milliseconds.
        publisher: lets go of what it holds for partitions at rest.
        look: called before a checkpoint; looks at the log directories.
        beat: called often while all copies are gone through.
    """

    __slots__ = (
        "_after_ms",
        "_beat",
        "_clock",
        "_directories",
        "_followers",
        "_interval_ms",
        "_is_cut",
        "_is_dirty",
        "_log_ends",
        "_look",
        "_publisher",
        "_removals",
        "_start_interval_ms",
        "_starts_moved",
        "_warn",
        "_writer",
    )

    def __init__(
        self,
        after_ms: Callable[[int, Callable[[], None]], object],
        clock: Clock,
        *,
        interval_ms: int,
        start_interval_ms: int,
        publisher: StatePublisher,
        removals: CopyRemovals,
        look: Callable[[], None],
        beat: Callable[[], None],
        warn: Callable[[str], object],
    ) -> None:
        self._after_ms = after_ms
        self._clock = clock
        self._interval_ms = interval_ms
        self._start_interval_ms = start_interval_ms
        self._publisher = publisher
        self._removals = removals
        self._look = look
        self._beat = beat
        self._warn = warn
        self._directories: LogDirectories | None = None
        self._followers: Followers | None = None
        self._is_dirty = False
        self._is_cut = False
        self._starts_moved = False
        self._log_ends: dict[int, int] = {}
        self._writer: threading.Thread | None = None

    def open(self, directories: LogDirectories, followers: Followers) -> None:
        """From now on they are what is written down."""
        self._directories = directories
        self._followers = followers

    def note_dirty(self) -> None:
        """A copy has taken records."""
        if not self._is_dirty:
            self._is_dirty = True
            self._after_ms(self._interval_ms, self._checkpoint)

    def note_cut(self) -> None:
        """A copy was cut."""
        if not self._is_cut:
            self._is_cut = True
            self._after_ms(CUT_CHECKPOINT_MS, self._checkpoint)

    def note_start_moved(self) -> None:
        """A copy has followed its leader's log start."""
        if not self._starts_moved:
            self._starts_moved = True
            self._after_ms(self._start_interval_ms, self._checkpoint_starts)

    def join(self) -> None:
        """Waits for what is being written."""
        if self._writer is not None:
            self._writer.join()

    def _checkpoint(self) -> None:
        self._is_dirty = self._is_cut = False
        if self._directories is None or self._followers is None:
            return
        self._look()
        if self._tidy(self._followers):
            self.note_dirty()
        else:
            self._publisher.release()
        self._removals.remove_retired()
        if self._writer is not None and self._writer.is_alive():
            self.note_cut()
            return
        self._write("flush", self._directories.flush_task(self._followers.high_watermarks()))

    def _checkpoint_starts(self) -> None:
        self._starts_moved = False
        if self._directories is None:
            return
        if self._writer is not None and self._writer.is_alive():
            self.note_start_moved()
            return
        self._write("log-starts", self._directories.log_starts_task())

    def _write(self, name: str, task: Callable[[], None]) -> None:
        self._writer = threading.Thread(target=task, name=name, daemon=True)
        self._writer.start()

    def _tidy(self, followers: Followers) -> bool:
        """Lets copies at rest go of what they hold; whether some took records since the last time."""
        before, self._log_ends = self._log_ends, {}
        producers = 0
        for row, follower in followers.by_row.items():
            self._beat()
            log = follower.log
            self._log_ends[row] = log.log_end_offset
            try:
                follower.trim()
                log.expire_producers(self._clock.now_ms())
                producers += log.producer_count
                if before.get(row, 0) == log.log_end_offset:
                    log.release()
            except StorageFault as fault:
                self._warn(f"partition {follower.topic_partition}: {fault}")
        PRODUCER_LIMITS.recount(producers)
        return any(before.get(row, 0) != end for row, end in self._log_ends.items())
