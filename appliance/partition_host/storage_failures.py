"""What the disk refuses a process that holds partitions open, and what is offline because of it.

| what happens | what follows |
|---|---|
| a partition is refused something, and its log is as it was | a line in the journal, now and then |
| a flush failed, or what the disk has is not known | the partition is offline |
| and its log directory fails a probe, too | the directory has failed |
| a directory's lock file is gone or another's | the directory has failed |
| a directory has failed | all its partitions are offline |

Offline is for the rest of this life of the process. The controller is told.
"""

from __future__ import annotations

import select
from collections.abc import Collection
from typing import Generic

from appliance.channels.control_channel import PartitionsOffline
from appliance.channels.controller_link import ControllerLink
from appliance.cluster import TopicPartition
from appliance.errors import ApplianceError, StorageFault
from appliance.ipc.process_table import ERRORS, ProcessRow
from appliance.journal import RateLimited
from appliance.log.directory_watch import DirectoryWatch
from appliance.log.log_directories import LogDirectories
from appliance.partition_host.copy_holder import CopyHolder, Held


class StorageFailures(Generic[Held]):
    """Those of one process; before `open` there is nothing to fail.

    Args:
        complain: Logs a line, and the same not oftener than once a while. Returns whether it did.
    """

    def __init__(
        self, row: ProcessRow, controller: ControllerLink, *, slot: int, complain: RateLimited
    ) -> None:
        self._row = row
        self._controller = controller
        self._slot = slot
        self._complain = complain
        self._watch = DirectoryWatch()
        self._directories: LogDirectories | None = None
        self._holder: CopyHolder[Held] | None = None

    def open(self, directories: LogDirectories, holder: CopyHolder[Held], epoll: select.epoll) -> None:
        """Watch these from now on; `epoll` wakes the process when something has happened to a lock file."""
        self._directories = directories
        self._holder = holder
        for directory in directories.serving.values():
            for lock in directory.locks:
                self._watch.add(lock)
        if self._watch.fileno() >= 0:
            epoll.register(self._watch.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """Return the descriptor that is readable when something has happened to a lock file; -1 without one."""
        return self._watch.fileno()

    # One partition

    def refused(self, partition: Held, fault: ApplianceError) -> None:
        """The host refused something, and the log is as it was."""
        self._row.cells[ERRORS] += 1
        self._complain(f"partition {partition.topic_partition}: {fault}")

    def partition_failed(self, partition: Held, fault: StorageFault) -> None:
        """What the disk has of the partition is not known; nor of its directory, if that fails a probe."""
        holder = self._holder
        if holder is None or self._directories is None:
            return
        wider = self._directories.probe(partition.directory)
        if wider is not None:
            self._directory_failed(partition.directory, wider)
            return
        holder.warn(f"partition {partition.topic_partition} is {holder.OFFLINE}: {fault}")
        holder.take_offline(partition, fault)
        self.tell([partition.topic_partition])

    # A whole directory

    def look_when_told(self) -> None:
        """Look because something has happened to a lock file."""
        self._watch.clear()
        self.look()

    def look(self) -> None:
        """Take the partitions of directories that are gone offline."""
        if self._directories is not None:
            for index, fault in self._directories.look().items():
                self._directory_failed(index, fault)

    def suspect_directory(self, index: int) -> None:
        """Probe a directory that has refused something."""
        wider = None if self._directories is None else self._directories.probe(index)
        if wider is not None:
            self._directory_failed(index, wider)

    def _directory_failed(self, index: int, fault: StorageFault) -> None:
        holder = self._holder
        if holder is not None:
            gone = holder.take_directory_offline(index, fault)
            holder.warn(
                f"{len(gone)} partitions are {holder.OFFLINE}, because their log directory has failed"
            )
            self.tell(gone)

    # Who learns of it

    def tell(self, gone: Collection[TopicPartition]) -> None:
        """Tell the controller, and `appliance status`."""
        lacking = {} if self._holder is None else self._holder.partial
        self._controller.ask(
            PartitionsOffline(
                self._slot,
                tuple((name.topic, name.partition) for name in gone),
                tuple((name.topic, name.partition) for name in gone if name in lacking),
            )
        )
        self.show()

    def show(self) -> None:
        """Publish what is offline where `appliance status` looks. A worker does; a replica has no words for it."""

    def close(self) -> None:
        """Stop watching the lock files."""
        self._watch.close()
