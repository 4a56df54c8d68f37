"""What the scheduler knows of a process: sched_getattr(2)."""

from __future__ import annotations

import ctypes
import platform
import struct
from typing import NamedTuple

_SCHED_GETATTR = 315
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")

IS_HEARD = tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 12)
"""Whether this kernel gives a process the slice that it asks for."""


class Scheduled(NamedTuple):
    policy: int
    nice: int
    slice_ns: int


def scheduled(pid: int = 0) -> Scheduled:
    """Of a thread, by its id; 0 is the caller's."""
    raw = ctypes.create_string_buffer(_ATTRIBUTES.size)
    assert ctypes.CDLL(None).syscall(_SCHED_GETATTR, pid, raw, _ATTRIBUTES.size, 0) == 0
    _, policy, _, nice, _, slice_ns, _, _ = _ATTRIBUTES.unpack(raw.raw)
    return Scheduled(policy, nice, slice_ns)
