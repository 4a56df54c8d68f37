"""What a partition's log holds, and how it is read.

    log start            recovery point                    last stable    log end
        │                      │                               │            │
        ▼                      ▼                               ▼            ▼
    ├────────────┬─────────────┬───────────────────────────────────────────┤
    │ segment 0  │ segment 57  │ segment 113 (active)                      │
    └────────────┴─────────────┴───────────────────────────────────────────┘
        flushed to the disk      in the page cache: survives the process, not a power cut

Nothing here changes the log, except that `stable_offset` forgets transactions that have ended. The log does not know
the high watermark; readers pass it as their upper bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

from appliance.clock import Clock
from appliance.errors import ApplianceDefect, RejectedRequest
from appliance.log.cleaning_bounds import LogBounds
from appliance.log.config import LogSettings
from appliance.log.file_names import (
    LOG,
    segment_file_name,
)
from appliance.log.flush import FlushTask, RecoveryPoint
from appliance.log.leader_epochs import LeaderEpochs
from appliance.log.loader import LoadedLog
from appliance.log.local_log import LocalLog
from appliance.log.log_producers import LogProducers
from appliance.log.producer_state import Producers
from appliance.log.removal import Removal
from appliance.log.results import FetchSlice, LogStatistics
from appliance.log.segment import Segment
from appliance.log.segments import Segments
from appliance.log.time_lookup import find_first, find_largest
from appliance.log.transaction_index import AbortedTransaction
from appliance.log.transaction_permits import TransactionPermits
from appliance.log.validator import validator_of
from appliance.protocol.errors import ErrorCode


class ReadableLog:
    """The state of a log. Numbers may be read at any time; only methods of its subclasses change them."""

    __slots__ = (
        "_active",
        "_clock",
        "_epochs",
        "_flushes",
        "_is_half_cut",
        "_is_nobodys",
        "_is_plain",
        "_local",
        "_point",
        "_producers",
        "_segments",
        "_validator",
        "cut_to",
        "directory",
        "is_recovered",
        "lacks_begin",
        "latest_epoch",
        "log_end_offset",
        "log_start_offset",
        "on_roll",
        "settings",
        "topic_id",
    )

    def __init__(
        self,
        directory: Path,
        loaded: LoadedLog,
        *,
        settings: LogSettings,
        clock: Clock,
        topic_id: UUID | None,
        flushes: deque[FlushTask],
        removals: deque[Removal],
        is_made: bool = False,
    ) -> None:
        """`is_made`: the directory was made for it just now."""
        self.directory = directory
        self.settings = settings
        self.topic_id = topic_id
        self._clock = clock
        self._validator = validator_of(settings)
        self._segments = Segments(loaded.segments)
        self._active = self._segments.active
        self._local = LocalLog(
            directory, self._segments, loaded.snapshots, settings=settings, clock=clock, removals=removals
        )
        self._is_nobodys = is_made  # the directory has no topic id yet, and need not be searched for one
        self._is_plain = loaded.is_plain
        self._epochs = loaded.epochs
        self._producers = LogProducers(loaded.producers, loaded.snapshots, now_ms=clock.now_ms())
        self._point = RecoveryPoint(loaded.recovery_point)
        self._flushes = flushes
        self._is_half_cut = False  # a truncation failed, and is still to be done
        self.latest_epoch = loaded.epochs.latest
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.lacks_begin = loaded.lacks_begin
        """When it was opened, nothing on the disk confirmed that it begins where its files do: some may be lost."""
        self.is_recovered = loaded.is_recovered
        """When it was opened, it had not been closed cleanly, so its end may be that of a damaged log."""
        self.cut_to = loaded.cut_to
        """The opening cut complete batches up to this offset; -1 if it cut none."""
        self.on_roll: Callable[[], None] | None = None
        """Called after a roll, so that the cleaner is notified."""

    # Reading

    def read(
        self, offset: int, *, max_bytes: int, upper_bound: int, min_one_batch: bool = True
    ) -> FetchSlice:
        """Where the records from `offset` on lie, as far as `upper_bound` (exclusive) and one segment reach.

        The slice begins with the batch that contains `offset`. `max_bytes` may cut it anywhere after the first
        batch; without `min_one_batch` a first batch that is larger leaves the slice empty. A slice is also
        empty at and above `upper_bound`.

        Raises:
            RejectedRequest: OFFSET_OUT_OF_RANGE, below the log start or above the log end.
            StorageFault, CorruptFile: the log cannot be read.
        """
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise RejectedRequest(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not in [{self.log_start_offset}, {self.log_end_offset}]",
            )
        active = self._active
        if offset >= upper_bound or offset == self.log_end_offset:
            return FetchSlice(active.base_offset, active.file.size_bytes, 0, 0)
        segment = active if offset >= active.base_offset else self._local.opened(offset)
        found = segment.locate(offset)
        while found is None:
            # Compaction may leave a segment that ends before the next one begins.
            following = self._segments.after(segment)
            if following is None or following.base_offset >= upper_bound:
                return FetchSlice(active.base_offset, active.file.size_bytes, 0, 0)
            segment = following
            found = segment.locate(offset)
        position, first_bytes = found
        end = segment.file.size_bytes
        if upper_bound < self.log_end_offset:
            beyond = segment.locate(upper_bound)
            if beyond is not None:
                end = beyond[0]
        length_bytes = end - position
        if length_bytes > max_bytes:
            length_bytes = max_bytes
            if max_bytes < first_bytes:
                length_bytes = first_bytes if min_one_batch else 0
        if length_bytes < first_bytes and end - position < first_bytes:
            # The bound lies inside of the first batch: nothing of it may be seen.
            return FetchSlice(segment.base_offset, position, 0, 0)
        if segment is active:
            return FetchSlice(segment.base_offset, position, length_bytes, first_bytes)
        following = self._segments.after(segment)
        is_older = following is not None and following.base_offset < upper_bound
        return FetchSlice(segment.base_offset, position, length_bytes, first_bytes, is_older)

    def segment_path(self, base_offset: int) -> Path:
        """The `.log` file of the segment with that base offset."""
        return self.directory / segment_file_name(base_offset, LOG)

    def offset_for_timestamp(self, timestamp_ms: int, *, upper_bound: int) -> tuple[int, int, int] | None:
        """(timestamp in ms, offset, leader epoch) of the first record at `timestamp_ms` or later, below the bound.

        Raises:
            StorageFault, CorruptFile: the log cannot be read.
            RejectedRequest: a batch on the way cannot be decompressed within the bound.
        """
        return find_first(
            self._local,
            timestamp_ms,
            start=self.log_start_offset,
            upper_bound=upper_bound,
            decompressed_bytes_max=self.settings.max_decompressed_bytes,
        )

    def offset_of_max_timestamp(self) -> tuple[int, int, int] | None:
        """(timestamp in ms, offset, leader epoch) of the first record with the largest timestamp; None if empty.

        Raises:
            As `offset_for_timestamp`.
        """
        if self.log_end_offset == self.log_start_offset:
            return None
        return find_largest(
            self._local,
            start=self.log_start_offset,
            decompressed_bytes_max=self.settings.max_decompressed_bytes,
        )

    def aborted_transactions(self, offset: int, *, upper_bound: int) -> list[AbortedTransaction]:
        """Aborted transactions that a reader of committed records from `offset` to `upper_bound` must know.

        Raises:
            StorageFault: an index cannot be read.
        """
        return list(self._aborted(offset, upper_bound))

    def has_aborted(self, offset: int, *, upper_bound: int) -> bool:
        """Whether `aborted_transactions` would return any.

        Raises:
            StorageFault: an index cannot be read.
        """
        for _ in self._aborted(offset, upper_bound):
            return True
        return False

    def _aborted(self, offset: int, upper_bound: int) -> Iterator[AbortedTransaction]:
        for segment in self._segments.since(offset):
            for entry in segment.transaction_index.ended_since(offset):
                if entry.first_offset < upper_bound:
                    yield entry
                if entry.last_stable_offset >= upper_bound:
                    return

    @property
    def last_stable_offset(self) -> int:
        """Where the oldest open transaction begins, else the log end: right where the log end is replicated."""
        first = self._producers.first_open_offset
        # Retention may delete the start of an open transaction, so the last stable offset is at least the log start.
        return self.log_end_offset if first is None else max(first, self.log_start_offset)

    def stable_offset(self, high_watermark: int) -> int:
        """The last stable offset under a high watermark: below it every transaction's end is replicated too.

        Forgets transactions that ended below it, since high watermarks only grow.
        """
        first = self._producers.first_unstable_offset(high_watermark)
        return high_watermark if first is None else min(max(first, self.log_start_offset), high_watermark)

    # Leader epochs and producers

    @property
    def highest_epoch(self) -> int:
        """The highest leader epoch that the log has, or has had since it was opened; -1: none."""
        return self._epochs.highest

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) as OffsetForLeaderEpoch answers them; (-1, -1) where nothing is known (KIP-279)."""
        return self._epochs.end_offset(epoch, log_end_offset=self.log_end_offset)

    def epoch_of(self, offset: int) -> int:
        """The leader epoch that an offset was written in; -1 if that is not known."""
        return self._epochs.epoch_of(offset)

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """For callers that compare them with another log's. Only methods of the log change them."""
        return self._epochs

    @property
    def producers(self) -> Producers:
        """For callers that describe producers. Only methods of the log change them."""
        return self._producers.state

    @property
    def permits(self) -> TransactionPermits:
        """For callers that read them. `permit_transaction` and appends change them."""
        return self._producers.permits

    @property
    def producer_count(self) -> int:
        """How many producers are remembered."""
        return len(self._producers)

    # Numbers

    @property
    def first_base_offset(self) -> int:
        """Where the files begin; the log start is there or above."""
        return self._segments.first_base_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches. O(segments)."""
        return self._local.size_bytes

    @property
    def segment_count(self) -> int:
        """How many segments there are."""
        return len(self._segments)

    @property
    def active_segment(self) -> tuple[int, int]:
        """Base offset of the segment that is appended to, and its bytes up to the log end."""
        active = self._active
        return active.base_offset, active.file.size_bytes

    @property
    def active_base_offset(self) -> int:
        """Base offset of the segment that is appended to."""
        return self._active.base_offset

    def segments_since(self, offset: int) -> list[Segment]:
        """The segment that contains `offset`, and all later ones."""
        return self._segments.since(offset)

    @property
    def recovery_point(self) -> int:
        """Everything below is on the disk."""
        return self._point.offset

    @property
    def cuts(self) -> int:
        """How often the log was cut."""
        return self._point.cuts

    @property
    def has_due_epochs(self) -> bool:
        """Whether the epoch file does not say yet what is known."""
        return self._epochs.is_due

    def bounds(self, stable_offset: int) -> LogBounds:
        """What a cleaner must know: it may compact closed segments below the last stable offset."""
        uncleanable = min(stable_offset, self._active.base_offset)
        return LogBounds(
            self.log_start_offset, uncleanable, self._active.first_timestamp_ms, self._point.cuts
        )

    def check(self) -> None:
        """Reads the whole log and compares it with what is known of it.

        Raises:
            ApplianceDefect: naming what does not hold.
        """
        self._epochs.check()
        self._producers.state.check()
        if self._active is not self._segments.active:
            raise ApplianceDefect(f"{self.directory}: appends go to a segment that is not the last")
        if not self._segments.first.base_offset <= self.log_start_offset <= self.log_end_offset:
            raise ApplianceDefect(
                f"{self.directory}: start {self.log_start_offset}, end {self.log_end_offset}"
            )
        if self.recovery_point > self.log_end_offset:
            raise ApplianceDefect(f"{self.directory}: recovery point {self.recovery_point} is beyond the end")
        next_offset = self._local.check()
        if next_offset != self.log_end_offset:
            raise ApplianceDefect(
                f"{self.directory}: batches end at {next_offset}, not {self.log_end_offset}"
            )

    def statistics(self) -> LogStatistics:
        segments = [segment.statistics() for segment in self._segments]
        return LogStatistics(
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            recovery_point=self.recovery_point,
            segments=len(segments),
            size_bytes=sum(segment.size_bytes for segment in segments),
            allocated_bytes=sum(segment.allocated_bytes for segment in segments),
            producers=len(self._producers),
            open_segments=sum(segment.is_open for segment in segments),
        )
