"""Recognizes delayed records of a batch that its producer has sent again.

For each producer and partition, the last BATCHES batches are remembered, as a log does: a producer has at most so many
batches in flight. Within a batch, records come in the order of their offsets, and what was stored of a batch is always
its beginning. So one number per batch is enough: the highest offset that has come.

    batch of sequence 20: offsets 7, 9       first time, 9 could not be stored
    sent again: 7, 9                         7 is known, 9 is new

A record that a consumer handed back is known by itself, whatever its offset: the consumer may have died before it could
commit, and another one hands the same delivery of the record back.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final
from uuid import UUID

from appliance.delivery.waiting import HANDED_BACK, Waiting

BATCHES: Final = 5
PRODUCERS_MAX: Final = 100_000

_Producer = tuple[UUID, int, int]
_Batch = tuple[int, int]


class SentAgain:
    """What has come lately of each producer. Time: constant for each record.

    Args:
        producers_max: for so many producers and partitions; then the one is forgotten that was silent for longest.
    """

    __slots__ = ("_known", "_producers_max")

    def __init__(self, *, producers_max: int = PRODUCERS_MAX) -> None:
        self._known: OrderedDict[_Producer, OrderedDict[_Batch, int]] = OrderedDict()
        self._producers_max = producers_max

    def __len__(self) -> int:
        return len(self._known)

    def is_known(self, waiting: Waiting) -> bool:
        """Return whether the record has come before, and remember it."""
        origin = waiting.origin
        if origin.producer_id < 0:
            return False
        producer = waiting.topic_id, waiting.partition, origin.producer_id
        batches = self._known.get(producer)
        if batches is None:
            batches = self._known[producer] = OrderedDict()
            if len(self._known) > self._producers_max:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(producer)
        batch = origin.producer_epoch, origin.base_sequence
        highest = batches.get(batch)
        if highest is not None and (waiting.offset <= highest or origin.producer_epoch == HANDED_BACK):
            return True
        batches[batch] = waiting.offset
        if len(batches) > BATCHES:
            batches.popitem(last=False)
        return False
