"""The log directories of a data directory on this host, and what was heard of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from appliance_client.data_directory import RUN_FILE, log_directories
from appliance_client.errors import OptionError
from appliance_client.local_bell import Bell
from appliance_client.local_partition import IDLE_S, LocalPartition
from appliance_client.local_state import STATE
from appliance_client.spare_memory import SpareMemory

_HOMES_S: Final = 1.0
_SLOT: Final = "slot-"


class LocalLogs:
    """The log directories of a data directory. For one thread at a time."""

    def __init__(self, data_directory: str | Path) -> None:
        self.data_directory = Path(data_directory)
        self.news: set[tuple[str, int]] = set()
        """Partitions of which something was heard since somebody took them out of here."""
        self._partitions: dict[tuple[str, int], LocalPartition] = {}
        self._by_name: dict[str, LocalPartition] = {}
        self._bell = Bell()
        self._homes: list[str] = []
        self._homes_until_s = 0.0
        self.memory = SpareMemory()
        """What files are read into."""
        self.hears_names = False
        """Whether it is heard when a directory of a partition comes or goes."""

    @property
    def descriptor(self) -> int:
        """Readable when `hear` has news; -1 where that cannot be told."""
        return self._bell.descriptor

    def hear(self) -> None:
        """Put into `news` what was written."""
        paths, is_missing = self._bell.take()
        for path in paths:
            home, _, name = path.rpartition("/")
            if name == STATE:
                name = home.rpartition("/")[2]
                found = self._by_name.get(name)
            elif found := self._by_name.get(name):
                found.must_look = True
            elif name == RUN_FILE or name.startswith(_SLOT):
                is_missing = True  # the log directories may be others
            if found is not None:
                self.news.add((found.topic, found.partition))
        if is_missing:
            self._homes_until_s = 0.0
            for partition in self._partitions.values():
                partition.must_look = True
            self.news.update(self._partitions)

    def homes(self) -> list[str]:
        """The log directories. Raises PermissionError where this user may not know them."""
        now_s = time.monotonic()
        if now_s >= self._homes_until_s:
            # First the watches: what comes after them is heard.
            hears = self._bell.watch_names(str(self.data_directory))
            self._homes = log_directories(self.data_directory)
            for home in self._homes:
                hears = self._bell.watch_names(home) and hears
            self.hears_names = hears
            self._homes_until_s = now_s + (IDLE_S if hears else _HOMES_S)
        return self._homes

    def partition(self, topic: str, partition: int) -> LocalPartition:
        """One partition's reader; the same one each time."""
        key = (topic, partition)
        found = self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = LocalPartition(self, topic, partition)
            self._by_name[found.name] = found
        return found

    def rest(self, topic: str, partition: int) -> None:
        """This one is not read on for now."""
        found = self._partitions.get((topic, partition))
        if found is not None:
            found.rest()

    def keep_only(self, wanted: set[tuple[str, int]]) -> None:
        """Let go of the files of all other partitions."""
        for gone in self._partitions.keys() - wanted:
            closed = self._partitions.pop(gone)
            closed.close()
            del self._by_name[closed.name]
            self.news.discard(gone)

    def watch(self, path: str) -> bool:
        """Tell of writes to a state file; False where that cannot be."""
        return self._bell.watch(path)

    def forget(self, path: str) -> None:
        """Tell no more."""
        self._bell.forget(path)

    def close(self) -> None:
        """Close all files."""
        self.keep_only(set())
        self._bell.close()


def local_logs(data_directory: Path | None) -> LocalLogs | None:
    """What a consumer with `shm:///data-dir` reads through; None with another address.

    Raises:
        OptionError: the system has no inotify left, so that nothing would wake the consumer.
    """
    if data_directory is None:
        return None
    found = LocalLogs(data_directory)
    if found.descriptor < 0:
        raise OptionError(f"{data_directory}: the system gives no inotify (fs.inotify.max_user_instances)")
    return found
