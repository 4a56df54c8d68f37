"""Take the pages of lanes that have ended back.

The kernel frees a memory when the last process lets go of it, and a client may keep its descriptor. So without this a
client could make the appliance fill one memory after the other. A client that has closed its socket, or has read all
its answers, loses the pages at once. Any other client may still read its last answers, so it loses them after
`GRACE_MS`. The page of the words and the rings stays, so that a client that comes later finds no cursor that moved.

A thread does it, because the client can make it wait (`fallocate` holds the same lock).
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import Any, Final

from appliance.ipc.agent import Timers
from appliance.lane.aside import Aside

GRACE_MS: Final = 5_000

# Unlike mmap.madvise, a call by ctypes does not hold the interpreter up.
_LIBC: Final[Any] = ctypes.CDLL(None)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class EndedMemories:
    """The memories of lanes that have ended, until their pages are free.

    Args:
        timers: of the process.
        start: the first byte to free, at the beginning of a page.
        most: see `is_full`.
    """

    def __init__(self, timers: Timers, *, start: int, most: int) -> None:
        self._timers = timers
        self._start = start
        self._most = most
        self._waiting = 0
        self._aside = Aside("memories", self._free)

    @property
    def is_full(self) -> bool:
        """Whether `most` memories wait, so that there should be no other lane for now."""
        self._waiting -= self._aside.take_done()
        return self._waiting >= self._most

    def add(self, memory: mmap.mmap, *, at_once: bool) -> None:
        """Free a memory, which nothing uses any more."""
        self._waiting += 1
        if at_once:
            self._aside.put(memory)
        else:
            self._timers.after_ms(GRACE_MS, lambda: self._aside.put(memory))

    def _free(self, memory: mmap.mmap) -> None:
        take_pages(memory, self._start)
        with suppress(BufferError):
            # In pure Python the traceback of an error that ended the lane can have a part of it.
            memory.close()


def take_pages(memory: mmap.mmap, start: int) -> None:
    """Free the pages from `start` on, for every process that maps them. They are zeros then."""
    first = ctypes.c_char.from_buffer(memory)
    _LIBC.madvise(ctypes.addressof(first) + start, len(memory) - start, mmap.MADV_REMOVE)
    del first
