"""Hearing of written files without asking: inotify."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any, Final


class Bell:
    """Says which watched files were written: inotify behind a descriptor that can be polled.

    Costs the writer some hundred nanoseconds for each write of a file that somebody watches, and nothing for others.
    Where the system has no inotify, or no watch left, nothing is said, and who waits must look again by itself.
    """

    _MODIFIED: Final = 0x2
    _NAMES: Final = 0x40 | 0x80 | 0x100 | 0x200 | 0x1000000
    """A name moved from or to a directory, was made or removed; only where it is a directory."""
    _OVERFLOW: Final = 0x4000
    _IGNORED: Final = 0x8000
    _EVENT: Final = struct.Struct("iIII")

    def __init__(self) -> None:
        self.descriptor = -1
        """Readable when `take` has something to say; -1 where it never has."""
        self._paths: dict[int, str] = {}
        self._watches: dict[str, int] = {}
        try:
            self._libc: Any = ctypes.CDLL(None)
            self.descriptor = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, AttributeError):
            self._libc = None

    def watch(self, path: str) -> bool:
        """Tell of writes to a file from now on; False where that cannot be. A path that is watched is watched anew."""
        return self._watch(path, self._MODIFIED)

    def watch_names(self, directory: str) -> bool:
        """Tell of names in a directory that come and go."""
        return self._watch(directory, self._NAMES)

    def _watch(self, path: str, mask: int) -> bool:
        if self.descriptor < 0:
            return False
        watch = self._libc.inotify_add_watch(self.descriptor, os.fsencode(path), mask)
        old = self._watches.pop(path, watch)
        if old != watch:
            self._paths.pop(old, None)
        if watch < 0:
            return False
        self._watches[path] = watch
        self._paths[watch] = path
        return True

    def forget(self, path: str) -> None:
        """Tell no more of this path."""
        watch = self._watches.pop(path, -1)
        if watch >= 0 and self._paths.pop(watch, None) is not None:
            self._libc.inotify_rm_watch(self.descriptor, watch)

    def take(self) -> tuple[set[str], bool]:
        """Which files were written, and directories changed, since the last call; whether some may be missing.

        Of a change in a directory the path of the name is told. Does not wait.
        """
        found: set[str] = set()
        is_missing = False
        try:
            events = os.read(self.descriptor, 1 << 16)
        except OSError:
            return found, is_missing
        at = 0
        while at < len(events):
            watch, mask, _, name_bytes = self._EVENT.unpack_from(events, at)
            at += self._EVENT.size + name_bytes
            path = self._paths.get(watch)
            if mask & self._OVERFLOW:
                is_missing = True
            elif path is not None:
                if mask & self._IGNORED:
                    del self._paths[watch]
                    self._watches.pop(path, None)
                if name_bytes:
                    path += "/" + os.fsdecode(events[at - name_bytes : at].rstrip(b"\0"))
                found.add(path)
        return found, is_missing

    def close(self) -> None:
        """Let go of all watches."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self._paths.clear()
        self._watches.clear()

    def __del__(self) -> None:
        self.close()
