"""The owner's half of compaction: tells the cleaner where to look, and swaps what it has prepared.

Between requests only, and in O(segments) renames. Readers survive a swap: network processes hold the old files open,
and whoever asked before it and opens after it sees by the row's files version that a name means another file by now.
Source of the order of renames: `log.segment_swap`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from appliance.channels.cleaner_channel import CleanerFlag, CleanerOp
from appliance.channels.roles import CLEANER, Role
from appliance.channels.wiring import Attachment
from appliance.errors import ApplianceError, StorageFault
from appliance.ioproc.partition import Partition
from appliance.ipc.agent import DutyCycle
from appliance.ipc.ring import RingReader
from appliance.log.segment_swap import SwapInterrupted

_LOOK, _SURVEY, _SURVEYED = int(CleanerOp.LOOK), int(CleanerOp.SURVEY), int(CleanerOp.SURVEYED)
_SWAP, _SWAPPED = int(CleanerOp.SWAP), int(CleanerOp.SWAPPED)
_DONE = int(CleanerFlag.DONE)
ANYWHERE = 0xFFFF_FFFF
"""The row of a LOOK that concerns no row that is led: partitions were removed."""


class Compaction:
    """One worker's line to the cleaner.

    Args:
        retired: called when a swap has put files into the log directories' queues of removals.
        refused: hears what the host refused a partition whose log is as it was.
        interrupted: hears of one whose log is neither as it was nor as it should be, and takes it offline.
    """

    __slots__ = (
        "_attachment",
        "_cycle",
        "_interrupted",
        "_now_ms",
        "_reader",
        "_refused",
        "_retired",
        "_warn",
        "owed",
    )

    def __init__(
        self,
        attachment: Attachment,
        cycle: DutyCycle,
        *,
        now_ms: Callable[[], int],
        retired: Callable[[], None],
        refused: Callable[[Partition, ApplianceError], None],
        interrupted: Callable[[Partition, StorageFault], None],
        warn: Callable[[str], None],
    ) -> None:
        self._attachment = attachment
        self._cycle = cycle
        self._now_ms = now_ms
        self._retired = retired
        self._refused = refused
        self._interrupted = interrupted
        self._warn = warn
        self._reader: RingReader | None = None
        self.owed: set[tuple[int, int]] = set()
        """(row, incarnation) that the cleaner is to be told of."""
        self.peer_up(CLEANER)

    def peer_up(self, role: Role) -> None:
        """Takes the cleaner's ring out of those that are drained for every request."""
        if role is not CLEANER:
            return
        self._reader = self._attachment.inbound.pop(CLEANER, None)
        self.owed.clear()  # a new life looks everywhere

    def peer_down(self, role: Role) -> None:
        """Before the attachment lets go of the ring."""
        if role is not CLEANER:
            return
        if self._reader is not None:
            self._cycle.remove_inbox(self._reader)
            self._reader = None
        self.owed.clear()

    def assigned(self, partitions: Iterable[Partition], *, removed: bool) -> None:
        """Partitions were opened, or have other settings now."""
        for partition in partitions:
            note = partial(self.owed.add, (partition.row, partition.incarnation))
            partition.log.on_roll = note if partition.log.settings.is_compacted else None
            if partition.log.on_roll is not None:
                note()
        if removed:
            self.owed.add((ANYWHERE, 0))

    def tell(self) -> None:
        """Tells the cleaner where to look; what its ring has no room for is told another time."""
        writer = self._attachment.outbound.get(CLEANER)
        if writer is None:
            self.owed.clear()
            return
        for row, incarnation in list(self.owed):
            if not writer.put(_LOOK, 0, 0, row, incarnation, 0, 0, 0, 0, 0, 0):
                break
            self.owed.discard((row, incarnation))
        writer.publish()
        self._attachment.bells[CLEANER].ring()

    def serve(self, by_row: list[Any]) -> None:
        """Answers what the cleaner asks: it asks one thing at a time."""
        if self._reader is None or self._reader.is_empty():
            return
        writer = self._attachment.outbound[CLEANER]
        for message in self._reader.drain():
            op, row, incarnation = message[0], message[3], message[4]
            partition = by_row[row] if row < len(by_row) else None
            if partition is None or partition.incarnation != incarnation:
                answer: tuple[Any, ...] = (
                    _SURVEYED if op == _SURVEY else _SWAPPED,
                    0,
                    0,
                    row,
                    incarnation,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                )
            elif op == _SURVEY:
                answer = self._survey(partition)
            elif op == _SWAP:
                done = self._swap(partition, message)
                answer = (_SWAPPED, _DONE if done else 0, 0, row, incarnation, 0, 0, 0, 0, 0, 0)
            else:
                self._warn(f"message {op} from the cleaner")
                continue
            # Always room: questions come singly, and what else is told leaves when there is none.
            writer.put(*answer)
        writer.publish()
        self._attachment.bells[CLEANER].ring()

    def _survey(self, partition: Partition) -> tuple[int, ...]:
        log, row, incarnation = partition.log, partition.row, partition.incarnation
        try:
            # A log that nobody writes to is closed on the cleaner's question, when it must be compacted at last.
            log.maybe_roll_by_time(self._now_ms())
            found = log.bounds(min(log.stable_offset(partition.high_watermark), partition.last_stable_offset))
        except StorageFault as fault:
            self._refused(partition, fault)
            return (_SURVEYED, 0, 0, row, incarnation, 0, 0, 0, 0, 0, 0)
        return (
            _SURVEYED,
            _DONE,
            0,
            row,
            incarnation,
            found.log_start,
            found.uncleanable,
            found.active_first_ms,
            found.cuts,
            partition.directory,
            0,
        )

    def _swap(self, partition: Partition, message: tuple[Any, ...]) -> bool:
        """Whether it was done."""
        partition.files_change()
        try:
            done = partition.log.replace_segments(
                message[5], message[6], source_bytes=message[7], cuts=message[8]
            )
        except SwapInterrupted as fault:
            # Names stay in the change: nobody reads by them until another life has opened the log.
            self._interrupted(partition, fault)
            return False
        except StorageFault as fault:
            partition.files_changed()
            self._refused(partition, fault)
            return False
        partition.files_changed()
        if done:
            self._retired()
        return done
