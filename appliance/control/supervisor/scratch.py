"""The directory of an ephemeral broker: its data, thrown away when the last one that holds it lets go.

    PLACE/appliance-ephemeral-<32 random hex digits>/    mode 0700
        held                                             flock'ed, shared, by everyone who uses the directory
        data/                                            the data directory
        log                                              what the broker prints, where `appliance.testing` started it

PLACE is /dev/shm, because nothing there outlives the host and nothing waits for a disk. Shared memory and the data
would fill the same file system, and a process that touches a page beyond its end dies of SIGBUS. Therefore PLACE is
the directory for temporary files where /dev/shm has less than ROOM_BYTES free, as in a container with Docker's 64 MiB.

The process that makes a directory removes it. After SIGKILL of the test runner and of all processes, the next
ephemeral broker of this user removes it, because nobody holds the lock any more. `held` gets its name when it is
locked, so a directory that is being made is never taken for a dead one's.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.errors import HostFault

ROOM_BYTES: Final = 1 << 30
"""Free room in /dev/shm from which on the data may lie there."""

MEMORY: Final = Path("/dev/shm")
_NAME: Final = re.compile(r"appliance-ephemeral-[0-9a-f]{32}")
_HELD: Final = "held"
_DIRECTORY_MODE: Final = 0o700
_MODE: Final = 0o600


class Scratch:
    """An ephemeral broker's directory, held by this process and by those that it forks."""

    __slots__ = ("_lock", "_made_by", "path")

    def __init__(self, path: Path, lock: int, made_by: int) -> None:
        self.path = path
        self._lock = lock
        self._made_by = made_by

    @classmethod
    def make(cls, place: Path | None = None) -> Scratch:
        """Make a directory in `place` (default: where there is room), after removing those that died there.

        What died in /dev/shm is removed before the room there is looked at: it may be what fills it.

        Raises:
            HostFault: the system refuses it.
        """
        if place is None:
            remove_dead(MEMORY)
            place = default_place()
        remove_dead(place)
        path = place / f"appliance-ephemeral-{os.urandom(16).hex()}"
        try:
            path.mkdir(mode=_DIRECTORY_MODE)
            lock = os.open(
                path / f"{_HELD}.new",
                os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW,
                _MODE,
            )
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.rename(path / f"{_HELD}.new", path / _HELD)
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise HostFault(f"directory of an ephemeral broker {path}: {error.strerror}") from error
        return cls(path, lock, os.getpid())

    @classmethod
    def join(cls, path: Path) -> Scratch:
        """Hold a directory that another process has made.

        Raises:
            HostFault: it is gone, or it is being removed.
        """
        try:
            lock = os.open(path / _HELD, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            raise HostFault(f"directory of an ephemeral broker {path}: {error.strerror}") from error
        return cls(path, lock, os.getpid())

    @property
    def data_dir(self) -> Path:
        return self.path / "data"

    @property
    def log(self) -> Path:
        return self.path / "log"

    def remove(self) -> None:
        """Remove the directory and everything in it. Does nothing in a process that was forked from the holder."""
        if self._lock < 0 or os.getpid() != self._made_by:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Hold it no longer, and leave it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def default_place() -> Path:
    """Return /dev/shm, or the directory for temporary files where /dev/shm is small, full or not ours to write."""
    try:
        room = os.statvfs(MEMORY)
    except OSError:
        return Path(tempfile.gettempdir())
    if room.f_bavail * room.f_frsize < ROOM_BYTES or not os.access(MEMORY, os.W_OK | os.X_OK):
        return Path(tempfile.gettempdir())
    return MEMORY


def remove_dead(place: Path) -> list[Path]:
    """Remove the directories in `place` that belong to this user and that no process holds; return them."""
    removed: list[Path] = []
    try:
        names = [name for name in os.listdir(place) if _NAME.fullmatch(name)]
    except OSError:
        return removed
    for name in names:
        path = place / name
        with suppress(OSError):
            found = os.lstat(path)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            lock = os.open(path / _HELD, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path)
            finally:
                os.close(lock)
    return removed
