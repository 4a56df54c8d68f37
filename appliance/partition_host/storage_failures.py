"""What the disk refuses a worker, and what is offline for it.

| what happens | what follows |
|---|---|
| a partition is refused something | it is said, now and then; for want of descriptors, logs at rest give theirs back |
| the refusal is a lasting one, or a flush failed | the partition is offline |
| and its log directory fails a probe, too | the directory has failed |
| a directory's lock file is gone or another's | the directory has failed |
| a directory has failed | all its partitions are offline |

Offline is for the rest of this life of the worker; the controller hears of it, and `appliance status` shows it.
"""

from __future__ import annotations

import errno
import select
from collections.abc import Callable, Collection
from typing import Final

from appliance.channels.control_channel import PartitionsOffline
from appliance.channels.controller_link import ControllerLink
from appliance.channels.worker_counters import (
    FAILED_DIRECTORIES,
    FAILED_DIRECTORY_ERRNO,
    LOST_PARTITIONS,
    OFFLINE_PARTITIONS,
)
from appliance.cluster import TopicPartition
from appliance.errors import ApplianceError, StorageFault
from appliance.ioproc.partition import Partition
from appliance.ioproc.partitions import Partitions
from appliance.ipc.process_table import ERRORS, ProcessRow
from appliance.log.directory_watch import DirectoryWatch
from appliance.log.faults import is_lasting
from appliance.log.log_directories import LogDirectories
from appliance.protocol.errors import ErrorCode

_STORAGE_ERROR: Final = int(ErrorCode.KAFKA_STORAGE_ERROR)


class StorageFailures:
    """Those of one worker; before `open` there is nothing to fail.

    Args:
        complain: says a thing, but the same not oftener than once a while; whether it did.
    """

    __slots__ = (
        "_complain",
        "_controller",
        "_directories",
        "_partitions",
        "_row",
        "_slot",
        "_warn",
        "_watch",
    )

    def __init__(
        self,
        row: ProcessRow,
        controller: ControllerLink,
        *,
        slot: int,
        complain: Callable[[str], bool],
        warn: Callable[[str], None],
    ) -> None:
        self._row = row
        self._controller = controller
        self._slot = slot
        self._complain = complain
        self._warn = warn
        self._watch = DirectoryWatch()
        self._directories: LogDirectories | None = None
        self._partitions: Partitions | None = None

    def open(self, directories: LogDirectories, partitions: Partitions, epoll: select.epoll) -> None:
        """From now on they are what may fail; `epoll` says when something has happened to a lock file."""
        self._directories = directories
        self._partitions = partitions
        for directory in directories.serving.values():
            for lock in directory.locks:
                self._watch.add(lock)
        if self._watch.fileno() >= 0:
            epoll.register(self._watch.fileno(), select.EPOLLIN)

    # One partition

    def note_error(self, partition: Partition | None, error: int) -> None:
        """Counts an error that is answered; says what the host refused, which `partition` knows."""
        self._row.cells[ERRORS] += 1
        if error != _STORAGE_ERROR or partition is None:
            return
        fault, partition.fault = partition.fault, None
        told = self._complain(f"partition {partition.topic_partition}: {fault}")
        if isinstance(fault, StorageFault) and is_lasting(fault):
            self.partition_failed(partition, fault)
            return
        met = fault.os_error if isinstance(fault, StorageFault) else None
        if told and self._directories is not None and met is not None and met.errno == errno.EMFILE:
            self._directories.release_idle()

    def upkeep_failed(self, partition: Partition, fault: ApplianceError) -> None:
        """As `note_error`, of what nobody has asked for."""
        partition.fault = fault
        self.note_error(partition, _STORAGE_ERROR)

    def partition_failed(self, partition: Partition, fault: StorageFault) -> None:
        """What the disk holds of the partition is not known any more; nor of its directory, if that fails a probe."""
        if self._partitions is None or self._directories is None:
            return
        wider = self._directories.probe(partition.directory)
        if wider is not None:
            self._directory_failed(partition.directory, wider)
            return
        self._warn(f"partition {partition.topic_partition} is offline: {fault}")
        self._partitions.take_offline(partition, fault)
        self.tell([partition.topic_partition])

    def damaged(self, partition: Partition, offset: int, fault: StorageFault) -> None:
        """Another in-sync copy is whole where this one is damaged: that one has to lead.

        Raises:
            StorageFault: it could not be written down, and nothing has changed.
        """
        if self._partitions is not None:
            self._partitions.give_away(partition, offset, fault)
            self._warn(f"partition {partition.topic_partition}: {fault}")
            self.tell([partition.topic_partition])

    # A whole directory

    def look_when_told(self) -> None:
        """Something has happened to a lock file."""
        self._watch.clear()
        self.look()

    def look(self) -> None:
        """Directories that are gone take their partitions offline."""
        if self._directories is not None:
            for index, fault in self._directories.look().items():
                self._directory_failed(index, fault)

    def suspect_directory(self, index: int) -> None:
        """It has refused something: whether it has failed shows in a probe."""
        wider = None if self._directories is None else self._directories.probe(index)
        if wider is not None:
            self._directory_failed(index, wider)

    def _directory_failed(self, index: int, fault: StorageFault) -> None:
        if self._partitions is not None:
            gone = self._partitions.take_directory_offline(index, fault)
            self._warn(f"{len(gone)} partitions are offline with their log directory")
            self.tell(gone)

    # Who hears of it

    def tell(self, gone: Collection[TopicPartition]) -> None:
        """To the controller; and to `appliance status`: the failed directories, a bit each, and the count."""
        partial = () if self._partitions is None else self._partitions.partial
        self._controller.ask(
            PartitionsOffline(
                self._slot,
                tuple((n.topic, n.partition) for n in gone),
                tuple((n.topic, n.partition) for n in gone if n in partial),
            )
        )
        self.show()

    def show(self) -> None:
        """In `appliance status`."""
        if self._partitions is not None and self._directories is not None:
            cells = self._row.cells
            cells[FAILED_DIRECTORIES] = sum(1 << index for index in self._directories.failed)
            cells[OFFLINE_PARTITIONS] = len(self._partitions.offline)
            for fault in self._directories.failed.values():
                met = fault.os_error
                if met is not None and met.errno:
                    cells[FAILED_DIRECTORY_ERRNO] = met.errno
            cells[LOST_PARTITIONS] = len(self._partitions.lost)

    def close(self) -> None:
        """Watches no more."""
        self._watch.close()
