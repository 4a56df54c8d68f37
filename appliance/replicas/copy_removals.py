"""Files of a replica's copies that go: segments that were retired, after their delay, and partitions that were deleted.

What a reader's lease holds (`log.reader_leases`) is asked for again later. Every SWEEP_MS a thread removes the leases
that have expired. Killed before something was removed, the
next start finds it by its `.deleted` or `-delete` name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from appliance.errors import StorageFault
from appliance.log.log_directories import LogDirectories
from appliance.log.reader_leases import SWEEP_MS, LeaseBook
from appliance.log.removal import Removal


class CopyRemovals:
    """What waits for its removal in one replica process; nothing is removed before `open`."""

    __slots__ = ("_after_ms", "_directories", "_leases", "_warn")

    def __init__(
        self,
        after_ms: Callable[[int, Callable[[], None]], object],
        leases: LeaseBook,
        *,
        warn: Callable[[str], object],
    ) -> None:
        self._after_ms = after_ms
        self._leases = leases
        self._warn = warn
        self._directories: LogDirectories | None = None

    def open(self, directories: LogDirectories) -> None:
        """From now on they are what is removed from; first what a killed life of ours had still to remove."""
        is_first = self._directories is None
        self._directories = directories
        self.remove_partitions()
        if is_first:
            self._sweep_leases()

    def _sweep_leases(self) -> None:
        assert self._directories is not None
        folders = [log.directory for log in self._directories.partitions.values()]
        threading.Thread(target=self._leases.sweep, args=(folders,), name="sweep leases", daemon=True).start()
        self._after_ms(SWEEP_MS, self._sweep_leases)

    def remove_retired(self) -> None:
        """Files of retired segments go after their delay."""
        if self._directories is not None:
            for removal in self._directories.take_removals():
                self._after_ms(removal.delay_ms, partial(self._remove, removal))

    def _remove(self, removal: Removal) -> None:
        try:
            again = removal.run_unless_held(self._leases)
            if again is not None:
                self._after_ms(again.delay_ms, partial(self._remove, removal))
        except StorageFault as fault:
            self._warn(f"the next opening removes what could not be: {fault}")

    def remove_partitions(self) -> None:
        """Deleted partitions go, on a thread, each when no reader reads it any more."""
        if self._directories is not None:
            threading.Thread(
                target=self._remove_partitions, args=(self._directories,), name="sweep", daemon=True
            ).start()

    def _remove_partitions(self, directories: LogDirectories) -> None:
        while (again := self._leases.remove_partitions(directories.remove_deleted)) is not None:
            time.sleep(again.delay_ms / 1000)
