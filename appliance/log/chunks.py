"""Reading the batches of a segment in chunks, for those who read all of it (the cleaner, services), or their headers.

Only reads: the file is opened for reading, and let go when the reader is done. Bytes are believed no further than
their checksum; what is no batch, or fails its checksum, is a corrupt file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from appliance.errors import CorruptFile, HostFault
from appliance.log.faults import storage_faults
from appliance.log.segment_file import Header
from appliance.protocol.records.batch import (
    ATTRIBUTES,
    CONTROL,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_BATCH_LENGTH,
    H_CRC,
    H_LAST_OFFSET_DELTA,
    H_MAGIC,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC_V2,
)
from appliance.protocol.records.crc32c import checksum

CHUNK_BYTES: Final = 1 << 20
HEADERS_BYTES: Final = 16 << 10
"""What is read for the headers of batches that take at most SMALL_BYTES each. Above that, a read of one header is less
work than a copy of all bytes in between."""
SMALL_BYTES: Final = 4 << 10


class SegmentGone(HostFault):
    """A file that was listed is there no more: the log's owner has deleted, cut or replaced the segment."""


class Batch(NamedTuple):
    """A batch in a chunk: chunk.data[position:end]."""

    position: int
    end: int
    header: Header

    @property
    def is_control(self) -> bool:
        return bool(self.header[H_ATTRIBUTES] & CONTROL)

    @property
    def last_offset(self) -> int:
        return self.header[H_BASE_OFFSET] + self.header[H_LAST_OFFSET_DELTA]


class Chunk(NamedTuple):
    """Whole batches that lie one after another in `data`."""

    data: bytes
    batches: list[Batch]


def read_chunks(
    path: Path, position: int, end: int, *, chunk_bytes: int = CHUNK_BYTES, may_be_cut: bool = False
) -> Iterator[Chunk]:
    """The batches in [position, end) of a segment's file. Zeros end it; so does a batch that reaches over `end`, where
    the stretch `may_be_cut`, as an answer to a fetch may be.

    Raises:
        CorruptFile: bytes that are no batch, or fail their checksum.
        SegmentGone, StorageFault: the file cannot be read.
    """
    descriptor = open_to_read(path)
    try:
        while end - position >= HEADER_BYTES:
            with storage_faults(path):
                data = os.pread(descriptor, min(chunk_bytes, end - position), position)
                needed = _first_batch_bytes(data)
                if len(data) < needed <= end - position:
                    data = os.pread(descriptor, needed, position)
            batches = list(_batches(data, path, position))
            if not batches:
                if any(data) and not (may_be_cut and needed > end - position):
                    raise CorruptFile(f"{path} holds no whole batch at position {position}")
                return
            yield Chunk(data, batches)
            position += batches[-1].end
    finally:
        os.close(descriptor)


def read_headers(path: Path, position: int, end: int, *, count_max: int) -> list[Header]:
    """Return the headers of the batches in [position, end) of a segment's file, at most `count_max`.

    Zeros end them, and so does a batch that reaches over `end`. Checksums cover the records, too, and are not checked.
    A header is read by itself, or where batches are small, with those of its neighbours.

    Raises:
        CorruptFile: bytes that are no header.
        SegmentGone, StorageFault: the file cannot be read.
    """
    found: list[Header] = []
    data, data_at, size_bytes = b"", position, HEADERS_BYTES
    descriptor = open_to_read(path)
    try:
        with storage_faults(path):
            while end - position >= HEADER_BYTES and len(found) < count_max:
                at = position - data_at
                if at + HEADER_BYTES > len(data):
                    wanted = HEADERS_BYTES if size_bytes <= SMALL_BYTES else HEADER_BYTES
                    data, data_at, at = os.pread(descriptor, wanted, position), position, 0
                    if len(data) < HEADER_BYTES:
                        break
                header: Header = HEADER.unpack_from(data, at)
                length = header[H_BATCH_LENGTH]
                size_bytes = length + LOG_OVERHEAD
                if length == 0 and header[H_BASE_OFFSET] == 0:
                    break
                if header[H_MAGIC] != MAGIC_V2 or size_bytes < HEADER_BYTES:
                    raise CorruptFile(f"{path} holds no batch at position {position}")
                if size_bytes > end - position:
                    break
                found.append(header)
                position += size_bytes
    finally:
        os.close(descriptor)
    return found


def open_to_read(path: Path) -> int:
    """A descriptor of a segment's file.

    Raises:
        SegmentGone, StorageFault: it cannot be opened.
    """
    with storage_faults(path):
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SegmentGone(f"{path} is gone") from None


def _first_batch_bytes(data: bytes) -> int:
    length: int = HEADER.unpack_from(data)[1] if len(data) >= HEADER_BYTES else 0
    return length + LOG_OVERHEAD


def _batches(data: bytes, path: Path, position: int) -> Iterator[Batch]:
    view = memoryview(data)
    at, size = 0, len(data)
    while size - at >= HEADER_BYTES:
        header: Header = HEADER.unpack_from(data, at)
        end = at + header[H_BATCH_LENGTH] + LOG_OVERHEAD
        if header[H_BATCH_LENGTH] == 0 and header[H_BASE_OFFSET] == 0:
            return
        if header[H_MAGIC] != MAGIC_V2 or end - at < HEADER_BYTES:
            raise CorruptFile(f"{path} holds no batch at position {position + at}")
        if end > size:
            return
        if checksum(view[at + ATTRIBUTES : end]) != header[H_CRC]:
            raise CorruptFile(f"{path}: the batch at position {position + at} fails its checksum")
        yield Batch(at, end, header)
        at = end
