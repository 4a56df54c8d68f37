"""The log of one partition: what is appended, in order, and found again by offset or by time.

    log start            recovery point                    last stable    log end
        │                      │                               │            │
        ▼                      ▼                               ▼            ▼
    ├────────────┬─────────────┬───────────────────────────────────────────┤
    │ segment 0  │ segment 57  │ segment 113 (active)                      │
    └────────────┴─────────────┴───────────────────────────────────────────┘
        forced to the disk       in the page cache: survives us, not the machine

The high watermark is not known here; readers bring it as their upper bound. One process owns a log and calls it
from one thread; only a `FlushTask` may run on another. Source: `UnifiedLog`, `LocalLog` of Apache Kafka.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, Self
from uuid import UUID

from appliance.clock import Clock
from appliance.errors import ApplianceDefect, RejectedRequest, StorageFault
from appliance.log.cleaning_bounds import LogBounds
from appliance.log.config import LogSettings
from appliance.log.faults import storage_faults
from appliance.log.file_names import (
    LEADER_EPOCHS,
    LOG,
    segment_file_name,
)
from appliance.log.flush import FlushTask, RecoveryPoint
from appliance.log.handed_over import (
    ActiveSegment,
    HandedOver,
    OnlySegment,
    encode_handed_over,
    write_handed_over,
)
from appliance.log.leader_epochs import LeaderEpochs
from appliance.log.loader import LoadedLog, Loader
from appliance.log.local_log import LocalLog
from appliance.log.log_producers import LogProducers
from appliance.log.partition_metadata import read_topic_id, write_topic_id
from appliance.log.producer_state import AppendOrigin, Producers, RememberedBatch
from appliance.log.removal import Removal, left_behind
from appliance.log.results import AppendResult, FetchSlice, LogStatistics
from appliance.log.retention import NO_LIMITS, UNLIMITED, Expired, RetentionRules, expired
from appliance.log.segment import Segment
from appliance.log.segment_file import Header
from appliance.log.segments import Segments
from appliance.log.time_lookup import find_first, find_largest
from appliance.log.transaction_index import AbortedTransaction
from appliance.log.transaction_permits import TransactionPermits
from appliance.log.validator import check_frame, validator_of
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import (
    ATTRIBUTES,
    CONTROL,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_BATCH_LENGTH,
    H_CRC,
    H_LAST_OFFSET_DELTA,
    H_MAGIC,
    H_MAX_TIMESTAMP,
    H_PARTITION_LEADER_EPOCH,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC_V2,
    NO_TIMESTAMP,
    PLACEMENT,
    TRANSACTIONAL,
)
from appliance.protocol.records.control import EndTransactionMarker, decode_marker
from appliance.protocol.records.crc32c import checksum
from appliance.protocol.records.errors import CorruptBatch, InvalidRecords

_place: Final = PLACEMENT.pack
_logger: Final = logging.getLogger(__name__)


def nowhere(_state: bytes) -> bool:
    """There is no room beside the files."""
    return False


class PartitionLog:
    """One partition's log. Numbers may be read at any time; only methods of this class change them."""

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
        if not self._active.has_files:
            self._active.before_files = self._write_topic_id
        self._is_nobodys = is_made  # its directory says no topic id, and nobody has to look for one
        self._is_plain = loaded.is_plain
        self._epochs = loaded.epochs
        self._producers = LogProducers(loaded.producers, loaded.snapshots, now_ms=clock.now_ms())
        self._point = RecoveryPoint(loaded.recovery_point)
        self._flushes = flushes
        self._is_half_cut = False  # a truncation has failed, and is still to be done
        self.latest_epoch = loaded.epochs.latest
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.lacks_begin = loaded.lacks_begin
        """As it was opened, nothing written down had it begin where its files do: some of them may have gone."""
        self.is_recovered = loaded.is_recovered
        """As it was opened: not closed in good order, so that its end may be that of a damaged log."""
        self.cut_to = loaded.cut_to
        """Complete batches up to this offset were cut when it was opened; -1 where none were."""
        self.on_roll: Callable[[], None] | None = None
        """Called when a segment was closed, for who compacts it."""

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        settings: LogSettings,
        clock: Clock,
        recovery_point: int = 0,
        log_start: int = 0,
        clean: bool = False,
        flushed: bool = True,
        leads_only: bool = False,
        topic_id: UUID | None = None,
        has_topic_id: bool = False,
        is_new: bool = False,
        left: HandedOver | None = None,
        flushes: deque[FlushTask] | None = None,
        removals: deque[Removal] | None = None,
    ) -> Self:
        """Opens the log in a partition directory, which is made if it is missing.

        Args:
            recovery_point: offset below which the files are known to be on the disk.
            log_start: the smallest offset that may be read; the files may begin earlier.
            clean: the log was closed by `close`, or `hand_over`, so nothing is checked.
            flushed: where it is clean, all of it is on the disk; else what is below the recovery point.
            leads_only: what others wrote is never appended to it.
            topic_id: kept in `partition.metadata`, written before the first segment is; where it is there, it counts.
            has_topic_id: that it says this `topic_id` is known already.
            is_new: that there is no directory is known already.
            left: what `hand_over` has left; None: it lies in a file, if at all.
            flushes: where the log puts the flush of a segment it has rolled.
            removals: where it puts the files of a segment it has retired.

        Raises:
            StorageFault: the directory cannot be read or written. DiskFull where that was the cause.
            CorruptFile: a file that cannot be made anew from others does not parse.
        """
        known = topic_id if has_topic_id else None
        is_made = False
        if is_new:
            with storage_faults(directory):
                try:
                    directory.mkdir()
                    is_made = True
                except FileExistsError:
                    if not directory.is_dir():
                        raise
                    # Else a try before this one has come as far.
        elif known is None:
            with storage_faults(directory):
                directory.mkdir(parents=True, exist_ok=True)
            known = read_topic_id(directory)
        queue: deque[Removal] = deque() if removals is None else removals
        loaded = Loader(
            directory,
            settings=settings,
            clock=clock,
            recovery_point=recovery_point,
            log_start=log_start,
            clean=clean,
            flushed=flushed,
            leads_only=leads_only,
            is_new=is_new,
            left=left,
            topic_id=topic_id,
        ).load()
        active = loaded.segments[-1]
        if known is None and topic_id is not None:
            known = topic_id
            if active.has_files:
                write_topic_id(directory, topic_id)
        if loaded.is_leased:
            queue.extend(left_behind(directory, loaded.log_end_offset))
        return cls(
            directory,
            loaded,
            settings=settings,
            clock=clock,
            topic_id=known,
            flushes=deque() if flushes is None else flushes,
            removals=queue,
            is_made=is_made,
        )

    # Appending

    def append(
        self,
        batch: memoryview,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_verified: bool = False,
        transaction_version: int = 0,
        cheap_bytes_max: int = 0,
    ) -> AppendResult:
        """Appends one batch as the leader. When this returns, the batch survives the death of the process.

        The batch's own bytes are not changed; base offset and leader epoch are written in the log only.
        `transaction_verified` says that the transaction coordinator knows the partition to be part of the
        producer's open transaction, as a permit does. `transaction_version` is that of the transaction: 2 has stricter
        rules for a marker's epoch and a producer's first sequence number. A batch that grows over `cheap_bytes_max`
        when it is decompressed is not appended; 0 sets no such limit.

        Raises:
            CostlyBatch: it grows over `cheap_bytes_max`.
            RejectedRequest: the batch may not be appended; see `validator` and `producer_state`.
            DiskFull, StorageFault: it could not be; the log is as it was.
        """
        header = check_frame(batch)
        now_ms = self._clock.now_ms()
        batch, max_timestamp_ms = self._validator.check(
            batch, header, now_ms=now_ms, origin=origin, cheap_bytes_max=cheap_bytes_max
        )
        producer_id = header[H_PRODUCER_ID]
        marker: EndTransactionMarker | None = None
        if producer_id >= 0:
            if header[H_ATTRIBUTES] & CONTROL:
                marker = decode_marker(batch)
                if marker is not None:
                    self._producers.state.check_marker(
                        producer_id,
                        header[H_PRODUCER_EPOCH],
                        marker=marker,
                        transaction_version=transaction_version,
                    )
            else:
                repeated = self._producers.check(
                    header,
                    origin,
                    transaction_verified=transaction_verified,
                    transaction_version=transaction_version,
                )
                if repeated is not None:
                    return self._as_before(repeated)
        elif header[H_ATTRIBUTES] & TRANSACTIONAL and origin is AppendOrigin.CLIENT:
            raise RejectedRequest(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch without a producer id"
            )
        base_offset = self.log_end_offset
        last_offset = base_offset + header[H_LAST_OFFSET_DELTA]
        active = self._active
        if active.must_roll(
            len(batch),
            last_offset=last_offset,
            max_timestamp_ms=max_timestamp_ms,
            now_ms=now_ms,
            settings=self.settings,
        ):
            self.roll()
            active = self._active
        if leader_epoch != self.latest_epoch:
            self.assign_epoch(leader_epoch, base_offset)
        active.append(
            batch,
            _place(base_offset, len(batch) - LOG_OVERHEAD, leader_epoch, MAGIC_V2),
            base_offset=base_offset,
            last_offset=last_offset,
            max_timestamp_ms=max_timestamp_ms,
        )
        self.log_end_offset = last_offset + 1
        if producer_id >= 0:
            aborted = self._producers.take(
                header,
                marker,
                base_offset=base_offset,
                max_timestamp_ms=max_timestamp_ms,
                transaction_version=transaction_version,
            )
            if aborted is not None:
                self._index_abort(aborted, base_offset)
        append_time_ms = now_ms if self.settings.message_timestamp_type == "LogAppendTime" else NO_TIMESTAMP
        return AppendResult(base_offset, last_offset, append_time_ms, self.log_start_offset, len(batch))

    def permit_transaction(self, producer_id: int, epoch: int) -> None:
        """The transaction coordinator says that the producer may open a transaction here (`transaction_permits`)."""
        self._producers.permits.permit(producer_id, epoch)

    def append_as_follower(
        self, batches: memoryview, *, segment_base_offset: int | None = None
    ) -> AppendResult:
        """Appends batches as the leader wrote them: their offsets and epochs are taken as they are.

        With `segment_base_offset`, where the leader's segment begins that they lie in, a segment is begun where the
        leader has begun one and nowhere else: files are alike, byte for byte. The batches are from that one segment.

        Raises:
            CorruptBatch: a batch is not whole or fails its checksum.
            InvalidRecords: an offset is below the log end.
            DiskFull, StorageFault: it failed; batches before the failing one are in the log.
        """
        first_offset = self.log_end_offset
        if segment_base_offset is not None and self._active.base_offset < segment_base_offset:
            # The leader may have begun it below our log end: we went on in the segment before, under another leader.
            self.roll(max(segment_base_offset, first_offset))
        freely = segment_base_offset is None
        at = 0
        while at < len(batches):
            if len(batches) - at < HEADER_BYTES:
                raise CorruptBatch("replicated bytes end inside of a batch")
            header: Header = HEADER.unpack_from(batches, at)
            batch = batches[at : at + header[H_BATCH_LENGTH] + LOG_OVERHEAD]
            if (
                header[H_MAGIC] != MAGIC_V2
                or len(batch) != header[H_BATCH_LENGTH] + LOG_OVERHEAD
                or len(batch) < HEADER_BYTES
            ):
                raise CorruptBatch("replicated bytes are no whole batch")
            if checksum(batch[ATTRIBUTES:]) != header[H_CRC]:
                raise CorruptBatch("a replicated batch fails its checksum")
            if header[H_BASE_OFFSET] < self.log_end_offset:
                raise InvalidRecords(
                    f"a replicated batch has offset {header[H_BASE_OFFSET]}, not {self.log_end_offset}"
                )
            self._append_replicated(batch, header, freely=freely)
            at += len(batch)
        return AppendResult(first_offset, self.log_end_offset - 1, NO_TIMESTAMP, self.log_start_offset, at)

    def _append_replicated(self, batch: memoryview, header: Header, *, freely: bool) -> None:
        base_offset, max_timestamp_ms = header[H_BASE_OFFSET], header[H_MAX_TIMESTAMP]
        last_offset = base_offset + header[H_LAST_OFFSET_DELTA]
        marker = (
            decode_marker(batch) if header[H_PRODUCER_ID] >= 0 and header[H_ATTRIBUTES] & CONTROL else None
        )
        active = self._active
        if (freely or active.cannot_take(last_offset)) and active.must_roll(
            len(batch),
            last_offset=last_offset,
            max_timestamp_ms=max_timestamp_ms,
            now_ms=self._clock.now_ms(),
            settings=self.settings,
        ):
            self.roll(base_offset)
        if header[H_PARTITION_LEADER_EPOCH] != self.latest_epoch and header[H_PARTITION_LEADER_EPOCH] >= 0:
            self._epochs.follow(header[H_PARTITION_LEADER_EPOCH], base_offset)
            self.latest_epoch = self._epochs.latest
        self._active.append(
            batch,
            bytes(batch[: PLACEMENT.size]),
            base_offset=base_offset,
            last_offset=last_offset,
            max_timestamp_ms=max_timestamp_ms,
        )
        self.log_end_offset = last_offset + 1
        if header[H_PRODUCER_ID] >= 0:
            aborted = self._producers.take(
                header, marker, base_offset=base_offset, max_timestamp_ms=max_timestamp_ms
            )
            if aborted is not None:
                self._index_abort(aborted, base_offset)

    def _as_before(self, repeated: RememberedBatch) -> AppendResult:
        """The answer to a batch that is in the log already."""
        is_log_append_time = self.settings.is_log_append_time
        return AppendResult(
            repeated.first_offset,
            repeated.last_offset,
            repeated.timestamp_ms if is_log_append_time else NO_TIMESTAMP,
            self.log_start_offset,
            0,
            duplicate=True,
        )

    def _index_abort(self, aborted: AbortedTransaction, base_offset: int) -> None:
        try:
            self._active.transaction_index.append(aborted)
        except StorageFault:
            # Readers would take an abort that is not indexed for a commit: the marker goes as well.
            self.truncate_to(base_offset)
            raise

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
        """Whether there is one of `aborted_transactions`, for who only has to say so.

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
        # Retention asks no transaction: of an open one, what is left is what is unstable.
        return self.log_end_offset if first is None else max(first, self.log_start_offset)

    def stable_offset(self, high_watermark: int) -> int:
        """The last stable offset under a high watermark: below it every transaction's end is replicated too.

        Forgets transactions that ended below it, since high watermarks only grow.
        """
        first = self._producers.first_unstable_offset(high_watermark)
        return high_watermark if first is None else min(max(first, self.log_start_offset), high_watermark)

    # Epochs

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Says that leader epoch `epoch` begins at `start_offset`. Its file says so later (`leader_epochs`).

        Raises:
            StorageFault: the checkpoint could not be replaced.
        """
        self._epochs.assign(epoch, start_offset, write=False)
        self.latest_epoch = self._epochs.latest

    @property
    def highest_epoch(self) -> int:
        """The highest leader epoch that the log has, or has had since it was opened; -1: none."""
        return self._epochs.highest

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) as OffsetForLeaderEpoch answers them; (-1, -1) where nothing is known (KIP-279)."""
        return self._epochs.end_offset(epoch, log_end_offset=self.log_end_offset)

    @property
    def producers(self) -> Producers:
        """For who describes them; changed by nobody else."""
        return self._producers.state

    @property
    def permits(self) -> TransactionPermits:
        """For who looks at them; changed by `permit_transaction` and by what is appended."""
        return self._producers.permits

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """For who compares them with another log's; changed by nobody else."""
        return self._epochs

    def epoch_of(self, offset: int) -> int:
        """The leader epoch that an offset was written in; -1 if that is not known."""
        return self._epochs.epoch_of(offset)

    # Changing shape

    def roll(self, base_offset: int | None = None) -> None:
        """Closes the active segment and begins a new one at `base_offset`, the log end by default.

        Does nothing while the active segment is empty and begins there. The flush of the closed one is queued.

        Raises:
            DiskFull, StorageFault: it failed; the log goes on with the segment it had.
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
        """Rolls a segment that nobody appends to any more but that is old enough; whether it did.

        Raises:
            DiskFull, StorageFault: as `roll`.
        """
        if not self._local.is_active_old(now_ms):
            return False
        self.roll()
        return True

    def expired(self, *, high_watermark: int, now_ms: int, by_time: bool = True) -> Expired:
        """Which of the oldest segments have had their time; changes nothing. See `retention`.

        Without `by_time` none is too old: for who does not trust the clock.

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
        """Moves the log start up to `offset`, which the caller knows to be replicated; whether it moved.

        No file is touched but the epochs': segments below the start go when they are retired.
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
        """Takes the `count` oldest segments out, which end below the log start, and marks their files `.deleted`.

        The active one is rolled first if it is among them. What is marked is queued for its removal.

        Raises:
            DiskFull, StorageFault: it failed; the segments that are left may be retired again.
        """
        for segment in list(islice(self._segments, count)):
            if segment is self._active:
                self.roll()
            following = self._segments.after(segment)
            self._local.retire(segment, self.log_end_offset if following is None else following.base_offset)

    def truncate_to(self, offset: int) -> bool:
        """Drops every batch that ends with `offset` or later; whether there was one.

        Raises:
            StorageFault, CorruptFile: it failed; the next try does all that is left of it.
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
        """Drops everything; the log begins, and ends, at `offset`.

        Raises:
            DiskFull, StorageFault: it failed. Where nothing of before is left, the log is what an opening would find:
                empty, at 0.
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
        """Of records that are gone, producers may be remembered still: a recovery reads what is there."""
        if self._is_half_cut:
            raise StorageFault(f"{self.directory}: a cut of it has failed and was not done since")

    def _cut_epochs(self, end_offset: int) -> None:
        try:
            self._epochs.truncate_from_end(end_offset)
        finally:
            self.latest_epoch = self._epochs.latest

    # Compaction

    def bounds(self, stable_offset: int) -> LogBounds:
        """What a cleaner must know: it may touch what is closed and below the last stable offset."""
        uncleanable = min(stable_offset, self._active.base_offset)
        return LogBounds(
            self.log_start_offset, uncleanable, self._active.first_timestamp_ms, self._point.cuts
        )

    def replace_segments(self, base_offset: int, end_offset: int, *, source_bytes: int, cuts: int) -> bool:
        """Swaps a cleaner's segment in for those in [base_offset, end_offset), which are queued for their removal.

        False, and no change, if these are not the closed segments that the cleaner has read, or if the log is not to be
        compacted any more.

        Raises:
            StorageFault: it failed; nothing has changed.
            SwapInterrupted: it failed in the middle; the log must be closed and opened anew.
        """
        if not self.settings.is_compacted or cuts != self._point.cuts:
            return False
        return self._local.replace(base_offset, end_offset, source_bytes=source_bytes)

    def update_settings(self, settings: LogSettings) -> None:
        """Takes new settings for all that follows; the jitter of the active segment stays what it was."""
        if settings == self.settings:
            return
        self.settings = settings
        self._validator = validator_of(settings)
        self._local.update_settings(settings)

    def relocate(
        self,
        directory: Path,
        *,
        recovery_point: int,
        flushes: deque[FlushTask],
        removals: deque[Removal],
    ) -> None:
        """Goes on with the files of `directory`, which hold the same bytes. No file is touched.

        Below `recovery_point` those are on the disk. Flushes of the old files that are under way say nothing of them.
        """
        self._local.relocate(directory, removals)
        self._epochs.relocate(directory)
        self._point = RecoveryPoint(min(recovery_point, self.log_end_offset), cuts=self._point.cuts)
        self._flushes = flushes
        self.directory = directory
        self._is_nobodys = False

    def has_mark(self) -> None:
        """Whoever opens the log next must look for a mark in its directory."""
        self._is_plain = False

    def write_epochs(self, directory: Path) -> None:
        """Writes the leader epochs into another directory, beside a copy of the log.

        Raises:
            StorageFault: it failed.
        """
        self._epochs.write(directory)

    @property
    def producer_count(self) -> int:
        """How many producers are remembered."""
        return len(self._producers)

    def expire_producers(self, now_ms: int) -> None:
        """Forgets producers that were silent for `producer.id.expiration.ms`."""
        self._producers.expire(now_ms, expiration_ms=self.settings.producer_id_expiration_ms)

    # Keeping

    @property
    def first_base_offset(self) -> int:
        """Where the files begin; the log start is there or above."""
        return self._segments.first_base_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches. O(segments)."""
        return self._local.size_bytes

    @property
    def active_segment(self) -> tuple[int, int]:
        """Base offset of the segment that is appended to, and its bytes up to the log end."""
        active = self._active
        return active.base_offset, active.file.size_bytes

    @property
    def active_base_offset(self) -> int:
        """Where the segment begins that is appended to."""
        return self._active.base_offset

    @property
    def recovery_point(self) -> int:
        """Everything below is on the disk."""
        return self._point.offset

    def distrust(self, offset: int) -> None:
        """Have the next opening that is not clean check everything from `offset` on: the log is damaged there."""
        self._point.cut(offset)

    @property
    def cuts(self) -> int:
        """How often the log was cut."""
        return self._point.cuts

    def segments_since(self, offset: int) -> list[Segment]:
        """The segment that `offset` lies in and all later ones, for who keeps or measures their files."""
        return self._segments.since(offset)

    def flush(self, up_to: int | None = None) -> None:
        """Forces everything below `up_to`, the log end by default, to the disk. Waits for it.

        Raises:
            StorageFault: it failed.
        """
        end = self.log_end_offset if up_to is None else up_to
        if end > self.recovery_point:
            self.flush_task().run()

    def flush_task(self) -> FlushTask:
        """What `flush` would do now, to be run on any thread."""
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

    def release(self) -> None:
        """Lets go of every descriptor and mapping until they are needed again.

        Raises:
            StorageFault: it failed.
        """
        self.write_due_epochs()
        self._local.release_sealed()
        self._active.release()

    def _write_topic_id(self) -> None:
        """Whose files they are, before there are any; an empty directory is whoever's asks for it (as Kafka's is)."""
        if self.topic_id is not None and (self._is_nobodys or read_topic_id(self.directory) is None):
            write_topic_id(self.directory, self.topic_id)
            self._is_nobodys = False

    @property
    def has_due_epochs(self) -> bool:
        """Whether the epoch file does not say yet what is known."""
        return self._epochs.is_due

    def write_due_epochs(self) -> None:
        """Has the epoch file say what is known: before anybody reads it who is told of records of the latest epoch.

        While a log has no files it may wait: an opening would forget it. An older epoch, with records, may not.

        Raises:
            StorageFault: it failed.
        """
        if self._epochs.is_due and self._active.has_files:
            self._epochs.write()

    def close(self, clean: bool) -> None:
        """Lets go of all files; if `clean`, after writing and forcing to the disk what a next opening reads.

        Raises:
            StorageFault: it failed; the log must be opened as not clean.
        """
        if not clean:
            self._local.abandon()
            return
        self._refuse_half_cut()
        self._active.seal()
        self.write_due_epochs()
        snapshot = self._take_snapshot(self.log_end_offset)
        if self.recovery_point < self.log_end_offset or snapshot is not None:
            segments = self._segments.since(self.recovery_point)
            self._flush_task(segments, self.log_end_offset, snapshot).run()
        self.release()

    def hand_over(self, leave: Callable[[bytes], bool] = nowhere) -> None:
        """Closes the log for another process of this host, which goes on with what is in the page cache.

        `leave` keeps what that one has to know for it, and for followers, until it is opened; where it has no room for
        that and returns False, it lies in files.

        Raises:
            StorageFault: it failed; the log must be opened as not clean.
        """
        self._refuse_half_cut()
        if not self._active.has_files:
            leave(b"")
            return  # who opens it finds as much
        active = ActiveSegment(self._active.base_offset, *self._active.lay_down())
        self._local.release_sealed()
        only = self._only_segment()
        if only is not None and leave(self._left_state(active, only)):
            return
        if not leave(self._left_state(active)):
            self.write_due_epochs()
            write_handed_over(self.directory, self._left_state(active))

    def _only_segment(self) -> OnlySegment | None:
        if self.topic_id is None or not (self._is_plain and self._epochs.says_all):
            return None
        tail = self._active.tail()
        return (
            None
            if tail is None
            else OnlySegment(self.topic_id.bytes, self._active.file_bytes, tail, self._local.snapshots.newest)
        )

    def _left_state(self, active: ActiveSegment, only: OnlySegment | None = None) -> bytes:
        is_due = self._epochs.is_due
        return encode_handed_over(
            self._producers.state,
            log_end_offset=self.log_end_offset,
            active=active,
            epochs=self._epochs.entries() if is_due or only is not None else [],
            epochs_are_due=is_due,
            only=only,
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
