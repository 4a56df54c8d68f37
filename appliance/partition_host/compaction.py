"""The line between the cleaner and who of a slot holds copies: a worker those it leads, a replica those it follows.

It tells where to look, and answers SURVEY and SWAP between two turns of its owner; what a survey finds and how a swap
is done is its owner's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from appliance.channels.cleaner_channel import INCARNATION, OP, ROW, CleanerFlag, CleanerOp
from appliance.channels.roles import CLEANER, Role
from appliance.channels.wiring import Attachment
from appliance.ipc.agent import DutyCycle
from appliance.ipc.ring import RingReader

_LOOK, _SURVEY, _SURVEYED = int(CleanerOp.LOOK), int(CleanerOp.SURVEY), int(CleanerOp.SURVEYED)
_SWAP, _SWAPPED = int(CleanerOp.SWAP), int(CleanerOp.SWAPPED)
_DONE = int(CleanerFlag.DONE)
ANYWHERE = 0xFFFF_FFFF
"""The row of a LOOK that concerns no row that is held: partitions were removed."""


class CleanedCopy(Protocol):
    """What is known here of a copy."""

    row: int
    incarnation: int


Copy = TypeVar("Copy", bound=CleanedCopy)


class Survey(NamedTuple):
    """SURVEYED's words: offsets, the largest timestamp of the active segment's first batch, cuts; the log directory."""

    log_start: int
    uncleanable: int
    active_first_ms: int
    cuts: int
    directory: int


class CleanerLine(ABC, Generic[Copy]):
    """One process's line to the cleaner. `owed`: (row, incarnation) that it is to be told of."""

    __slots__ = ("_attachment", "_cycle", "_reader", "_warn", "owed")

    def __init__(self, attachment: Attachment, cycle: DutyCycle, *, warn: Callable[[str], object]) -> None:
        self._attachment = attachment
        self._cycle = cycle
        self._warn = warn
        self._reader: RingReader | None = None
        self.owed: set[tuple[int, int]] = set()
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

    def assigned(self, copies: Iterable[Copy], *, removed: bool) -> None:
        """Partitions were opened, or have other settings now."""
        for copy in copies:
            note = partial(self.owed.add, (copy.row, copy.incarnation))
            if self._watch(copy, note):
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

    def serve(self, held_at: Callable[[int], Copy | None]) -> None:
        """Answers what the cleaner asks: it asks one thing at a time. `held_at`: the copy of a row."""
        if self._reader is None or self._reader.is_empty():
            return
        writer = self._attachment.outbound[CLEANER]
        for message in self._reader.drain():
            op, row, incarnation = message[OP], message[ROW], message[INCARNATION]
            copy = held_at(row)
            held = copy if copy is not None and copy.incarnation == incarnation else None
            if op == _SURVEY:
                found = None if held is None else self._survey(held)
                words = (0, 0, 0, 0, 0) if found is None else found
                answer = (_SURVEYED, 0 if found is None else _DONE, 0, row, incarnation, *words, 0)
            elif op == _SWAP:
                done = held is not None and self._swap(held, message)
                answer = (_SWAPPED, _DONE if done else 0, 0, row, incarnation, 0, 0, 0, 0, 0, 0)
            else:
                self._warn(f"message {op} from the cleaner")
                continue
            # Always room: questions come singly, and what else is told leaves when there is none.
            writer.put(*answer)
        writer.publish()
        self._attachment.bells[CLEANER].ring()

    @abstractmethod
    def _watch(self, copy: Copy, note: Callable[[], None]) -> bool:
        """Has `note` called when a segment of a compacted log is closed; whether it is compacted."""

    @abstractmethod
    def _survey(self, copy: Copy) -> Survey | None:
        """How far it may be cleaned; None where nothing can be said now."""

    @abstractmethod
    def _swap(self, copy: Copy, message: tuple[Any, ...]) -> bool:
        """Puts what the cleaner has prepared into the place of the segments of a SWAP; whether it was done."""
