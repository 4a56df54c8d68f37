"""What the two sparse indexes of a segment have in common: a file of equal entries, mapped, in rising order.

While its segment is active the file is larger than its entries: zeros follow, allocated in stretches that
double, so that a write never meets a full disk. Sealing trims it. There is no checksum; an index that is not
believable is rebuilt from the log. Source: `AbstractIndex.java`.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import ClassVar, Final

from appliance.errors import CorruptFile
from appliance.log.faults import storage_fault, storage_faults
from appliance.log.file_names import segment_file_name

_STRETCH_BYTES_MIN: Final = 4096
_KEPT_BYTES_MAX: Final = 64 * 1024


class IndexFile:
    """A mapped file of entries. Opened when first needed; `release` lets go of it at any time."""

    ENTRY_BYTES: ClassVar[int]
    SUFFIX: ClassVar[str]

    __slots__ = ("_directory", "_view", "allocated_bytes", "base_offset", "entries", "entries_max")

    def __init__(self, directory: Path, base_offset: int, *, size_bytes: int, bytes_max: int) -> None:
        self._directory = directory
        self.base_offset = base_offset
        self.entries = size_bytes // self.ENTRY_BYTES
        self.entries_max = bytes_max // self.ENTRY_BYTES
        self.allocated_bytes = size_bytes
        """Of the file, with the room ahead."""
        self._view: memoryview | None = None

    @property
    def path(self) -> Path:
        return self._directory / segment_file_name(self.base_offset, self.SUFFIX)

    @property
    def is_full(self) -> bool:
        return self.entries >= self.entries_max

    @property
    def is_open(self) -> bool:
        return self._view is not None

    @property
    def size_bytes(self) -> int:
        """Bytes of its entries."""
        return self.entries * self.ENTRY_BYTES

    def relocate(self, directory: Path) -> None:
        """Goes on in the file of another directory, which holds the same entries and no room ahead."""
        self.release_mapping()
        self._directory = directory
        self.allocated_bytes = self.size_bytes

    def create(self) -> None:
        """Makes the empty file.

        Raises:
            StorageFault: it failed.
        """
        with storage_faults(self.path):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        self.release_mapping()
        self.entries = 0
        self.allocated_bytes = 0

    def empty(self) -> None:
        """Begins anew: in the file there is where that is small, since to cut it costs more than all the rest.

        Raises:
            StorageFault: it failed.
        """
        if not 0 < self.allocated_bytes <= _KEPT_BYTES_MAX:
            self.create()
            return
        self.release_mapping()
        self.entries = 0
        with storage_faults(self.path):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                # Somebody else's may have holes.
                os.posix_fallocate(descriptor, 0, self.allocated_bytes)
            finally:
                os.close(descriptor)

    def end_at(self, entries: int) -> None:
        """What counts are the first `entries`: the rest is room that is ours."""
        self.entries = entries

    def reserve(self) -> None:
        """Takes the room for one more entry.

        Raises:
            DiskFull: the file system has none.
            StorageFault: it failed otherwise.
        """
        needed = (self.entries + 1) * self.ENTRY_BYTES
        if needed > self.allocated_bytes:
            self._allocate(needed)
        elif self._view is None:
            self._map()

    def truncate_to_entries(self, entries: int) -> None:
        """Drops the entries after the first `entries`; `release` cuts the file."""
        self.entries = entries

    def release(self) -> None:
        """Trims the file to its entries and unmaps it.

        Raises:
            StorageFault: it failed.
        """
        if self.allocated_bytes != self.entries * self.ENTRY_BYTES:
            self._trim()
        self.release_mapping()

    def release_mapping(self) -> None:
        """Unmaps the file and leaves it as it is."""
        if self._view is not None:
            mapping = self._view.obj
            assert isinstance(mapping, mmap.mmap)
            self._view.release()
            self._view = None
            mapping.close()

    def view(self) -> memoryview:
        """The mapped bytes; empty if there is no entry.

        Raises:
            StorageFault: the file cannot be mapped.
        """
        if self._view is None:
            if self.allocated_bytes == 0:
                return memoryview(b"")
            self._map()
        assert self._view is not None
        return self._view

    def _allocate(self, needed: int) -> None:
        stretch = max(self.allocated_bytes * 2, _STRETCH_BYTES_MIN)
        wanted = max(needed, min(stretch, self.entries_max * self.ENTRY_BYTES))
        wanted -= wanted % self.ENTRY_BYTES
        self.release_mapping()
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.posix_fallocate(descriptor, 0, wanted)
            except OSError:
                os.ftruncate(descriptor, self.allocated_bytes)
                raise
            finally:
                os.close(descriptor)
        except OSError as error:
            raise storage_fault(error, self.path) from error
        self.allocated_bytes = wanted
        self._map()

    def _map(self) -> None:
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                # A file cut short behind our back must not become a SIGBUS.
                if os.fstat(descriptor).st_size < self.allocated_bytes:
                    raise CorruptFile(f"{self.path} is shorter than its {self.allocated_bytes} bytes")
                self._view = memoryview(mmap.mmap(descriptor, self.allocated_bytes))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise storage_fault(error, self.path) from error

    def _trim(self) -> None:
        self.release_mapping()
        size_bytes = self.entries * self.ENTRY_BYTES
        with storage_faults(self.path):
            os.truncate(self.path, size_bytes)
        self.allocated_bytes = size_bytes
