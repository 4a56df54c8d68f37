"""Shared memory: files in a private directory of /dev/shm, which the supervisor creates and the next start removes.

    /dev/shm/appliance-<32 random hex digits>/    mode 0700, of one instance
        processes, partitions, image-7, ...       mode 0600, one file a region

Everybody may create files in /dev/shm, so a name there can be taken by another user before we use it. Only the
directory has such a name, and nobody can guess it: 128 random bits, created exclusively, another one where it is
taken. Inside it nobody else can create, open or even list anything, so the names there can be plain.

A region is created sparse and zero-filled, so every structure in this room takes zeros for "empty"; the
supervisor never writes a byte of it. A region that is opened is checked: a regular file of the expected owner with
mode 0600.

A process that only reads a region opens it read-only, descriptor and mapping, so a defect in it cannot change what
others rely on. A process that writes a few words of a region maps the page that has them, nothing else (`open_page`).
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from appliance.errors import HostFault
from appliance.ipc.fence import require_total_store_order

MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
PAGE_BYTES: Final = 4096
"""Of x86-64: the least that can be mapped, and so protected, on its own."""

_SHARED: Final = Path("/dev/shm")
_DIRECTORY_NAME: Final = re.compile(r"appliance-[0-9a-f]{32}")
_OPEN_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Region:
    """One mapping of one shared-memory file; `view` is what is mapped of it. `name` is the file's path.

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
        """Create a region of `size_bytes` zeros at the path `name`. Only this user may open it.

        Raises:
            HostFault: the name is taken, or the host has no memory or descriptor for it.
            UnsupportedProcessor: not x86-64.
        """
        require_total_store_order()
        if size_bytes <= 0:
            raise ValueError(f"shared memory {name} of {size_bytes} bytes")
        try:
            descriptor = os.open(name, _OPEN_FLAGS | os.O_RDWR | os.O_CREAT | os.O_EXCL, MODE)
        except OSError as error:
            raise HostFault(f"shared memory {name} of {size_bytes} bytes: {error.strerror}") from error
        try:
            os.ftruncate(descriptor, size_bytes)
            return cls(name, mmap.mmap(descriptor, size_bytes))
        except (OSError, ValueError) as error:
            unlink(name)
            raise HostFault(f"shared memory {name} of {size_bytes} bytes: {error}") from error
        finally:
            os.close(descriptor)

    @classmethod
    def open(cls, name: str, *, owner: int | None = None, writable: bool = True) -> Region:
        """Open an existing region at its full size.

        Args:
            name: its path.
            owner: the user id that it must belong to; None for this process's user.
            writable: False to open and map it for reading only; `view` then refuses a store.

        Raises:
            HostFault: there is none of that name, or it is not a private file of `owner`.
            UnsupportedProcessor: not x86-64.
        """
        require_total_store_order()
        with _opened(name, owner, writable=writable) as (descriptor, size_bytes):
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            return cls(name, mmap.mmap(descriptor, size_bytes, access=access))

    @classmethod
    def open_page(cls, name: str, position: int) -> Region:
        """Open one page of an existing region for writing; `view` is this page.

        Args:
            name: path of the region.
            position: where the page begins, a multiple of PAGE_BYTES.

        Raises:
            HostFault: as `open`, or the region ends before the page does.
        """
        require_total_store_order()
        with _opened(name, None, writable=True) as (descriptor, size_bytes):
            if not 0 <= position <= size_bytes - PAGE_BYTES:
                raise HostFault(f"shared memory {name} of {size_bytes} bytes has no page at {position}")
            return cls(name, mmap.mmap(descriptor, PAGE_BYTES, offset=position))

    def discard(self, position: int, length_bytes: int) -> None:
        """Gives whole pages back to the system; they read as zeros afterwards. Both page-aligned."""
        self._mapping.madvise(mmap.MADV_REMOVE, position, length_bytes)

    def resident_bytes(self) -> int:
        """How much of the object the system holds in memory now, or -1 when it has been unlinked."""
        try:
            return os.stat(self.name).st_blocks * 512
        except FileNotFoundError:
            return -1

    def close(self) -> None:
        """Unmaps; while somebody holds a slice of `view`, the mapping stays until its last slice goes."""
        with contextlib.suppress(BufferError):
            self.view.release()
            self._mapping.close()


@contextlib.contextmanager
def _opened(name: str, owner: int | None, *, writable: bool) -> Iterator[tuple[int, int]]:
    """Give the descriptor and the size of a region that is a private file of `owner`.

    Raises:
        HostFault: it is not, or the body cannot map it.
    """
    try:
        descriptor = os.open(name, _OPEN_FLAGS | (os.O_RDWR if writable else os.O_RDONLY))
    except OSError as error:
        raise HostFault(f"shared memory {name}: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        wanted = os.geteuid() if owner is None else owner
        if not stat.S_ISREG(found.st_mode) or found.st_uid != wanted or stat.S_IMODE(found.st_mode) != MODE:
            raise HostFault(
                f"shared memory {name}: not a file of user {wanted} with mode {MODE:04o}"
                f" (owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o})"
            )
        yield descriptor, found.st_size
    except (OSError, ValueError) as error:
        raise HostFault(f"mapping shared memory {name}: {error}") from error
    finally:
        os.close(descriptor)


def unlink(name: str) -> bool:
    """Remove a region's name; mappings live on. False when there was none."""
    try:
        os.unlink(name)
    except FileNotFoundError:
        return False
    return True


def names(directory: str | Path) -> list[str]:
    """Return the paths of everything in a private directory, sorted; none where there is no directory."""
    try:
        return sorted(f"{directory}/{entry}" for entry in os.listdir(directory))
    except FileNotFoundError:
        return []


def directory_candidate() -> Path:
    """Return the path of a private directory that nobody can guess, for `create_directory`."""
    return _SHARED / f"appliance-{os.urandom(16).hex()}"


def create_directory(path: Path) -> bool:
    """Create a private directory. False when the name is taken: try another one.

    Raises:
        HostFault: the system refuses it, or another user could rename what is created there.
    """
    parent = path.parent
    try:
        mode = os.stat(parent).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise HostFault(
                f"{parent} is writable by everybody and has no sticky bit: other users could replace our files"
                f" (chmod 1777 {parent})"
            )
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:
        return False
    except OSError as error:
        raise HostFault(f"shared memory directory {path}: {error.strerror}") from error
    return True


def is_private_directory(path: Path, *, owner: int | None = None, root: str = "") -> bool:
    """Return whether `path` is named as by `directory_candidate` and is a directory that `owner` alone may use.

    Args:
        owner: a user id; None for this process's user.
        root: where to look for it, if not in this process's file system: `/proc/42/root`.
    """
    if path.parent != _SHARED or not _DIRECTORY_NAME.fullmatch(path.name):
        return False
    try:
        found = os.lstat(f"{root}{path}")
    except OSError:
        return False
    wanted = os.geteuid() if owner is None else owner
    return stat.S_ISDIR(found.st_mode) and found.st_uid == wanted and not found.st_mode & 0o077


def private_directories() -> list[Path]:
    """Return every private directory of this process's user."""
    found = (_SHARED / name for name in os.listdir(_SHARED) if _DIRECTORY_NAME.fullmatch(name))
    return [path for path in found if is_private_directory(path)]


def empty_directory(path: Path) -> int:
    """Remove every file in a private directory; return how many there were."""
    left = names(path)
    return sum(map(unlink, left))


def remove_directory(path: Path) -> None:
    """Remove a private directory with its files. Does nothing when it is gone.

    Raises:
        HostFault: the system refuses it.
    """
    try:
        empty_directory(path)
        os.rmdir(path)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise HostFault(f"shared memory directory {path}: {error.strerror}") from error
