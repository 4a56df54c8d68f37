"""A worker's line to the purgatory for the deadlines of the answers that it holds.

Pokes leave on the same ring (`pokes.py`). The ring back is looked at only while registrations are outstanding, because
the purgatory says nothing but that one is over.
"""

from __future__ import annotations

from typing import Final

from appliance.channels.purgatory_channel import COMPLETED_ID, REASON, CompletionReason, PurgatoryOp
from appliance.channels.roles import PURGATORY, Role
from appliance.channels.wiring import Attachment
from appliance.clock import Clock
from appliance.delayed.held_answers import Deadlines
from appliance.ipc.agent import DutyCycle
from appliance.ipc.ring import RingReader

_HOLD: Final = int(PurgatoryOp.HOLD)
_RELEASE: Final = int(PurgatoryOp.RELEASE)
_EXPIRED: Final = int(CompletionReason.EXPIRED)


class ExpiryLine:
    """The `Registrar` of one worker. `deadlines`: those of everything that the worker holds."""

    __slots__ = ("_attachment", "_clock", "_cycle", "_is_inbox", "_reader", "_unreleased", "deadlines")

    def __init__(self, attachment: Attachment, cycle: DutyCycle, clock: Clock) -> None:
        self._attachment = attachment
        self._cycle = cycle
        self._clock = clock
        self.deadlines = Deadlines(self, cycle.timers.alarm)
        cycle.timers.alarm.action = self._look
        self._is_inbox = True
        self._reader: RingReader | None = None
        # What a full ring had no room for, bounded as registrations are: its deadline is the client's, and may be far.
        self._unreleased: list[int] = []
        self._take_reader()

    def _take_reader(self) -> None:
        """Take the purgatory's ring out of those that are drained for every request."""
        self._reader = self._attachment.inbound.pop(PURGATORY, None)
        if self._reader is not None:
            self._cycle.remove_inbox(self._reader)
        self._is_inbox = False

    # Registrar

    def register(self, identity: int, due_ns: int) -> bool:
        """See `Registrar`."""
        writer, reader = self._attachment.outbound.get(PURGATORY), self._reader
        if writer is None or reader is None:
            return False
        if not writer.put(_HOLD, 0, 0, identity, due_ns, 0, 0, 0, 0, 0, 0):
            return False
        if not self._is_inbox:
            self._is_inbox = True
            self._cycle.add_inbox(reader)
        return True

    def release(self, identity: int) -> None:
        """See `Registrar`."""
        writer = self._attachment.outbound.get(PURGATORY)
        if writer is not None and not writer.put(_RELEASE, 0, 0, identity, 0, 0, 0, 0, 0, 0, 0):
            self._unreleased.append(identity)

    def publish(self) -> None:
        """See `Registrar`."""
        writer = self._attachment.outbound.get(PURGATORY)
        if writer is not None:
            writer.publish()
            self._attachment.bells[PURGATORY].ring()

    # The duty cycle

    def turn(self) -> None:
        """After a sleep: expire what the purgatory says is over."""
        reader = self._reader
        if not self._is_inbox or reader is None:
            return
        deadlines = self.deadlines
        if self._unreleased:
            unreleased, self._unreleased = self._unreleased, []
            for identity in unreleased:
                self.release(identity)
            self.publish()
        messages = reader.drain()
        if messages:
            deadlines.over([(message[COMPLETED_ID], message[REASON] == _EXPIRED) for message in messages])
        if not deadlines.outstanding:
            self._is_inbox = False
            self._cycle.remove_inbox(reader)

    def _look(self) -> None:
        self.deadlines.turn(self._clock.monotonic_ns())

    def peer_up(self, role: Role) -> None:
        """After the attachment has the ring of a new life of the purgatory, and the duty cycle looks at it."""
        if role == PURGATORY:
            if self._reader is not None:
                self.peer_down(role)
            self._take_reader()
            self.deadlines.purgatory_up(self._clock.monotonic_ns())

    def peer_down(self, role: Role) -> None:
        """Before the attachment lets go of the ring."""
        if role != PURGATORY:
            return
        if self._is_inbox and self._reader is not None:
            self._cycle.remove_inbox(self._reader)
        self._reader, self._is_inbox = None, False
        self._unreleased = []
        self.deadlines.purgatory_down()
