"""Producer ids of a coordinator process: blocks that the controller hands out, asked for before they are needed.

There is a block in use, and a spare one that is asked for when the one before it is begun (decision 0097). So ids are
wanted in vain only if a whole block is used up before the controller has written the next one down.

A question may be lost with its controller, so one that has no answer after ASK_AGAIN_MS is asked again when an id is
wanted. An answer that comes late is a block like any other: what is left of the block before is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from appliance.channels.control_channel import AllocateProducerIds, Body, Envelope, ProducerIdBlock
from appliance.clock import NS_PER_MS, Clock

ASK_AGAIN_MS: Final = 1_000


class Controller(Protocol):
    """The line to the controller: `ControllerLink`."""

    def ask(self, body: Body) -> int | None: ...

    def receive(self) -> list[Envelope]: ...


class ProducerIdBlocks:
    """Args:
    connect: makes the line to the controller. It is called once, when the first id may be wanted, because most
        instances have no transactions and a line costs two threads.

    `refilled` is called when there are ids again.
    """

    __slots__ = (
        "_asked_ns",
        "_clock",
        "_connect",
        "_first",
        "_line",
        "_next_first",
        "_next_until",
        "_until",
        "refilled",
    )

    def __init__(self, connect: Callable[[], Controller], clock: Clock) -> None:
        self._connect = connect
        self._clock = clock
        self._line: Controller | None = None
        self._first = self._until = 0
        self._next_first = self._next_until = 0
        self._asked_ns: int | None = None
        self.refilled: Callable[[], None] | None = None

    def take(self) -> int | None:
        """Return an id that nobody has had, or None while a new block is on its way."""
        if self._first == self._until:
            self._first, self._until = self._next_first, self._next_until
            self._next_first = self._next_until = 0
        self.prepare()
        if self._first == self._until:
            return None
        self._first += 1
        return self._first - 1

    def prepare(self) -> None:
        """Ask for a spare block, unless there is one, or it is on its way."""
        if self._next_until > self._next_first:
            return
        now_ns = self._clock.monotonic_ns()
        if self._asked_ns is not None and now_ns - self._asked_ns < ASK_AGAIN_MS * NS_PER_MS:
            return
        if self._line is None:
            self._line = self._connect()
        if self._line.ask(AllocateProducerIds()) is not None:
            self._asked_ns = now_ns

    @property
    def is_connected(self) -> bool:
        """Whether there is a line, and `hear` reads it."""
        return self._line is not None

    def hear(self) -> None:
        """Take what the controller has sent."""
        if self._line is None:
            return
        for envelope in self._line.receive():
            block = envelope.body
            if not isinstance(block, ProducerIdBlock):
                continue
            self._asked_ns = None
            if block.count:
                self._next_first, self._next_until = block.first, block.first + block.count
                if self.refilled is not None:
                    self.refilled()

    def controller_changed(self) -> None:
        """The controller died, or another one serves: what was asked may be lost."""
        if self._asked_ns is not None:
            self._asked_ns = None
            self.prepare()
