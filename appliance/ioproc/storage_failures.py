"""What the disk refuses a worker: as `partition_host.storage_failures`, and what clients and operators see of it.

A request that is answered with KAFKA_STORAGE_ERROR is counted and logged. If the fault is a lasting one, the partition
goes offline. If the process lacks descriptors, logs at rest close theirs.
"""

from __future__ import annotations

import errno
from typing import Final

from appliance.channels.controller_link import ControllerLink
from appliance.channels.worker_counters import (
    FAILED_DIRECTORIES,
    FAILED_DIRECTORY_ERRNO,
    LOST_PARTITIONS,
    OFFLINE_PARTITIONS,
)
from appliance.errors import ApplianceError, StorageFault
from appliance.ioproc.partition import Partition
from appliance.ioproc.partitions import Partitions
from appliance.ipc.process_table import ERRORS, ProcessRow
from appliance.journal import RateLimited
from appliance.log.faults import is_lasting
from appliance.partition_host.storage_failures import StorageFailures
from appliance.protocol.errors import ErrorCode

_STORAGE_ERROR: Final = int(ErrorCode.KAFKA_STORAGE_ERROR)


class ServedFailures(StorageFailures[Partition]):
    """Those of one worker."""

    def __init__(
        self, row: ProcessRow, controller: ControllerLink, *, slot: int, complain: RateLimited
    ) -> None:
        super().__init__(row, controller, slot=slot, complain=complain)
        self._partitions: Partitions | None = None

    def serve(self, partitions: Partitions) -> None:
        """Show what is offline of these from now on."""
        self._partitions = partitions

    def note_error(self, partition: Partition | None, error: int) -> None:
        """Count an error that is answered, and log what the host refused, which `partition` knows."""
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

    def refused(self, partition: Partition, fault: ApplianceError) -> None:
        """As `note_error`, of work that no client has asked for."""
        partition.fault = fault
        self.note_error(partition, _STORAGE_ERROR)

    def better_copy_found(self, partition: Partition, offset: int, fault: StorageFault) -> None:
        """As `PartitionListener.better_copy_found`.

        Raises:
            StorageFault: It could not be written down, and nothing has changed.
        """
        if self._partitions is not None:
            self._partitions.give_away(partition, offset, fault)
            self._partitions.warn(f"partition {partition.topic_partition}: {fault}")
            self.tell([partition.topic_partition])

    def show(self) -> None:
        """Publish the failed directories, a bit each, and how many partitions are offline or have lost records."""
        if self._partitions is not None and self._directories is not None:
            cells = self._row.cells
            cells[FAILED_DIRECTORIES] = sum(1 << index for index in self._directories.failed)
            cells[OFFLINE_PARTITIONS] = len(self._partitions.offline)
            for fault in self._directories.failed.values():
                met = fault.os_error
                if met is not None and met.errno:
                    cells[FAILED_DIRECTORY_ERRNO] = met.errno
            cells[LOST_PARTITIONS] = len(self._partitions.lost)
