"""Room that is kept for the metadata store: a file of RESERVE_BYTES that is cut when the disk is full.

Without it a full disk could not be started on, and no topic deleted to make room: SQLite wants a little room for its
write-ahead log before anything is removed. The file holds nothing. Whoever needs room takes PIECE_BYTES of it after the
other, and it is filled again once the disk has room.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

RESERVE_NAME: Final = "metadata.reserve"
RESERVE_BYTES: Final = 4 << 20
PIECE_BYTES: Final = 256 << 10
_ROOM_BYTES: Final = 4 * RESERVE_BYTES
_RETRY_S: Final = 10.0


class Reserve:
    """The reserve in `directory`. Nothing here fails: without it a full disk is what it was.

    Args:
        monotonic_s: a clock, for when to fill it again.
    """

    __slots__ = ("_is_whole", "_monotonic_s", "_next_s", "_path")

    def __init__(self, directory: Path, *, monotonic_s: Callable[[], float]) -> None:
        self._path = directory / RESERVE_NAME
        self._monotonic_s = monotonic_s
        self._is_whole = False
        self._next_s = 0.0

    def give(self) -> bool:
        """Gives a piece back to the file system; whether there was one."""
        self._is_whole = False
        self._next_s = self._monotonic_s() + _RETRY_S
        with suppress(OSError):
            size_bytes = os.stat(self._path).st_size
            if size_bytes:
                os.truncate(self._path, max(0, size_bytes - PIECE_BYTES))
                return True
        return False

    def fill(self) -> None:
        """Takes its room, where that leaves enough for others; looks at the disk every _RETRY_S at most."""
        if self._is_whole or self._monotonic_s() < self._next_s:
            return
        self._next_s = self._monotonic_s() + _RETRY_S
        with suppress(OSError):
            room = os.statvfs(self._path.parent)
            if room.f_bavail * room.f_frsize < _ROOM_BYTES:
                return
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            finally:
                os.close(descriptor)
            self._is_whole = True


def is_full(path: Path) -> bool:
    """Whether the file system of `path` has less room than a piece of the reserve."""
    with suppress(OSError):
        room = os.statvfs(path.parent)
        return room.f_bavail * room.f_frsize < PIECE_BYTES
    return False
