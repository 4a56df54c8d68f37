"""Opening a log: from the files that are there to a log that can be appended to.

1.  Interrupted renames are resolved (`interrupted`). An index without a `.log` is removed.
2.  After a clean stop nothing is read but the end of the last segment, from its last index entry on.
3.  After anything else, segments from the recovery point on are read through: below the recovery point only
    headers, above it every checksum. The log ends before the first batch that is not whole and sound, or whose
    offset does not follow, and before a hole between two segments that neither compaction nor a missing second
    replica explains; later segments are removed. Their indexes are written anew. What was cut is kept aside
    (`recovered`).
4.  Leader epochs and producers are cut to what is left. Producers come from the newest usable snapshot and the
    batches after it.

Zeros after the last batch are room that was taken and not used; they are cut without a word. Where there is no segment
the log is empty, and none is made before there is a batch; unless it begins beyond 0, which the name of a file says.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from appliance.clock import Clock
from appliance.errors import CorruptFile
from appliance.log.config import LogSettings
from appliance.log.copy_end import SEARCH_BYTES_MAX, sound_end_behind
from appliance.log.faults import storage_faults
from appliance.log.file_names import (
    LEADER_EPOCHS,
    LOG,
    OFFSET_INDEX,
    PRODUCER_SNAPSHOT,
    SEGMENT_SUFFIXES,
    TIME_INDEX,
    parse_segment_file_name,
    segment_file_name,
)
from appliance.log.handed_over import HandedOver, read_handed_over
from appliance.log.interrupted import has_interrupted, remove_left, resolve_interrupted
from appliance.log.leader_epochs import LeaderEpochs
from appliance.log.producer_recall import recall
from appliance.log.producer_replay import replay
from appliance.log.producer_state import Producers
from appliance.log.reader_leases import READERS, has_leases
from appliance.log.recovered import keep_segment, keep_tail
from appliance.log.segment import RELATIVE_OFFSET_MAX, Segment
from appliance.log.segment_file import Header, SegmentFile
from appliance.log.snapshots import Snapshots
from appliance.protocol.records.batch import (
    ATTRIBUTES,
    H_BASE_OFFSET,
    H_BATCH_LENGTH,
    H_CRC,
    H_LAST_OFFSET_DELTA,
    H_MAGIC,
    H_MAX_TIMESTAMP,
    H_PARTITION_LEADER_EPOCH,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC_V2,
)
from appliance.protocol.records.crc32c import checksum

_READ_BYTES: Final = 1 << 20
_NEVER: Final = 1 << 63
_SIZED: Final = (LOG, OFFSET_INDEX, TIME_INDEX)
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """What opening came to. `segments` is never empty."""

    segments: list[Segment]
    epochs: LeaderEpochs
    producers: Producers
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    snapshots: Snapshots
    is_leased: bool = False
    """Readers off the disk may hold files of it."""
    is_plain: bool = False
    """Its directory holds one segment and nothing else that an opening would look for."""
    lacks_begin: bool = False
    """Nothing that was written down has it begin where its files do: some of them may have gone."""
    is_recovered: bool = False
    """It was not closed in good order, or not all of it was found: what lies beyond the recovery point was read."""
    cut_to: int = -1
    """Complete batches up to this offset were cut; -1 where none were."""


class Loader:
    """Opens one partition directory. Used once."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: LogSettings,
        clock: Clock,
        recovery_point: int,
        log_start: int,
        clean: bool,
        flushed: bool = True,
        leads_only: bool = False,
        is_new: bool = False,
        left: HandedOver | None = None,
        topic_id: UUID | None = None,
    ) -> None:
        """As `PartitionLog.open`. `leads_only`: what others wrote is never appended here. `is_new`: it is empty."""
        self._is_new = is_new
        self._left = left
        self._topic_id = topic_id
        self._flushed = flushed
        self._leads_only = leads_only
        self._directory = directory
        self._settings = settings
        # Its offsets have no holes, which only compaction makes. Where no other replica has what a damaged base offset
        # hides (checksums do not cover it), a hole is taken for one that an earlier compaction has left.
        self._is_gapless = not leads_only and not settings.is_compacted
        self._now_ms = clock.now_ms()
        self._recovery_point = recovery_point
        self._log_start = log_start
        self._clean = clean
        self._epochs = LeaderEpochs.empty(directory)
        self._recovered: set[int] = set()
        self._cut_to = -1
        self._first_offset = 0
        self._handed_over: HandedOver | None = None
        # What was handed over says all that there is to see.
        self._tail: tuple[int, int, int, int] | None = None
        self._snapshot_offsets: list[int] = []
        self._is_leased = False
        # Segments from this base offset on are recovered; the indexes of earlier ones are looked at.
        self._recover_from = _NEVER

    def load(self) -> LoadedLog:
        """Reads the directory, which must exist.

        Raises:
            StorageFault: it cannot be read or written.
        """
        if self._clean and not self._flushed:
            try:
                self._handed_over = self._left or read_handed_over(self._directory)
            except CorruptFile as fault:
                _logger.warning("%s; recovering the log", fault)
                self._clean = False
        with storage_faults(self._directory):
            sizes = {} if self._is_new else self._sizes_as_left() or self._sizes()
            if has_interrupted(sizes):
                resolve_interrupted(self._directory, sizes, is_leased=self._is_leased)
                sizes = self._sizes()
        found = (parse_segment_file_name(name) for name in sizes if name.endswith(PRODUCER_SNAPSHOT))
        self._snapshot_offsets = sorted(
            each[0] for each in found if each is not None and each[1] == PRODUCER_SNAPSHOT
        )
        left = self._handed_over
        if left is not None and (left.epochs_are_due or self._tail is not None):
            self._epochs = LeaderEpochs.left(self._directory, left.epochs, is_due=left.epochs_are_due)
        elif LEADER_EPOCHS in sizes:
            self._epochs = self._load_epochs()
        epochs_begin = self._epochs.first_start
        segments = self._open_segments(sizes)
        segments, log_end = self._recover(segments)
        if not segments or log_end < self._log_start:
            if segments:
                _logger.warning(
                    "%s: the log ends at %d, before its start offset %d; starting empty at the start offset",
                    self._directory,
                    log_end,
                    self._log_start,
                )
            for segment in segments:
                segment.delete()
            first = Segment(
                self._directory, self._log_start, settings=self._settings, created_ms=self._now_ms
            )
            if self._log_start:
                first.create()
            else:
                first.put_off()
            segments, log_end = [first], self._log_start
        log_start = max(self._log_start, segments[0].base_offset, self._first_offset)
        # Whoever deletes from the front cuts the epochs there, before any file goes.
        lacks_begin = log_start > max(self._log_start, epochs_begin)
        if not (self._leads_only and self._clean and self._epochs.forget_empty(log_end)):
            self._epochs.truncate_from_end(log_end)
        self._epochs.truncate_from_start(log_start)
        producers, snapshots = self._load_producers(segments, log_start, log_end)
        for segment in segments[:-1]:
            segment.release()
        # It goes on in the room that it has.
        segments[-1].abandon()
        return LoadedLog(
            segments,
            self._epochs,
            producers,
            log_start,
            log_end,
            recovery_point=log_end
            if self._clean and self._flushed and not self._recovered
            else min(self._recovery_point, log_end),
            snapshots=snapshots,
            is_leased=self._is_leased,
            lacks_begin=lacks_begin,
            is_recovered=not self._clean or bool(self._recovered),
            cut_to=self._cut_to,
            is_plain=len(segments) == 1 and not has_interrupted(sizes),
        )

    # Names

    def _sizes_as_left(self) -> dict[str, int] | None:
        """The files that count, where what was left says which ones."""
        left = self._handed_over
        if left is None or left.only is None or self._topic_id is None or not left.is_only_of(self._topic_id):
            return None
        self._tail = left.only.tail
        sizes = left.sizes()
        if left.only.snapshot > left.active.base_offset:
            sizes[segment_file_name(left.only.snapshot, PRODUCER_SNAPSHOT)] = 0
        return sizes

    def _sizes(self) -> dict[str, int]:
        """Every file by its name, with its size where that counts: the one look that most openings take."""
        sizes = {}
        with os.scandir(self._directory) as entries:
            for entry in entries:
                name = entry.name
                if entry.is_file():
                    sizes[name] = entry.stat().st_size if name.endswith(_SIZED) else 0
                elif name == READERS:
                    self._is_leased = has_leases(self._directory)
        return sizes

    def _open_segments(self, sizes: dict[str, int]) -> list[Segment]:
        bases = []
        for name in sizes:
            parsed = parse_segment_file_name(name)
            if parsed is None:
                continue
            base, suffix = parsed
            if suffix == LOG:
                bases.append(base)
            elif suffix in SEGMENT_SUFFIXES and segment_file_name(base, LOG) not in sizes:
                remove_left(self._directory, [name])
        bases.sort()
        if not self._clean:
            self._recover_from = max((base for base in bases if base <= self._recovery_point), default=0)
        active = None if self._handed_over is None else self._handed_over.active
        segments = []
        for base in bases:
            index_bytes = sizes.get(segment_file_name(base, OFFSET_INDEX))
            time_bytes = sizes.get(segment_file_name(base, TIME_INDEX))
            segment = Segment(
                self._directory,
                base,
                settings=self._settings,
                created_ms=self._now_ms,
                size_bytes=sizes[segment_file_name(base, LOG)],
                offset_index_bytes=index_bytes or 0,
                time_index_bytes=time_bytes or 0,
            )
            if active is not None and active.base_offset == base:
                segment.take_up(active.size_bytes, active.offset_entries, active.time_entries)
            if base < self._recover_from and (
                index_bytes is None or time_bytes is None or self._index_fault(segment)
            ):
                self._recover_segment(segment, verify_from=_NEVER)
                segment.seal()
            segments.append(segment)
        return segments

    def _index_fault(self, segment: Segment) -> bool:
        fault = segment.offset_index.fault(segment.file.size_bytes) or segment.time_index.fault()
        if fault is None:
            return False
        _logger.warning("%s: rebuilding its indexes: %s", segment.file.path, fault)
        return True

    # Recovery

    def _recover(self, segments: list[Segment]) -> tuple[list[Segment], int]:
        if not segments:
            return segments, self._log_start
        if self._tail is not None and self._handed_over is not None and not self._recovered:
            segments[-1].go_on_from(self._tail)
            return segments, self._handed_over.log_end_offset
        if self._clean:
            return segments, self._end_after_clean_stop(segments[-1])
        log_end = -1
        for number, segment in enumerate(segments):
            if segment.base_offset < self._recover_from:
                continue
            later = segments[number + 1 :]
            if log_end < 0:
                log_end = self._end_before(segments[:number])
            begin = max(segment.base_offset, log_end)
            log_end, cut = self._recover_segment(
                segment,
                verify_from=self._recovery_point,
                later=later,
                is_gapless=self._is_gapless,
                begin=begin,
            )
            if segment.base_offset < begin and not segment.file.size_bytes:
                # Nothing of it is left, and what is appended must not lie under a name that is below it.
                if not cut:
                    self._set_aside(later)
                segment.delete()
                return segments[:number], log_end
            begins_empty = number == 0 and log_end == segment.base_offset and bool(later)
            if begins_empty and self._is_gapless and not cut:
                # As a copy is made of a log that begins later; or all of this segment was lost.
                self._first_offset = later[0].base_offset
            if cut or not (begins_empty or self._goes_on(log_end, later)):
                if not cut:
                    self._set_aside(later)
                return segments[: number + 1], log_end
            if number + 1 < len(segments):
                segment.seal()
        return segments, max(log_end, segments[-1].base_offset)

    def _end_after_clean_stop(self, active: Segment) -> int:
        try:
            return active.load_tail()
        except CorruptFile as fault:
            # The marker of a clean stop does not speak for the disk.
            _logger.warning("%s; recovering the segment", fault)
            return self._recover_segment(active, verify_from=0)[0]

    @staticmethod
    def _end_before(segments: Sequence[Segment]) -> int:
        """Where the last of some segments that are not recovered ends, by its headers; -1 where that does not matter.

        A segment's name may be below it: followers of earlier versions began one where their leader had.
        """
        if not segments:
            return -1
        last = segments[-1]
        position = last.offset_index.last()[1]
        end = -1
        try:
            for _, header in last.file.headers(position, end=last.file.size_bytes):
                end = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
        except CorruptFile:
            return -1
        return end

    def _goes_on(self, log_end: int, later: Sequence[Segment]) -> bool:
        """Whether the next segment continues the log. Where other replicas may have what lies in a hole, only
        compaction explains one: else a segment's end was lost, as when its pages were never written back."""
        if not later or later[0].base_offset <= log_end:
            return True  # where its batches begin lower, its own recovery finds that
        if not any(segment.file.size_bytes for segment in later):
            return False
        return not self._is_gapless or later[0].base_offset <= self._recovery_point

    def _recover_segment(
        self,
        segment: Segment,
        *,
        verify_from: int,
        later: Sequence[Segment] = (),
        is_gapless: bool = False,
        begin: int = 0,
    ) -> tuple[int, int]:
        """Reads a segment through, cuts it and indexes it; (next offset, bytes cut that were no zeros).

        Where something is cut, the `later` segments go first: a crash in between must not leave them behind a gap,
        which the next recovery would take for a compacted one.
        """
        self._recovered.add(segment.base_offset)
        segment.start_rebuild()
        file = segment.file
        next_offset = max(segment.base_offset, begin)
        position = 0
        reason = ""
        chunk, chunk_at = b"", 0
        while file.size_bytes - position >= HEADER_BYTES:
            if not chunk_at <= position <= chunk_at + len(chunk) - HEADER_BYTES:
                chunk, chunk_at = file.read(position, _READ_BYTES), position
            header: Header = HEADER.unpack_from(chunk, position - chunk_at)
            size_bytes = header[H_BATCH_LENGTH] + LOG_OVERHEAD
            last_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
            if header[H_MAGIC] != MAGIC_V2 or size_bytes < HEADER_BYTES:
                reason = "no batch"
            elif position + size_bytes > file.size_bytes:
                reason = "a batch that is not whole"
            elif (
                header[H_BASE_OFFSET] < next_offset
                or (header[H_BASE_OFFSET] > next_offset and is_gapless and last_offset >= verify_from)
                or header[H_LAST_OFFSET_DELTA] < 0
                or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            ):
                reason = f"a batch of offset {header[H_BASE_OFFSET]} where {next_offset} follows"
            elif last_offset >= verify_from:
                if position + size_bytes > chunk_at + len(chunk) and size_bytes <= _READ_BYTES:
                    chunk, chunk_at = file.read(position, _READ_BYTES), position
                if self._checksum(file, position, size_bytes, chunk, chunk_at) != header[H_CRC]:
                    reason = "a batch that fails its checksum"
            if reason:
                break
            segment.index_batch(
                position, size_bytes, last_offset=last_offset, max_timestamp_ms=header[H_MAX_TIMESTAMP]
            )
            if header[H_PARTITION_LEADER_EPOCH] > self._epochs.latest:
                self._epochs.assign(header[H_PARTITION_LEADER_EPOCH], header[H_BASE_OFFSET])
            next_offset = last_offset + 1
            position += size_bytes
        cut = self._cut(file, position, reason, next_offset, later)
        return next_offset, cut

    @staticmethod
    def _checksum(file: SegmentFile, position: int, size_bytes: int, chunk: bytes, chunk_at: int) -> int:
        at = position - chunk_at
        if at + size_bytes <= len(chunk):
            return checksum(memoryview(chunk)[at + ATTRIBUTES : at + size_bytes])
        # Larger than a chunk, or claims to be: read in pieces, so that a lie costs no memory.
        end = position + size_bytes
        position += ATTRIBUTES
        crc = 0
        while position < end:
            piece = file.read(position, min(_READ_BYTES, end - position))
            crc = checksum(piece, crc)
            position += len(piece)
        return crc

    def _cut(
        self, file: SegmentFile, position: int, reason: str, next_offset: int, later: Sequence[Segment]
    ) -> int:
        torn = 0
        at = position
        while at < file.size_bytes:
            piece = file.read(at, _READ_BYTES)
            at += len(piece)
            if stripped := len(piece.rstrip(b"\0")):
                torn = at - len(piece) + stripped - position
        if torn:
            behind = sound_end_behind(file.read(position, SEARCH_BYTES_MAX), next_offset)
            self._cut_to = max(self._cut_to, -1 if behind is None else behind)
            self._set_aside(later)
            kept = keep_tail(file, position, torn)
            _logger.warning(
                "%s: truncated by %d bytes at position %d, offset %d: %s; %s",
                file.path,
                torn,
                position,
                next_offset,
                reason or "a batch that is not whole",
                "nothing was kept" if kept is None else f"kept as {kept.parent.name}/{kept.name}",
            )
        if torn:
            file.truncate(position)
        elif position != file.size_bytes:
            file.keep_zeros(position)
        return torn

    def _set_aside(self, segments: Sequence[Segment]) -> None:
        """Takes segments that follow what is cut out of the log, the last one first."""
        for segment in reversed(segments):
            size_bytes = segment.file.size_bytes
            if size_bytes and segment.file.read(0, HEADER_BYTES).strip(b"\0"):
                self._cut_to = max(self._cut_to, segment.base_offset)
            kept = keep_segment(segment.file.path) if size_bytes else None
            where = "removed" if kept is None else f"moved to {kept.parent.name}/{kept.name}"
            _logger.warning("%s: %s, because it follows the truncated part", segment.file.path, where)
            segment.delete()

    # Epochs and producers

    def _load_epochs(self) -> LeaderEpochs:
        try:
            return LeaderEpochs.load(self._directory)
        except CorruptFile as fault:
            _logger.warning("%s; recovery reads leader epochs from the log", fault)
            return LeaderEpochs.empty(self._directory)

    def _load_producers(
        self, segments: list[Segment], log_start: int, log_end: int
    ) -> tuple[Producers, Snapshots]:
        snapshots = Snapshots(self._directory)
        offsets = self._snapshot_offsets
        if offsets:
            # A recovered segment's transactions are indexed again, which takes the state from where it begins.
            end = min(self._recovered, default=log_end)
            bases = {segment.base_offset for segment in segments}
            offsets = snapshots.drop_needless(offsets, start=log_start, end=end, bases=bases)
        known = self._handed_over
        if known is not None and known.log_end_offset == log_end and not self._recovered:
            snapshots.newest = max(offsets, default=log_start)
            return known.producers, snapshots
        producers, start = snapshots.load_newest(log_start, offsets)
        recall(producers, segments, start)
        if start < log_end:
            replay(producers, segments, start, indexing=self._recovered)
        producers.expire(self._now_ms, expiration_ms=self._settings.producer_id_expiration_ms)
        return producers, snapshots
