"""Tells at once when a log directory is removed, renamed or unmounted: inotify on the lock file that lies in it.

Writes into a file without a name succeed for ever, so nothing else would say so before the next roll or checkpoint.
The lock file is never written, renamed or removed by us; whatever happens to its name is somebody else's doing, and
means: look. Where the system gives no inotify (its limits), nothing is watched, and the checkpoint's look is the first.
Source: inotify(7); IN_ATTRIB comes when the count of links changes, also while we hold the file open.
"""

from __future__ import annotations

import ctypes
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_IN_ATTRIB: Final = 0x4
_IN_DELETE_SELF: Final = 0x400
_IN_MOVE_SELF: Final = 0x800
_NONBLOCK: Final = os.O_NONBLOCK
_CLOEXEC: Final = os.O_CLOEXEC
_EVENTS_BYTES: Final = 4096

_logger = logging.getLogger(__name__)


class DirectoryWatch:
    """Watched paths of one process. `fileno` is readable when something happened to one of them; -1 without any."""

    __slots__ = ("_descriptor", "_library")

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._descriptor = -1

    def add(self, path: Path) -> bool:
        """Watches a file, and the directory around it against renames; whether the system does."""
        if self._descriptor < 0:
            self._descriptor = self._library.inotify_init1(_NONBLOCK | _CLOEXEC)
        if self._descriptor < 0:
            return self._refused(path)
        mask = _IN_ATTRIB | _IN_DELETE_SELF | _IN_MOVE_SELF
        watched = self._library.inotify_add_watch(self._descriptor, os.fsencode(path), ctypes.c_uint32(mask))
        around = ctypes.c_uint32(_IN_DELETE_SELF | _IN_MOVE_SELF)
        self._library.inotify_add_watch(self._descriptor, os.fsencode(path.parent), around)
        return watched >= 0 or self._refused(path)

    def _refused(self, path: Path) -> bool:
        why = os.strerror(ctypes.get_errno())
        _logger.warning("cannot watch %s (%s); its removal will be noticed at the next checkpoint", path, why)
        return False

    def fileno(self) -> int:
        return self._descriptor

    def clear(self) -> None:
        """Takes what was told; the caller looks for itself."""
        with suppress(BlockingIOError):
            while os.read(self._descriptor, _EVENTS_BYTES):
                continue

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
