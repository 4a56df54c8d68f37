"""From ranges of offsets to stretches of files: what each task reads.

    range      orders-0 [100, 9000)
    segments   ├─ 0 … 4999 ─────────────┤├─ 5000 … (active) ───────┤
    stretches     ├── 100 … 4999 ───────┤├── 5000 … 8999 ──┤              bytes found through the offset indexes
    tasks         ├── A ──┤├──── B ─────┤├── C ─────────────┤              cut where an index points, by bytes

Indexes are hints. A cut is taken only after the header of the batch it points to was read; the byte at which a stretch
begins is checked by the scan, and where one ends too early the scan reads on. What a task must reach is an offset.

Aborted transactions are looked up here, once, under the same files: if the directory has changed afterwards, and
compaction has put other files in their place, everything is looked up anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from appliance.log.leader_epochs import UNDEFINED_EPOCH
from appliance.log.transaction_index import AbortedTransaction
from appliance.protocol.records.batch import HEADER, HEADER_BYTES, LOG_OVERHEAD, MAGIC_V2
from spark_connector.directory import Isolation, PartitionView
from spark_connector.epochs import epoch_of
from spark_connector.errors import DataLost, NotReadable, PartitionMoved
from spark_connector.indexes import OffsetEntries, offset_entries, time_entries
from spark_connector.lease import LeaseRef
from spark_connector.segments import SegmentFacts, aborted_transactions, listing, segments
from spark_connector.storage import directory_of, is_address, open_file

SPLIT_BYTES: Final = 64 << 20
SPLIT_BYTES_MIN: Final = 1 << 20
TOGETHER_BYTES: Final = 1 << 20
"""What is read in less time than it takes to start a task."""
_PLANS: Final = 20


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The records of a partition from offset `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes of one segment's file, as it was when it was planned.

    `start` and `end` are offsets. `ends_with_batch`: a batch ends at `byte_end`, and all of the stretch lies before
    it; else `byte_end` is only where to stop looking first. No batch before `byte_end` reaches offset `limit`; -1:
    not known.
    """

    base_offset: int
    next_base: int
    path: str
    device: int
    inode: int
    start: int
    end: int
    byte_start: int
    byte_end: int
    ends_with_batch: bool
    limit: int

    @property
    def size_bytes(self) -> int:
        return self.byte_end - self.byte_start


@dataclass(frozen=True, slots=True)
class ScanRange:
    """What one task reads: the records of a partition in [start, end), which lie in `stretches`."""

    topic: str
    partition: int
    topic_id: UUID | None
    directory: str
    start: int
    end: int
    stretches: tuple[Stretch, ...]
    isolation: Isolation
    aborted: tuple[AbortedTransaction, ...]
    incarnation: int
    clean_generation: int
    leader_epoch: int
    """Of the partition's last record that is read, by which another copy is known to hold the same; -1: not known."""
    homes: tuple[str, ...]
    lease: LeaseRef | None
    timestamps_ms: tuple[int | None, int | None]
    number: int = -1
    """Of the task in its query, which the lease counts when it has come to its end; -1: of none."""

    @property
    def name(self) -> str:
        """`topic-3`."""
        return f"{self.topic}-{self.partition}"

    @property
    def size_bytes(self) -> int:
        """Bytes of the file that are read; more than the records' where a bound lies between two index entries."""
        return sum(stretch.size_bytes for stretch in self.stretches)


def clip(view: PartitionView, wanted: OffsetRange) -> tuple[OffsetRange, int]:
    """What of a range is there, and how many of its offsets are gone."""
    start = min(max(wanted.start, view.log_start_offset), max(view.high_watermark, wanted.start))
    end = min(wanted.end, view.high_watermark)
    there = replace(wanted, start=start, end=max(start, end))
    return there, max(0, wanted.end - wanted.start) - (there.end - there.start)


def plan(
    views: Sequence[PartitionView],
    ranges: Sequence[OffsetRange],
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    lease: LeaseRef | None = None,
    split_bytes: int = SPLIT_BYTES,
    min_splits: int = 1,
    max_records: int | None = None,
    timestamps_ms: tuple[int | None, int | None] = (None, None),
    disorder_ms: int | None = None,
) -> list[ScanRange]:
    """The tasks that read `ranges`, whose partitions are all in `views`. Empty ranges make none.

    Args:
        split_bytes: about how much one task reads.
        min_splits: tasks are made smaller, down to SPLIT_BYTES_MIN, until there are so many.
        max_records: of how many offsets a task has at most.
        timestamps_ms: (from, until), until not included: stretches that surely hold no record of that time are left
            out. What is left may hold others.
        disorder_ms: promised: no record is older by more than that than one before it in its partition. Without it
            nothing is known about what follows a late record.

    Raises:
        DataLost: a range begins below the log start, or ends above the high watermark.
        NotReadable: the segments do not come to rest.
        PartitionMoved: one is not where it was seen any more.
    """
    by_name = {(view.topic, view.partition): view for view in views}
    found = []
    for each in ranges:
        if each.start >= each.end:
            continue
        view = by_name[each.topic, each.partition]
        _check(view, each)
        # With one log directory there is no other copy to be asked for.
        epoch = epoch_of(view, each.end - 1) if len(view.homes) > 1 else UNDEFINED_EPOCH
        found.append((view, epoch, *_stretches(view, each, timestamps_ms, disorder_ms)))
    total_bytes = sum(stretch.size_bytes for _, _, stretches, _ in found for stretch in stretches)
    piece_bytes = max(SPLIT_BYTES_MIN, min(split_bytes, -(-total_bytes // max(1, min_splits))))
    return [
        ScanRange(
            topic=view.topic,
            partition=view.partition,
            topic_id=view.topic_id,
            directory=view.directory,
            start=group[0].start,
            end=group[-1].end,
            stretches=tuple(group),
            isolation=isolation,
            aborted=tuple(
                entry
                for entry in aborted
                if entry.first_offset < group[-1].end and entry.last_offset >= group[0].start
            ),
            incarnation=view.incarnation,
            clean_generation=view.clean_generation,
            leader_epoch=epoch,
            homes=view.homes,
            lease=lease,
            timestamps_ms=timestamps_ms,
        )
        for view, epoch, stretches, aborted in found
        for group in _groups(stretches, piece_bytes, max_records)
    ]


def together(tasks: Sequence[ScanRange], size_bytes: int) -> list[tuple[ScanRange, ...]]:
    """The tasks in groups, each for one to read: as many in a row as take at most `size_bytes`, or one."""
    groups: list[list[ScanRange]] = []
    filled_bytes = 0
    for task in tasks:
        if not groups or filled_bytes + task.size_bytes > size_bytes:
            groups.append([])
            filled_bytes = 0
        groups[-1].append(task)
        filled_bytes += task.size_bytes
    return [tuple(group) for group in groups]


def _check(view: PartitionView, wanted: OffsetRange) -> None:
    if wanted.start < view.log_start_offset:
        raise DataLost(
            f"{view.name}: offsets {wanted.start} to {view.log_start_offset - 1} were asked for and are deleted:"
            f" the log begins at {view.log_start_offset}"
        )
    if wanted.end > view.high_watermark:
        raise DataLost(
            f"{view.name}: offsets up to {wanted.end} were asked for, and the log may be read up to"
            f" {view.high_watermark}: it was truncated, or the topic was created again"
        )


def _stretches(
    view: PartitionView,
    wanted: OffsetRange,
    timestamps_ms: tuple[int | None, int | None],
    disorder_ms: int | None,
) -> tuple[list[Stretch], list[AbortedTransaction]]:
    try:
        known, aborted = _files(view, wanted)
    except FileNotFoundError as gone:
        raise PartitionMoved(f"{view.directory} is gone since it was looked at") from gone
    if not known or known[0].base_offset > wanted.start:
        raise DataLost(
            f"{view.name}: offsets from {wanted.start} on were asked for, and their segments are removed"
        )
    stretches = []
    for each in known:
        stretch = _stretch(view, each, wanted, timestamps_ms, disorder_ms)
        if stretch is not None:
            stretches.append(stretch)
    return stretches, aborted


def _files(view: PartitionView, wanted: OffsetRange) -> tuple[list[SegmentFacts], list[AbortedTransaction]]:
    """The segments of a range and its aborted transactions, looked up under the same files."""
    directory, start, end = view.directory, wanted.start, wanted.end
    if is_address(directory):
        return segments(directory, start=start, end=end), aborted_transactions(
            directory, start=start, end=end
        )
    for _ in range(_PLANS):
        listed = view.seen.listing if view.seen is not None else None
        if listed is None or not listed.holds(directory):
            listed = listing(directory)
        found = segments(directory, known=listed, start=start, end=end)
        aborted = aborted_transactions(directory, start=start, end=end, known=listed)
        if listed.holds(directory) or _identities(found) == _identities(
            segments(directory, start=start, end=end)
        ):
            return found, aborted
    raise NotReadable(f"{view.name}: its segments change faster than they can be listed")


def _identities(known: Sequence[SegmentFacts]) -> list[tuple[int, int]]:
    return [(each.base_offset, each.inode) for each in known]


def _stretch(
    view: PartitionView,
    segment: SegmentFacts,
    wanted: OffsetRange,
    timestamps_ms: tuple[int | None, int | None],
    disorder_ms: int | None,
) -> Stretch | None:
    """What of a segment is to be read; None if the time index says that nothing is."""
    start = max(wanted.start, segment.base_offset)
    end = wanted.end if segment.is_active else min(wanted.end, segment.next_base)
    file_bytes = segment.size_bytes
    if segment.base_offset == view.active_base and view.active_bytes >= 0:
        file_bytes = min(file_bytes, view.active_bytes)
    earliest_ms, until_ms = timestamps_ms
    if earliest_ms is not None or (until_ms is not None and disorder_ms is not None):
        times = time_entries(
            directory_of(segment.path), segment.base_offset, suffix=".deleted" if segment.is_deleted else ""
        )
        if earliest_ms is not None:
            late = len(times.timestamps_ms) and times.timestamps_ms[-1] >= earliest_ms
            # The last entry of a closed segment is its largest timestamp.
            if not late and len(times.timestamps_ms) and not segment.is_active:
                return None
            before = times.before(earliest_ms)
            if before is not None:
                start = max(start, before + 1)
        if until_ms is not None and disorder_ms is not None:
            after = times.after(until_ms + disorder_ms)
            if after is not None:
                end = min(end, after + 1)
        if start >= end:
            return None
    at = to = None
    whole = segment.next_base
    if segment.is_active:
        whole = view.log_end_offset if view.log_end_offset >= 0 else end + 1
    # Of a whole segment an index has nothing to say.
    if start > segment.base_offset or end < whole:
        entries = offset_entries(
            directory_of(segment.path),
            segment.base_offset,
            size_bytes=file_bytes,
            suffix=".deleted" if segment.is_deleted else "",
        )
        at = entries.floor(start)
        to = entries.end_after(end - 1)
    return Stretch(
        base_offset=segment.base_offset,
        next_base=segment.next_base,
        path=segment.path,
        device=segment.device,
        inode=segment.inode,
        start=start,
        end=end,
        byte_start=0 if at is None else at[1],
        byte_end=file_bytes if to is None else to,
        ends_with_batch=to is None and not segment.is_active,
        limit=view.log_end_offset if segment.is_active else segment.next_base,
    )


def _groups(
    stretches: Sequence[Stretch], piece_bytes: int, max_records: int | None
) -> Iterator[list[Stretch]]:
    """Stretches in groups of about `piece_bytes`, none with a gap between its stretches' offsets."""
    group: list[Stretch] = []
    size_bytes = 0
    for stretch in stretches:
        for piece in _pieces(stretch, piece_bytes, max_records):
            full = size_bytes + piece.size_bytes > piece_bytes + piece_bytes // 2
            if group and (
                full
                or group[-1].end != piece.start
                or (max_records is not None and piece.end - group[0].start > max_records)
            ):
                yield group
                group, size_bytes = [], 0
            if group and group[-1].path == piece.path:
                # A batch may reach over a cut by offsets: within a task there is none.
                group[-1] = replace(
                    group[-1],
                    end=piece.end,
                    byte_end=piece.byte_end,
                    ends_with_batch=piece.ends_with_batch,
                    limit=piece.limit,
                )
            else:
                group.append(piece)
            size_bytes += piece.size_bytes
    if group:
        yield group


def _pieces(stretch: Stretch, piece_bytes: int, max_records: int | None) -> Iterator[Stretch]:
    """A stretch cut where its index points, and then by offsets."""
    for piece in _cut_by_bytes(stretch, piece_bytes):
        if max_records is None or piece.end - piece.start <= max_records:
            yield piece
        else:
            yield from _cut_by_offsets(piece, max_records)


def _cut_by_bytes(stretch: Stretch, piece_bytes: int) -> Iterator[Stretch]:
    if stretch.size_bytes > piece_bytes + piece_bytes // 2:
        entries = _entries(stretch)
        wanted = stretch.byte_start + piece_bytes
        for offset, position in zip(entries.offsets.tolist(), entries.positions.tolist(), strict=True):
            if position < wanted or stretch.byte_end - position < piece_bytes // 2:
                continue
            first = _offset_at(stretch, position, last_offset=offset)
            if first is None:
                continue
            if not stretch.start < first < stretch.end:
                continue
            yield replace(stretch, end=first, byte_end=position, ends_with_batch=True, limit=first)
            stretch = replace(stretch, start=first, byte_start=position)
            wanted = position + piece_bytes
    yield stretch


def _cut_by_offsets(stretch: Stretch, max_records: int) -> Iterator[Stretch]:
    entries = _entries(stretch)
    start = stretch.start
    while start < stretch.end:
        end = min(start + max_records, stretch.end)
        at, to = entries.floor(start), entries.end_after(end - 1)
        last = end == stretch.end
        yield replace(
            stretch,
            start=start,
            end=end,
            byte_start=stretch.byte_start if at is None else max(at[1], stretch.byte_start),
            byte_end=stretch.byte_end if to is None or last else min(to, stretch.byte_end),
            ends_with_batch=last and stretch.ends_with_batch,
        )
        start = end


def _entries(stretch: Stretch) -> OffsetEntries:
    return offset_entries(
        directory_of(stretch.path),
        stretch.base_offset,
        size_bytes=stretch.byte_end,
        suffix=".deleted" if stretch.path.endswith(".deleted") else "",
    )


def _offset_at(stretch: Stretch, position: int, *, last_offset: int) -> int | None:
    """The base offset of the batch at `position`; None if there is none, or not of this file any more."""
    try:
        file = open_file(stretch.path)
    except OSError:
        return None
    try:
        if file.identity != (stretch.device, stretch.inode):
            return None
        header = file.read(HEADER_BYTES, position)
    finally:
        file.close()
    if len(header) < HEADER_BYTES:
        return None
    words = HEADER.unpack(header)
    base_offset: int = words[0]
    if words[3] != MAGIC_V2 or words[1] < HEADER_BYTES - LOG_OVERHEAD:
        return None
    return base_offset if stretch.base_offset <= base_offset <= last_offset else None
