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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from appliance.cluster import DELAYED_CANCELS, DELAYED_PREFIX, DELAYED_STATE
from appliance.config.retry_configs import RETRY_GROUP
from appliance.delivery.due import CANCEL, ID_BYTES_MAX
from appliance.delivery.levels import exact_delay_ms
from appliance.delivery.waiting import NotWaiting, Origin, Waiting, delay_partition, waiting_of
from appliance.services.progress import Frontier, UnreadableProgress, decode
from appliance.views.topic_access import NotShown, Place, PlacedRecord, TopicReader

DELAY_ENABLE: Final = "delivery.delay.enable"
REMEMBERED_MAX: Final = 1_000_000
"""Places of records, about 250 bytes each. What waits beyond these may be seen twice."""


@dataclass(frozen=True, slots=True)
class WaitingView:
    """A delayed record that waits.

    `level`: the name of the level, or `transactions`. `number`, `at`, `stored_ms`: the partition of the internal topic,
    the offset there, and when it was stored there.
    """

    topic: str
    level: str
    waiting: Waiting
    number: int = 0
    at: int = 0
    stored_ms: int = 0

    @property
    def place(self) -> Place:
        """The internal topic and its partition."""
        return f"{DELAYED_PREFIX}{self.level}", self.number

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


@dataclass(frozen=True, slots=True)
class Delivered:
    """What is delivered, or in an open delivery: below `positions`, and of exact levels up to `frontiers`, too.

    `written_ms`: partition of the internal topics → when its state record was written.
    """

    positions: dict[Place, int] = field(default_factory=dict)
    frontiers: dict[Place, Frontier] = field(default_factory=dict)
    written_ms: dict[int, int] = field(default_factory=dict)

    def has(self, view: WaitingView) -> bool:
        """Return whether a record is delivered from where it was found."""
        place = view.place
        if view.at < self.positions.get(place, 0):
            return True
        frontier = self.frontiers.get(place)
        if frontier is None:
            return False
        due_ms = min(view.waiting.due_ms, view.stored_ms + exact_delay_ms(place[0]))
        return frontier.has_delivered(view.at, due_ms)


Identity = tuple[UUID, int, int, Origin]
"""By which a delayed record is recognized on another level."""
Cancelled = dict[tuple[UUID, int, bytes], int]
"""(topic id, partition, id of records) → the offset in the topic below which they are cancelled."""


def is_cancelled(waiting: Waiting, cancelled: Cancelled) -> bool:
    """Return whether a record was cancelled."""
    name = waiting.delivery_id
    key = waiting.topic_id, waiting.partition, name or b""
    return name is not None and waiting.offset < cancelled.get(key, -1)


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
        numbers, wanted = self.numbers_of(topic), self.wanted(topic)
        if DELAYED_STATE not in self._topics:
            return
        delivered, cancelled = self.delivered(numbers), self.cancelled(topic)
        places = self.wait_places(numbers)
        starts = self.wait_starts(places, delivered)
        ends = self._reader.ends(places, read_committed=True)
        for view in self.views(self._reader.records(starts, ends), delivered, wanted, seen=set()):
            if not is_cancelled(view.waiting, cancelled):
                yield view

    def wanted(self, topic: str | None) -> set[UUID]:
        """Return the id of a topic, or those of all.

        Raises:
            NotShown: there is no such topic.
        """
        return set(self._names) if topic is None else {self.topic_id(topic)}

    def wait_places(self, numbers: set[int] | None) -> list[Place]:
        """Return the partitions of internal topics in which records wait; `numbers`: only these."""
        others = {DELAYED_STATE, DELAYED_CANCELS}
        levels = [each for each in self._topics if each.startswith(DELAYED_PREFIX) and each not in others]
        return self._places(levels, numbers)

    def wait_starts(self, places: list[Place], delivered: Delivered) -> dict[Place, int]:
        """Return below which offset nothing waits in each of these partitions."""
        starts = self._reader.starts(places)
        return {place: max(start, delivered.positions.get(place, 0)) for place, start in starts.items()}

    def views(
        self,
        records: Iterable[PlacedRecord],
        delivered: Delivered,
        wanted: set[UUID],
        *,
        seen: set[Identity],
    ) -> Iterator[WaitingView]:
        """Yield what waits of these records, cancelled or not, each once, and not what was `seen` before."""
        for found in records:
            try:
                waiting = waiting_of(found.record)
            except NotWaiting:
                continue
            named = self._names.get(waiting.topic_id)
            if named is None or waiting.cancels is not None:
                continue
            level = found.topic.removeprefix(DELAYED_PREFIX)
            view = WaitingView(
                named, level, waiting, found.partition, found.offset, found.record.timestamp_ms
            )
            known = waiting.topic_id, waiting.partition, waiting.offset, waiting.origin
            if delivered.has(view) or known in seen:
                continue
            if len(seen) < self._remembered_max:
                seen.add(known)
            if waiting.topic_id in wanted:
                yield view

    def cancelled(self, topic: str | None) -> Cancelled:
        """Return what was cancelled of a topic, or of all."""
        wanted = self.wanted(topic)
        places = self._places([DELAYED_CANCELS], self.numbers_of(topic))
        starts, ends = self._reader.starts(places), self._reader.ends(places, read_committed=True)
        cancelled: Cancelled = {}
        for found in self._reader.records(starts, ends):
            try:
                waiting = waiting_of(found.record)
            except NotWaiting:
                continue
            name = waiting.cancels
            if name is not None and waiting.topic_id in wanted:
                key = waiting.topic_id, waiting.partition, name
                cancelled[key] = max(cancelled.get(key, -1), waiting.offset)
        return cancelled

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

    def topic_id(self, topic: str) -> UUID:
        """Return the id of a topic.

        Raises:
            NotShown: there is no such topic.
        """
        self.partitions(topic)
        found = self._ids.get(topic)
        if found is None:
            raise NotShown(f"topic {topic} has no id")
        return found

    def numbers_of(self, topic: str | None) -> set[int] | None:
        """Return which partitions of the internal topics a topic uses; None for all.

        Raises:
            NotShown: there is no such topic.
        """
        if topic is None:
            return None
        topic_id, count = self.topic_id(topic), self._topics.get(DELAYED_STATE, 1)
        return {delay_partition(topic_id, number, count) for number in range(self.partitions(topic))}

    def _places(self, topics: list[str], numbers: set[int] | None) -> list[Place]:
        return [
            (topic, number)
            for topic in topics
            for number in range(self._topics.get(topic, 0))
            if numbers is None or number in numbers
        ]

    def delivered(self, numbers: set[int] | None) -> Delivered:
        """Return what the last state records of these partitions say; None: of all."""
        places = self._places([DELAYED_STATE], numbers)
        ends = self._reader.ends(places, read_committed=False)
        starts = {place: end - 1 for place, end in ends.items() if end > 0}
        delivered = Delivered()
        for found in self._reader.records(starts, ends):
            try:
                progress = decode(found.record.value or b"")
            except UnreadableProgress as fault:
                raise NotShown(f"{DELAYED_STATE}-{found.partition}: {fault}") from None
            delivered.written_ms[found.partition] = found.record.timestamp_ms
            for level, offset in progress.positions.items():
                delivered.positions[f"{DELAYED_PREFIX}{level}", found.partition] = offset
            for level, frontier in progress.exact.items():
                delivered.frontiers[f"{DELAYED_PREFIX}{level}", found.partition] = frontier
        return delivered


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

    @property
    def latest_ms(self) -> int | None:
        """When the last of the records is due that are kept; None if there are fewer than wanted."""
        return -self._heap[0][0] if len(self._heap) == self.limit else None

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
