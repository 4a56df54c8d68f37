"""Sessions with ZooKeeper that this data directory opened: what a process that died has left.

    DATA_DIR/zookeeper.sessions/72059908603641856    flock'ed by the process whose session it is
        40bc33cdcdd8bdb1b11e49..                     its password, in hexadecimal
    DATA_DIR/zookeeper.sessions/slots                flock'ed by the process that keeps it now
        72059908603641857 a8cc2f..                   id and password of a session that is handed on

ZooKeeper learns of a death by silence, after the session's timeout. On one host the kernel knows at once: it
drops the lock. So whoever opens the store next ends the sessions whose locks are free, and need not wait for
/controller. A file without a living session, or the other way round, costs that wait and nothing else.

One session is not ended but gone on with: a session is its id and password, not a connection, and lives as long as
somebody is heard of within its timeout. What belongs to it outlives the process that made it.
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
HANDED_ON: Final = "slots"
_PASSWORD_BYTES: Final = 16
_HANDED_ON_BYTES: Final = 128


class LeftSessions:
    """The directory, as one session sees it: which writes itself down with `keep`, and ends those of `left`; or is the
    one that is handed on, by `take` and `hand_on`."""

    __slots__ = ("_descriptors", "_directory", "_handed_on")

    def __init__(self, data_dir: Path) -> None:
        self._directory = data_dir / DIRECTORY
        self._descriptors: dict[int, int] = {}
        self._handed_on: int | None = None
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

    def take(self) -> tuple[int, bytes] | None:
        """The session (id, password) that was handed on, None where there is none. `hand_on` follows.

        Raises:
            StorageFault: the process that keeps it lives, or the file cannot be opened.
        """
        path = self._directory / HANDED_ON
        try:
            self._handed_on = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._handed_on, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = os.pread(self._handed_on, _HANDED_ON_BYTES, 0)
        except OSError as error:
            self._let_handed_on_go()
            raise StorageFault(f"{path}: {error.strerror}") from error
        with suppress(ValueError):
            session_id, password = content.decode().split()
            if len(bytes.fromhex(password)) == _PASSWORD_BYTES:
                return int(session_id), bytes.fromhex(password)
        return None

    def hand_on(self, session_id: int, password: bytes) -> None:
        """Writes down which session is handed on from here. Raises StorageFault."""
        assert self._handed_on is not None, "`take` comes first"
        path = self._directory / HANDED_ON
        try:
            os.ftruncate(self._handed_on, 0)
            os.pwrite(self._handed_on, f"{session_id} {password.hex()}".encode(), 0)
        except OSError as error:
            raise StorageFault(f"{path}: {error.strerror}") from error

    def _let_handed_on_go(self) -> None:
        if self._handed_on is not None:
            os.close(self._handed_on)
            self._handed_on = None

    def left(self) -> Iterator[tuple[int, bytes]]:
        """Sessions (id, password) whose processes are dead. Each is forgotten when the next is asked for."""
        for path in sorted(self._directory.iterdir()):
            if path.name == HANDED_ON:
                continue
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
            (self._directory / (str(session_id) if self._handed_on is None else HANDED_ON)).unlink()
        self.let_go(session_id)

    def let_go(self, session_id: int) -> None:
        """A session of this process may still live at the server: it is left to whoever comes next."""
        descriptor = self._descriptors.pop(session_id, None)
        if descriptor is not None:
            os.close(descriptor)
        self._let_handed_on_go()
