"""One slot's directory of a partition: its segment files, read by the contract in docs/reading-off-disk.md."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from appliance.protocol.records import batch as b
from appliance_client.errors import CorruptRecordsError
from appliance_client.local_state import State, StateReader
from appliance_client.spare_memory import SpareMemory, detached

NOTHING: Final = memoryview(b"")
_INDEX_ENTRY: Final = struct.Struct(">ii")
_ABORTED: Final = struct.Struct(">hqqqq")
DELTA: Final = struct.Struct(">i")
_ATTRIBUTES: Final = struct.Struct(">h")
_DIGITS: Final = 20
_BATCH_BYTES_MAX: Final = 1 << 28
_CLOCK_TICK_NS: Final = 50_000_000
_STEPS_MAX: Final = 1_000


class Listing(NamedTuple):
    living: list[int]
    deleted: list[int]
    aborts: dict[int, str]
    """Base offset of a segment that has an index of aborted transactions, and the index's name."""
    mark: tuple[int, int] | None


class Segment:
    """An open `.log` file and the place that reading has come to."""

    __slots__ = ("_memory", "at", "base", "descriptor", "inode", "next_offset")

    def __init__(self, descriptor: int, base: int, at: int, next_offset: int, memory: SpareMemory) -> None:
        self._memory = memory
        self.descriptor = descriptor
        self.inode = os.fstat(descriptor).st_ino
        self.base = base
        self.at = at
        self.next_offset = next_offset

    def batches(self, offset: int, end: int, bytes_max: int) -> tuple[memoryview, int, bool]:
        """Whole batches with records in [offset, end); the attributes of all of them together; whether the bytes ran
        out before a batch that lies beyond the end."""
        size_bytes = bytes_max
        while True:
            content = self._memory.take(size_bytes)
            size = os.preadv(self.descriptor, [content], self.at)
            position, begin, attributes, is_beyond = 0, 0, 0, False
            needed_bytes, reached = b.HEADER_BYTES, self.next_offset
            while size - position >= b.HEADER_BYTES:
                if reached >= end:  # what follows may be in the middle of being written
                    is_beyond = True
                    break
                base, length, _, magic = b.PLACEMENT.unpack_from(content, position)
                if magic != b.MAGIC_V2 and not any(content[position : position + b.PLACEMENT_BYTES]):
                    needed_bytes = 0
                    break
                needed_bytes = length + b.LOG_OVERHEAD
                last = base + DELTA.unpack_from(content, position + b.LAST_OFFSET_DELTA)[0]
                if (
                    magic != b.MAGIC_V2
                    or not b.HEADER_BYTES <= needed_bytes <= _BATCH_BYTES_MAX
                    or base < reached
                    or last < base
                ):
                    raise CorruptRecordsError(
                        f"segment {self.base}: no batch at {self.at + position}, after offset {reached}"
                    )
                if last >= end:
                    is_beyond = True
                    break
                if position + needed_bytes > size:
                    break
                position += needed_bytes
                reached = last + 1
                if last < offset:
                    begin = position
                else:
                    attributes |= _ATTRIBUTES.unpack_from(content, position - needed_bytes + b.ATTRIBUTES)[0]
                needed_bytes = b.HEADER_BYTES
            if position > 0:
                self.at += position
                self.next_offset = reached
                if begin == position:
                    continue  # all of it lies before the offset
            elif needed_bytes > size == size_bytes and not is_beyond:
                size_bytes = needed_bytes  # one batch is larger than was asked for
                continue
            return detached(content[begin:position], size_bytes), attributes, not is_beyond

    def close(self) -> None:
        os.close(self.descriptor)


class Moved(Exception):
    """The files are others than they were: look again."""


class Copy:
    """One slot's directory of a partition."""

    def __init__(self, directory: str, memory: SpareMemory) -> None:
        self.directory = directory
        self._memory = memory
        self.state_file = StateReader(directory)
        self._listed: Listing | None = None
        self.segment: Segment | None = None
        self.says: tuple[UUID, int, int] | None = None
        """Topic id, incarnation and generation when the segment was opened."""

    def state(self) -> State | None:
        """As `StateReader.read`."""
        return self.state_file.read()

    def listing(self) -> Listing:
        """The segments by name. Raises Moved in the middle of a swap."""
        before: Listing | None = None
        for _ in range(3):
            status = os.stat(self.directory)
            mark = (status.st_ino, status.st_mtime_ns)
            if self._listed is not None and self._listed.mark == mark:
                return self._listed
            lasts = abs(time.time_ns() - status.st_mtime_ns) > _CLOCK_TICK_NS
            found = _list(self.directory, mark if lasts else None)
            if found is None:
                raise Moved
            after = os.stat(self.directory)
            if (lasts and (after.st_ino, after.st_mtime_ns) == mark) or (before and found[:3] == before[:3]):
                self._listed = found
                return found
            before = found
        raise Moved

    def read(self, offset: int, end: int, bytes_max: int, state: State) -> tuple[memoryview, int]:
        """Batches with records of [offset, end), and their attributes; none where it must be looked at again.

        Raises:
            Moved: look again. FileNotFoundError: a file has gone.
            CorruptRecordsError: the bytes are no log.
        """
        says = (state.topic_id, state.incarnation, state.generation)
        segment = self.segment
        if segment is None or says != self.says or segment.next_offset != offset:
            self.drop()
            self.segment = self._find(offset)
            self.says = says
        for _ in range(_STEPS_MAX):
            segment = self.segment
            assert segment is not None
            found, attributes, ran_out = segment.batches(offset, end, bytes_max)
            if found or not ran_out or not self._advance(segment, offset):
                return found, attributes
        return NOTHING, 0

    def epoch_before(self, offset: int) -> tuple[int, bool]:
        """The leader epoch of the last batch that begins before `offset`, and whether it reaches up to there; -1: none.

        Raises:
            Moved: look again. FileNotFoundError: a file has gone.
        """
        segment = self._find(offset - 1)
        try:
            at, found, is_covered = segment.at, -1, False
            while len(header := os.pread(segment.descriptor, b.HEADER_BYTES, at)) == b.HEADER_BYTES:
                base, length, epoch, magic = b.PLACEMENT.unpack_from(header)
                if magic != b.MAGIC_V2 or base >= offset or length < b.HEADER_BYTES - b.LOG_OVERHEAD:
                    break
                found = epoch
                is_covered = base + DELTA.unpack_from(header, b.LAST_OFFSET_DELTA)[0] >= offset - 1
                at += length + b.LOG_OVERHEAD
            return found, is_covered
        finally:
            segment.close()

    def _find(self, offset: int) -> Segment:
        """The segment that has the offset, at a batch that does not begin after it."""
        listed = self.listing()
        base, suffix = max((each for each in listed.living if each <= offset), default=-1), ".log"
        if base < 0:
            # Deleted ones that still lie there count as long as nothing has taken their place.
            first = listed.living[0] if listed.living else 1 << 63
            base = max((each for each in listed.deleted if each <= offset < first), default=-1)
            suffix = ".log.deleted"
            following = min((each for each in listed.deleted if each > base), default=first)
            if base < 0 or following > first:
                raise Moved
        descriptor = os.open(f"{self.directory}/{base:020d}{suffix}", os.O_RDONLY | os.O_CLOEXEC)
        segment = Segment(descriptor, base, 0, base, self._memory)
        segment.at = self._position(segment, offset)
        return segment

    def _position(self, segment: Segment, offset: int) -> int:
        """Where a batch begins that is not after the offset, as the index says; an index is a hint."""
        try:
            index = os.open(f"{self.directory}/{segment.base:020d}.index", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            low, high = 0, os.fstat(index).st_size // _INDEX_ENTRY.size
            relative, position = 0, 0
            while low < high:
                middle = (low + high) // 2
                entry = os.pread(index, _INDEX_ENTRY.size, middle * _INDEX_ENTRY.size)
                if len(entry) < _INDEX_ENTRY.size:
                    high = middle
                    continue
                found, at = _INDEX_ENTRY.unpack(entry)
                # An active segment's index ends with zeros.
                if segment.base + found > offset or (found == 0 and middle > 0):
                    high = middle
                else:
                    relative, position, low = found, at, middle + 1
        finally:
            os.close(index)
        header = os.pread(segment.descriptor, b.PLACEMENT_BYTES, position) if position > 0 else b""
        if len(header) == b.PLACEMENT_BYTES:
            base, _, _, magic = b.PLACEMENT.unpack(header)
            if magic == b.MAGIC_V2 and segment.base <= base <= segment.base + relative:
                segment.next_offset = base
                return position
        return 0

    def _advance(self, segment: Segment, offset: int) -> bool:
        """Nothing more lies in the segment now: go to where the log goes on; False where it ends here, for now."""
        listed = self.listing()
        wanted = max(offset, segment.next_offset)
        home = max((each for each in listed.living if each <= wanted), default=-1)
        following = home
        if home < segment.base or (home == segment.base and not self._holds(segment)):
            # Compaction has put another file there, or retention has been there.
            found = self._find(wanted)
            is_another = found.inode != segment.inode
            segment.close()
            self.segment = found
            return is_another
        if home == segment.base:
            # A hole is proved by the end of a file that is closed: all that it had was read.
            following = min((each for each in listed.living if each > segment.base), default=-1)
            if following < 0 or os.fstat(segment.descriptor).st_size > segment.at:
                return False
        opened = os.open(f"{self.directory}/{following:020d}.log", os.O_RDONLY | os.O_CLOEXEC)
        segment.close()
        self.segment = Segment(opened, following, 0, following, self._memory)
        return True

    def _holds(self, segment: Segment) -> bool:
        """Whether the segment's name, or its name as a deleted one, still means this file."""
        for suffix in (".log", ".log.deleted"):
            try:
                if os.stat(f"{self.directory}/{segment.base:020d}{suffix}").st_ino == segment.inode:
                    return True
            except FileNotFoundError:
                continue
        return False

    def aborted(self, start: int, end: int) -> list[tuple[int, int]]:
        """Aborted transactions with records in [start, end).

        Raises:
            Moved: compaction has been at the files, so that the indexes may be of others than were read.
        """
        listed, found = self.listing(), []
        bases = [*listed.deleted, *listed.living] if listed.deleted else listed.living
        nexts = [*bases[1:], 1 << 63]
        for base, following in zip(bases, nexts, strict=True):
            name = listed.aborts.get(base)
            if name is None or following <= start:
                continue
            content = Path(self.directory, name).read_bytes()
            whole = len(content) - len(content) % _ABORTED.size
            for _, producer_id, first, last, last_stable in _ABORTED.iter_unpack(content[:whole]):
                if first < end and last >= start:
                    found.append((producer_id, first))
                if last_stable >= end:
                    break
            else:
                continue
            break
        self.listing()
        if self.segment is not None and not self._holds(self.segment):
            raise Moved
        return found

    def drop(self) -> None:
        """Let go of the segment."""
        self.says = None
        if self.segment is not None:
            self.segment.close()
            self.segment = None

    def close(self) -> None:
        self.drop()
        self.state_file.close()

    def __del__(self) -> None:
        self.close()


def _list(directory: str, mark: tuple[int, int] | None) -> Listing | None:
    """One look at the names; None in the middle of a swap."""
    living: list[int] = []
    deleted: list[int] = []
    aborts: dict[int, str] = {}
    for name in os.listdir(directory):
        digits, suffix = name[:_DIGITS], name[_DIGITS:]
        if name.endswith(".swap"):
            return None
        if not (len(digits) == _DIGITS and digits.isdigit()):
            continue
        if suffix == ".log":
            living.append(int(digits))
        elif suffix == ".log.deleted":
            deleted.append(int(digits))
        elif suffix == ".txnindex":
            aborts[int(digits)] = name
        elif suffix == ".txnindex.deleted":
            aborts.setdefault(int(digits), name)
    living.sort()
    first = living[0] if living else 1 << 63
    return Listing(living, sorted(each for each in deleted if each < first), aborts, mark)
