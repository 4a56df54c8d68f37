"""A layer over the calls by which the appliance forces its files to the disk, loaded by every process of it.

Python imports a module of this name at start when its folder stands on PYTHONPATH. The environment says what it does:

DISK_LAYER_SHADOW=DIR   what a power cut would leave is kept in DIR: the content of a file as it was when its last
                        fdatasync or fsync *began* (a copy, named by inode), and the names in a directory as they were
                        when its last fsync began (a JSON of name → inode). `tests.support.power_loss` puts the tree
                        together again from these alone.
DISK_LAYER_FAULTS=FILE  while FILE is there, each forced file whose path holds the text in FILE fails with EIO, once:
                        like Linux, which marks the pages clean and lets the next call succeed.
DISK_LAYER_WAITS=FILE   while FILE is there, whoever forces a file whose path holds the text in FILE waits.
DISK_LAYER_SQLITE=FILE  while FILE is there, SQLite's own calls fail; see `sqlite_faults.py` beside this file.

Shown: nothing is acknowledged that was not forced, names included. Not shown: what a file system or a disk does that
breaks its word, and SQLite's own calls, which pass `sqlite_faults.py` alone.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

_SHADOW = os.environ.get("DISK_LAYER_SHADOW")
_FAULTS = os.environ.get("DISK_LAYER_FAULTS")
_WAITS = os.environ.get("DISK_LAYER_WAITS")
_fdatasync, _fsync = os.fdatasync, os.fsync
_failed: set[str] = set()
_lock = threading.Lock()


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_bytes(content)
    temporary.rename(path)


def _keep(shadow: Path, descriptor: int) -> None:
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        with os.scandir(path) as entries:
            names = {entry.name: entry.inode() for entry in entries}
        _replace(shadow / f"{status.st_ino}.names", json.dumps(names).encode())
    elif stat.S_ISREG(status.st_mode):
        # Through its name: the descriptor may be for writing only.
        content = Path(f"/proc/self/fd/{descriptor}").read_bytes()
        _replace(shadow / f"{status.st_ino}.content", content)


def _wait(trigger: Path, descriptor: int) -> None:
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    with suppress(FileNotFoundError):
        while trigger.read_text() in path:
            time.sleep(0.005)


def _forced(descriptor: int) -> None:
    if _WAITS is not None:
        _wait(Path(_WAITS), descriptor)
    if _FAULTS is not None and os.path.exists(_FAULTS):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        with _lock:
            if path not in _failed and Path(_FAULTS).read_text() in path:
                _failed.add(path)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
    if _SHADOW is not None:
        with _lock:
            _keep(Path(_SHADOW), descriptor)


def fdatasync(descriptor: int) -> None:
    _forced(descriptor)
    _fdatasync(descriptor)


def fsync(descriptor: int) -> None:
    _forced(descriptor)
    _fsync(descriptor)


if _SHADOW is not None or _FAULTS is not None or _WAITS is not None:
    os.fdatasync, os.fsync = fdatasync, fsync  # type: ignore[assignment]

if (_SQLITE := os.environ.get("DISK_LAYER_SQLITE")) is not None:
    import_module("sqlite_faults").install(_SQLITE)
