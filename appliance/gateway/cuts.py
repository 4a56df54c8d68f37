"""Connections that are ended for what their clients do not read, and the memory that comes back by it.

ZeroMQ's own thread frees the messages of a connection when its socket is shut down. The C library keeps the freed
memory for itself where something else lies above it in the heap. Eight clients with 16 MiB each have left 66 MB there.
So the C library is asked a moment later to give it to the system.
"""

from __future__ import annotations

import ctypes
from typing import Final

from appliance.gateway.received import Wire
from appliance.ipc.agent import Timers

_TRIM_AFTER_MS: Final = 1000
"""ZeroMQ's thread has long freed the messages then, and a flood of such sessions costs one trim a second."""

_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)
"""malloc_trim(3), which takes a few milliseconds. Only glibc has it."""


class Cuts:
    """The connections that one gateway ends.

    Args:
        timers: those of the process.
    """

    __slots__ = ("_is_trimming", "_timers")

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._is_trimming = False

    def cut(self, wire: Wire) -> None:
        """Shut down a connection; its unread messages are freed soon afterwards."""
        wire.cut()
        if not self._is_trimming:
            self._is_trimming = True
            self._timers.after_ms(_TRIM_AFTER_MS, self._give_back)

    def _give_back(self) -> None:
        self._is_trimming = False
        _trim(ctypes.c_size_t(0))
