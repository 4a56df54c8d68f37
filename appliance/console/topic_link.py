"""A person's link as the views need it (`appliance/views/`): a reader and a writer of topics.

A reader has a budget of bytes and time, as every page. When it is over, reading ends with BudgetOver, and the page
shows what there is until then, and says so.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from uuid import UUID

from appliance.cluster import NO_LEADER, TopicImage
from appliance.console.kafka_link import BrokerFault, Link, check, exchange
from appliance.console.partitioning import partition_of
from appliance.console.reading import LARGE_BYTES, LOOK_EVERY, READ_COMMITTED, Budget, fetch_once, offsets
from appliance.console.records import next_offset, produce_request, produced, read_records, size_of
from appliance.console.visit import Visit
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from appliance.protocol.apis.describe_configs import (
    DescribeConfigsRequest,
    DescribedResource,
    ResourceType,
)
from appliance.protocol.apis.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from appliance.views.topic_access import NotShown, PlacedRecord

Place = tuple[str, int]

TIMEOUT_MS: Final = 25_000
BATCH_BYTES: Final = 256 << 10
"""Records of one partition that are sent together."""
PENDING_BYTES_MAX: Final = 16 << 20
"""Records of all partitions that wait to be sent."""
CONFIGS_AT_ONCE: Final = 200
READ_UNCOMMITTED: Final = 0


class BudgetOver(NotShown):
    """There are more records than one page may read."""

    def __init__(self) -> None:
        super().__init__(
            "there are more records than one page may read; narrow the search, or use the command"
        )


class LinkReader:
    """Reads topics with the rights of the person who has logged in.

    Args:
        budget: of all that is read through this reader.
    """

    def __init__(self, visit: Visit, budget: Budget) -> None:
        self._visit = visit
        self._link = visit.link
        self.budget = budget
        self._names: list[str] | None = None

    def topics(self) -> Mapping[str, int]:
        """Return the topics that the broker lists for this person: name → number of partitions."""
        if self._names is None:
            self._names = self._visit.topic_names()
        topics = self._visit.image.topics
        return {name: len(topics[name].partitions) for name in self._names}

    def topic_ids(self) -> Mapping[str, UUID]:
        """Return the ids of these topics."""
        topics = self._visit.image.topics
        return {name: topics[name].topic_id for name in self.topics()}

    def starts(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the log start of each partition; those without a leader are left out.

        Raises:
            BrokerFault: the broker does not answer, or refuses. All other methods raise it, too.
        """
        return self._offsets(places, EARLIEST_TIMESTAMP)

    def ends(self, places: Iterable[Place], *, read_committed: bool) -> dict[Place, int]:
        """Return the high watermark, or the last stable offset, of each partition."""
        isolation = READ_COMMITTED if read_committed else READ_UNCOMMITTED
        return self._offsets(places, LATEST_TIMESTAMP, isolation=isolation)

    def offset_at(self, place: Place, time_ms: int) -> int | None:
        """Return the offset of the first record at or after a time; None if there is none."""
        found = self._offsets([place], time_ms).get(place, -1)
        return found if found >= 0 else None

    def _offsets(
        self, places: Iterable[Place], timestamp_ms: int, *, isolation: int = READ_COMMITTED
    ) -> dict[Place, int]:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for name, partition in places:
            by_topic[name].append(partition)
        return {
            (name, partition): offset
            for name, partitions in by_topic.items()
            for partition, offset in offsets(
                self._link, self._image_of(name), partitions, timestamp_ms, isolation=isolation
            ).items()
        }

    def _image_of(self, name: str) -> TopicImage:
        image = self._visit.image.topics.get(name)
        if image is None:
            raise NotShown(f"there is no topic {name}")
        return image

    def records(self, starts: Mapping[Place, int], ends: Mapping[Place, int]) -> Iterator[PlacedRecord]:
        """Yield the committed records of each partition from its start to its end.

        Raises:
            BudgetOver: there are more.
        """
        budget = self.budget
        for place, end in ends.items():
            at = starts.get(place, end)
            topic = self._image_of(place[0])
            while at < end:
                if budget.is_over():
                    raise BudgetOver
                answer = fetch_once(self._link, topic, place[1], at)
                budget.bytes_left -= len(answer.records) + 1000
                behind = next_offset(answer, from_offset=at)
                if behind <= at and not answer.records:
                    break  # nothing readable is left: compaction
                for number, each in enumerate(read_records(answer, place[1], from_offset=at), 1):
                    if each.offset >= end:
                        break
                    record = each.record
                    if each.codec:
                        size_bytes = size_of(record)
                        budget.bytes_left -= size_bytes
                        if size_bytes > LARGE_BYTES and budget.bytes_left <= 0:
                            raise BudgetOver
                    if number % LOOK_EVERY == 0 and budget.is_over():
                        raise BudgetOver
                    yield PlacedRecord(place[0], place[1], each.offset, record)
                at = max(behind, at + 1)

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings of topics; one that is not there, or may not be described, is left out."""
        names = list(topics)
        found: dict[str, dict[str, str]] = {}
        for at in range(0, len(names), CONFIGS_AT_ONCE):
            wanted = tuple(
                DescribedResource(int(ResourceType.TOPIC), name) for name in names[at : at + CONFIGS_AT_ONCE]
            )
            answer = self._link.ask(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(wanted))
            for each in answer.results:
                if each.error_code in _NOT_SEEN:
                    continue
                check(each.error_code, each.error_message, what=each.resource_name)
                found[each.resource_name] = {entry.name: entry.value or "" for entry in each.configs}
        return found


_NOT_SEEN: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
)


class LinkWriter:
    """Appends records with the rights of the person who has logged in, with acks=all."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._pending: dict[Place, list[Record]] = {}
        self._pending_bytes = 0

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Iterable[tuple[str, bytes | None]],
        *,
        partition: int = -1,
    ) -> None:
        """Keep a record until `finish`, or until there are many."""
        if partition < 0:
            partition = partition_of(key, len(self._image_of(topic).partitions))
        record = Record(value, key, tuple(headers), int(time.time() * 1000))
        self._pending.setdefault((topic, partition), []).append(record)
        self._pending_bytes += _size_of(record)
        if self._pending_bytes >= PENDING_BYTES_MAX:
            self.finish()

    def finish(self) -> None:
        """Append all records.

        Raises:
            BrokerFault: a batch was refused, or no answer came. Later ones were not sent.
        """
        pending, self._pending, self._pending_bytes = self._pending, {}, 0
        for (topic, partition), records in pending.items():
            image = self._image_of(topic)
            batch: list[Record] = []
            size_bytes = 0
            for record in records:
                if batch and size_bytes + _size_of(record) > BATCH_BYTES:
                    append(self._visit.link, image, partition, batch)
                    batch, size_bytes = [], 0
                batch.append(record)
                size_bytes += _size_of(record)
            if batch:
                append(self._visit.link, image, partition, batch)

    def delete_before(self, offsets: Mapping[Place, int]) -> None:
        """Delete what lies before these offsets."""
        for (topic, partition), offset in offsets.items():
            wanted = DeleteRecordsTopic(topic, (DeleteRecordsPartition(partition, offset),))
            answer = self._visit.link.ask(
                ApiKey.DELETE_RECORDS,
                2,
                DeleteRecordsRequest((wanted,), TIMEOUT_MS),
                slot=_leader_of(self._image_of(topic), partition),
            )
            check(answer.topics[0].partitions[0].error_code, what=f"{topic}-{partition}")

    def _image_of(self, name: str) -> TopicImage:
        image = self._visit.image.topics.get(name)
        if image is None:
            raise NotShown(f"there is no topic {name}")
        return image


def _size_of(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") + 8 for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + headers + 32


def _leader_of(topic: TopicImage, partition: int) -> int:
    leader = topic.partitions[partition].leader
    if leader == NO_LEADER:
        raise BrokerFault(f"{topic.name}-{partition} has no leader")
    return leader


def append(link: Link, topic: TopicImage, partition: int, records: list[Record]) -> int:
    """Append one batch, and return the offset of its first record.

    Raises:
        BrokerFault: the broker refuses, or no answer came.
    """
    request = produce_request(topic.name, partition, encode_batch(records), timeout_ms=TIMEOUT_MS)
    frame = link.use(
        lambda connection: exchange(connection, request),
        slot=_leader_of(topic, partition),
        is_repeatable=False,
    )
    code, offset = produced(frame)
    check(code, what=f"{topic.name}-{partition}")
    return offset
