"""The private directory of one life of an instance: its shared memory and its Unix sockets.

    /dev/shm/appliance-<32 random hex digits>/    mode 0700
        processes, partitions, image-7, ...       shared memory (wiring.py)
        controller.zmq, acceptor.zmq, acceptor.fd Unix sockets
        instance                                  flock'ed while a process of the instance lives
    DATA_DIR/runtime-directory                    mode 0600: the path of the directory above

The name is random in each life, so no other user can take it before us. Tools find it through the file in the data
directory, which only the data directory's owner can read. The file is written before the directory is created, so
that whatever a killed instance leaves is found and removed at the next start. Where the data directory went, too, the
next start of any instance of this user removes it, because nobody holds the lock. The lock's file gets its name when
it is locked, so a directory that is being made is never taken for a dead one's.
"""

from __future__ import annotations

import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.errors import HostFault
from appliance.ipc.shared_memory import (
    MODE,
    create_directory,
    directory_candidate,
    is_private_directory,
    names,
    private_directories,
    remove_directory,
)

RUNTIME_FILE: Final = "runtime-directory"

_HELD: Final = "instance"
_TRIES: Final = 100
_PATH_BYTES_MAX: Final = 256

_logger = logging.getLogger(__name__)


def create(data_dir: Path) -> Path:
    """Create a private directory for a new life of the instance; the caller holds the data directory's lock.

    Raises:
        OSError: the data directory cannot be written.
        HostFault: /dev/shm cannot be written.
    """
    for _ in range(_TRIES):
        path = directory_candidate()
        _write_down(data_dir, path)
        if create_directory(path):
            return path
        _logger.warning("%s belongs to another user; using another name", path)
    raise HostFault(f"no free name for a directory in {path.parent} after {_TRIES} tries")


def hold(path: Path) -> int:
    """Mark a private directory as that of a living instance; return the descriptor, which children keep open.

    Raises:
        HostFault: /dev/shm cannot be written.
    """
    try:
        descriptor = os.open(
            path / f"{_HELD}.new", os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, MODE
        )
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(path / f"{_HELD}.new", path / _HELD)
    except OSError as error:
        raise HostFault(f"{path}: {error.strerror}") from error
    return descriptor


def remove_dead() -> list[Path]:
    """Remove the private directories of this user's instances of which no process lives; return them."""
    removed: list[Path] = []
    for path in private_directories():
        with suppress(OSError, HostFault):
            descriptor = os.open(path / _HELD, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_directory(path)
                removed.append(path)
            finally:
                os.close(descriptor)
    return removed


def find(data_dir: Path, *, owner: int | None = None, pid: int | None = None) -> Path | None:
    """Return the private directory of the instance on `data_dir`; None where there is none.

    Args:
        owner: the user id that it must belong to; None for this process's user.
        pid: a process of the instance, through which to look where the service has a /dev/shm of its own
            (TemporaryFileSystem= of systemd); None for the /dev/shm of this process alone.

    Raises:
        PermissionError: this user may not read the data directory.
    """
    try:
        with open(data_dir / RUNTIME_FILE, "rb") as file:
            path = Path(os.fsdecode(file.read(_PATH_BYTES_MAX).strip()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if is_private_directory(path, owner=owner):
        return path
    root = f"/proc/{pid}/root"
    if pid is not None and is_private_directory(path, owner=owner, root=root):
        return Path(f"{root}{path}")
    return None


def remove(data_dir: Path) -> int:
    """Remove the private directory that `data_dir` names; return how many files were in it.

    It stays where a process of an instance lives that holds it: then the data directory is a copy of that instance's,
    with the name of a directory that is not its own.

    Raises:
        HostFault: the system refuses it.
    """
    path = find(data_dir)
    count = 0
    if path is not None and _is_held(path):
        _logger.warning("%s belongs to a running instance with another data directory; not removed", path)
    elif path is not None:
        count = len(names(path))
        remove_directory(path)
    # Also where another instance's start has removed the directory: the file that names it occupies a block, and on a
    # full disk the new name needs one.
    forget(data_dir)
    return count


def forget(data_dir: Path) -> None:
    """Write down that no private directory belongs to `data_dir`, which may be gone."""
    with suppress(OSError):
        os.unlink(data_dir / RUNTIME_FILE)


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path / _HELD, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _write_down(data_dir: Path, path: Path) -> None:
    temporary = data_dir / f"{RUNTIME_FILE}.new"
    with suppress(FileNotFoundError):
        os.unlink(temporary)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    try:
        os.write(descriptor, os.fsencode(path) + b"\n")
    finally:
        os.close(descriptor)
    os.rename(temporary, data_dir / RUNTIME_FILE)
