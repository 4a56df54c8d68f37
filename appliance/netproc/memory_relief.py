"""What happens when memory is short: connections that have held some for too long are closed, and others get it.

| short | closed | after |
|---|---|---|
| the pool: connections are starved | the slowest of half-received requests, as many as the others need | the grace |
| unread answers: `owed_bytes_max` | the slowest readers, until the others fit | the grace |

It looks ten times a second while there is something to relieve, and never else. All that time the acceptor gives new
connections to other network processes, as long as one of them is not short.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.clock import Clock
from appliance.ipc.agent import Timers
from appliance.ipc.buffer_pool import BufferPool
from appliance.netproc.connection import Connection
from appliance.netproc.connections import Connections
from appliance.netproc.intake import Intake
from appliance.netproc.outlet import slowest_readers

RELIEF_INTERVAL_NS: Final = 100_000_000


class MemoryRelief:
    """That of one network process.

    Args:
        connections: all that are open, at any time.
        fault: closes a connection with one line that says why.
        read_again: has a connection read that was starved.
        short: is called when memory is short, or no longer.

    `owed_bytes` counts the answers that were given and not sent, of all connections. `Sockets` gives them and sends
    them, so it counts.
    """

    __slots__ = (
        "_clock",
        "_connections",
        "_fault",
        "_intake",
        "_is_due",
        "_pool",
        "_read_again",
        "_short",
        "_timers",
        "owed_bytes",
        "owed_bytes_max",
    )

    def __init__(
        self,
        intake: Intake,
        pool: BufferPool,
        connections: Connections,
        *,
        owed_bytes_max: int,
        timers: Timers,
        clock: Clock,
        fault: Callable[[Connection, str], None],
        read_again: Callable[[Connection], None],
        short: Callable[[bool], None],
    ) -> None:
        self._intake = intake
        self._pool = pool
        self._connections = connections
        self._timers = timers
        self._clock = clock
        self._fault = fault
        self._read_again = read_again
        self._short = short
        self._is_due = False
        self.owed_bytes = 0
        self.owed_bytes_max = owed_bytes_max

    def feed(self) -> None:
        """Read starved connections again, as long as blocks come back."""
        now_ns = self._clock.monotonic_ns()
        while (connection := self._intake.next_fed(now_ns)) is not None:
            self._read_again(connection)
            if connection.starved:
                return

    def relieve_later(self) -> None:
        """Relieve memory in a while, because it is short."""
        if not self._is_due:
            self._is_due = True
            self._timers.add(self._clock.monotonic_ns() + RELIEF_INTERVAL_NS, self._relieve)
            self._short(True)

    def _relieve(self) -> None:
        self._is_due = False
        now_ns = self._clock.monotonic_ns()
        if self.owed_bytes > self.owed_bytes_max:
            for connection in slowest_readers(self._connections.all(), now_ns - self._intake.grace_ns):
                self._fault(connection, "it does not read its answers, and there are too many of them")
                if self.owed_bytes <= self.owed_bytes_max:
                    break
        if self._intake.starved:
            enough_bytes = self._pool.reserve_bytes + self._intake.starved_bytes()
            for connection in self._intake.slowest(self._connections.all(), now_ns):
                if self._pool.free_bytes() > enough_bytes:
                    break
                self._fault(connection, "its unfinished request held memory that others wait for")
            self.feed()
        if self._intake.starved or self.owed_bytes > self.owed_bytes_max:
            self.relieve_later()
        else:
            self._short(False)
