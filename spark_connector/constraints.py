"""What a query asks of topic, partition, offset and timestamp, gathered from filters that all hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

OFFSET_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Constraints:
    """Rows outside of these are not wanted. None: whatever.

    `offset_until` and `until_ms` are exclusive.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_from: int = 0
    offset_until: int = OFFSET_MAX
    from_ms: int | None = None
    until_ms: int | None = None

    def allows(self, topic: str, partition: int) -> bool:
        """Whether rows of the partition can be wanted."""
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )

    def with_topics(self, topics: Iterable[str]) -> Constraints:
        """And the topic is one of these."""
        return replace(self, topics=_both(self.topics, frozenset(topics)))

    def with_partitions(self, partitions: Iterable[int]) -> Constraints:
        """And the partition is one of these."""
        return replace(self, partitions=_both(self.partitions, frozenset(partitions)))

    def with_offsets(self, first: int = 0, until: int = OFFSET_MAX) -> Constraints:
        """And the offset lies in [first, until)."""
        return replace(
            self,
            offset_from=max(self.offset_from, first),
            offset_until=min(self.offset_until, until),
        )

    def with_timestamps_us(self, first: int | None = None, until: int | None = None) -> Constraints:
        """And the timestamp lies in [first, until), microseconds; those of records are whole milliseconds."""
        first_ms = None if first is None else -(-first // 1000)
        until_ms = None if until is None else -(-until // 1000)
        return replace(
            self,
            from_ms=_outermost(max, self.from_ms, first_ms),
            until_ms=_outermost(min, self.until_ms, until_ms),
        )


def _both(one: frozenset[Any] | None, other: frozenset[Any]) -> frozenset[Any]:
    return other if one is None else one & other


def _outermost(choose: Any, one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    found: int = choose(one, other)
    return found
