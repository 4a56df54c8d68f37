"""Sessions with ZooKeeper that this data directory opened: what a process that died has left.

    DATA_DIR/zookeeper.sessions/72059908603641856    flock'ed by the process whose session it is
        40bc33cdcdd8bdb1b11e49..                     its password, in hexadecimal

ZooKeeper learns of a death by silence, after the session's timeout. On one host the kernel knows at once: it
drops the lock. So whoever opens the store next ends the sessions whose locks are free, and need not wait for
/controller. A file without a living session, or the other way round, costs that wait and nothing else.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.errors import StorageFault

DIRECTORY: Final = "zookeeper.sessions"
_PASSWORD_BYTES: Final = 16


class LeftSessions:
    """The directory. One process keeps the sessions it has opened with `keep`, and ends those of `left`."""

    __slots__ = ("_descriptors", "_directory")

    def __init__(self, data_dir: Path) -> None:
        self._directory = data_dir / DIRECTORY
        self._descriptors: dict[int, int] = {}
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageFault(f"{self._directory}: {error.strerror}") from error

    def keep(self, session_id: int, password: bytes) -> None:
        """Writes down a session of this process. Raises StorageFault; the session is then lost by its timeout."""
        path = self._directory / str(session_id)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._descriptors[session_id] = descriptor
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(descriptor, password.hex().encode(), 0)
        except OSError as error:
            raise StorageFault(f"{path}: {error.strerror}") from error

    def left(self) -> Iterator[tuple[int, bytes]]:
        """Sessions (id, password) whose processes are dead. Each is forgotten when the next is asked for."""
        for path in sorted(self._directory.iterdir()):
            with suppress(OSError, ValueError):
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    password = bytes.fromhex(os.read(descriptor, 2 * _PASSWORD_BYTES + 1).decode().strip())
                    if len(password) == _PASSWORD_BYTES:
                        yield int(path.name), password
                    path.unlink()
                finally:
                    os.close(descriptor)

    def ended(self, session_id: int) -> None:
        """A session of this process is over at the server, too."""
        with suppress(OSError):
            (self._directory / str(session_id)).unlink()
        self.let_go(session_id)

    def let_go(self, session_id: int) -> None:
        """A session of this process may still live at the server: it is left to whoever comes next."""
        descriptor = self._descriptors.pop(session_id, None)
        if descriptor is not None:
            os.close(descriptor)
