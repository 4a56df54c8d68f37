"""Which other processes hold locks on a file: the lines of /proc/locks (proc(5)) that name it.

1: POSIX  ADVISORY  WRITE 4711 fe:01:131 1073741826 1073742335
   kind             mode  pid  device:inode  first and last byte
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_LOCKS: Final = Path("/proc/locks")
_PID: Final = 4
_FILE: Final = 5
_TOLD_MAX: Final = 5


def holders(paths: Iterable[Path]) -> list[int]:
    """Process ids, ascending, without our own. A lock whose process this user may not see is left out."""
    wanted = set()
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
            wanted.add(f"{device}:{status.st_ino}")
    found = set()
    with suppress(OSError):
        for line in _LOCKS.read_text().splitlines():
            words = [word for word in line.split() if word != "->"]
            if len(words) > _FILE and words[_FILE] in wanted and words[_PID].isdigit():
                found.add(int(words[_PID]))
    return sorted(found - {0, os.getpid()})


def holders_text(paths: Iterable[Path]) -> str:
    """`; held by pid 4711 (sqlite3)`, or nothing where no holder can be seen."""
    told = []
    for pid in holders(paths)[:_TOLD_MAX]:
        name = "?"
        with suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        told.append(f"pid {pid} ({name})")
    return f"; held by {', '.join(told)}" if told else ""
