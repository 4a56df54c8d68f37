"""Named shared memory: the supervisor creates a region, the processes open it, the next start removes it.

A region is created sparse and zero-filled, so every structure in this room takes zeros for "empty"; the
supervisor never writes a byte of it. Names look like `/appliance-<instance>-<what>`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

import posix_ipc

from appliance.errors import HostFault
from appliance.ipc.fence import require_total_store_order

NAME_LENGTH_MAX = 250
MODE = 0o600

_DIRECTORY = Path("/dev/shm")


class Region:
    """One mapping of one shared-memory object; `view` is all of it, writable.

    The mapping keeps the memory alive, also after `unlink`. It holds one descriptor (Python's mmap keeps a copy).
    """

    __slots__ = ("_mapping", "name", "size_bytes", "view")

    def __init__(self, name: str, mapping: mmap.mmap) -> None:
        self.name = name
        self.size_bytes = len(mapping)
        self._mapping = mapping
        self.view = memoryview(mapping)

    @classmethod
    def create(cls, name: str, size_bytes: int) -> Region:
        """A new region of `size_bytes` zeros that only this user may open.

        Raises:
            HostFault: the name is taken, or the host has no memory or descriptor for it.
            UnsupportedProcessor: not x86-64.
        """
        require_total_store_order()
        if not name.startswith("/") or "/" in name[1:] or len(name) > NAME_LENGTH_MAX:
            raise ValueError(f"shared memory name {name!r} is not '/' and one path component")
        if size_bytes <= 0:
            raise ValueError(f"shared memory {name} of {size_bytes} bytes")
        try:
            memory = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=MODE, size=size_bytes)
        except (posix_ipc.Error, OSError) as error:
            raise HostFault(f"shared memory {name} of {size_bytes} bytes: {error}") from error
        return cls._map(name, memory)

    @classmethod
    def open(cls, name: str) -> Region:
        """An existing region, at its full size.

        Raises:
            HostFault: there is none of that name, or it is not ours.
            UnsupportedProcessor: not x86-64.
        """
        require_total_store_order()
        try:
            memory = posix_ipc.SharedMemory(name)
        except (posix_ipc.Error, OSError) as error:
            raise HostFault(f"shared memory {name}: {error}") from error
        return cls._map(name, memory)

    @classmethod
    def _map(cls, name: str, memory: posix_ipc.SharedMemory) -> Region:
        try:
            return cls(name, mmap.mmap(memory.fd, memory.size))
        except (OSError, ValueError) as error:
            raise HostFault(f"mapping shared memory {name}: {error}") from error
        finally:
            memory.close_fd()

    def discard(self, position: int, length_bytes: int) -> None:
        """Gives whole pages back to the system; they read as zeros afterwards. Both page-aligned."""
        self._mapping.madvise(mmap.MADV_REMOVE, position, length_bytes)

    def resident_bytes(self) -> int:
        """How much of the object the system holds in memory now, or -1 when it has been unlinked."""
        try:
            return (_DIRECTORY / self.name[1:]).stat().st_blocks * 512
        except FileNotFoundError:
            return -1

    def close(self) -> None:
        """Unmaps; while somebody holds a slice of `view`, the mapping stays until its last slice goes."""
        with contextlib.suppress(BufferError):
            self.view.release()
            self._mapping.close()


def unlink(name: str) -> bool:
    """Removes the name; mappings live on. False when there was none."""
    try:
        posix_ipc.unlink_shared_memory(name)
    except posix_ipc.ExistentialError:
        return False
    return True


def names(prefix: str) -> list[str]:
    """The names of all regions that begin with `prefix` ("/appliance-…"), sorted. Finds what a dead instance
    left.
    """
    wanted = prefix.removeprefix("/")
    return sorted(f"/{entry}" for entry in os.listdir(_DIRECTORY) if entry.startswith(wanted))
