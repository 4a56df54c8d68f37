"""A topic's closed segments as a set of files of their own: for an archive, another machine, an object store.

    DIR/orders.manifest.json            what is there: offsets, sizes, checksums, aborted transactions
    DIR/orders-0/                       a partition's directory as a reader off the disk knows it
        00000000000000000000.log  .index  .timeindex  .txnindex
        leader-epoch-checkpoint  partition.metadata
        .state                          CLOSED, up to the end of the last segment

What is taken is closed and below the last stable offset, so nothing in it changes and every transaction is decided; an
abort whose marker lies behind it stands in the index of its last segment. Files are linked where that is possible and
copied else, each under another name first, and the state comes last: who is killed leaves what a next run completes.
Given again, it takes what is new, and what compaction has put in the place of others. A lease is held meanwhile.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import crc32c

from appliance.log.checkpoint import replace_file
from appliance.log.file_names import (
    LEADER_EPOCHS,
    LOG,
    PARTITION_METADATA,
    SEGMENT_SUFFIXES,
    TRANSACTION_INDEX,
    parse_segment_file_name,
    segment_file_name,
)
from appliance.log.partition_metadata import read_topic_id
from appliance.log.partition_state import NO_ID, Mode, PartitionState, StateFile, boot_id, read_state
from appliance.log.transaction_index import encode_transactions
from appliance.protocol.columns.batch_headers import Stop, walk_headers
from appliance.protocol.records.batch import HEADER, HEADER_BYTES
from spark_connector.bounds import end_offset
from spark_connector.directory import Directories, Isolation, PartitionView
from spark_connector.errors import CorruptSegment, DataLost, NotReadable
from spark_connector.indexes import time_entries
from spark_connector.lease import take_lease
from spark_connector.segments import SegmentFacts, aborted_transactions, segments

VERSION: Final = 1
_PIECE_BYTES: Final = 4 << 20
_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class ExportedSegment:
    """A `.log` file of the export. `crc32c` is of all its bytes."""

    base_offset: int
    next_base: int
    file: str
    size_bytes: int
    max_timestamp_ms: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """What of a partition is in the export. `aborted`: (producer id, first, last, last stable offset)."""

    partition: int
    log_start_offset: int
    end_offset: int
    leader_epoch: int
    segments: tuple[ExportedSegment, ...]
    aborted: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Exported:
    """What a run has done; sizes of everything that is in the export now, `new_bytes` of what this run added."""

    topic: str
    partitions: tuple[ExportedPartition, ...]
    new_segments: int
    new_bytes: int

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for each in self.partitions for segment in each.segments)


def export_segments(
    topic: str,
    *,
    paths: Sequence[str | Path],
    to: Path,
    copy: bool = False,
    tell: Callable[[str], object] = lambda _: None,
) -> Exported:
    """Brings the export of `topic` in `to` up to what is closed now.

    Args:
        copy: makes copies even where links would do: for a file system of its own.
        tell: hears the name of each segment that is taken.

    Raises:
        NotALogDirectory, UnknownTopic, NotReadable: see `Directories`.
        DataLost: there is an export of another topic of that name, or one that would get a hole.
        StorageFault, OSError: a file cannot be read or written.
    """
    directories = Directories(paths)
    looks = directories.partitions(topic)
    lease = take_lease([(view, view.log_start_offset) for view in looks], owner=f"export segments {topic}")
    with lease.held():
        taken = [
            _export(directories.partition(topic, view.partition), to, copy=copy, tell=tell) for view in looks
        ]
    manifest = {
        "version": VERSION,
        "topic": topic,
        "topic_id": None if looks[0].topic_id is None else str(looks[0].topic_id),
        "partitions": [asdict(each) for each, _, _ in taken],
    }
    replace_file(to / f"{topic}.manifest.json", json.dumps(manifest, indent=1).encode())
    return Exported(
        topic,
        tuple(each for each, _, _ in taken),
        sum(count for _, count, _ in taken),
        sum(size_bytes for _, _, size_bytes in taken),
    )


def _export(
    view: PartitionView, to: Path, *, copy: bool, tell: Callable[[str], object]
) -> tuple[ExportedPartition, int, int]:
    """A partition's part of the manifest, and how many segments and bytes are new."""
    target = to / view.name
    target.mkdir(parents=True, exist_ok=True)
    known = read_topic_id(target)
    if known is not None and view.topic_id is not None and known != view.topic_id:
        raise DataLost(f"{target} is of topic id {known}; {view.topic} was created again as {view.topic_id}")
    stable = end_offset(view, Isolation.READ_COMMITTED)
    for _ in range(_TRIES):
        closed = [each for each in segments(view.directory) if 0 < each.next_base <= stable]
        _check_hole(view, target, closed)
        new = 0
        new_bytes = 0
        try:
            for each in closed:
                if _take(each, target, copy=copy):
                    tell(f"{view.name} {each.base_offset}")
                    new += 1
                    new_bytes += each.size_bytes
        except FileNotFoundError:
            continue  # compaction or retention has been there; again
        break
    else:
        raise NotReadable(f"{view.name}: its segments change faster than they can be exported")
    _drop_superseded(target, closed)
    for name in (LEADER_EPOCHS, PARTITION_METADATA):
        with suppress(FileNotFoundError):
            replace_file(target / name, (Path(view.directory) / name).read_bytes(), durable=False)
    return _seal(view, target), new, new_bytes


def _check_hole(view: PartitionView, target: Path, closed: Sequence[SegmentFacts]) -> None:
    """Offsets are missing in a compacted log only."""
    before = read_state(target)
    if before is None or not closed or view.is_compacted:
        return
    if closed[0].base_offset > before.log_end:
        raise DataLost(
            f"{target} ends at offset {before.log_end}, and what followed is deleted: the log begins at"
            f" {closed[0].base_offset}; export it to another directory"
        )


def _take(segment: SegmentFacts, target: Path, *, copy: bool) -> bool:
    """Links or copies a segment's files, the records last; whether it was not there yet."""
    source = Path(segment.path)
    with suppress(FileNotFoundError):
        there = os.stat(target / segment_file_name(segment.base_offset, LOG))
        same = (there.st_dev, there.st_ino) == (segment.device, segment.inode)
        if same or (
            there.st_size == segment.size_bytes and there.st_mtime_ns // 1_000_000 == segment.modified_ms
        ):
            return False
    for suffix in reversed(SEGMENT_SUFFIXES):
        name = segment_file_name(segment.base_offset, suffix)
        aside = target / (name + ".tmp")
        aside.unlink(missing_ok=True)
        origin = source.with_name(source.name.replace(LOG, suffix, 1))
        try:
            # An index of aborted transactions may be added to here, so it is never a link.
            _link_or_copy(origin, aside, copy=copy or suffix == TRANSACTION_INDEX)
        except FileNotFoundError:
            if suffix == LOG:
                raise
            (target / name).unlink(missing_ok=True)
            continue
        if suffix == LOG:
            status = os.stat(aside)
            if status.st_size != segment.size_bytes or (not copy and _is_other(status, segment, aside)):
                aside.unlink()
                raise FileNotFoundError(source)
        os.rename(aside, target / name)
    return True


def _is_other(status: os.stat_result, segment: SegmentFacts, aside: Path) -> bool:
    """Whether a link leads to another file than was listed; a copy has a number of its own."""
    return status.st_nlink > 1 and status.st_dev == segment.device and status.st_ino != segment.inode


def _link_or_copy(origin: Path, target: Path, *, copy: bool) -> None:
    if not copy:
        try:
            os.link(origin, target)
        except FileNotFoundError:
            raise
        except OSError:
            pass  # another file system, or one without links
        else:
            return
    shutil.copy2(origin, target)


def _drop_superseded(target: Path, closed: Sequence[SegmentFacts]) -> None:
    """Removes what compaction has put into another segment since."""
    if not closed:
        return
    bases = {each.base_offset for each in closed}
    for name in os.listdir(target):
        parsed = parse_segment_file_name(name)
        if parsed is None:
            continue
        inside = closed[0].base_offset <= parsed[0] < closed[-1].next_base
        if inside and parsed[0] not in bases:
            (target / name).unlink()


def _seal(view: PartitionView, target: Path) -> ExportedPartition:
    """Says in `.state` how far the export may be read, and in the manifest what it is."""
    found = segments(target)
    if not found:
        return ExportedPartition(view.partition, view.log_start_offset, view.log_start_offset, -1, (), ())
    last = found[-1]
    start = max(found[0].base_offset, min(view.log_start_offset, last.base_offset))
    state = PartitionState(
        topic_id=view.topic_id or NO_ID,
        leader_epoch=view.leader_epoch,
        log_start=found[0].base_offset,
        high_watermark=view.high_watermark,
        last_stable=view.high_watermark,
        log_end=view.high_watermark,
        durable=view.high_watermark,
        active_base=last.base_offset,
        active_bytes=last.size_bytes,
        leads=True,
        mode=Mode.CLOSED,
        written_ms=last.modified_ms,
    )
    end = _end_of(target, last)
    aborted = aborted_transactions(view.directory, start=found[0].base_offset, end=end)
    index = target / segment_file_name(last.base_offset, TRANSACTION_INDEX)
    own = [entry for entry in aborted if entry.last_offset >= last.base_offset]
    if own:
        replace_file(index, encode_transactions(own), durable=False)
    state_file = StateFile(target, boot_id())
    before = state_file.known()
    if view.is_compacted and (before is None or before.generation == 0):
        state_file.files_changed()
    state_file.publish(replace(state, high_watermark=end, last_stable=end, log_end=end, durable=end))
    state_file.release()
    return ExportedPartition(
        view.partition,
        start,
        end,
        view.leader_epoch,
        tuple(_described(target, each, end) for each in found),
        tuple((entry[0], entry[1], entry[2], entry[3]) for entry in aborted),
    )


def _end_of(target: Path, last: SegmentFacts) -> int:
    """Where the last batch of the export ends: a compacted segment may end before the next one begins."""
    position, end = 0, last.base_offset
    with open(last.path, "rb", buffering=0) as file:
        while position < last.size_bytes:
            data = os.pread(file.fileno(), _PIECE_BYTES, position)
            walk = walk_headers(data, file_position=position)
            if len(walk.batches):
                end = int(walk.batches["last_offset"][-1]) + 1
                position += walk.position
            elif walk.stop is Stop.CUT and position + walk.needed_bytes <= last.size_bytes:
                header = os.pread(file.fileno(), HEADER_BYTES, position)
                words = HEADER.unpack(header)
                end = words[0] + words[6] + 1
                position += walk.needed_bytes
            else:
                raise CorruptSegment(last.path, position, "no whole batch begins here")
    return end


def _described(target: Path, segment: SegmentFacts, end: int) -> ExportedSegment:
    times = time_entries(str(target), segment.base_offset).timestamps_ms
    crc = 0
    with open(segment.path, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            crc = crc32c.crc32c(piece, crc)
    return ExportedSegment(
        segment.base_offset,
        segment.next_base if segment.next_base > 0 else end,
        f"{target.name}/{Path(segment.path).name}",
        segment.size_bytes,
        int(times[-1]) if len(times) else -1,
        crc,
    )
