"""Producer ids that the controller has lent this process, a block at a time.

    take ──→ an id; when a tenth of the block is left, the next block is asked for
    ids_due_ns: when a question that nobody has answered is asked again, because the controller may have died

An id is given once. Those that are left when the process dies are never given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from appliance.channels.control_channel import AllocateProducerIds, ProducerIdBlock
from appliance.channels.controller_link import ControllerLink
from appliance.clock import NS_PER_MS, Clock

LOW_WATER: Final = 100
"""Kafka asks for the next block when 90 % of the 1,000 are used."""
ASK_AGAIN_MS: Final = 1_000


class LentProducerIds:
    """`arrived` is called when there are ids again after there were none."""

    __slots__ = ("_asked", "_asked_ns", "_blocks", "_clock", "_link", "arrived")

    def __init__(self, link: ControllerLink, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._blocks: deque[range] = deque()
        self._asked: int | None = None
        self._asked_ns = 0
        self.arrived: Callable[[], None] = _nobody

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def take(self) -> int | None:
        """Return an id that nobody has had, or None while a new block is on its way."""
        if len(self) <= LOW_WATER:
            self.ask()
        if not self._blocks:
            return None
        block = self._blocks[0]
        producer_id = block[0]
        if len(block) > 1:
            self._blocks[0] = block[1:]
        else:
            self._blocks.popleft()
        return producer_id

    def ask(self) -> None:
        """Ask for a block, unless a question is under way that is not too old."""
        now_ns = self._clock.monotonic_ns()
        if self._asked is None or now_ns - self._asked_ns >= ASK_AGAIN_MS * NS_PER_MS:
            self._asked, self._asked_ns = self._link.ask(AllocateProducerIds()), now_ns

    def hear(self) -> None:
        """Take what the controller has sent; call it once in a turn after its line was ready."""
        for envelope in self._link.receive():
            body = envelope.body
            if envelope.id != self._asked or not isinstance(body, ProducerIdBlock):
                continue
            self._asked = None
            if body.count:
                had_none = not self._blocks
                self._blocks.append(range(body.first, body.first + body.count))
                if had_none:
                    self.arrived()

    def close(self) -> None:
        """Let go of the line to the controller."""
        self._link.close()

    @property
    def has_news(self) -> bool:
        """Whether `hear` has something to look at."""
        return self._link.wants_look


def _nobody() -> None:
    """Nobody waits for ids."""
