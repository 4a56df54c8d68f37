"""Delayed records that wait, as the internal topics show them to any client that may read these.

    __delayed_state          from where on each level is not delivered
    __delayed_cancels        what was cancelled
    __delayed_5s, …          the records; those behind the position, and not cancelled, wait
    __delayed_exact_1m, …    the same; those that are behind the frontier, too

Records go by one after the other. A record that goes from one level to the next is in both for a moment, so the places
of REMEMBERED_MAX records are kept, and each of these counts once. Records of open transactions are not read.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from appliance.cluster import DELAYED_CANCELS, DELAYED_PREFIX, DELAYED_STATE
from appliance.config.retry_configs import RETRY_GROUP
from appliance.delivery.due import CANCEL, ID_BYTES_MAX
from appliance.delivery.levels import exact_delay_ms
from appliance.delivery.waiting import NotWaiting, Origin, Waiting, delay_partition, waiting_of
from appliance.services.progress import Frontier, UnreadableProgress, decode
from appliance.views.topic_access import NotShown, Place, TopicReader

DELAY_ENABLE: Final = "delivery.delay.enable"
REMEMBERED_MAX: Final = 1_000_000
"""Places of records, about 250 bytes each. What waits beyond these may be seen twice."""


@dataclass(frozen=True, slots=True)
class WaitingView:
    """A delayed record that waits. `level`: the name of the level, or `transactions`."""

    topic: str
    level: str
    waiting: Waiting

    def as_json(self) -> dict[str, Any]:
        """The keys are stable."""
        waiting = self.waiting
        name = waiting.delivery_id
        return {
            "topic": self.topic,
            "partition": waiting.partition,
            "offset": waiting.offset,
            "due_ms": waiting.due_ms,
            "id": None if name is None else name.decode(errors="replace"),
            "level": self.level,
            "key": None if waiting.record.key is None else waiting.record.key.decode(errors="replace"),
            "value_bytes": len(waiting.record.value or b""),
        }


class DelayedView:
    """What waits.

    Args:
        remembered_max: places of records that are kept in memory.

    Raises:
        ApplianceError: the reader's.
    """

    def __init__(self, reader: TopicReader, *, remembered_max: int = REMEMBERED_MAX) -> None:
        self._reader = reader
        self._remembered_max = remembered_max
        self._topics = reader.topics()
        self._ids = reader.topic_ids()
        self._names = {topic_id: name for name, topic_id in self._ids.items()}

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic.

        Raises:
            NotShown: there is no such topic.
        """
        found = self._topics.get(topic)
        if found is None:
            raise NotShown(f"there is no topic {topic}")
        return found

    def waiting(self, topic: str | None = None) -> Iterator[WaitingView]:
        """Yield what waits for one topic, or for all, in no particular order.

        Raises:
            NotShown: there is no such topic, or the internal topics cannot be read.
        """
        wanted = None if topic is None else {self._id(topic)}
        numbers = None if topic is None else self._internal_partitions(topic)
        if DELAYED_STATE not in self._topics:
            return
        positions, frontiers = self._delivered(numbers)
        cancelled: dict[tuple[UUID, int, bytes], int] = {}
        for _, found in self._read(self._places([DELAYED_CANCELS], numbers), {}, {}):
            name = found.cancels
            if name is not None and (wanted is None or found.topic_id in wanted):
                key = found.topic_id, found.partition, name
                cancelled[key] = max(cancelled.get(key, -1), found.offset)
        levels = [
            each
            for each in self._topics
            if each.startswith(DELAYED_PREFIX) and each not in {DELAYED_STATE, DELAYED_CANCELS}
        ]
        seen: set[tuple[UUID, int, int, Origin]] = set()
        for place, found in self._read(self._places(levels, numbers), positions, frontiers):
            known = found.topic_id, found.partition, found.offset, found.origin
            if known in seen:
                continue
            if len(seen) < self._remembered_max:
                seen.add(known)
            name = found.delivery_id
            is_cancelled = (
                name is not None and found.offset < cancelled.get((found.topic_id, found.partition, name), -1)
            ) or found.cancels is not None
            named = self._names.get(found.topic_id)
            if named is not None and not is_cancelled and (wanted is None or found.topic_id in wanted):
                yield WaitingView(named, place[0].removeprefix(DELAYED_PREFIX), found)

    def require_delays(self, topic: str) -> None:
        """Check that a record that cancels would cancel. Otherwise it would appear in the topic.

        Raises:
            NotShown: the topic has no delayed delivery, or what waits is of a consumer group.
        """
        configs = self._reader.configs([topic]).get(topic, {})
        if configs.get(RETRY_GROUP):
            raise NotShown(f"{topic} is a retry topic; what consumers hand back cannot be cancelled")
        if configs.get(DELAY_ENABLE) != "true":
            raise NotShown(f"{topic} has not the setting {DELAY_ENABLE} = true, so nothing can be cancelled")

    def _id(self, topic: str) -> UUID:
        self.partitions(topic)
        found = self._ids.get(topic)
        if found is None:
            raise NotShown(f"topic {topic} has no id")
        return found

    def _internal_partitions(self, topic: str) -> set[int]:
        """Return which partitions of the internal topics the topic uses."""
        topic_id, count = self._id(topic), self._topics.get(DELAYED_STATE, 1)
        return {delay_partition(topic_id, number, count) for number in range(self.partitions(topic))}

    def _places(self, topics: list[str], numbers: set[int] | None) -> list[Place]:
        return [
            (topic, number)
            for topic in topics
            for number in range(self._topics.get(topic, 0))
            if numbers is None or number in numbers
        ]

    def _delivered(self, numbers: set[int] | None) -> tuple[dict[Place, int], dict[Place, Frontier]]:
        """Return below which offset each partition of a level is delivered; and what else, of exact levels."""
        places = self._places([DELAYED_STATE], numbers)
        ends = self._reader.ends(places, read_committed=False)
        starts = {place: end - 1 for place, end in ends.items() if end > 0}
        positions: dict[Place, int] = {}
        frontiers: dict[Place, Frontier] = {}
        for found in self._reader.records(starts, ends):
            try:
                progress = decode(found.record.value or b"")
            except UnreadableProgress as fault:
                raise NotShown(f"{DELAYED_STATE}-{found.partition}: {fault}") from None
            for level, offset in progress.positions.items():
                positions[f"{DELAYED_PREFIX}{level}", found.partition] = offset
            for level, frontier in progress.exact.items():
                frontiers[f"{DELAYED_PREFIX}{level}", found.partition] = frontier
        return positions, frontiers

    def _read(
        self, places: list[Place], positions: Mapping[Place, int], frontiers: Mapping[Place, Frontier]
    ) -> Iterator[tuple[Place, Waiting]]:
        reader = self._reader
        ends = reader.ends(places, read_committed=True)
        starts = {
            place: max(start, positions.get(place, 0)) for place, start in reader.starts(places).items()
        }
        for found in reader.records(starts, ends):
            try:
                waiting = waiting_of(found.record)
            except NotWaiting:
                continue
            frontier = frontiers.get(found.place)
            if frontier is not None:
                due_ms = min(waiting.due_ms, found.record.timestamp_ms + exact_delay_ms(found.place[0]))
                if frontier.has_delivered(found.offset, due_ms):
                    continue
            yield found.place, waiting


@dataclass(slots=True)
class Soonest:
    """The records that are due first, and how many wait for each topic.

    Args:
        limit: of the records that are kept.
    """

    limit: int
    counts: dict[str, int] = field(default_factory=dict)
    """Topic → records that wait."""
    due_ms: dict[str, int] = field(default_factory=dict)
    """Topic → when its next record is due."""
    count: int = 0
    """All that wait."""
    _heap: list[tuple[int, int, WaitingView]] = field(default_factory=list)
    """With the latest of them on top."""

    def add(self, each: WaitingView) -> None:
        """Count a record, and keep it if it is one of the first."""
        at_ms = each.waiting.due_ms
        self.count += 1
        self.counts[each.topic] = self.counts.get(each.topic, 0) + 1
        self.due_ms[each.topic] = min(self.due_ms.get(each.topic, at_ms), at_ms)
        item = (-at_ms, -self.count, each)
        if len(self._heap) < self.limit:
            heapq.heappush(self._heap, item)
        elif item > self._heap[0]:
            heapq.heapreplace(self._heap, item)

    def take(self, waiting: Iterable[WaitingView]) -> None:
        """Add all."""
        for each in waiting:
            self.add(each)

    def first(self) -> list[WaitingView]:
        """Return the records by the time at which they are due."""
        return [each for _, _, each in sorted(self._heap, reverse=True)]


def delivery_id(text: str) -> bytes:
    """Return the bytes of an id that a person wrote.

    Raises:
        ValueError: it is none.
    """
    name = text.encode(errors="surrogateescape")
    if not 0 < len(name) <= ID_BYTES_MAX:
        raise ValueError(f"an id has 1 to {ID_BYTES_MAX} bytes")
    return name


def cancelling(name: bytes) -> list[tuple[str, bytes | None]]:
    """Return the headers of a record that cancels the earlier ones of its partition with this id."""
    return [(CANCEL, name)]
