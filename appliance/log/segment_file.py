"""The `.log` file of a segment: batches, one after another, appended by one process.

    0            size                 allocated
    ├────────────┼────────────────────┤
    │ batches    │ zeros: room that   │      size       bytes that count; only this process knows it while it writes
    │            │ is ours already    │      allocated  end of the file; trimmed to `size` on seal, release, close, but
                                                     not when it is handed over: the next one goes on in that room
    └────────────┴────────────────────┘

Room is taken from the file system before anything is written into it (`posix_fallocate`, in stretches that
double), so a full disk is an error of the allocation and never of the write, nor a SIGBUS. Into that room

    small batches   are copied through a mapping: no system call. First the bytes after the placement (base
                    offset, length, leader epoch, magic), then the placement: whoever is killed between the two
                    leaves a length of zero behind, which reads as the end of the log;
    large batches   are written with one `pwritev` of placement and rest. A cold mapping costs a page fault for
                    every 4 KiB, which is dearer than the system call (figures: README, "mmap or pwrite").

Both meet in the page cache, so a reader of the file sees them alike, and what is there survives the process.
A file is opened when it is first needed and can be let go at any time (`release`). Its path is put together when it is
asked for: a log may have thousands of segments that nobody reads.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from appliance.errors import CorruptFile
from appliance.log.faults import storage_fault, storage_faults
from appliance.log.file_names import LOG, segment_file_name
from appliance.protocol.records.batch import (
    H_BASE_OFFSET,
    H_BATCH_LENGTH,
    H_MAGIC,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC_V2,
    PLACEMENT_BYTES,
)

SMALL_BATCH_BYTES: Final = 2048
STRETCH_BYTES_MIN: Final = 64 * 1024
STRETCH_BYTES_MAX: Final = 32 * 1024 * 1024
_SCAN_BYTES: Final = 16 * 1024
_PAGE_BYTES: Final = mmap.ALLOCATIONGRANULARITY

Header = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""A batch header as `HEADER` unpacks it."""


class SegmentFile:
    """One `.log` file. `size_bytes` ends the last whole batch."""

    __slots__ = (
        "_descriptor",
        "_directory",
        "_suffix",
        "_window",
        "_window_end",
        "_window_start",
        "allocated_bytes",
        "base_offset",
        "growth_bytes_max",
        "size_bytes",
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        *,
        size_bytes: int = 0,
        growth_bytes_max: int = 1 << 31,
        suffix: str = LOG,
    ) -> None:
        self._directory = directory
        self._suffix = suffix
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.allocated_bytes = size_bytes
        """Where the room ends that is ours."""
        self.growth_bytes_max = growth_bytes_max
        self._descriptor = -1
        self._window: memoryview | None = None
        self._window_start = 0
        self._window_end = 0

    @property
    def path(self) -> Path:
        return self._directory / segment_file_name(self.base_offset, self._suffix)

    # Writing

    def create(self) -> None:
        """Makes the empty file, or empties the one there is, and has it open: the first batch follows.

        Raises:
            DiskFull, StorageFault: it failed.
        """
        self.abandon()
        with storage_faults(self.path):
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self.size_bytes = self.allocated_bytes = 0

    def reserve(self, length_bytes: int) -> None:
        """Takes the room for an append of `length_bytes`; nothing is changed if there is none.

        Raises:
            DiskFull: the file system has no room.
            StorageFault: it failed otherwise.
        """
        needed = self.size_bytes + length_bytes
        if needed > self.allocated_bytes:
            self._allocate(needed)

    def append(self, batch: memoryview, placement: bytes) -> None:
        """Appends a batch whose first bytes are replaced by `placement`. The room must be reserved.

        Raises:
            StorageFault: the write failed; the batch is not part of the log.
        """
        start = self.size_bytes
        end = start + len(batch)
        if len(batch) <= SMALL_BATCH_BYTES:
            if end > self._window_end:
                self._open_window()
            window = self._window
            assert window is not None
            at = start - self._window_start
            window[at + PLACEMENT_BYTES : end - self._window_start] = batch[PLACEMENT_BYTES:]
            window[at : at + PLACEMENT_BYTES] = placement
        else:
            self._write(batch, placement, start)
        self.size_bytes = end

    def _write(self, batch: memoryview, placement: bytes, start: int) -> None:
        rest = batch[PLACEMENT_BYTES:]
        if self._descriptor < 0:
            self._open()  # room that was handed over is there before the file is open
        try:
            written = os.pwritev(self._descriptor, (placement, rest), start)
            while written < len(batch):
                written += os.pwrite(self._descriptor, rest[written - PLACEMENT_BYTES :], start + written)
        except OSError as error:
            # What was written must not be taken for a batch by a later recovery.
            self._close_window()
            self._truncate_after(error, start)
            self.allocated_bytes = start
            raise storage_fault(error, self.path) from error

    def _allocate(self, needed: int) -> None:
        if self._descriptor < 0:
            self._open()
        have = self.allocated_bytes
        stretch = min(max(have, STRETCH_BYTES_MIN), STRETCH_BYTES_MAX)
        wanted = max(needed, min(have + stretch, self.growth_bytes_max))
        try:
            os.posix_fallocate(self._descriptor, have, wanted - have)
        except OSError as error:
            # A stretch ahead is a wish, the batch itself is the need.
            self._truncate_after(error, have)
            wanted = needed
            try:
                os.posix_fallocate(self._descriptor, have, wanted - have)
            except OSError as again:
                self._truncate_after(again, have)
                raise storage_fault(again, self.path) from again
        self.allocated_bytes = wanted

    def _truncate_after(self, error: OSError, size_bytes: int) -> None:
        """Gives back what a failed call has taken.

        Raises:
            StorageFault: that fails, too. It is the fault of the two that is lasting: the directory has failed.
        """
        try:
            os.ftruncate(self._descriptor, size_bytes)
        except OSError as worse:
            raise storage_fault(worse, f"{self.path} (after: {error.strerror})") from worse

    def _open_window(self) -> None:
        self._close_window()
        start = self.size_bytes // _PAGE_BYTES * _PAGE_BYTES
        try:
            if self._descriptor < 0:
                self._open()
            if start < self.size_bytes:
                # A last page that cannot be read shall fail here, as an error, and not as a SIGBUS below.
                os.pread(self._descriptor, 1, start)
            mapping = mmap.mmap(self._descriptor, self.allocated_bytes - start, offset=start)
        except OSError as error:
            raise storage_fault(error, self.path) from error
        self._window = memoryview(mapping)
        self._window_start = start
        self._window_end = self.allocated_bytes

    def truncate(self, size_bytes: int) -> None:
        """Cuts the log to its first `size_bytes`.

        Raises:
            StorageFault: it failed.
        """
        with storage_faults(self.path):
            if self._descriptor < 0:
                self._open()
            self._close_window()
            os.ftruncate(self._descriptor, size_bytes)
            self.size_bytes = self.allocated_bytes = size_bytes

    def end_at(self, size_bytes: int) -> None:
        """What counts ends there: the zeros behind are room that is ours."""
        self.size_bytes = size_bytes

    def keep_zeros(self, size_bytes: int) -> None:
        """As `end_at`, of a file that somebody else may have made, with holes: cut where its room cannot be had.

        Raises:
            StorageFault: it failed.
        """
        with storage_faults(self.path):
            if self._descriptor < 0:
                self._open()
            self._close_window()
            try:
                os.posix_fallocate(self._descriptor, size_bytes, self.size_bytes - size_bytes)
            except OSError:
                os.ftruncate(self._descriptor, size_bytes)
                self.allocated_bytes = size_bytes
            self.size_bytes = size_bytes

    def _trim(self) -> None:
        self._close_window()
        os.ftruncate(self._descriptor, self.size_bytes)
        self.allocated_bytes = self.size_bytes

    # Reading

    def read(self, position: int, length_bytes: int) -> bytes:
        """At most `length_bytes` from `position`; fewer at the end of the file.

        Raises:
            StorageFault: it failed.
        """
        try:
            if self._descriptor < 0:
                self._open()
            return os.pread(self._descriptor, length_bytes, position)
        except OSError as error:
            raise storage_fault(error, self.path) from error

    def headers(
        self, position: int, *, end: int, read_bytes: int = _SCAN_BYTES, ends_whole: bool = False
    ) -> Iterator[tuple[int, Header]]:
        """(position, header) of every batch that lies wholly in [position, end); zeros end it.

        Raises:
            CorruptFile: bytes that are no batch; or where it `ends_whole`, a batch that is longer than what is left.
            StorageFault: the file cannot be read.
        """
        while end - position >= HEADER_BYTES:
            chunk = self.read(position, min(read_bytes, end - position))
            at = 0
            while len(chunk) - at >= HEADER_BYTES:
                header: Header = HEADER.unpack_from(chunk, at)
                size_bytes = header[H_BATCH_LENGTH] + LOG_OVERHEAD
                if header[H_BATCH_LENGTH] == 0 and header[H_BASE_OFFSET] == 0:
                    return
                if header[H_MAGIC] != MAGIC_V2 or size_bytes < HEADER_BYTES:
                    raise CorruptFile(f"{self.path} holds no batch at position {position + at}")
                if position + at + size_bytes > end:
                    if ends_whole:
                        raise CorruptFile(
                            f"{self.path} holds a batch at position {position + at} beyond its end"
                        )
                    return
                yield position + at, header
                at += size_bytes
            if at == 0:
                return
            position += at

    # Keeping

    def flush(self) -> None:
        """Forces data to the disk.

        Raises:
            StorageFault: it failed.
        """
        with storage_faults(self.path):
            if self._descriptor < 0:
                self._open()
            os.fdatasync(self._descriptor)

    def duplicate(self) -> int:
        """A descriptor for a flush on another thread, of the same open file if it is open; the caller closes it.

        Raises:
            StorageFault: the file cannot be opened.
        """
        try:
            if self._descriptor >= 0:
                return os.dup(self._descriptor)
            return os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise storage_fault(error, self.path) from error

    def release(self) -> None:
        """Trims the room ahead and lets go of descriptor and mapping. The next call takes them again.

        Raises:
            StorageFault: it failed.
        """
        if self.allocated_bytes != self.size_bytes:
            if self._descriptor < 0:
                self._open()
            with storage_faults(self.path):
                self._trim()
        self.abandon()

    def abandon(self) -> None:
        """Lets go of descriptor and mapping and leaves the file as it is."""
        self._close_window()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def relocate(self, directory: Path) -> None:
        """Goes on in the file of another directory, which holds the same batches and no room ahead."""
        self.abandon()
        self._directory = directory
        self.allocated_bytes = self.size_bytes

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    def _open(self) -> None:
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise storage_fault(error, self.path) from error

    def _close_window(self) -> None:
        if self._window is not None:
            mapping = self._window.obj
            assert isinstance(mapping, mmap.mmap)
            self._window.release()
            self._window = None
            self._window_end = 0
            mapping.close()
