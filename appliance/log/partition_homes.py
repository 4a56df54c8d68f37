"""In which log directory of a slot each partition is, and where a new one goes: to the directory with the fewest.

Another process of the slot may put a partition elsewhere, or delete it. Therefore a partition that is not open here is
looked for on the disk again, unless this process is the only one that uses the directories.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from appliance.cluster import TopicPartition
from appliance.errors import LogDirectoryOffline, StorageFault
from appliance.log.checkpoint import is_directory
from appliance.log.file_names import partition_directory_name
from appliance.log.log_directory import LogDirectory
from appliance.log.shares import Share


class PartitionHomes:
    """The homes of the partitions of one slot. A home is the index of a log directory.

    Args:
        count: how many log directories the slot has.
        serving: the directories that serve, by index, at any time.
        failed: the faults of the others, at any time.
        share: which part of the slot this process has.

    `homes` has the partitions that were found or opened. `twice` has those that are in two directories.
    """

    __slots__ = ("_count", "_failed", "_serving", "_share", "homes", "twice")

    def __init__(
        self,
        count: int,
        serving: Mapping[int, LogDirectory],
        failed: Mapping[int, StorageFault],
        *,
        share: Share,
    ) -> None:
        self._count = count
        self._serving = serving
        self._failed = failed
        self._share = share
        self.homes: Final[dict[TopicPartition, int]] = {}
        self.twice: Final[set[TopicPartition]] = set()

    def note(self, partition: TopicPartition, index: int) -> None:
        """Note that a directory has a partition, as its listing says."""
        if self.homes.setdefault(partition, index) != index:
            self.twice.add(partition)

    def of(self, offsets: Mapping[TopicPartition, int], index: int) -> dict[TopicPartition, int]:
        """Return those of `offsets` whose partitions are in one directory."""
        return {name: offset for name, offset in offsets.items() if self.homes.get(name) == index}

    def choose(
        self, partition: TopicPartition, *, is_new: bool, was_there: bool, moving_to: Iterable[int]
    ) -> int:
        """Return the directory that has a partition, else the one that a new partition goes to.

        Args:
            moving_to: the directories in which copies of other partitions grow, one entry for each copy.

        Raises:
            LogDirectoryOffline: it has failed, or may have.
        """
        home = self.homes.get(partition)
        if home is None:
            if was_there:
                raise LogDirectoryOffline(f"{partition} has disappeared from its log directory")
            if self._failed and not is_new:
                raise LogDirectoryOffline(
                    f"{partition} is in no working log directory, but may be in a failed one"
                )
            home = self._fewest(moving_to)
        if home in self._failed:
            raise LogDirectoryOffline(str(self._failed[home])) from self._failed[home]
        return home

    def look_again(self, partition: TopicPartition) -> None:
        """Find out where another process of the slot has put a partition meanwhile, or that it has deleted it."""
        home = self.homes.get(partition)
        if self._share.is_whole or home in self._failed:
            return
        if home is not None and partition in self._serving[home].partitions:
            return
        homes = self.on_disk(partition)
        self.homes.pop(partition, None)
        self.twice.discard(partition)
        if homes:
            self.homes[partition] = homes[0]
        if len(homes) > 1:
            self.twice.add(partition)

    def directories(self, partition: TopicPartition) -> dict[int, Path]:
        """Return the directories of a partition on the disk, by the index of their log directory."""
        name = partition_directory_name(partition)
        return {index: self._serving[index].path / name for index in self.on_disk(partition)}

    def on_disk(self, partition: TopicPartition) -> list[int]:
        """Return which log directories that serve have a directory of a partition, by index."""
        name = partition_directory_name(partition)
        # Text, not paths: a takeover looks for a thousand, and a path costs more than the look.
        return [index for index, each in self._serving.items() if is_directory(f"{each.path}/{name}")]

    def _fewest(self, moving_to: Iterable[int]) -> int:
        counts = dict.fromkeys(self._serving, 0)
        if not counts:
            raise LogDirectoryOffline("every log directory has failed")
        if len(counts) == 1:
            return next(iter(counts))
        for home in (*self.homes.values(), *moving_to):
            if home in counts:
                counts[home] += 1
        # A worker does not see what the others have made since. So among equals each worker begins at another one.
        first = self._share.worker or 0
        return min(counts, key=lambda index: (counts[index], (index - first) % self._count))
