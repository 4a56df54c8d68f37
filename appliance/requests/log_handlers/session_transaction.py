"""What a session with a transactional producer remembers: which partitions belong to its transaction, whose producer
ids are proved, and what waits.

A value beside `Session`, like `RefusedBatches`; `transactional_produce` works on it. A session whose client never names
a transactional id has none.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

ADDED_MAX: Final = 8192
"""Partitions that are remembered. To forget one costs a question, whose answer writes nothing."""
PROVED_MAX: Final = 64
"""Producer ids whose transactional ids are remembered."""


class SessionTransaction:
    """`held` are the Produce requests that are not placed yet, in the order in which they came."""

    __slots__ = ("_added", "_epoch", "_producer_id", "_proved", "held", "is_advancing", "is_asking")

    def __init__(self) -> None:
        self._producer_id = -1
        self._epoch = -1
        self._added: set[tuple[str | UUID, int]] = set()
        self._proved: dict[int, str] = {}
        self.held: list[Any] = []
        self.is_asking = False
        self.is_advancing = False

    def is_proved(self, transactional_id: str, producer_id: int) -> bool:
        """Return whether a coordinator has said in this session that the producer id belongs to the transactional id.

        It never belongs to another one.
        """
        return self._proved.get(producer_id) == transactional_id

    def prove(self, transactional_id: str, producer_id: int) -> None:
        """A coordinator has said it."""
        proved = self._proved
        if len(proved) >= PROVED_MAX:
            proved.clear()
        proved[producer_id] = transactional_id

    def has_added(self, producer_id: int, epoch: int, topic: str | UUID, partition: int) -> bool:
        """Return whether the coordinator has added the partition to the transaction of this producer and epoch."""
        return producer_id == self._producer_id and epoch == self._epoch and (topic, partition) in self._added

    def add(self, producer_id: int, epoch: int, partitions: list[tuple[str | UUID, int]]) -> None:
        """Remember what the coordinator has added; another producer or epoch forgets what was there."""
        if producer_id != self._producer_id or epoch != self._epoch:
            self._producer_id, self._epoch = producer_id, epoch
            self._added = set()
        elif len(self._added) + len(partitions) > ADDED_MAX:
            self._added = set()
        self._added.update(partitions)

    def forget(self, topic: str | UUID, partition: int) -> None:
        """The owner of the partition does not know of the transaction."""
        self._added.discard((topic, partition))

    def __len__(self) -> int:
        return len(self._added)
