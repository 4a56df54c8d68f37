"""OffsetFetch 1-10: what a group has committed.

A group that nobody knows has no offsets, which is no error (as Kafka; clients depend on it). An offset that was
committed to a topic's earlier life, or to one that is gone, is not told. `require_stable` has nothing to wait for
before transactions can commit offsets. A group whose member may not ask is answered in its error code, and before v2,
which has none, in that of every partition. Source: `OffsetMetadataManager.java`, `OffsetFetchResponse.java` of Kafka
4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from appliance.control.coordinator.group.effects import Topic, Topics
from appliance.control.coordinator.offsets.offset_book import OffsetBook
from appliance.control.coordinator.offsets.offset_records import parse_value
from appliance.protocol.apis.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    OffsetFetchPartitionResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
    OffsetFetchTopicResponse,
)
from appliance.protocol.coordinator_errors import (
    OFFSET_FETCH_ERROR_SINCE,
    OFFSET_FETCH_GROUPS_SINCE,
    refused_topics,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.primitives import NO_UUID

TOPIC_IDS_SINCE = 10

Check = Callable[[OffsetFetchGroup], int]
BookOf = Callable[[str], OffsetBook | None]


def fetch_offsets(
    request: OffsetFetchRequest, version: int, *, topics: Topics, check: Check, book_of: BookOf
) -> OffsetFetchResponse:
    """The answer. `check`: the error that a group's question meets, 0 for none; `book_of`: a group's offsets."""
    if version >= OFFSET_FETCH_GROUPS_SINCE:
        return OffsetFetchResponse(
            groups=tuple(
                _group(wanted, version, topics=topics, error=check(wanted), book=book_of(wanted.group_id))
                for wanted in _each_once(request.groups)
            )
        )
    wanted = OffsetFetchGroup(request.group_id, request.topics)
    found = _group(wanted, version, topics=topics, error=check(wanted), book=book_of(wanted.group_id))
    return OffsetFetchResponse(found.topics, found.error_code)


def _each_once(groups: Sequence[OffsetFetchGroup]) -> Iterator[OffsetFetchGroup]:
    """All offsets of a group are told once: else a small request would be worth gigabytes."""
    told_whole: set[str] = set()
    for wanted in groups:
        if wanted.topics is None:
            if wanted.group_id in told_whole:
                continue
            told_whole.add(wanted.group_id)
        yield wanted


def _group(
    wanted: OffsetFetchGroup, version: int, *, topics: Topics, error: int, book: OffsetBook | None
) -> OffsetFetchGroupResponse:
    group = wanted.group_id
    if error:
        told = refused_topics(wanted.topics or (), error) if version < OFFSET_FETCH_ERROR_SINCE else ()
        return OffsetFetchGroupResponse(group, told, error)
    if wanted.topics is None:
        return OffsetFetchGroupResponse(group, _all(group, version, topics, book))
    return OffsetFetchGroupResponse(
        group, tuple(_asked(group, asked, version, topics=topics, book=book) for asked in wanted.topics)
    )


def _all(
    group: str, version: int, topics: Topics, book: OffsetBook | None
) -> tuple[OffsetFetchTopicResponse, ...]:
    found: list[OffsetFetchTopicResponse] = []
    for name, partitions in (book.of(group) if book is not None else {}).items():
        topic = topics.by_name(name)
        if topic is None:
            continue
        told = [_told(partition, value, topic) for partition, value in sorted(partitions.items())]
        there = tuple(each for each in told if each.committed_offset >= 0)
        if there:
            found.append(_topic_response(topic, version, there))
    return tuple(found)


def _asked(
    group: str, asked: OffsetFetchTopic, version: int, *, topics: Topics, book: OffsetBook | None
) -> OffsetFetchTopicResponse:
    by_id = version >= TOPIC_IDS_SINCE
    topic = topics.by_id(asked.topic_id) if by_id else topics.by_name(asked.name)
    if by_id and topic is None:
        error = int(ErrorCode.UNKNOWN_TOPIC_ID)
        return refused_topics((asked,), error)[0]
    told = tuple(
        _told(index, None if book is None or topic is None else book.value(group, topic.name, index), topic)
        for index in asked.partition_indexes
    )
    return OffsetFetchTopicResponse(asked.name, asked.topic_id, told)


def _topic_response(
    topic: Topic, version: int, partitions: tuple[OffsetFetchPartitionResponse, ...]
) -> OffsetFetchTopicResponse:
    if version >= TOPIC_IDS_SINCE:
        return OffsetFetchTopicResponse(topic_id=topic.topic_id, partitions=partitions)
    return OffsetFetchTopicResponse(topic.name, partitions=partitions)


def _told(index: int, value: bytes | None, topic: Topic | None) -> OffsetFetchPartitionResponse:
    if value is None or topic is None:
        return OffsetFetchPartitionResponse(index)
    committed = parse_value(value)
    if committed.topic_id not in (NO_UUID, topic.topic_id):
        return OffsetFetchPartitionResponse(index)
    return OffsetFetchPartitionResponse(
        index, committed.offset, committed.metadata, 0, committed.leader_epoch
    )
