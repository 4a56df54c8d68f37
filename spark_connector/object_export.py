"""A topic's closed segments straight into an object store, or whatever else pyarrow writes by an address.

    s3://bucket/logs/orders.manifest.json                     what is there; put last
    s3://bucket/logs/orders-0/00000000000000000000.log        a segment, its indexes beside it
    s3://bucket/logs/orders-0/9f86d081/00000000000000000000.log    the same offsets after compaction: a place of its own

What is named by a manifest never changes, so a query that was planned by an older one reads on. A segment counts once
it was read back and has the checksum of the file that was sent, and is named only then: who is killed leaves objects
that nobody knows, and a next run takes up those that hold. What a manifest does not name any more, since compaction
has merged it, is named by it as superseded, and removed by the run after.

Of a log that is not compacted what is there stays as it is, and what follows is added, by the borders of segments:
another slot's copy may have others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import crc32c

from appliance.errors import ApplianceError, CorruptFile, OperatorFault, StorageFault
from appliance.log.file_names import DELETED, LOG, OFFSET_INDEX, TIME_INDEX, segment_file_name
from spark_connector.bounds import end_offset
from spark_connector.directory import Directories, Isolation, PartitionView
from spark_connector.errors import DataLost, NotReadable
from spark_connector.indexes import time_entries
from spark_connector.lease import take_lease
from spark_connector.segment_export import VERSION, Exported, ExportedPartition, ExportedSegment
from spark_connector.segments import SegmentFacts, aborted_transactions, segments
from spark_connector.storage import MANIFEST, LocalFile, file_system, is_address, shown

PIECE_BYTES: Final = 8 << 20
_TRIES: Final = 10
_KEEPS_DIRECTORIES: Final = ("local", "hdfs")


@dataclass(frozen=True, slots=True)
class _Before:
    """What a manifest says of a partition; `taken` are all names that it, or the manifest before, has given."""

    log_start_offset: int
    end_offset: int
    leader_epoch: int
    segments: tuple[ExportedSegment, ...]
    aborted: tuple[tuple[int, int, int, int], ...]
    taken: frozenset[str]


def export_objects(
    topic: str,
    *,
    paths: Sequence[str | Path],
    to: str,
    reads_back: bool = True,
    tell: Callable[[str], object] = lambda _: None,
) -> Exported:
    """Brings the export of `topic` at the address `to` up to what is closed now.

    Args:
        reads_back: every segment that was sent is read again and held against its checksum; else its size is.
        tell: hears the name of each segment that is sent.

    Raises:
        NotALogDirectory, UnknownTopic, NotReadable: see `Directories`.
        DataLost: there is an export of another topic of that name, one that would get a hole, or one that goes further
            than the log.
        CorruptFile: the manifest there is none that is known.
        StorageFault: a file cannot be read, or the store does not do what is asked.
        OperatorFault: what is to be exported is an export itself.
    """
    directories = Directories(paths)
    looks = directories.partitions(topic)
    if any(is_address(view.directory) for view in looks):
        raise OperatorFault(f"{shown(looks[0].directory)} is an export; copy its files")
    with _faults(to):
        store = _Store(to, reads_back=reads_back)
        known, superseded, topic_id = store.known(topic, looks[0].topic_id)
    lease = take_lease([(view, view.log_start_offset) for view in looks], owner=f"export segments {topic}")
    with lease.held(), _faults(to):
        taken = [
            _export(directories.again(view), known.get(view.partition), store, tell=tell) for view in looks
        ]
        taken += [
            _untouched(partition, before)
            for partition, before in known.items()
            if partition not in {view.partition for view in looks}
        ]
    parts = tuple(each for each, _, _ in taken)
    named = {segment.file for each in parts for segment in each.segments}
    gone = sorted({segment.file for each in known.values() for segment in each.segments} - named)
    manifest = {
        "version": VERSION,
        "topic": topic,
        "topic_id": None if topic_id is None else str(topic_id),
        "partitions": [asdict(each) for each in parts],
        "superseded": gone,
    }
    with _faults(to):
        store.publish(topic, json.dumps(manifest, indent=1).encode())
        store.remove(file for file in superseded if file not in named)
    return Exported(
        topic, parts, sum(count for _, count, _ in taken), sum(size_bytes for _, _, size_bytes in taken)
    )


@contextmanager
def _faults(address: str) -> Iterator[None]:
    """The store's errors, told without what gives access to it."""
    try:
        yield
    except ApplianceError:
        raise
    except (OSError, ValueError) as error:
        raise StorageFault(f"{shown(address)}: {shown(str(error))}") from error


class _Store:
    """The place an address leads to. Raises OSError wherever it does not answer as it should."""

    def __init__(self, address: str, *, reads_back: bool) -> None:
        self._files, self._root = file_system(address)
        self._reads_back = reads_back
        self.shown = shown(address)

    def known(self, topic: str, topic_id: UUID | None) -> tuple[dict[int, _Before], list[str], UUID | None]:
        """What the manifest that is there says by partition, what it has superseded, and the topic's id.

        Raises:
            DataLost, CorruptFile: as `export_objects`.
        """
        path = f"{self._root}/{topic}{MANIFEST}"
        if self._size_bytes(path) is None:
            return {}, [], topic_id
        with self._files.open_input_file(path) as file:
            content = bytes(file.readall())
        try:
            told = json.loads(content)
            if told["version"] != VERSION or told["topic"] != topic:
                raise CorruptFile(
                    f"{self.shown}/{topic}{MANIFEST} is of {told['topic']}, version {told['version']};"
                    f" only version {VERSION} is known"
                )
            superseded = [str(each) for each in told.get("superseded", ())]
            found = {int(each["partition"]): _before(each, superseded) for each in told["partitions"]}
            known_id = None if told["topic_id"] is None else UUID(told["topic_id"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptFile(f"{self.shown}/{topic}{MANIFEST} is no manifest: {error!r}") from error
        if known_id is not None and topic_id is not None and known_id != topic_id:
            raise DataLost(f"{self.shown} is of topic id {known_id}; {topic} was created again as {topic_id}")
        return found, superseded, known_id or topic_id

    def sizes(self, partition: str) -> dict[str, int]:
        """Bytes of every object of a partition, by its name below the address."""
        from pyarrow import fs

        there = self._files.get_file_info(
            fs.FileSelector(f"{self._root}/{partition}", allow_not_found=True, recursive=True)
        )
        return {
            each.path.removeprefix(f"{self._root}/"): int(each.size or 0) for each in there if each.is_file
        }

    def send(self, name: str, file: LocalFile, size_bytes: int) -> int:
        """Puts the first bytes of a file under a name below the address, and makes sure of them; their CRC-32C."""
        path = f"{self._root}/{name}"
        self._make_room(path)
        crc, position = 0, 0
        with self._files.open_output_stream(path) as out:
            while position < size_bytes:
                piece = file.read(min(PIECE_BYTES, size_bytes - position), position)
                if not piece:
                    raise StorageFault(f"{name} was cut to {position} bytes while it was sent")
                out.write(piece)
                crc = crc32c.crc32c(piece, crc)
                position += len(piece)
        if self._size_bytes(path) != size_bytes:
            raise StorageFault(f"{self.shown}/{name} was sent, and is not there with its {size_bytes} bytes")
        if self._reads_back and self.checksum(name) != crc:
            raise StorageFault(f"{self.shown}/{name} was sent, and is read back as something else")
        return crc

    def checksum(self, name: str) -> int:
        """The CRC-32C of an object."""
        crc = 0
        with self._files.open_input_stream(f"{self._root}/{name}") as file:
            while piece := file.read(PIECE_BYTES):
                crc = crc32c.crc32c(piece, crc)
        return crc

    def publish(self, topic: str, manifest: bytes) -> None:
        """Puts the manifest in its place, whole or not at all."""
        path = f"{self._root}/{topic}{MANIFEST}"
        self._make_room(path)
        # An object is there once it is whole; a file of a file system is not.
        aside = f"{path}.tmp" if self._files.type_name in _KEEPS_DIRECTORIES else path
        with self._files.open_output_stream(aside) as out:
            out.write(manifest)
        if aside != path:
            self._files.move(aside, path)

    def remove(self, names: Iterable[str]) -> None:
        """Removes segments, and their indexes; those that are gone already too."""
        for name in names:
            for suffix in (LOG, OFFSET_INDEX, TIME_INDEX):
                path = f"{self._root}/{name.removesuffix(LOG)}{suffix}"
                if self._size_bytes(path) is not None:
                    self._files.delete_file(path)

    def _size_bytes(self, path: str) -> int | None:
        from pyarrow import fs

        found = self._files.get_file_info(path)
        return int(found.size) if found.type == fs.FileType.File else None

    def _make_room(self, path: str) -> None:
        if self._files.type_name in _KEEPS_DIRECTORIES:
            self._files.create_dir(os.path.dirname(path), recursive=True)


def _before(told: Mapping[str, Any], superseded: Sequence[str]) -> _Before:
    segments = tuple(ExportedSegment(**each) for each in told["segments"])
    return _Before(
        int(told["log_start_offset"]),
        int(told["end_offset"]),
        int(told["leader_epoch"]),
        segments,
        tuple((int(each[0]), int(each[1]), int(each[2]), int(each[3])) for each in told["aborted"]),
        frozenset([*superseded, *(each.file for each in segments)]),
    )


def _untouched(partition: int, before: _Before) -> tuple[ExportedPartition, int, int]:
    """A partition of the export that is in none of the directories now."""
    part = ExportedPartition(
        partition,
        before.log_start_offset,
        before.end_offset,
        before.leader_epoch,
        before.segments,
        before.aborted,
    )
    return part, 0, 0


def _export(
    view: PartitionView, before: _Before | None, store: _Store, *, tell: Callable[[str], object]
) -> tuple[ExportedPartition, int, int]:
    """A partition's part of the manifest, and how many segments and bytes were sent."""
    stable = end_offset(view, Isolation.READ_COMMITTED)
    there = store.sizes(view.name)
    new, new_bytes = 0, 0
    for _ in range(_TRIES):
        closed = [each for each in segments(view.directory) if 0 < each.next_base <= stable]
        kept, wanted = _joined(view, before, closed, there)
        found = list(kept)
        try:
            for each in wanted:
                segment, was_sent = _sent(view, each, before, there, store)
                found.append(segment)
                if was_sent:
                    tell(f"{view.name} {each.base_offset}")
                    new += 1
                    new_bytes += each.size_bytes
            return _described(view, before, kept, found, wanted), new, new_bytes
        except FileNotFoundError:
            continue  # compaction or retention has been there; again
    raise NotReadable(f"{view.name}: its segments change faster than they can be exported")


def _joined(
    view: PartitionView, before: _Before | None, closed: Sequence[SegmentFacts], sizes: Mapping[str, int]
) -> tuple[Sequence[ExportedSegment], Sequence[SegmentFacts]]:
    """What is kept of the export, and the segments of the log that follow it.

    Args:
        sizes: of what is in the store.

    Raises:
        DataLost: as `export_objects`; what the manifest names is not there, and cannot be sent again.
    """
    if before is None or not before.segments:
        return (), closed
    end = before.segments[-1].next_base
    if end > max(view.log_end_offset, view.high_watermark):
        raise DataLost(
            f"{view.name}: the export ends at {end}, and the log at {view.log_end_offset}: it was truncated, "
            "or the topic was created again"
        )
    kept = list(takewhile(lambda each: sizes.get(each.file) == each.size_bytes, before.segments))
    if len(kept) == len(before.segments) and (not closed or closed[-1].next_base < end):
        return kept, ()
    first = closed[0].base_offset if closed else end
    if view.is_compacted:
        # Any of it may have been put together anew since.
        kept = [each for each in kept if each.next_base <= first]
        lost = [each for each in before.segments[len(kept) :] if each.next_base <= first]
        if not lost and closed:
            return kept, closed
    borders = {each.base_offset for each in closed} | ({closed[-1].next_base} if closed else set())
    while kept and kept[-1].next_base not in borders:
        kept.pop()
    joint = kept[-1].next_base if kept else before.segments[0].base_offset
    if not closed or first > joint:
        raise DataLost(
            f"{view.name}: of the export offsets up to {joint} can be kept, and the log begins at {first}:"
            " export it to another place"
        )
    return kept, [each for each in closed if each.base_offset >= joint or not kept]


def _sent(
    view: PartitionView,
    segment: SegmentFacts,
    before: _Before | None,
    there: Mapping[str, int],
    store: _Store,
) -> tuple[ExportedSegment, bool]:
    """A segment that is there, whole, and whether it had to be sent.

    Raises:
        FileNotFoundError: its file is another one by now.
    """
    file = LocalFile(segment.path)
    try:
        if file.identity != (segment.device, segment.inode):
            raise FileNotFoundError(segment.path)
        crc: int | None = None
        known = (segment.base_offset, segment.next_base, segment.size_bytes)
        for each in before.segments if before is not None else ():
            same = (each.base_offset, each.next_base, each.size_bytes) == known
            if same and there.get(each.file) == each.size_bytes:
                crc = _checksum(file, segment.size_bytes)
                if crc == each.crc32c:
                    return each, False
        name = segment_file_name(segment.base_offset, LOG)
        place = f"{view.name}/{name}"
        if before is not None and place in before.taken:
            crc = _checksum(file, segment.size_bytes) if crc is None else crc
            place = f"{view.name}/{crc:08x}/{name}"
        described = _segment(segment, place)
        if there.get(place) == segment.size_bytes:
            # Somebody was killed before this could be said in a manifest.
            crc = _checksum(file, segment.size_bytes) if crc is None else crc
            if store.checksum(place) == crc:
                _send_indexes(segment, place, store)
                return replace(described, crc32c=crc), False
        _send_indexes(segment, place, store)
        return replace(described, crc32c=store.send(place, file, segment.size_bytes)), True
    finally:
        file.close()


def _segment(segment: SegmentFacts, place: str) -> ExportedSegment:
    suffix = DELETED if segment.is_deleted else ""
    times = time_entries(os.path.dirname(segment.path), segment.base_offset, suffix=suffix).timestamps_ms
    return ExportedSegment(
        segment.base_offset,
        segment.next_base,
        place,
        segment.size_bytes,
        int(times[-1]) if len(times) else -1,
        0,
    )


def _send_indexes(segment: SegmentFacts, place: str, store: _Store) -> None:
    """They are hints; what is missing is done without."""
    for suffix in (OFFSET_INDEX, TIME_INDEX):
        try:
            index = LocalFile(_beside(segment.path, suffix))
        except FileNotFoundError:
            continue
        try:
            store.send(place.removesuffix(LOG) + suffix, index, index.size_bytes())
        finally:
            index.close()


def _beside(path: str, suffix: str) -> str:
    stem, mark = (path.removesuffix(DELETED), DELETED) if path.endswith(DELETED) else (path, "")
    return stem.removesuffix(LOG) + suffix + mark


def _checksum(file: LocalFile, size_bytes: int) -> int:
    crc, position = 0, 0
    while position < size_bytes:
        piece = file.read(min(PIECE_BYTES, size_bytes - position), position)
        if not piece:
            break
        crc = crc32c.crc32c(piece, crc)
        position += len(piece)
    return crc


def _described(
    view: PartitionView,
    before: _Before | None,
    kept: Sequence[ExportedSegment],
    found: Sequence[ExportedSegment],
    wanted: Sequence[SegmentFacts],
) -> ExportedPartition:
    if not found:
        return ExportedPartition(view.partition, view.log_start_offset, view.log_start_offset, -1, (), ())
    first, end = found[0].base_offset, found[-1].next_base
    start = max(first, view.log_start_offset)
    aborted: set[tuple[int, int, int, int]] = set()
    if wanted:
        looked = aborted_transactions(view.directory, start=wanted[0].base_offset, end=end)
        aborted = {(entry[0], entry[1], entry[2], entry[3]) for entry in looked}
    if before is not None:
        aborted |= {entry for entry in before.aborted if entry[2] >= first}
        if kept:
            start = before.log_start_offset
    return ExportedPartition(
        view.partition,
        min(start, end),
        end,
        view.leader_epoch,
        tuple(found),
        tuple(sorted(aborted, key=lambda entry: entry[2:])),
    )
