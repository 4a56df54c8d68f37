"""Files of a worker's logs that go: segments that were retired, after their delay, and partitions that were deleted.

A thread removes them (`sweeper`), each when no reader's lease holds it any more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from appliance.clock import Clock
from appliance.config import BrokerSettings
from appliance.ioproc.sweeper import Sweeper
from appliance.ipc.agent import Timers
from appliance.log.log_directories import LogDirectories
from appliance.log.reader_leases import LeaseBook


class Removals:
    """What waits for its removal in one worker; nothing is removed before `open`. Arguments as `Sweeper`'s."""

    __slots__ = ("_directories", "_leases", "_sweeper")

    def __init__(
        self,
        timers: Timers,
        clock: Clock,
        *,
        settings: BrokerSettings,
        eventfd: int,
        warn: Callable[[str], None],
    ) -> None:
        self._sweeper = Sweeper(timers, clock, eventfd=eventfd, warn=warn)
        self._leases = LeaseBook(
            clock, max_bytes=settings.reader_lease_max_bytes, max_ms=settings.reader_lease_max_ms, warn=warn
        )
        self._directories: LogDirectories | None = None

    def open(self, directories: LogDirectories) -> None:
        """From now on they are what is removed from; first what a killed life of ours had still to remove."""
        self._directories = directories
        directories.remove_needless()
        self.remove_partitions()

    def remove_retired(self) -> None:
        """Files of retired segments go after their delay."""
        if self._directories is not None:
            for removal in self._directories.take_removals():
                self._sweeper.add(partial(removal.run_unless_held, self._leases), delay_ms=removal.delay_ms)

    def remove_partitions(self) -> None:
        """Deleted partitions go."""
        if self._directories is not None:
            self._sweeper.add(partial(self._leases.remove_partitions, self._directories.remove_deleted))

    def take_removed(self) -> bool:
        """Whether anything was removed since this was asked last."""
        return self._sweeper.take_removed()
