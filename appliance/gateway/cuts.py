"""Connections that are ended for what their clients do not read, and the memory that comes back by it.

ZeroMQ frees the messages of a connection when its socket is shut down, in its own thread. The C library then keeps
what lies in the middle of its heap, as with 16 MiB each for several sessions whose messages lay between others. So a
moment later it is asked to give all of it to the system.
"""

from __future__ import annotations

import ctypes
from typing import Final

from appliance.gateway.received import Wire
from appliance.ipc.agent import Timers

_TRIM_AFTER_MS: Final = 1000
"""ZeroMQ's thread has long freed the messages then, and a flood of such sessions costs one trim a second."""

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""malloc_trim(3), which takes a few milliseconds; None where the C library is not glibc."""


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
        if _trim is not None and not self._is_trimming:
            self._is_trimming = True
            self._timers.after_ms(_TRIM_AFTER_MS, self._give_back)

    def _give_back(self) -> None:
        self._is_trimming = False
        if _trim is not None:
            _trim(ctypes.c_size_t(0))
