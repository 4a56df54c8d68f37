"""`durability = "fsync"`: how far followers have come is told only when it is on their disks.

    append ─→ cover ─→ due ──(no flush of this log under way)──→ flush ─→ log end published, leader told

So the high watermark, which waits for the in-sync replicas, never passes what one of them would lose with the power.
One flush covers everything that was appended before it began; each log has at most one under way, all together at
most FLUSHES_MAX, which bounds the descriptors.

A flush that failed is never tried again, for the next one would succeed over records that are not there: the copy is
followed no more in this life of the process. The worker does the same for what it leads (`ioproc/group_commit.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from appliance.errors import StorageFault
from appliance.log.durable_tail import TailFlush
from appliance.log.flusher import Flusher
from appliance.partition_host.listener import PartitionListener
from appliance.replicas.follower import Follower

FLUSHES_MAX: Final = 64


class DurableCopies:
    """The flushes of one replica process. Single-threaded; only the flushes run elsewhere. Nothing before `open`.

    Args:
        listener: Takes a follower offline whose flush failed.
    """

    __slots__ = ("_between", "_by_row", "_done", "_due", "_flusher", "_listener", "_under_way")

    def __init__(self, flusher: Flusher, *, listener: PartitionListener[Follower]) -> None:
        self._flusher = flusher
        self._listener = listener
        self._by_row: Mapping[int, Follower] = {}
        self._due: dict[Follower, None] = {}
        self._between: dict[Follower, Callable[[], None]] = {}
        self._under_way: set[Follower] = set()
        self._done: deque[tuple[Follower, TailFlush, StorageFault | None]] = deque()

    def open(self, by_row: Mapping[int, Follower]) -> None:
        """These, at any time, are what is followed from now on."""
        self._by_row = by_row

    def _is_followed(self, follower: Follower) -> bool:
        return self._by_row.get(follower.row) is follower

    def cover(self, follower: Follower) -> None:
        """Forces what it has appended to the disk, soon, if that is what its topic wants."""
        if follower.wants_flush:
            self._due[follower] = None

    def between_flushes(self, partition: Follower, action: Callable[[], None]) -> None:
        """Runs `action` when no flush of the log is under way: now, or before the next one begins.

        Never, if the partition is followed no more by then.
        """
        if partition in self._under_way:
            self._between[partition] = action
        else:
            action()

    def relocated(self, partition: Follower) -> None:
        """The log's files are others now: what was told stays so, and the next flush covers what they lack."""
        partition.relocated()

    def turn(self) -> list[Follower]:
        """Hears which flushes have ended and begins the next; the followers whose log end was published."""
        published = []
        while self._done:
            follower, flush, fault = self._done.popleft()
            self._under_way.discard(follower)
            between = self._between.pop(follower, None)
            if not self._is_followed(follower):
                continue
            if fault is not None and flush.cuts == follower.log.cuts:
                self._due.pop(follower, None)
                self._listener.storage_failed(follower, fault)
                continue
            follower.flushed(flush)
            published.append(follower)
            if between is not None:
                between()
            self.cover(follower)
        for follower in list(self._due):
            if not self._is_followed(follower):
                del self._due[follower]
            elif follower not in self._under_way and len(self._under_way) < FLUSHES_MAX:
                del self._due[follower]
                self._begin(follower)
        return published

    def is_empty(self) -> bool:
        """For the duty cycle: whether it may sleep without a turn."""
        return not self._done

    def _begin(self, follower: Follower) -> None:
        try:
            flush = follower.flush()
        except StorageFault as fault:
            self._listener.storage_failed(follower, fault)
            return
        if flush is not None:
            self._under_way.add(follower)
            self._flusher.submit(flush.run, lambda fault: self._done.append((follower, flush, fault)))

    def begin(self) -> None:
        """As `Flusher.begin`."""
        self._flusher.begin()

    def close(self) -> None:
        """Waits for the flushes that have begun."""
        self._flusher.close()

    def statistics(self) -> dict[str, int]:
        """Copies whose flush is due, and those under way."""
        return {"due": len(self._due), "flushes": len(self._under_way)}
