"""Whether a process that was killed runs no more, though it has not ended.

SIGKILL ends a process when one of its threads next comes back from the kernel. A thread that waits there for a disk, or
for a file system that is frozen, cannot be woken and does not come back; all others end at once. So a killed process
of which only such threads are left will never run another instruction of its program:

    each thread:   State: D (disk sleep), and SIGKILL in SigPnd        or it has ended (Z, X)

What the kernel has begun for it may still be done when the disk answers: a write into a file of its own. And what it
has open, and its locks, stay until then. Source: proc_pid_status(5); signal(7).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

_PROC = Path("/proc")
_KILLED = 1 << (signal.SIGKILL - 1)


def runs_no_more(pid: int, *, proc: Path = _PROC) -> bool:
    """Whether the kernel holds each thread that is left of the process. False where none is left."""
    held = False
    try:
        for thread in os.listdir(proc / f"{pid}" / "task"):
            status = (proc / f"{pid}" / "task" / thread / "status").read_text()
            fields = dict(line.split(":", 1) for line in status.splitlines())
            state = fields["State"].strip()[0]
            if state in "ZX":
                continue
            if state != "D" or not int(fields["SigPnd"], 16) & _KILLED:
                return False
            held = True
    except (OSError, KeyError, ValueError):
        return False  # a thread has ended between two looks
    return held
