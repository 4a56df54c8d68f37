"""Files of a process's logs that are removed: retired segments, after their delay, and deleted partitions.

A thread removes them (`sweeper`), each when no reader's lease holds it any more. Every SWEEP_MS the thread also removes
the leases that have expired.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from appliance.clock import Clock
from appliance.config import BrokerSettings
from appliance.ipc.agent import Timers
from appliance.log.log_directories import LogDirectories
from appliance.log.reader_leases import SWEEP_MS, LeaseBook
from appliance.partition_host.sweeper import Sweeper


class Removals:
    """What waits for its removal in one process; nothing is removed before `open`. Arguments as `Sweeper`'s."""

    __slots__ = ("_directories", "_leases", "_sweeper", "_timers")

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
        self._timers = timers
        self._directories: LogDirectories | None = None

    def open(self, directories: LogDirectories) -> None:
        """Remove from these directories from now on, first what a killed life of the process had still to remove."""
        is_first = self._directories is None
        self._directories = directories
        directories.remove_needless()
        self.remove_partitions()
        if is_first:
            self._sweep_leases()

    def remove_retired(self) -> None:
        """Files of retired segments go after their delay."""
        if self._directories is not None:
            for removal in self._directories.take_removals():
                self._sweeper.add(partial(removal.run_unless_held, self._leases), delay_ms=removal.delay_ms)

    def remove_partitions(self) -> None:
        """Deleted partitions go."""
        if self._directories is not None:
            self._sweeper.add(partial(self._leases.remove_partitions, self._directories.remove_deleted))

    def _sweep_leases(self) -> None:
        assert self._directories is not None
        folders = [log.directory for log in self._directories.partitions.values()]
        self._sweeper.add(partial(self._leases.sweep, folders))
        self._timers.after_ms(SWEEP_MS, self._sweep_leases)

    def take_removed(self) -> bool:
        """Whether anything was removed since this was asked last."""
        return self._sweeper.take_removed()

    def statistics(self) -> dict[str, int]:
        """Return what waits for its time, and the leases that were seen."""
        return {**self._sweeper.statistics(), **self._leases.statistics()}
