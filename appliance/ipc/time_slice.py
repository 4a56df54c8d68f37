"""A short time slice, for who is to have a core as soon as it wakes.

A process that wakes takes the core from the running one only where its own slice is shorter, or its turn has come; by
default all slices are alike (1 to 3 ms), and what woke it waits for the rest of somebody's. A process may ask for a
shorter one without privilege. It gets no larger share of the processor by that, only its turns sooner and in smaller
pieces, and who is interrupted pays for it: decision 0063 says who asks. Threads and children that are made later
inherit it.

Source: sched_setattr(2), SCHED_OTHER, `sched_runtime`; since Linux 6.12, before that the word is not looked at.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Final

SLICE_NS: Final = 100_000
"""The least that Linux gives."""

# Of x86-64, the only processor that is served (fence.py); the C library has no name for them before glibc 2.41.
_SCHED_SETATTR: Final = 314
_SCHED_GETATTR: Final = 315
# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period; the words after these are optional.
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
_POLICY: Final = 1
_RUNTIME: Final = 5
# SCHED_OTHER and SCHED_BATCH. With another policy somebody has decided already.
_WITH_A_SLICE: Final = frozenset({0, 3})


def ask_for_short_slice(slice_ns: int = SLICE_NS) -> bool:
    """Asks for this thread, and all that it starts from now on; whether the system took it.

    A system that refuses (a filter of system calls, a policy of real time) leaves everything as it was.
    """
    libc = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if libc.syscall(_SCHED_GETATTR, 0, attributes, _ATTRIBUTES.size, 0) != 0:
        return False
    fields = list(_ATTRIBUTES.unpack(attributes.raw))
    if fields[_POLICY] not in _WITH_A_SLICE:
        return False
    fields[_RUNTIME] = slice_ns
    attributes.raw = _ATTRIBUTES.pack(*fields)
    taken: int = libc.syscall(_SCHED_SETATTR, 0, attributes, 0)
    return taken == 0
