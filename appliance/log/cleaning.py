"""Compaction of one log: which part of it, in which groups of segments, step by step.

    log start          first dirty            uncleanable             log end
    │ clean            │ dirty                │ not yet               │
    ├─────────┬────────┼─────────┬────────────┼───────────────────────┤
    │ each key's last  │ read into the map    │ the active segment; beyond the last stable offset;
    │ value, mostly    │                      │ younger than min.compaction.lag.ms
    └────── group 1 ──────┘ └─── group 2 ─────┘

    map       the keys of the dirty part, as far as the map's memory goes: that is the end of this round
    group     neighbours that together fit into one segment: by size, by index size, by span of offsets
    clean     every group is read from its first batch, filtered by the map, and written as `<base>.log.cleaned`
    swap      the log's owner puts it into the place of the group (`segment_swap`)

The groups are swapped from the oldest on. A value that a later one superseded may thus be gone while the later one is
still in an old segment; the reverse never happens, and a round that is given up has done no harm.

The work is a generator: each step reads at most a chunk, so that who drives it hears its other callers in between,
and slows it down. Nothing here waits, and nothing here renames. Source: `LogCleaner.scala`,
`LogCleanerManager.scala`; KIP-58, KIP-354.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.errors import CorruptFile
from appliance.log.batch_filter import BatchFilter
from appliance.log.chunks import Batch, read_chunks
from appliance.log.cleaned_segment import CleanedSegment, remove_cleaned
from appliance.log.cleaned_transactions import CleanedTransactions
from appliance.log.config import LogSettings
from appliance.log.dirtiness import CleaningAbandoned, Dirtiness, MapTooSmall, Swap
from appliance.log.groups import Group, gather
from appliance.log.offset_map import RELATIVE_OFFSET_MAX, OffsetMap, hash_keys
from appliance.log.sealed_segments import (
    SealedSegment,
    aborted_transactions,
    last_batches,
    sealed_segments,
    segment_path,
)
from appliance.protocol.records.batch import H_BASE_OFFSET, H_RECORDS_COUNT
from appliance.protocol.records.errors import BatchFault
from appliance.protocol.records.record import Record, decode_records

_SPAN_MAX: Final = 2**31 - 1


def group_segments(
    segments: Sequence[SealedSegment], settings: LogSettings
) -> list[tuple[SealedSegment, ...]]:
    """Neighbours that fit into one segment together, judged by what they take now."""
    groups: list[list[SealedSegment]] = []
    size = index = times = 0
    for segment in segments:
        fits = bool(groups) and (
            size + segment.size_bytes <= settings.segment_bytes
            and index + segment.offset_index_bytes <= settings.segment_index_bytes
            and times + segment.time_index_bytes <= settings.segment_index_bytes
            and segment.end_offset - 1 - groups[-1][0].base_offset <= _SPAN_MAX
        )
        if fits:
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size = index = times = 0
        size += segment.size_bytes
        index += segment.offset_index_bytes
        times += segment.time_index_bytes
    return [tuple(group) for group in groups]


@dataclass(slots=True)
class CleaningStatistics:
    """What a round did. Bytes are of `.log` files."""

    mapped_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    records_read: int = 0
    records_kept: int = 0
    keyless: int = 0
    keys: int = 0
    map_bytes: int = 0
    swaps: int = 0


class LogCleaning:
    """One round over one log. `end_offset` is known when it is done: the next first dirty offset.

    Args:
        what: as `dirtiness` found it a moment ago.
        map_bytes_max: memory of the offset map, `log.cleaner.dedupe.buffer.size`.
    """

    def __init__(
        self,
        directory: Path,
        what: Dirtiness,
        settings: LogSettings,
        *,
        now_ms: int,
        map_bytes_max: int,
        load_factor: float = 0.9,
    ) -> None:
        self._directory = directory
        self._what = what
        self._settings = settings
        self._now_ms = now_ms
        self._map = OffsetMap(what.first_dirty, bytes_max=map_bytes_max, load_factor=load_factor)
        self._writing: CleanedSegment | None = None
        self.end_offset = what.first_dirty
        self.statistics = CleaningStatistics()

    def steps(self) -> Generator[int | Swap, bool, None]:
        """Bytes moved by each step; for a `Swap` wants to be sent whether it was done.

        Raises:
            CorruptFile: a segment does not hold what it should: this log cannot be cleaned.
            MapTooSmall: nor can it with this little memory.
            SegmentOverflow: nor where a segment is as long as a file may be.
            SegmentGone, CleaningAbandoned: the log changed under the round.
            DiskFull, StorageFault: the host refused.
        """
        try:
            yield from self._steps()
        except BaseException:
            if self._writing is not None:
                self._writing.abandon()
            raise

    def _steps(self) -> Generator[int | Swap, bool, None]:
        what, directory, settings = self._what, self._directory, self._settings
        segments = sealed_segments(directory, what.end_offset)
        yield from self._read_into_map(segments)
        self.end_offset = self._map.latest_offset + 1
        groups = group_segments([s for s in segments if s.base_offset < self.end_offset], settings)
        if not groups or self.end_offset == what.first_dirty:
            return
        transactions = CleanedTransactions(aborted_transactions(directory, groups[0][0].base_offset))
        batches = BatchFilter(
            self._map,
            transactions,
            last_batches=last_batches(
                directory,
                segments,
                what.end_offset,
                now_ms=self._now_ms,
                producer_expiration_ms=settings.producer_id_expiration_ms,
            ),
            round_end=what.end_offset,
            now_ms=self._now_ms,
            delete_retention_ms=settings.delete_retention_ms,
            decompressed_bytes_max=settings.max_decompressed_bytes,
        )
        for group in groups:
            yield from self._clean(group, batches, transactions)
        self.statistics.records_read = batches.records_read
        self.statistics.keyless = batches.keyless

    # The map

    def _read_into_map(self, segments: Sequence[SealedSegment]) -> Generator[int, bool, None]:
        first_dirty, offsets = self._what.first_dirty, self._map
        transactions = CleanedTransactions(aborted_transactions(self._directory, first_dirty))
        for segment in segments:
            if segment.end_offset <= first_dirty:
                continue
            for read_bytes, is_full in self._map_segment(segment, transactions):
                self.statistics.mapped_bytes += read_bytes
                if is_full:
                    self._note_map()
                    return
                yield read_bytes
            # Over a gap at the end of a segment, too.
            offsets.latest_offset = segment.end_offset - 1
        self._note_map()

    def _note_map(self) -> None:
        found = self._map.statistics()
        self.statistics.keys, self.statistics.map_bytes = found.keys, found.peak_bytes

    def _map_segment(
        self, segment: SealedSegment, transactions: CleanedTransactions
    ) -> Generator[tuple[int, bool], None, None]:
        """(bytes read, whether the map is full) after each chunk."""
        path, offsets, first_dirty = segment_path(self._directory, segment), self._map, self._what.first_dirty
        for chunk in read_chunks(path, 0, segment.size_bytes):
            wanted = []
            for batch in chunk.batches:
                if batch.last_offset < first_dirty:
                    continue
                if batch.is_control:
                    transactions.may_go(batch.header, _control_records(chunk.data, batch, path))
                elif not transactions.is_aborted(batch.header) and batch.header[H_RECORDS_COUNT] > 0:
                    wanted.append(batch)
            bytes_max = self._settings.max_decompressed_bytes
            for group in gather(chunk.data, wanted, path=path, decompressed_bytes_max=bytes_max):
                if not self._map_group(group, path):
                    yield len(chunk.data), True
                    return
            offsets.latest_offset = max(offsets.latest_offset, chunk.batches[-1].last_offset)
            yield len(chunk.data), False

    def _map_group(self, group: Group, path: Path) -> bool:
        """Puts the keys of a group's records into the map, batch by batch where it gets tight; False when full."""
        offsets = self._map
        if self._fits(group.batches[-1], len(group.starts)):
            self._put(group, path)
            return True
        for number, batch in enumerate(group.batches):
            count = group.first[number + 1] - group.first[number]
            if not self._fits(batch, count):
                if offsets.latest_offset < self._what.first_dirty:
                    raise MapTooSmall(
                        f"log.cleaner.dedupe.buffer.size is too small for the {count} records of a batch"
                    )
                return False
            self._put(group.only(number), path)
            offsets.latest_offset = batch.last_offset
        return True

    def _fits(self, batch: Batch, count: int) -> bool:
        span = batch.last_offset - self._map.base_offset
        return self._map.fits(count) and span <= RELATIVE_OFFSET_MAX

    def _put(self, group: Group, path: Path) -> None:
        bases = group.bases()
        try:
            for at, columns in group.columns():
                offsets = bases[at : at + len(columns.starts)] + columns.offset_deltas
                keyed = (columns.key_lengths >= 0) & (offsets >= self._what.first_dirty)
                starts = columns.keys_at[keyed]
                stops = starts + columns.key_lengths[keyed]
                self._map.put(*hash_keys(group.data, starts.tolist(), stops.tolist()), offsets[keyed])
        except BatchFault as fault:
            raise CorruptFile(
                f"{path}: after offset {group.batches[0].header[H_BASE_OFFSET]}: {fault}"
            ) from fault

    # The groups

    def _clean(
        self, group: Sequence[SealedSegment], batches: BatchFilter, transactions: CleanedTransactions
    ) -> Generator[int | Swap, bool, None]:
        directory, statistics = self._directory, self.statistics
        base_offset = group[0].base_offset
        writing = self._writing = CleanedSegment(directory, base_offset, settings=self._settings)
        source_bytes = sum(segment.size_bytes for segment in group)
        is_new = len(group) > 1
        for segment in group:
            path = segment_path(directory, segment)
            for chunk in read_chunks(path, 0, segment.size_bytes):
                before = writing.size_bytes
                for kept in batches.retained(chunk, path):
                    writing.append(
                        kept.content, last_offset=kept.last_offset, max_timestamp_ms=kept.max_timestamp_ms
                    )
                    is_new = is_new or kept.is_new
                    statistics.records_kept += kept.records
                statistics.read_bytes += len(chunk.data)
                yield len(chunk.data) + writing.size_bytes - before
        statistics.written_bytes += writing.size_bytes
        writing.transactions = transactions.take_kept()
        if not is_new and writing.size_bytes == source_bytes:
            writing.abandon()
            self._writing = None
            return
        writing.finish(modified_ns=group[-1].modified_ns)
        # From the question on the files are the owner's, whether its answer comes or not.
        self._writing = None
        if not (yield Swap(base_offset, group[-1].end_offset, source_bytes)):
            remove_cleaned(directory, base_offset)
            raise CleaningAbandoned(f"{directory}: the segments from offset {base_offset} on have changed")
        statistics.swaps += 1


def _control_records(data: bytes, batch: Batch, path: Path) -> list[Record]:
    try:
        return decode_records(data, batch.position)
    except BatchFault as fault:
        raise CorruptFile(
            f"{path}: the control batch of offset {batch.header[H_BASE_OFFSET]}: {fault}"
        ) from fault
