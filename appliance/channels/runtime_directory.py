"""The private directory of one life of an instance: its shared memory and its Unix sockets.

    /dev/shm/appliance-<32 random hex digits>/    mode 0700
        processes, partitions, image-7, ...       shared memory (wiring.py)
        controller.zmq, acceptor.zmq, acceptor.fd Unix sockets
    DATA_DIR/runtime-directory                    mode 0600: the path of the directory above

The name is random in each life, so no other user can take it before us. Tools find it through the file in the data
directory, which only the data directory's owner can read. The file is written before the directory is created, so
that whatever a killed instance leaves is found and removed at the next start.
"""

from __future__ import annotations

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
    remove_directory,
)

RUNTIME_FILE: Final = "runtime-directory"

_TRIES: Final = 100
_PATH_BYTES_MAX: Final = 256

_logger = logging.getLogger(__name__)


def create(data_dir: Path) -> Path:
    """Create a private directory for a new life of the instance; the caller holds the data directory's lock.

    Raises:
        HostFault: the data directory or /dev/shm cannot be written.
    """
    for _ in range(_TRIES):
        path = directory_candidate()
        _write_down(data_dir, path)
        if create_directory(path):
            return path
        _logger.warning("%s is taken by somebody else; the appliance takes another name", path)
    raise HostFault(f"no free name for a directory in {path.parent} after {_TRIES} tries")


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

    Raises:
        HostFault: the system refuses it.
    """
    path = find(data_dir)
    if path is None:
        return 0
    count = len(names(path))
    remove_directory(path)
    with suppress(OSError):
        os.unlink(data_dir / RUNTIME_FILE)
    return count


def _write_down(data_dir: Path, path: Path) -> None:
    temporary = data_dir / f"{RUNTIME_FILE}.new"
    try:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
        try:
            os.write(descriptor, os.fsencode(path) + b"\n")
        finally:
            os.close(descriptor)
        os.rename(temporary, data_dir / RUNTIME_FILE)
    except OSError as error:
        raise HostFault(f"{data_dir / RUNTIME_FILE}: {error.strerror}") from error
