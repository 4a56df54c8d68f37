"""The owner's half of compaction, for a worker and the partitions it leads, and for a replica and those it follows.

    segment closed → LOOK to the cleaner … SURVEY → how far the log may be cleaned … SWAP → renames

Everything happens between two turns of the owner, in O(segments) renames. What is said of a partition's files before
and after a swap is the partition's own (`files_begin_to_swap`, `files_swapped`). Source of the order of renames:
`log.segment_swap`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from appliance.channels.cleaner_channel import (
    BASE_OFFSET,
    CUTS,
    END_OFFSET,
    INCARNATION,
    OP,
    ROW,
    SOURCE_BYTES,
    CleanerFlag,
    CleanerOp,
)
from appliance.channels.roles import CLEANER, Role
from appliance.channels.wiring import Attachment
from appliance.clock import Clock
from appliance.errors import StorageFault
from appliance.ipc.agent import DutyCycle
from appliance.ipc.ring import RingReader
from appliance.journal import RateLimited
from appliance.log.partition_log import PartitionLog
from appliance.log.segment_swap import SwapInterrupted
from appliance.partition_host.listener import PartitionListener

_LOOK, _SURVEY, _SURVEYED = int(CleanerOp.LOOK), int(CleanerOp.SURVEY), int(CleanerOp.SURVEYED)
_SWAP, _SWAPPED = int(CleanerOp.SWAP), int(CleanerOp.SWAPPED)
_DONE, _WAITS = int(CleanerFlag.DONE), int(CleanerFlag.WAITS)
LOOK_AGAIN_MS: Final = 10
"""While the cleaner's ring is full: no message says that it has read."""
ANYWHERE: Final = 0xFFFF_FFFF
"""The row of a LOOK that concerns no row that is held: partitions were removed."""


class Compacted(Protocol):
    """What compaction needs of a partition that is held open."""

    row: int
    incarnation: int
    directory: int
    log: PartitionLog

    def cleanable_to(self, *, now_ms: int) -> int | None:
        """Return the offset below which every record, and every transaction's end, is committed. None: not known now.

        Raises:
            StorageFault: The host refused something; the log is as it was.
        """

    def files_begin_to_swap(self) -> None:
        """Called before the first rename of a swap."""

    def files_swapped(self, *, is_done: bool) -> None:
        """Called after the last rename; not `is_done`: the files are as they were."""


Copy = TypeVar("Copy", bound=Compacted)


class Survey(NamedTuple):
    """SURVEYED's flags and words: offsets, the largest timestamp of the active segment's first batch, cuts; the log
    directory."""

    flags: int
    log_start: int
    uncleanable: int
    active_first_ms: int
    cuts: int
    directory: int


_NOT_HELD: Final = Survey(0, 0, 0, 0, 0, 0)
_NOT_KNOWN: Final = Survey(_WAITS, 0, 0, 0, 0, 0)


class Compaction(Generic[Copy]):
    """One process's line to the cleaner. `owed`: the (row, incarnation) pairs that the cleaner still has to look at.

    Args:
        listener: Learns of retired segments, and of what the host refused.
    """

    __slots__ = (
        "_attachment",
        "_clock",
        "_complain",
        "_cycle",
        "_listener",
        "_looks_again",
        "_reader",
        "owed",
    )

    def __init__(
        self,
        attachment: Attachment,
        cycle: DutyCycle,
        clock: Clock,
        *,
        listener: PartitionListener[Copy],
        complain: RateLimited,
    ) -> None:
        self._attachment = attachment
        self._cycle = cycle
        self._clock = clock
        self._listener = listener
        self._complain = complain
        self._reader: RingReader | None = None
        self._looks_again = False
        self.owed: set[tuple[int, int]] = set()
        self.peer_up(CLEANER)

    def peer_up(self, role: Role) -> None:
        """Take the cleaner's ring out of those that are drained for every request."""
        if role is not CLEANER:
            return
        self._reader = self._attachment.inbound.pop(CLEANER, None)
        self.owed.clear()  # a new cleaner looks everywhere

    def peer_down(self, role: Role) -> None:
        """Call before the attachment closes the ring."""
        if role is not CLEANER:
            return
        if self._reader is not None:
            self._cycle.remove_inbox(self._reader)
            self._reader = None
        self.owed.clear()

    def assigned(self, copies: Iterable[Copy], *, removed: bool) -> None:
        """Note that partitions were opened or have other settings now, and whether some were removed."""
        for copy in copies:
            log = copy.log
            note = partial(self.owed.add, (copy.row, copy.incarnation))
            log.on_roll = note if log.settings.is_compacted else None
            if log.settings.is_compacted:
                note()
        if removed:
            self.owed.add((ANYWHERE, 0))

    def tell(self) -> None:
        """Tell the cleaner where to look. What its ring has no room for stays in `owed`, and wakes the process soon."""
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
        if self.owed and not self._looks_again:
            self._looks_again = True
            self._cycle.timers.after_ms(LOOK_AGAIN_MS, self._look_again)

    def _look_again(self) -> None:
        """The timer has ended a sleep: `tell` is called before the next one."""
        self._looks_again = False

    def serve(self, held_at: Callable[[int], Copy | None]) -> None:
        """Answer the cleaner, which sends one request at a time. `held_at`: the partition of a row."""
        if self._reader is None or self._reader.is_empty():
            return
        writer = self._attachment.outbound[CLEANER]
        for message in self._reader.drain():
            op, row, incarnation = message[OP], message[ROW], message[INCARNATION]
            copy = held_at(row)
            held = copy if copy is not None and copy.incarnation == incarnation else None
            if op == _SURVEY:
                flags, *words = _NOT_HELD if held is None else self._survey(held)
                answer = (_SURVEYED, flags, 0, row, incarnation, *words, 0)
            elif op == _SWAP:
                done = held is not None and self._swap(held, message)
                answer = (_SWAPPED, _DONE if done else 0, 0, row, incarnation, 0, 0, 0, 0, 0, 0)
            else:
                self._complain(f"message {op} from the cleaner is not known")
                continue
            # There is always room: requests come singly, and `tell` stops when there is none.
            writer.put(*answer)
        writer.publish()
        self._attachment.bells[CLEANER].ring()

    def _survey(self, copy: Copy) -> Survey:
        """Return how far a log may be cleaned, as far as that can be said now."""
        try:
            stable_offset = copy.cleanable_to(now_ms=self._clock.now_ms())
            if stable_offset is None:
                return _NOT_KNOWN
            found = copy.log.bounds(stable_offset)
        except StorageFault as fault:
            self._listener.refused(copy, fault)
            return _NOT_KNOWN
        # An open transaction, or a replica that lags, holds closed segments back. Its end closes none.
        flags = _DONE | _WAITS if found.uncleanable < copy.log.active_base_offset else _DONE
        return Survey(
            flags, found.log_start, found.uncleanable, found.active_first_ms, found.cuts, copy.directory
        )

    def _swap(self, copy: Copy, message: tuple[Any, ...]) -> bool:
        """Put the files that the cleaner has prepared into the place of the segments of a SWAP. Return if it was done.

        After SwapInterrupted the names stay in the change: nobody reads by them until another life has opened the log.
        """
        copy.files_begin_to_swap()
        try:
            is_done = copy.log.replace_segments(
                message[BASE_OFFSET],
                message[END_OFFSET],
                source_bytes=message[SOURCE_BYTES],
                cuts=message[CUTS],
            )
        except SwapInterrupted as fault:
            self._listener.storage_failed(copy, fault)
            return False
        except StorageFault as fault:
            copy.files_swapped(is_done=False)
            self._listener.refused(copy, fault)
            return False
        copy.files_swapped(is_done=is_done)
        if is_done:
            self._listener.segments_retired()
        return is_done
