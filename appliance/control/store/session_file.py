"""Sessions of the embedded store: who lives, and how the others learn that something happened.

One small file beside the database, `metadata.sessions`:

    byte 0                8                    4096 + n
    ┌─────────────────────┬────────  …  ───────┬───┐
    │ bell: last zxid     │ unused (a hole)    │ n │ ...
    └─────────────────────┴────────  …  ───────┴───┘

Session n lives as long as somebody holds the lock on byte 4096 + n: an *open file description* lock (Linux,
fcntl(2) F_OFD_SETLK), which the kernel drops when the process dies, however it dies. No heartbeat, no
timeout, no pid that could belong to somebody else by now. The bytes themselves are never written.

Whoever committed a change writes its transaction id into the bell. Sessions with watches have an inotify
watch on the file: IN_MODIFY is a bell, IN_CLOSE_WRITE a session that ended. So watching costs nothing until
something happens.

The kernel tells of a close before it drops the lock (`__fput` in Linux's fs/file_table.c), and no event tells
of the lock. Who looks at once may find the session living that just ended, and nothing would ever make it look
again. So it looks again by a timer, after 1, 2, 4, 8, .. ms: a death is noticed at the latest after as long
again as the kernel took for it, and a session that lives on costs a look that comes ever more seldom.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.clock import NS_PER_MS
from appliance.errors import ApplianceDefect, StorageFault

BELL: Final = struct.Struct("<Q")
FIRST_LOCK_BYTE: Final = 4096

# struct flock of x86-64 Linux: l_type, l_whence, (padding), l_start, l_len, l_pid, (padding)
_FLOCK: Final = struct.Struct("hhqqi4x")

_IN_MODIFY: Final = 0x2
_IN_CLOSE_WRITE: Final = 0x8
_EVENT_BYTES: Final = 16
_READ_BYTES: Final = 4096

# struct itimerspec: seconds and nanoseconds of the interval (none: once), of the time until it rings
_TIMER: Final = struct.Struct("@4l")
_TIMER_BYTES: Final = 8
_MS_PER_S: Final = 1_000
_FIRST_LOOK_MS: Final = 1

_libc = ctypes.CDLL(None, use_errno=True)


class SessionFile:
    """One session's descriptor of the file. `fileno` is readable after a bell, once `listen` was called."""

    __slots__ = ("_descriptor", "_inotify", "_listening", "_look_ms", "_path", "_readable", "_timer")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listening = False
        self._look_ms = _FIRST_LOOK_MS
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageFault(f"session file {path}: {error.strerror}") from error
        self._inotify = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._inotify < 0:
            os.close(self._descriptor)
            raise StorageFault(f"inotify: {os.strerror(ctypes.get_errno())}")
        self._timer = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._timer < 0:
            os.close(self._inotify)
            os.close(self._descriptor)
            raise StorageFault(f"timerfd: {os.strerror(ctypes.get_errno())}")
        self._readable = select.epoll()
        self._readable.register(self._inotify, select.EPOLLIN)
        self._readable.register(self._timer, select.EPOLLIN)

    def fileno(self) -> int:
        return self._readable.fileno()

    def begin(self, session_id: int) -> None:
        """Takes the lock of a session id that nobody has had."""
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, session_id))
        except OSError as error:
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                raise ApplianceDefect(f"session {session_id} lives already") from error
            raise StorageFault(f"session file {self._path}: {error.strerror}") from error

    def lives(self, session_id: int) -> bool:
        """Whether another descriptor holds that session; not for asking about one's own."""
        found = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, session_id))
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)

    def others_live(self) -> bool:
        """Whether another descriptor holds any session."""
        found = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, 0, count=0))
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)

    def ring(self, zxid: int, *, durable: bool = False) -> None:
        """Tells the sessions that watch. A full disk cannot refuse it: the block is the file's first.

        `durable`: power that fails does not take the bell back.
        """
        with suppress(OSError):
            os.pwrite(self._descriptor, BELL.pack(zxid), 0)
            if durable:
                os.fdatasync(self._descriptor)

    def bell(self) -> int:
        """The transaction id that was rung last; 0 where none was. Raises StorageFault."""
        try:
            data = os.pread(self._descriptor, BELL.size, 0)
        except OSError as error:
            raise StorageFault(f"session file {self._path}: {error.strerror}") from error
        return int(BELL.unpack(data)[0]) if len(data) == BELL.size else 0

    def listen(self) -> None:
        """From now on bells make `fileno` readable."""
        if self._listening:
            return
        mask = _IN_MODIFY | _IN_CLOSE_WRITE
        if _libc.inotify_add_watch(self._inotify, os.fsencode(self._path), mask) < 0:
            raise StorageFault(f"inotify on {self._path}: {os.strerror(ctypes.get_errno())}")
        self._listening = True

    def drain(self) -> bool:
        """Takes the bells that rang; whether a session may have ended, or it is time to look again."""
        ended = False
        with suppress(BlockingIOError):
            while data := os.read(self._inotify, _READ_BYTES):
                for position in range(0, len(data), _EVENT_BYTES):
                    (mask,) = struct.unpack_from("I", data, position + 4)
                    ended = ended or bool(mask & ~_IN_MODIFY)
        if ended:
            self._look_ms = _FIRST_LOOK_MS
        with suppress(BlockingIOError):
            ended = bool(os.read(self._timer, _TIMER_BYTES)) or ended
        return ended

    def look_again(self) -> None:
        """A session may have ended though its lock stands: `fileno` will be readable once more.

        Each time after twice as long; with every session that ends it begins anew.
        """
        seconds, ms = divmod(self._look_ms, _MS_PER_S)
        if _libc.timerfd_settime(self._timer, 0, _TIMER.pack(0, 0, seconds, ms * NS_PER_MS), None) < 0:
            raise StorageFault(f"timerfd: {os.strerror(ctypes.get_errno())}")
        self._look_ms *= 2

    def close(self) -> None:
        """Ends the session: the lock goes, and the others hear it."""
        self._readable.close()
        os.close(self._timer)
        os.close(self._inotify)
        os.close(self._descriptor)


def _flock(kind: int, session_id: int, count: int = 1) -> bytes:
    """The lock of `count` sessions; 0: of all from there on."""
    return _FLOCK.pack(kind, os.SEEK_SET, FIRST_LOCK_BYTE + session_id, count, 0)
