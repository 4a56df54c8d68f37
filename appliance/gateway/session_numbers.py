"""Ids and numbers of the sessions and subscriptions of one network process, and marks.

An id names a session once and for all, in log lines and in the books of other processes. A number is its place in
tables that are as large as the most sessions there ever were, so numbers are used again.
"""

from __future__ import annotations

import os

from appliance.gateway.session import SESSION_NUMBERS_FROM


class SessionNumbers:
    """The numbers of one network process.

    Args:
        netproc: the index of the process among the network processes.
        generation: which run of it this is.
    """

    __slots__ = ("_free", "_id_base", "_last", "_opened")

    def __init__(self, netproc: int, generation: int) -> None:
        self._id_base = (1 << 60) | (netproc << 52) | ((generation & 0xFFFFF) << 32) | (1 << 31)
        self._opened = 0
        self._free: list[int] = []
        self._last = SESSION_NUMBERS_FROM

    def new_id(self) -> int:
        """Return an id that no session of this process had."""
        self._opened += 1
        return self._id_base | (self._opened & 0x7FFFFFFF)

    def take(self) -> int:
        """Return a number that no session has now."""
        if self._free:
            return self._free.pop()
        self._last += 1
        return self._last

    def give_back(self, number: int) -> None:
        """Let the next session have this number."""
        self._free.append(number)


def new_mark() -> int:
    """Return a number of 64 bits, not 0, that nobody can guess."""
    return int.from_bytes(os.urandom(8), "big") or 1
