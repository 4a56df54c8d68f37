"""Which segments a log consists of, and what of them is on the disk.

    grow       `roll` begins a new active segment; the flush of the old one is queued
    shrink     from the start: `advance_start`, then `retire_oldest`. From the end: `truncate_to`, `start_anew_at`
    replace    `replace_segments` puts a cleaner's segment in the place of those that it has read
    flush      `flush_task` forces segments, leader epochs and producer snapshot to the disk; then it moves the
               recovery point

Offsets, leader epochs, producers and segments change together here; `LocalLog` changes only the files. Sources:
`UnifiedLog`, `LocalLog` of Apache Kafka.
"""

from __future__ import annotations

import logging
from itertools import islice
from pathlib import Path
from typing import Final

from appliance.errors import StorageFault
from appliance.log.config import LogSettings
from appliance.log.file_names import (
    LEADER_EPOCHS,
)
from appliance.log.flush import FlushTask
from appliance.log.partition_metadata import read_topic_id, write_topic_id
from appliance.log.readable_log import ReadableLog
from appliance.log.retention import NO_LIMITS, UNLIMITED, Expired, RetentionRules, expired
from appliance.log.segment import Segment
from appliance.log.validator import validator_of

_logger: Final = logging.getLogger(__name__)


class SegmentedLog(ReadableLog):
    """A log whose segments come and go."""

    __slots__ = ()

    # Growing

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Says that leader epoch `epoch` begins at `start_offset`. Its file says so later (`leader_epochs`).

        Raises:
            StorageFault: the checkpoint could not be replaced.
        """
        self._epochs.assign(epoch, start_offset, write=False)
        self.latest_epoch = self._epochs.latest

    def roll(self, base_offset: int | None = None) -> None:
        """Closes the active segment and begins a new one at `base_offset`, the log end by default.

        Does nothing if the active segment is empty and begins there. The flush of the closed segment is queued.

        Raises:
            DiskFull, StorageFault: it failed; the log keeps its active segment.
        """
        base_offset = self.log_end_offset if base_offset is None else base_offset
        if self._active.base_offset == base_offset:
            return
        self._is_plain = False
        old = self._local.roll(base_offset)
        self._active = self._segments.active
        snapshot = self._take_snapshot(base_offset)
        self._flushes.append(self._flush_task([old], base_offset, snapshot))
        if self.on_roll is not None:
            self.on_roll()

    def maybe_roll_by_time(self, now_ms: int) -> bool:
        """Roll the active segment if it is old enough, even without an append. Return whether it was rolled.

        Raises:
            DiskFull, StorageFault: as `roll`.
        """
        if not self._local.is_active_old(now_ms):
            return False
        self.roll()
        return True

    # Retention

    def expired(self, *, high_watermark: int, now_ms: int, by_time: bool = True) -> Expired:
        """Return which of the oldest segments retention may delete. Changes nothing; see `retention`.

        Without `by_time` no segment is too old: for a caller that does not trust the clock.

        Raises:
            StorageFault: a timestamp cannot be read.
        """
        settings = self.settings
        rules = NO_LIMITS
        size_bytes = 0
        if settings.is_deletable:
            rules = RetentionRules(settings.retention_bytes, settings.retention_ms if by_time else UNLIMITED)
            if rules.retention_bytes >= 0:
                size_bytes = self.size_bytes
        return expired(
            self._segments,
            rules,
            size_bytes=size_bytes,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            high_watermark=high_watermark,
            now_ms=now_ms,
        )

    def advance_start(self, offset: int) -> bool:
        """Move the log start up to `offset`, which the caller knows to be replicated. Return whether it moved.

        Only the leader epoch file changes. Segments below the start stay until they are retired.
        """
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        try:
            self._epochs.truncate_from_start(offset)
        except StorageFault as fault:
            # An opening cuts them again, and a full disk must not keep retention from making room.
            _logger.warning("%s: cannot trim the leader epoch file: %s", self.directory, fault)
        return True

    def retire_oldest(self, count: int) -> None:
        """Take out the `count` oldest segments, which end below the log start, and rename their files to `.deleted`.

        If the active segment is among them, it is rolled first. The renamed files are queued for their removal.

        Raises:
            DiskFull, StorageFault: it failed; the segments that are left may be retired again.
        """
        for segment in list(islice(self._segments, count)):
            if segment is self._active:
                self.roll()
            following = self._segments.after(segment)
            self._local.retire(segment, self.log_end_offset if following is None else following.base_offset)

    # Truncation

    def truncate_to(self, offset: int) -> bool:
        """Drop every batch whose last offset is `offset` or later. Return whether there was one.

        Raises:
            StorageFault, CorruptFile: it failed. The next truncation finishes it.
        """
        if offset >= self.log_end_offset and not self._is_half_cut:
            self._epochs.truncate_from_end(self.log_end_offset)
            self.latest_epoch = self._epochs.latest
            return False
        if offset < self._segments.first.base_offset:
            self.start_anew_at(offset)
            return True
        self._is_half_cut = True
        self._point.cut(offset)
        for segment in reversed(self._segments.since(offset)):
            if segment.base_offset > offset:
                self._local.drop(segment)
        self._active = self._segments.active
        self.log_end_offset = self._active.truncate_to(offset)
        self._point.cut(self.log_end_offset)
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
        self._producers.reload(self._segments, self.log_start_offset, self.log_end_offset)
        self._active.transaction_index.truncate_to(offset)
        self._cut_epochs(self.log_end_offset)
        self._is_half_cut = False
        return True

    def start_anew_at(self, offset: int) -> None:
        """Drop every batch. The log then begins and ends at `offset`.

        Raises:
            DiskFull, StorageFault: it failed. If no segment is left, the log is empty at offset 0, as an opening would
                find it.
        """
        self._write_topic_id()
        self._is_half_cut, self._is_plain = True, False
        self._point.cut(offset)
        first = self._local.new_segment(offset)
        try:
            for segment in list(self._segments):
                self.log_start_offset = max(self.log_start_offset, segment.base_offset)
                self._local.drop(segment)
            first.create()
        except StorageFault:
            if not self._segments:
                self._point.cut(0)
                first = self._local.new_segment(0)
                first.put_off()
                first.before_files = self._write_topic_id
                self._begin_with(first)
            raise
        self._begin_with(first)
        self._is_half_cut = False

    def _begin_with(self, first: Segment) -> None:
        offset = first.base_offset
        self._local.begin_with(first)
        self._active = first
        self.log_start_offset = self.log_end_offset = offset
        self._producers.begin_anew(offset)
        self._cut_epochs(0)

    def _refuse_half_cut(self) -> None:
        """After half a truncation the producers may include those of dropped batches. A recovery reads them again."""
        if self._is_half_cut:
            raise StorageFault(f"{self.directory}: a cut of it has failed and was not done since")

    def _cut_epochs(self, end_offset: int) -> None:
        try:
            self._epochs.truncate_from_end(end_offset)
        finally:
            self.latest_epoch = self._epochs.latest

    # Compaction and settings

    def replace_segments(self, base_offset: int, end_offset: int, *, source_bytes: int, cuts: int) -> bool:
        """Replace the segments in [base_offset, end_offset) by a cleaner's segment. Their files are queued for removal.

        Return False, and change nothing, if these are not the closed segments that the cleaner has read, or if the log
        is not compacted any more.

        Raises:
            StorageFault: it failed; nothing has changed.
            SwapInterrupted: it failed in the middle; the log must be closed and opened again.
        """
        if not self.settings.is_compacted or cuts != self._point.cuts:
            return False
        return self._local.replace(base_offset, end_offset, source_bytes=source_bytes)

    def update_settings(self, settings: LogSettings) -> None:
        """Apply new settings to later appends. The active segment keeps its roll jitter."""
        if settings == self.settings:
            return
        self.settings = settings
        self._validator = validator_of(settings)
        self._local.update_settings(settings)

    # On the disk

    def distrust(self, offset: int) -> None:
        """The log is damaged at `offset`: the next opening that is not clean checks everything from there on."""
        self._point.cut(offset)

    def flush(self, up_to: int | None = None) -> None:
        """Flush everything below `up_to`, the log end by default, to the disk, and wait for it.

        Raises:
            StorageFault: it failed.
        """
        end = self.log_end_offset if up_to is None else up_to
        if end > self.recovery_point:
            self.flush_task().run()

    def flush_task(self) -> FlushTask:
        """Return what `flush` would do now. Any thread may run it."""
        return self._flush_task(self._segments.since(self.recovery_point), self.log_end_offset, None)

    def _flush_task(self, segments: list[Segment], offset: int, snapshot: Path | None) -> FlushTask:
        # Before the recovery point moves past batches that the latest epoch could be read from again.
        self.write_due_epochs()
        paths = [path for segment in segments for path in segment.paths]
        paths.append(self.directory / LEADER_EPOCHS)
        if snapshot is not None:
            paths.append(snapshot)
        return FlushTask(self.directory, tuple(paths), offset, self._point, self._point.cuts)

    def _take_snapshot(self, offset: int) -> Path | None:
        return self._producers.take_snapshot(
            offset, now_ms=self._clock.now_ms(), expiration_ms=self.settings.producer_id_expiration_ms
        )

    def write_due_epochs(self) -> None:
        """Write the epoch file if it is behind. Call this before others may read records of the latest epoch.

        A log without files may wait, because an opening would drop an epoch without records.

        Raises:
            StorageFault: it failed.
        """
        if self._epochs.is_due and self._active.has_files:
            self._epochs.write()

    def release(self) -> None:
        """Close every descriptor and mapping until they are needed again.

        Raises:
            StorageFault: it failed.
        """
        self.write_due_epochs()
        self._local.release_sealed()
        self._active.release()

    def _write_topic_id(self) -> None:
        """Write whose files they are before there are any. An empty directory belongs to no topic yet, as in Kafka."""
        if self.topic_id is not None and (self._is_nobodys or read_topic_id(self.directory) is None):
            write_topic_id(self.directory, self.topic_id)
            self._is_nobodys = False
