"""The log of one partition, from its opening to its close: append, as the leader or as a follower.

    ReadableLog      what the log holds, and how it is read            `readable_log.py`
    SegmentedLog     which segments it consists of, and their flush    `segmented_log.py`
    PartitionLog     open, append, close, hand over                    here

The three are one object, so that an append or a read needs no call from one object to another. Each layer uses only
what is above it in this list. One process owns a log and calls it from one thread; only a `FlushTask` may run on
another. Source: `UnifiedLog` of Apache Kafka.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self
from uuid import UUID

from appliance.clock import Clock
from appliance.errors import RejectedRequest, StorageFault
from appliance.log.config import LogSettings
from appliance.log.faults import storage_faults
from appliance.log.flush import FlushTask, RecoveryPoint
from appliance.log.handed_over import (
    ActiveSegment,
    HandedOver,
    OnlySegment,
    encode_handed_over,
    write_handed_over,
)
from appliance.log.loader import Loader
from appliance.log.log_producers import without_producer_id
from appliance.log.partition_metadata import read_topic_id, write_topic_id
from appliance.log.producer_state import AppendOrigin, RememberedBatch
from appliance.log.removal import Removal, left_behind
from appliance.log.results import AppendResult
from appliance.log.segment_file import Header
from appliance.log.segmented_log import SegmentedLog
from appliance.log.transaction_index import AbortedTransaction
from appliance.log.transaction_permits import Admission
from appliance.log.validator import check_frame
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


def nowhere(_state: bytes) -> bool:
    """Handover state cannot be kept in shared memory, so that the log writes a file."""
    return False


class PartitionLog(SegmentedLog):
    """One partition's log. Numbers may be read at any time; only methods of this class change them."""

    __slots__ = ()

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
        """Open the log in a partition directory, and make the directory if it is missing.

        Args:
            recovery_point: offset below which the files are known to be on the disk.
            log_start: the smallest offset that may be read; the files may begin earlier.
            clean: the log was closed by `close`, or `hand_over`, so nothing is checked.
            flushed: a clean log is on the disk completely, not only below the recovery point.
            leads_only: the log never gets a follower's appends.
            topic_id: written to `partition.metadata` before the first segment. If the file exists, its topic id counts.
            has_topic_id: the caller knows that the file has this `topic_id`.
            is_new: the caller knows that there is no directory.
            left: what `hand_over` gave to `leave`; None: it is in a file, if anywhere.
            flushes: queue for the flush of each rolled segment.
            removals: queue for the files of each retired segment.

        Raises:
            StorageFault: the directory cannot be read or written. DiskFull where that was the cause.
            CorruptFile: a file that cannot be rebuilt from others does not parse.
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
                    # An earlier try made the directory.
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
        log = cls(
            directory,
            loaded,
            settings=settings,
            clock=clock,
            topic_id=known,
            flushes=deque() if flushes is None else flushes,
            removals=queue,
            is_made=is_made,
        )
        if not active.has_files:
            active.before_files = log._write_topic_id
        return log

    # Appending

    def append(
        self,
        batch: memoryview,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_verified: bool = False,
        transaction_version: int = 0,
        admission: Admission = Admission.PERMIT,
        cheap_bytes_max: int = 0,
        has_gaps: bool = False,
    ) -> AppendResult:
        """Appends one batch as the leader. When this returns, the batch survives the death of the process.

        The batch's own bytes are not changed; base offset and leader epoch are written in the log only.
        `transaction_verified` says that the transaction coordinator knows the partition to be part of the
        producer's open transaction, as a permit does. `transaction_version` is that of the transaction: 2 has stricter
        rules for a marker's epoch and a producer's first sequence number. `admission` says what lets a transactional
        batch in. A batch that grows over `cheap_bytes_max` when it is decompressed is not appended; 0 sets no such
        limit. `has_gaps`: the network process has taken delayed records out of the batch (`validator`).

        Raises:
            CostlyBatch: it grows over `cheap_bytes_max`.
            RejectedRequest: the batch may not be appended; see `validator` and `producer_state`.
            DiskFull, StorageFault: it could not be; the log is as it was.
        """
        try:
            header = check_frame(batch)
            now_ms = self._clock.now_ms()
            checked, max_timestamp_ms = (
                self._validator.check_with_gaps(batch, header, now_ms=now_ms, cheap_bytes_max=cheap_bytes_max)
                if has_gaps
                else self._validator.check(
                    batch, header, now_ms=now_ms, origin=origin, cheap_bytes_max=cheap_bytes_max
                )
            )
        except RejectedRequest as rejected:
            if origin is AppendOrigin.CLIENT:
                self._producers.check_admission(
                    batch,
                    rejected,
                    transaction_verified=transaction_verified,
                    admission=admission,
                )
            raise
        batch = checked
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
                    admission=admission,
                )
                if repeated is not None:
                    return self._as_before(repeated)
        elif header[H_ATTRIBUTES] & TRANSACTIONAL and origin is AppendOrigin.CLIENT:
            raise without_producer_id()
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
            # The leader may have begun it below our log end: under another leader we appended to the segment before it.
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
        """The result for a batch that is in the log already."""
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
            # Readers would take an abort that is not indexed for a commit, so the marker is removed.
            self.truncate_to(base_offset)
            raise

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers that have not written for `producer.id.expiration.ms`."""
        self._producers.expire(now_ms, expiration_ms=self.settings.producer_id_expiration_ms)

    # Another directory

    def relocate(
        self,
        directory: Path,
        *,
        recovery_point: int,
        flushes: deque[FlushTask],
        removals: deque[Removal],
    ) -> None:
        """Continue with the files of `directory`, which hold the same bytes. No file is touched.

        Those files are on the disk below `recovery_point`. A flush of the old files that is running does not move it.
        """
        self._local.relocate(directory, removals)
        self._epochs.relocate(directory)
        self._point = RecoveryPoint(min(recovery_point, self.log_end_offset), cuts=self._point.cuts)
        self._flushes = flushes
        self.directory = directory
        self._is_nobodys = False

    def has_mark(self) -> None:
        """The directory has a mark now, and the next opening must look for it."""
        self._is_plain = False

    def write_epochs(self, directory: Path) -> None:
        """Write the leader epochs into another directory, beside a copy of the log.

        Raises:
            StorageFault: it failed.
        """
        self._epochs.write(directory)

    # Closing

    def close(self, clean: bool) -> None:
        """Close all files. If `clean`, first write and flush what the next opening reads.

        Raises:
            StorageFault: it failed; the log must be opened as not clean.
        """
        if not clean:
            self._local.abandon()
            return
        flush = self.close_unflushed()
        if flush is not None:
            flush.run()

    def close_unflushed(self) -> FlushTask | None:
        """Write what the next opening reads and close all files; return what must be flushed, None if nothing.

        Raises:
            StorageFault: it failed; the log must be opened as not clean.
        """
        self._refuse_half_cut()
        self._active.seal()
        self.write_due_epochs()
        snapshot = self._take_snapshot(self.log_end_offset)
        flush: FlushTask | None = None
        if self.recovery_point < self.log_end_offset or snapshot is not None:
            segments = self._segments.since(self.recovery_point)
            flush = self._flush_task(segments, self.log_end_offset, snapshot)
        self.release()
        return flush

    def hand_over(self, leave: Callable[[bytes], bool] = nowhere) -> None:
        """Close the log for another process of this host, which continues with what is in the page cache.

        `leave` keeps what that process and the followers must know until the log is opened. If it has no room, it
        returns False, and this method writes a file instead.

        Raises:
            StorageFault: it failed; the log must be opened as not clean.
        """
        self._refuse_half_cut()
        if not self._active.has_files:
            leave(b"")
            return  # an empty log has nothing to hand over
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
