"""The wall clock of a test broker, which a test sets while the broker runs.

    test ── writes 8 bytes ──→ file in the broker's directory ←── mapped by all its processes, asked with each look

The monotonic clock stays as it is, as when somebody sets the clock of a host: timeouts and sessions take no notice.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final

NAME: Final = "clock"
_AHEAD: Final = struct.Struct("=q")
_NS_PER_S: Final = 1_000_000_000
_REACH_NS: Final = 1 << 62


def make(path: Path) -> None:
    """Make the file, with a clock that is right, if it is not there."""
    if not path.exists():
        path.write_bytes(_AHEAD.pack(0))


def set_ahead(path: Path, seconds: float) -> None:
    """Set the clock ahead of the host's; a negative number sets it behind.

    Raises:
        ValueError: `seconds` is no number of nanoseconds below 2**62.
    """
    if not abs(seconds * _NS_PER_S) < _REACH_NS:
        raise ValueError(f"a clock cannot be set {seconds} s ahead")
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, _AHEAD.pack(int(seconds * _NS_PER_S)), 0)
    finally:
        os.close(descriptor)


def follow(path: Path) -> None:
    """Have this process, and those that it forks, take the wall clock from the file."""
    with path.open("r+b") as file:
        ahead = memoryview(mmap.mmap(file.fileno(), _AHEAD.size)).cast("q")
    real_ns = time.time_ns

    def time_ns() -> int:
        return real_ns() + ahead[0]

    def seconds() -> float:
        return time_ns() / _NS_PER_S

    time.time_ns, time.time = time_ns, seconds
