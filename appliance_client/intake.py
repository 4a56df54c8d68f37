"""The short way of a record into the accumulator: what nearly every record needs, in one compiled call.

`offer` takes a record whose value and key are bytes, of a producer without interceptors, serializers and transactions,
for a topic that is known. It takes no other, and then has done nothing: `ProducerPipeline` has the whole way.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from appliance_client.accumulator import Accumulator, RecordFuture
from appliance_client.kernel import NO_HEADERS, RECORD_OVERHEAD_BYTES, partition_of_key

INT64_MAX: Final = 9_223_372_036_854_775_807


class _Place:
    """Where a topic's records without a partition go for now, and for how many bytes more."""

    def __init__(self, chosen: int, left_bytes: int) -> None:
        self.chosen = chosen
        self.left_bytes = left_bytes


class Sticky:
    """The same partition until about a batch went to it, then another one: full batches, few requests (KIP-794).

    The producer calls `used` with the size of each record that was placed this way.
    """

    def __init__(self, batch_bytes: int = 16_384) -> None:
        self._batch_bytes = batch_bytes
        self._places: dict[str, _Place] = {}

    def __call__(self, topic: str, _key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        return self.choose(topic, partitions, available)

    def choose(self, topic: str, partitions: int, available: Sequence[int]) -> int:
        """The partition of the next record."""
        place = self._places.get(topic)
        if place is not None and place.left_bytes > 0 and 0 <= place.chosen < partitions:
            return place.chosen
        others = [each for each in available if place is None or each != place.chosen]
        chosen: int
        if others:
            chosen = random.choice(others)
        elif available:
            chosen = random.choice(available)
        else:
            chosen = random.randrange(partitions)
        self._places[topic] = _Place(chosen, self._batch_bytes)
        return chosen

    def left(self, topic: str) -> int:
        """How many more bytes go to the present partition of a topic for which there is one."""
        return max(1, self._places[topic].left_bytes)

    def used(self, topic: str, size_bytes: int) -> None:
        """A record of so many bytes went to the present partition."""
        place = self._places.get(topic)
        if place is not None:
            place.left_bytes -= size_bytes


class Intake:
    """Appends what can be appended without a question.

    Args:
        topics: what is known of topics, by name, as `Metadata` keeps it.
        sticky: places records without key and partition; None where another partitioner does.
        by_murmur2: a key decides by Kafka's hash.
        sure_bytes: a record up to this size needs no look at any limit.
        wake: wakes the sender.
    """

    def __init__(  # noqa: PLR0917
        self,
        accumulator: Accumulator,
        topics: dict[str, Any],
        sticky: Sticky | None,
        by_murmur2: bool,
        sure_bytes: int,
        wake: Callable[[], None],
    ) -> None:
        self.is_on = True
        """False where each record must go the whole way: the producer is closed, forked, or has more to do."""
        self._accumulator = accumulator
        self._topics = topics
        self._sticky = sticky
        self._by_murmur2 = by_murmur2
        self._sure_bytes = sure_bytes
        self._wake = wake

    def close(self) -> None:
        """Take nothing more."""
        self.is_on = False

    def offer(  # noqa: PLR0912 - one call for a record, because calls are what it costs
        self, topic: str, value: object, key: object, partition: object, timestamp_ms: object
    ) -> RecordFuture | None:
        """Append a record without headers; None where it must go the whole way."""
        if not self.is_on:
            return None
        size = RECORD_OVERHEAD_BYTES
        value_bytes: bytes | None = None
        if value is not None:
            if not isinstance(value, bytes):
                return None
            value_bytes = value
            size += len(value)
        key_bytes: bytes | None = None
        if key is not None:
            if not isinstance(key, bytes):
                return None
            key_bytes = key
            size += len(key)
        known = self._topics.get(topic)
        if size > self._sure_bytes or known is None or known.error_code:
            return None
        leaders: list[Any] = known.leaders
        partitions = len(leaders)
        if partitions == 0:
            return None
        sticky: Sticky | None = None
        if partition is not None:
            if not isinstance(partition, int) or not 0 <= partition < partitions:
                return None
            index = partition
        elif key_bytes is not None and self._by_murmur2:
            index = partition_of_key(key_bytes, partitions)
        else:
            sticky = self._sticky
            if sticky is None:
                return None
            index = sticky.choose(topic, partitions, known.available)
        time_ms: int
        if timestamp_ms is None:
            time_ms = int(time.time() * 1000)
        elif isinstance(timestamp_ms, int) and 0 <= timestamp_ms <= INT64_MAX:
            time_ms = timestamp_ms
        else:
            return None
        future, wake = self._accumulator.append(
            topic, index, key_bytes, value_bytes, time_ms, NO_HEADERS, None
        )
        if wake:
            self._wake()
        if future is not None and sticky is not None:
            sticky.used(topic, size)
        return future
