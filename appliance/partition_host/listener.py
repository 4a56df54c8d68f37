"""The events of the partitions that one process holds open, in one interface.

The parts of a host (moves, compaction, checkpoints, group commit, …) report what has happened to a partition. The host
of the process, `ioproc/leader_host.py` or `replicas/follower_host.py`, decides what follows from it. A part therefore
needs one listener, and a new event needs one method.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from appliance.errors import ApplianceError, StorageFault

Held = TypeVar("Held")


class PartitionListener(Generic[Held]):
    """Each method reports one event on the process's own thread. The default does nothing."""

    # Commands and long work

    def before_opening(self) -> bool:
        """Report that the next log of a command is about to be opened. Return False to end the command here."""
        return True

    def work_goes_on(self) -> None:
        """Report that long work has finished one more piece, so that the process can send a heartbeat."""

    def withdrawn(self, partition: Held, error: int) -> None:
        """Report that a partition is no longer served. Pending requests are answered with `error`."""

    # Watermarks

    def high_watermark_may_move(self, partition: Held) -> None:
        """Report that a flush, a follower or another ISR may move a high watermark, which is not published yet."""

    def log_start_moved(self) -> None:
        """Report that the log start of some partition has moved."""

    # Files

    def checkpoint_begins(self) -> None:
        """Report that the process is about to write checkpoints: a directory that has gone must be noticed first."""

    def producers_counted(self, count: int) -> None:
        """Report how many producers all logs of the process remember."""

    def segments_retired(self) -> None:
        """Report that segments wait in the directories' queues to be removed after their delay."""

    def directories_deleted(self) -> None:
        """Report that directories of partitions are marked, and wait to be removed."""

    # Moves between log directories

    def moves_counted(self, count: int) -> None:
        """Report how many moves are under way or waiting."""

    def move_advanced(self, partition: Held) -> None:
        """Report that the copy in the other directory was begun, has grown, or is given up."""

    def relocated(self, partition: Held) -> None:
        """Report that a partition's files are in the other directory now."""

    # Faults

    def refused(self, partition: Held, fault: ApplianceError) -> None:
        """Report that the host refused something, and that the log is as it was."""

    def storage_failed(self, partition: Held, fault: StorageFault) -> None:
        """Report that what the disk has of a partition is no longer known: it goes offline."""

    def directory_suspected(self, index: int) -> None:
        """Report that a log directory has refused something. A probe shows whether it has failed."""

    def log_damaged(self, partition: Held, offset: int) -> None:
        """Report that a follower has found the led log damaged at `offset`."""

    def log_repaired(self, partition: Held) -> None:
        """Report that a damaged log was repaired: its followers can go on copying."""

    def better_copy_found(self, partition: Held, offset: int, fault: StorageFault) -> None:
        """Report that the led log is damaged at `offset` and another in-sync copy is whole there, which has to lead.

        Raises:
            StorageFault: That could not be written down, and nothing has changed.
        """
