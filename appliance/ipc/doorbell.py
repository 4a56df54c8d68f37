"""How a process that sleeps is woken: one eventfd per process, rung only when a word says that it sleeps.

The supervisor creates the eventfd before it forks, so it outlives both ends; the sleeping word lies in the
process table and is written by its owner only. The pattern is announce-then-check on both sides, with a full
fence between the halves (see fence.py):

    owner:  announce_sleep()  →  look at every inbox once more  →  epoll_wait  →  awake()
    other:  publish to the inbox  →  ring()

Whichever fence comes second sees the other side's store, so either the owner finds the message or the other
finds the flag.
"""

from __future__ import annotations

import contextlib
import os

from appliance.ipc.fence import full_fence


class Doorbell:
    """One process's doorbell, the same for its owner and for those who ring it.

    Args:
        eventfd: a non-blocking eventfd; add it to the owner's epoll set for reading.
        flag_cell: one word (`memoryview` of format "q" and length 1), 1 while the owner sleeps.
    """

    __slots__ = ("_flag", "eventfd")

    def __init__(self, eventfd: int, flag_cell: memoryview) -> None:
        if len(flag_cell) != 1 or flag_cell.itemsize != 8:
            raise ValueError("a doorbell's flag is one 8-byte word")
        self.eventfd = eventfd
        self._flag = flag_cell

    @staticmethod
    def create_eventfd() -> int:
        """A descriptor fit for a doorbell: non-blocking, closed on exec, kept over fork."""
        return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def announce_sleep(self) -> None:
        """Owner: from here on a writer rings. Look at every inbox once more before sleeping."""
        self._flag[0] = 1
        full_fence()

    def awake(self) -> None:
        """Owner: writers need not ring any more."""
        self._flag[0] = 0

    def drain(self) -> int:
        """Owner: takes the rings off the eventfd; how many there were."""
        try:
            return os.eventfd_read(self.eventfd)
        except BlockingIOError:
            return 0

    def ring(self) -> bool:
        """Others: wakes the owner if it sleeps, after publishing. Whether it had to."""
        full_fence()
        if not self._flag[0]:
            return False
        # A full counter refuses the write, but then the descriptor is readable: the owner will wake.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self.eventfd, 1)
        return True

    def wake(self) -> None:
        """Others: wakes the owner, or keeps it from sleeping next. For news that lies in no inbox of the owner."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self.eventfd, 1)

    def is_sleeping(self) -> bool:
        """Whether the owner says that it sleeps; without a fence, so for display only."""
        return bool(self._flag[0])
