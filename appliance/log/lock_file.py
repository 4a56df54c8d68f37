"""Lock files: opened for this user alone, waited for within a bound, and a message that names the holder.

Whoever can open a file can lock it (flock(2) asks for no permission), so another user who may read a lock file can
keep the appliance from starting or stopping. Hence lock files have mode 0600, also in a directory that a group may
read, and no wait for a lock is without a bound.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.errors import StorageFault
from appliance.log.faults import storage_faults

MODE: Final = 0o600
WAIT_MAX_MS: Final = 10_000
"""How long a process waits for another one that keeps files of a log directory for a moment."""

_FIRST_PAUSE_S: Final = 0.001
_PAUSE_MAX_S: Final = 0.05
_HOLDERS_NAMED_MAX: Final = 3
_COMMAND_BYTES_MAX: Final = 60


def open_lock_file(path: Path, *, writable: bool = True) -> int:
    """Open a lock file, creating it with mode 0600; return its descriptor.

    A file of ours that others may open loses those permissions. A symbolic link is not followed.

    Args:
        writable: False for a descriptor that only locks. Children that inherit it cannot write with it.

    Raises:
        OSError: it cannot be opened.
    """
    access = os.O_RDWR if writable else os.O_RDONLY
    descriptor = os.open(path, access | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
    try:
        found = os.fstat(descriptor)
        if found.st_mode & 0o077 and found.st_uid == os.geteuid():
            os.fchmod(descriptor, MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def lock_within(descriptor: int, path: Path, *, wait_ms: int = WAIT_MAX_MS) -> None:
    """Take an exclusive flock(2) on `descriptor`, waiting at most `wait_ms`. `path` is for the message.

    Raises:
        StorageFault: somebody else held it all the time; the text names the holders.
    """
    deadline_ns = time.monotonic_ns() + wait_ms * 1_000_000
    pause_s = _FIRST_PAUSE_S
    with storage_faults(path):
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic_ns() >= deadline_ns:
                    break
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            else:
                return
    fault = StorageFault(f"{path} has been locked for {wait_ms} ms by {holders_named(descriptor)}")
    # The disk is sound: nobody shall take the directory offline for it.
    fault.os_error = BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    raise fault


def holders_named(descriptor: int) -> str:
    """Return who holds the file of `descriptor`: `pid 42 (flock, user nobody)`, joined by commas."""
    return named(lock_holders(descriptor) or open_in(descriptor))


def named(pids: Sequence[int]) -> str:
    """Return process ids with command and user, a few of them."""
    if not pids:
        return "a process that this user may not see"
    told = [_named(pid) for pid in pids[:_HOLDERS_NAMED_MAX]]
    if len(pids) > _HOLDERS_NAMED_MAX:
        told.append(f"{len(pids) - _HOLDERS_NAMED_MAX} more")
    return ", ".join(told)


def lock_holders(descriptor: int) -> list[int]:
    """Return the ids of processes that took a lock on the file, of either kind, as /proc/locks lists them.

    A lock that was inherited is listed under the process that took it, which may be gone.
    """
    file = os.fstat(descriptor)
    wanted = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    found: set[int] = set()
    with suppress(OSError), open("/proc/locks", encoding="ascii", errors="replace") as table:
        for line in table:
            # `1: FLOCK  ADVISORY  WRITE 4242 fd:01:1234567 0 EOF`; `1: -> …` waits for it.
            fields = line.split()
            if "->" not in fields and len(fields) >= 6 and fields[5] == wanted:
                with suppress(ValueError):
                    found.add(int(fields[4]))
    return sorted(pid for pid in found if pid != os.getpid() and _lives(pid))


def open_in(descriptor: int) -> list[int]:
    """Return the ids of other processes that have the file open, as far as this user may look."""
    wanted = os.fstat(descriptor)
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with suppress(OSError):
            for link in os.scandir(f"/proc/{entry}/fd"):
                with suppress(OSError):
                    status = os.stat(link.path)
                    if (status.st_dev, status.st_ino) == (wanted.st_dev, wanted.st_ino):
                        found.append(int(entry))
                        break
    return sorted(found)


def user_named(uid: int) -> str:
    """Return the user's name, or `uid 4242` where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def mode_text(mode: int) -> str:
    """Return the permission bits as chmod(1) takes them: `0755`."""
    return f"{stat.S_IMODE(mode):04o}"


def _named(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(_COMMAND_BYTES_MAX).replace(b"\0", b" ").decode(errors="replace")
        # Its owner chose the text: nothing of it may look like another line of the journal.
        command = "".join(letter if letter.isprintable() else "?" for letter in words).strip()
        return f"pid {pid} ({command}, user {user_named(os.stat(f'/proc/{pid}').st_uid)})"
    except OSError:
        return f"pid {pid}"


def _lives(pid: int) -> bool:
    """Return whether the process runs; one that has ended and is not reaped yet holds no lock."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False
