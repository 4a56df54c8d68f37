"""Delayed records that wait, as the internal topics show them to any client that may read these.

    __delayed_state          from where on each level is not delivered
    __delayed_cancels        what was cancelled
    __delayed_5s, …          the records; those behind the position, and not cancelled, wait
    __delayed_exact_1m, …    the same; those that are behind the frontier, too

Records go by one after the other. A record that goes from one level to the next is in both for a moment, so the places
of REMEMBERED_MAX records are kept, and each of these counts once. Records of open transactions are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from appliance.cli.client import admin_client, asked, consumer
from appliance.cli.cluster_view import METADATA_VERSION, first_that_answers
from appliance.cli.connecting import BrokerError
from appliance.cli.group_lag import earliest, latest, offsets_at
from appliance.cli.request import request
from appliance.cluster import DELAYED_CANCELS, DELAYED_PREFIX, DELAYED_STATE
from appliance.delivery.levels import exact_delay_ms
from appliance.delivery.waiting import NotWaiting, Origin, Waiting, delay_partition, waiting_of
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.records.record import Record
from appliance.services.progress import Frontier, UnreadableProgress, decode

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

POLL_S: Final = 0.2
BATCH: Final = 1_000
SILENCE_POLLS: Final = 150
"""After so many polls without a word the broker counts as silent: 30 s."""

REMEMBERED_MAX: Final = 1_000_000
"""Places of records, about 250 bytes each. What waits beyond these may be seen twice."""

Place = tuple[str, int]


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
    """What waits in the instance at `bootstrap`.

    Raises:
        BrokerError: nobody answers.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        told = request(
            first_that_answers(bootstrap),
            ApiKey.METADATA,
            METADATA_VERSION,
            MetadataRequest(None, allow_auto_topic_creation=False),
        )
        self._partitions = {each.name: len(each.partitions) for each in told.topics if each.name}
        self._ids: dict[UUID, str] = {each.topic_id: each.name for each in told.topics if each.name}

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic.

        Raises:
            BrokerError: there is no such topic.
        """
        found = self._partitions.get(topic)
        if found is None:
            raise BrokerError(f"there is no topic {topic}")
        return found

    def waiting(self, topic: str | None = None) -> Iterator[WaitingView]:
        """Yield what waits for one topic, or for all, in no particular order.

        Raises:
            BrokerError: there is no such topic, or the internal topics cannot be read.
        """
        wanted = None if topic is None else {self._id(topic)}
        numbers = None if topic is None else self._internal_partitions(topic)
        if DELAYED_STATE not in self._partitions:
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
            for each in self._partitions
            if each.startswith(DELAYED_PREFIX) and each not in {DELAYED_STATE, DELAYED_CANCELS}
        ]
        seen: set[tuple[UUID, int, int, Origin]] = set()
        for place, found in self._read(self._places(levels, numbers), positions, frontiers):
            known = found.topic_id, found.partition, found.offset, found.origin
            if known in seen:
                continue
            if len(seen) < REMEMBERED_MAX:
                seen.add(known)
            name = found.delivery_id
            is_cancelled = (
                name is not None and found.offset < cancelled.get((found.topic_id, found.partition, name), -1)
            ) or found.cancels is not None
            named = self._ids.get(found.topic_id)
            if named is not None and not is_cancelled and (wanted is None or found.topic_id in wanted):
                yield WaitingView(named, place[0].removeprefix(DELAYED_PREFIX), found)

    def _id(self, topic: str) -> UUID:
        self.partitions(topic)
        return next(topic_id for topic_id, name in self._ids.items() if name == topic)

    def _internal_partitions(self, topic: str) -> set[int]:
        """Return which partitions of the internal topics the topic uses."""
        topic_id, count = self._id(topic), self._partitions.get(DELAYED_STATE, 1)
        return {delay_partition(topic_id, number, count) for number in range(self.partitions(topic))}

    def _places(self, topics: list[str], numbers: set[int] | None) -> list[Place]:
        return [
            (topic, number)
            for topic in topics
            for number in range(self._partitions.get(topic, 0))
            if numbers is None or number in numbers
        ]

    def _delivered(self, numbers: set[int] | None) -> tuple[dict[Place, int], dict[Place, Frontier]]:
        """Return below which offset each partition of a level is delivered; and what else, of exact levels."""
        places = self._places([DELAYED_STATE], numbers)
        ends = offsets_at(admin_client(self._bootstrap), places, latest())
        starts = {place: end - 1 for place, end in ends.items() if end > 0}
        positions: dict[Place, int] = {}
        frontiers: dict[Place, Frontier] = {}
        for message in self._messages(starts, ends):
            try:
                progress = decode(message.value() or b"")
            except UnreadableProgress as fault:
                raise BrokerError(f"{DELAYED_STATE}-{message.partition()}: {fault}") from None
            for level, offset in progress.positions.items():
                positions[f"{DELAYED_PREFIX}{level}", message.partition() or 0] = offset
            for level, frontier in progress.exact.items():
                frontiers[f"{DELAYED_PREFIX}{level}", message.partition() or 0] = frontier
        return positions, frontiers

    def _read(
        self, places: list[Place], positions: Mapping[Place, int], frontiers: Mapping[Place, Frontier]
    ) -> Iterator[tuple[Place, Waiting]]:
        client = admin_client(self._bootstrap)
        ends = offsets_at(client, places, latest(), read_committed=True)
        starts = {
            place: max(start, positions.get(place, 0))
            for place, start in offsets_at(client, places, earliest()).items()
        }
        for message in self._messages(starts, ends):
            told: Any = message.headers()
            headers = tuple((name, value) for name, value in told or ())
            record = Record(message.value(), message.key(), headers, message.timestamp()[1])
            try:
                waiting = waiting_of(record)
            except NotWaiting:
                continue
            place = message.topic() or "", message.partition() or 0
            frontier = frontiers.get(place)
            if frontier is not None:
                due_ms = min(waiting.due_ms, record.timestamp_ms + exact_delay_ms(place[0]))
                if frontier.has_delivered(message.offset() or 0, due_ms):
                    continue
            yield place, waiting

    def _messages(self, starts: Mapping[Place, int], ends: Mapping[Place, int]) -> Iterator[Message]:
        """Yield the committed records of each partition from its start to its end."""
        from confluent_kafka import TopicPartition

        left = {place for place, end in ends.items() if starts.get(place, end) < end}
        if not left:
            return
        client = consumer(
            self._bootstrap, {"isolation.level": "read_committed", "enable.partition.eof": True}
        )
        try:
            client.assign([TopicPartition(*place, starts[place]) for place in left])
            silent = 0
            while left:
                messages = _consume(client)
                silent = 0 if messages else silent + 1
                if silent > SILENCE_POLLS:
                    raise BrokerError(f"{min(left)[0]} cannot be read: no record arrived for a long time")
                for message in messages:
                    if _is_before_end(message, ends, left):
                        yield message
        finally:
            client.close()


def _consume(client: Consumer) -> list[Message]:
    return asked(lambda: client.consume(BATCH, timeout=POLL_S))


def _is_before_end(message: Message, ends: Mapping[Place, int], left: set[Place]) -> bool:
    """Return whether the record is to be seen; takes its partition off `left` if it was the last one."""
    from confluent_kafka import KafkaError

    place = message.topic() or "", message.partition() or 0
    error = message.error()
    if error is not None:
        if error.code() == KafkaError._PARTITION_EOF:
            left.discard(place)
            return False
        raise BrokerError(f"{place[0]}-{place[1]} cannot be read: {error.str()}")
    offset = message.offset() or 0
    if offset + 1 >= ends[place]:
        left.discard(place)
    return offset < ends[place]
