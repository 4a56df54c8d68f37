"""Compares the replicas of a partition as they lie on the disk: batch by batch, byte for byte.

Nothing is mapped, written, locked or asked of a broker. What can be compared is what all replicas have: from the
highest first batch to the lowest last one.

    slot 0   |....[=================]         [ ] compared
    slot 1        [=================]....|    |.. retention took it elsewhere; not copied yet
    slot 2   |....[=================]..|

Compaction is each slot's own, so it begins above what any of them has compacted (cleaner-offset-checkpoint).
Segments need not begin at the same offsets; batches do. A file of a running appliance ends where whole batches end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.cluster import TopicPartition
from appliance.log.checkpoint import read_offsets
from appliance.log.file_names import (
    CLEANER_OFFSETS,
    LOG,
    parse_partition_directory_name,
    parse_segment_file_name,
)
from appliance.protocol.records.batch import HEADER_BYTES, crc_holds, read_header
from appliance.protocol.records.errors import BatchFault

LOOKS: Final = 3
PAUSE_S: Final = 0.1
"""A partition that is written to is read anew: retention takes a segment away, a batch is half written, a follower
cuts what it will copy again."""


@dataclass(frozen=True, slots=True)
class Replica:
    """Where a slot keeps its copy; `compacted_below` is the offset up to which it was compacted."""

    slot: int
    directory: Path
    compacted_below: int = 0


@dataclass(frozen=True, slots=True)
class Extent:
    """What one replica has: offsets from `start` to, not including, `end`."""

    slot: int
    directory: Path
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """`difference` is a sentence, or None where the replicas are alike from offset `start` to `end`."""

    partition: TopicPartition
    extents: tuple[Extent, ...]
    start: int
    end: int
    batches: int
    size_bytes: int
    difference: str | None

    @property
    def is_complete(self) -> bool:
        """Whether every replica ends where the others do."""
        return len({extent.end for extent in self.extents}) <= 1

    @property
    def verdict(self) -> str:
        if self.difference is not None:
            return "differs"
        return "alike" if self.is_complete else "behind"


@dataclass(frozen=True, slots=True)
class _Batch:
    base_offset: int
    next_offset: int
    data: bytes


def replicas_under(directories: Mapping[int, Sequence[Path]]) -> dict[TopicPartition, list[Replica]]:
    """Every partition that lies in the log directories of a slot (slot → directories), replicas by slot."""
    found: dict[TopicPartition, list[Replica]] = {}
    for slot, paths in sorted(directories.items()):
        for path in paths:
            compacted: dict[TopicPartition, int] = {}
            with suppress(FileNotFoundError):
                compacted = read_offsets(path / CLEANER_OFFSETS)
            if not path.is_dir():
                continue
            for entry in sorted(path.iterdir()):
                partition = parse_partition_directory_name(entry.name)
                if partition is not None and entry.is_dir():
                    replica = Replica(slot, entry, compacted.get(partition, 0))
                    found.setdefault(partition, []).append(replica)
    return dict(sorted(found.items(), key=lambda item: (item[0].topic, item[0].partition)))


def compare(partition: TopicPartition, replicas: Sequence[Replica]) -> Comparison:
    """Reads all replicas side by side. Running time: one pass over each.

    Raises:
        OSError: a file cannot be read.
    """
    for _ in range(LOOKS - 1):
        with suppress(FileNotFoundError):
            comparison = _compare(partition, replicas)
            if comparison.difference is None:
                return comparison
        time.sleep(PAUSE_S)
    return _compare(partition, replicas)


def _compare(partition: TopicPartition, replicas: Sequence[Replica]) -> Comparison:
    readers = [_Reader(replica) for replica in replicas]
    start = max(max(reader.start, reader.replica.compacted_below) for reader in readers)
    for reader in readers:
        reader.skip_to(start)
    batches = size_bytes = 0
    end = start
    difference: str | None = None
    while all(reader.current is not None for reader in readers):
        first, *others = readers
        mine = first.current
        assert mine is not None
        difference = _fault(first, mine)
        for other in others:
            theirs = other.current
            assert theirs is not None
            difference = difference or _difference(first, mine, other=other, theirs=theirs)
        if difference is not None:
            break
        batches += 1
        size_bytes += len(mine.data)
        end = mine.next_offset
        for reader in readers:
            reader.step()
    extents = tuple(
        Extent(reader.replica.slot, reader.replica.directory, reader.start, reader.drain())
        for reader in readers
    )
    return Comparison(partition, extents, start, end, batches, size_bytes, difference)


def _fault(reader: _Reader, batch: _Batch) -> str | None:
    if crc_holds(memoryview(batch.data)):
        return None
    return f"the batch at offset {batch.base_offset} of slot {reader.replica.slot} has a wrong checksum"


def _difference(first: _Reader, mine: _Batch, *, other: _Reader, theirs: _Batch) -> str | None:
    one, two = first.replica.slot, other.replica.slot
    if mine.base_offset != theirs.base_offset:
        return (
            f"after offset {first.before}: slot {one} continues with a batch at {mine.base_offset}, "
            f"slot {two} with one at {theirs.base_offset}"
        )
    if mine.data == theirs.data:
        return None
    if len(mine.data) != len(theirs.data):
        return (
            f"the batch at offset {mine.base_offset} has {len(mine.data)} bytes in slot {one}, "
            f"{len(theirs.data)} in slot {two}"
        )
    at = next(index for index, (a, b) in enumerate(zip(mine.data, theirs.data, strict=True)) if a != b)
    return (
        f"the batch at offset {mine.base_offset} differs between slot {one} and slot {two} at its byte {at}"
    )


class _Reader:
    """The batches of one replica in order; `current` is None behind the last one."""

    __slots__ = ("_batches", "before", "current", "replica", "start")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        segments = _segments(replica.directory)
        self.before = self.start = segments[0][0] if segments else 0
        self._batches = _batches(segments)
        self.current = next(self._batches, None)
        if self.current is not None:
            self.start = max(self.start, self.current.base_offset)

    def skip_to(self, offset: int) -> None:
        while self.current is not None and self.current.base_offset < offset:
            self.step()

    def step(self) -> None:
        if self.current is not None:
            self.before = self.current.next_offset
        self.current = next(self._batches, None)

    def drain(self) -> int:
        """Reads to the end; the offset behind the last batch."""
        while self.current is not None:
            self.step()
        return self.before


def _segments(directory: Path) -> list[tuple[int, Path]]:
    parsed = ((parse_segment_file_name(path.name), path) for path in directory.iterdir())
    return sorted((name[0], path) for name, path in parsed if name is not None and name[1] == LOG)


def _batches(segments: Sequence[tuple[int, Path]]) -> Iterator[_Batch]:
    """All of them; a last one that fails its checksum was being written when somebody died, and is left out."""
    held: _Batch | None = None
    for batch in _parsed(segments):
        if held is not None:
            yield held
        held = batch
    if held is not None and crc_holds(memoryview(held.data)):
        yield held


def _parsed(segments: Sequence[tuple[int, Path]]) -> Iterator[_Batch]:
    for _, path in segments:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            position = 0
            while position + HEADER_BYTES <= size_bytes:
                head = file.read(HEADER_BYTES)
                try:
                    header = read_header(head)
                except BatchFault:
                    break  # space that is allocated ahead, or a torn tail
                if header.size_bytes > size_bytes - position:
                    break
                data = head + file.read(header.size_bytes - HEADER_BYTES)
                yield _Batch(header.base_offset, header.next_offset, data)
                position += header.size_bytes
