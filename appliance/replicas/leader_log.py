"""Another slot's log of one partition, read off its segments: whole batches below a bound, and nothing else.

The leader's worker says in the partition table how far its log reaches; below that, bytes of its `.log` files never
change. What is behind it in the last file (room taken ahead, a batch in the making) is not looked at. A file stays
open until it has nothing more, so a name that goes meanwhile, by retention or compaction, does no harm; a name is
looked up only while the row's files version stands still.

The place of an offset is found in the leader's `.index` and confirmed by the batches' headers: the index is being
written by somebody else, and its last entry may be half there.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import Struct
from typing import Final

from appliance.cluster import TopicPartition
from appliance.errors import DamagedLog, StorageFault
from appliance.log.checkpoint import is_directory, read_small
from appliance.log.faults import storage_faults
from appliance.log.file_names import (
    LOG,
    OFFSET_INDEX,
    parse_segment_file_name,
    partition_directory_name,
    segment_file_name,
)
from appliance.protocol.records.batch import (
    H_BASE_OFFSET,
    H_BATCH_LENGTH,
    H_LAST_OFFSET_DELTA,
    H_MAGIC,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC_V2,
)

BUFFER_BYTES: Final = 1 << 20
BATCHES_MAX: Final = 512
"""Of one read: a megabyte of the smallest batches takes half a second to append."""
HOLE_LOOKS: Final = 200
"""A second, as a fetcher looks (`fetcher.AGAIN_MS`): a log that was compacted once is still copied."""
_SCAN_BYTES: Final = 64 * 1024
_ENTRY: Final = Struct(">II")


class ReadBuffer:
    """Where batches are read into; one for all partitions, since one is read and appended at a time."""

    __slots__ = ("view",)

    def __init__(self) -> None:
        self.view = memoryview(bytearray(BUFFER_BYTES))

    def grow(self, length_bytes: int) -> None:
        """Room for one batch that is larger than the rest; `shrink` follows."""
        self.view = memoryview(bytearray(length_bytes))

    def shrink(self) -> None:
        if len(self.view) > BUFFER_BYTES:
            self.view = memoryview(bytearray(BUFFER_BYTES))


class LeaderLog:
    """A reader's place in the leader's log.

    Args:
        directories: the log directories of the leader's slot.
        files_version: reads the row's word.
    """

    __slots__ = (
        "_descriptor",
        "_directories",
        "_files_version",
        "_hole",
        "_hole_looks",
        "_name",
        "_position",
        "base_offset",
    )

    def __init__(
        self, directories: Sequence[Path], partition: TopicPartition, *, files_version: Callable[[], int]
    ) -> None:
        self._directories = tuple(directories)
        self._name = partition_directory_name(partition)
        self._files_version = files_version
        self._descriptor = -1
        self._position = 0
        self._hole = (-1, -1)
        self._hole_looks = 0
        self.base_offset = -1

    def directory(self) -> str | None:
        """Where the leader has the partition now; None where it is not found.

        A text, and all that is made of it: a takeover looks into a thousand, and a path is dearer than the look.

        Raises:
            StorageFault: it cannot be told.
        """
        fault: StorageFault | None = None
        for each in self._directories:
            path = f"{each}/{self._name}"
            try:
                with storage_faults(path):
                    if is_directory(path):
                        return path
            except StorageFault as found:
                fault = found  # of that disk: it may be on another
        if fault is not None:
            raise fault
        return None

    def first_base_offset(self, offset: int) -> int | None:
        """Where the segment begins that `offset` lies in, or the first one after it; None where there is none.

        Raises:
            StorageFault: the directory cannot be read.
        """
        directory = self.directory()
        bases = [] if directory is None else _bases(directory)
        return bases[max(bisect_right(bases, offset) - 1, 0)] if bases else None

    def read(
        self, offset: int, bound: int, buffer: ReadBuffer, *, is_compacted: bool = False
    ) -> memoryview | None:
        """Whole batches from `offset` on that end below `bound`, all of the segment at `base_offset`, not too many.

        None where the leader's files do not show them now: they are being renamed, or one of them is missing. Valid
        until the next call.

        Raises:
            DamagedLog: below `bound` there is no batch where one should be.
            StorageFault: they cannot be read.
        """
        for _ in range(2):
            if self._descriptor < 0 and not self._seek(offset, is_compacted=is_compacted):
                return None
            length_bytes = self._read(offset, bound, buffer)
            if length_bytes:
                self._position += length_bytes
                return buffer.view[:length_bytes]
            self.close()
        return None

    def _read(self, offset: int, bound: int, buffer: ReadBuffer) -> int:
        """How many bytes of whole batches lie in the buffer now."""
        while True:
            with storage_faults(self._directories[0]):
                have = os.preadv(self._descriptor, [buffer.view], self._position)
            view = buffer.view
            at = count = 0
            while have - at >= HEADER_BYTES and count < BATCHES_MAX:
                count += 1
                header = HEADER.unpack_from(view, at)
                size_bytes = header[H_BATCH_LENGTH] + LOG_OVERHEAD
                last_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
                if (
                    header[H_MAGIC] != MAGIC_V2
                    or size_bytes < HEADER_BYTES
                    or header[H_BASE_OFFSET] < offset
                    or last_offset >= bound
                    or (
                        header[H_BASE_OFFSET] > offset
                        and not self._goes_on_behind(self._position + at, header)
                    )
                ):
                    if at == 0 and any(view[:HEADER_BYTES]):
                        self._refuse(offset, self._position)
                    return at
                if at + size_bytes > have:
                    if at == 0 and self._position + size_bytes > os.fstat(self._descriptor).st_size:
                        self._refuse(offset, self._position)
                    if at == 0 and have == len(view):
                        buffer.grow(size_bytes)
                        break
                    return at
                offset = last_offset + 1
                at += size_bytes
            else:
                return at

    def _goes_on_behind(self, position: int, header: tuple[int, ...]) -> bool:
        """Whether the batch behind one that leaves offsets out continues it. Compaction leaves out some; but the
        checksum does not cover the base offset, and a damaged one leads nowhere."""
        behind = os.pread(self._descriptor, HEADER_BYTES, position + header[H_BATCH_LENGTH] + LOG_OVERHEAD)
        if len(behind) < HEADER_BYTES or not any(behind):
            return True
        following = HEADER.unpack(behind)
        return bool(
            following[3] == MAGIC_V2 and following[0] > header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
        )

    def _refuse(self, offset: int, position: int) -> None:
        """Raises DamagedLog."""
        raise DamagedLog(
            f"{self._name} has no batch that follows offset {offset - 1} at position {position} of its segment"
        )

    def _seek(self, offset: int, *, is_compacted: bool) -> bool:
        """Goes to the first batch that ends with `offset` or later; whether it was found.

        Not where every file that is there begins after `offset`: a leader whose log begins later says so, and one whose
        files somebody is removing must not be taken for one that has no more than what is left of them.
        """
        version = self._files_version()
        directory = self.directory()
        if directory is None or version & 1:
            return False
        bases = _bases(directory)
        if not bases or offset < bases[0]:
            return False
        for base in bases[bisect_right(bases, offset) - 1 :]:
            with storage_faults(directory):
                try:
                    self._descriptor = os.open(
                        f"{directory}/{segment_file_name(base, LOG)}", os.O_RDONLY | os.O_CLOEXEC
                    )
                except FileNotFoundError:
                    return False
                start = _index_lookup(f"{directory}/{segment_file_name(base, OFFSET_INDEX)}", base, offset)
                position = self._position_of(offset, start)
                if (position is None or position < 0) and start:
                    position = self._position_of(offset, 0)
                if position is not None and position < 0 and self._files_version() == version:
                    self.close()
                    self._refuse(offset, -position - 1)
            if position is not None and self._files_version() == version:
                if base > offset and not is_compacted and not self._lasts(offset, base):
                    self.close()
                    return False
                self._position, self.base_offset = position, base
                return True
            self.close()
        return False

    def _lasts(self, offset: int, base: int) -> bool:
        """Whether the hole between `offset` and the file at `base` has been there for long enough to be one."""
        if self._hole != (offset, base):
            self._hole, self._hole_looks = (offset, base), 0
        self._hole_looks += 1
        return self._hole_looks >= HOLE_LOOKS

    def _position_of(self, offset: int, position: int) -> int | None:
        """Where the first batch lies that ends with `offset` or later; None where there is none, and where there is
        no batch at position p, -p - 1."""
        while chunk := os.pread(self._descriptor, _SCAN_BYTES, position):
            at = 0
            while len(chunk) - at >= HEADER_BYTES:
                header = HEADER.unpack_from(chunk, at)
                size_bytes = header[H_BATCH_LENGTH] + LOG_OVERHEAD
                if header[H_MAGIC] != MAGIC_V2 or size_bytes < HEADER_BYTES:
                    is_room = not any(chunk[at : at + HEADER_BYTES])
                    return None if is_room else -position - at - 1
                if header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] >= offset:
                    return position + at
                at += size_bytes
            if at == 0:
                return None
            position += at
        return None

    def close(self) -> None:
        """Lets go of the file; the next `read` looks for its place anew."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _bases(directory: str) -> list[int]:
    with storage_faults(directory):
        try:
            names = os.listdir(directory)
        except FileNotFoundError:
            return []
    found = (parse_segment_file_name(name) for name in names if name.endswith(LOG))
    return sorted(each[0] for each in found if each is not None)


def _index_lookup(path: str, base_offset: int, offset: int) -> int:
    """A position at or before the batch of `offset`. Entries rise, and zeros may follow them."""
    data = read_small(path)
    if not data:
        return 0
    low, high = 0, len(data) // _ENTRY.size
    while low < high:
        middle = (low + high) // 2
        relative, position = _ENTRY.unpack_from(data, middle * _ENTRY.size)
        if position and base_offset + relative <= offset:
            low = middle + 1
        else:
            high = middle
    return int(_ENTRY.unpack_from(data, (low - 1) * _ENTRY.size)[1]) if low else 0
