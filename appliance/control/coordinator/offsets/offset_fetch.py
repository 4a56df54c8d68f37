"""OffsetFetch 1-10: what a group has committed.

A group that nobody knows has no offsets, which is no error (as Kafka; clients depend on it). An offset that was
committed to a topic's earlier life, or to one that is gone, is not told. The answer also leaves out what an open
transaction has written. A client that sets `require_stable` (v7 on) gets UNSTABLE_OFFSET_COMMIT for its partitions, and
asks again until the transaction's marker is there. A group whose member may not ask is answered in its error code, and
before v2, which has none, in that of every partition. Source: `OffsetMetadataManager.java`, `OffsetFetchResponse.java`
of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from appliance.control.coordinator.group.effects import Topic, Topics
from appliance.control.coordinator.offsets.offset_book import OffsetBook
from appliance.control.coordinator.pieces import PIECE, Steps, in_pieces
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
from appliance.protocol.records.offset_records import parse_value

TOPIC_IDS_SINCE = 10
_UNSTABLE = int(ErrorCode.UNSTABLE_OFFSET_COMMIT)

Check = Callable[[OffsetFetchGroup], int]
BookOf = Callable[[str], OffsetBook | None]


class Wish(NamedTuple):
    """What a request wants to hear of each offset."""

    stable: bool = False
    """An error where an open transaction has another one."""
    times: bool = False
    """When it was committed."""


class FetchedOffsets(NamedTuple):
    """A response, `make(elements)`, whose elements may be many: groups, or the topics of the one that was asked for."""

    elements: Iterator[Any]
    make: Callable[[tuple[Any, ...]], OffsetFetchResponse]


def fetch_offsets(
    request: OffsetFetchRequest, version: int, *, topics: Topics, check: Check, book_of: BookOf
) -> FetchedOffsets:
    """The answer. `check`: the error that a group's question meets, 0 for none; `book_of`: a group's offsets."""
    by_group = version >= OFFSET_FETCH_GROUPS_SINCE
    wanted_groups = request.groups if by_group else (OffsetFetchGroup(request.group_id, request.topics),)
    if len(wanted_groups) != 1:
        return FetchedOffsets(
            (
                _group(
                    wanted,
                    version,
                    topics=topics,
                    error=check(wanted),
                    book=book_of(wanted.group_id),
                    wish=_wish(request),
                )
                for wanted in _each_once(wanted_groups)
            ),
            lambda groups: OffsetFetchResponse(groups=groups),
        )
    (wanted,) = wanted_groups
    error = check(wanted)
    found = _topics(
        wanted,
        version,
        topics=topics,
        error=error,
        book=book_of(wanted.group_id),
        wish=_wish(request),
    )
    if by_group:
        return FetchedOffsets(
            found,
            lambda told: OffsetFetchResponse(
                groups=(OffsetFetchGroupResponse(wanted.group_id, told, error),)
            ),
        )
    return FetchedOffsets(found, lambda told: OffsetFetchResponse(told, error))


def fetch_offsets_in_pieces(
    request: OffsetFetchRequest, version: int, *, topics: Topics, check: Check, book_of: BookOf
) -> Steps[OffsetFetchResponse]:
    """The answer to a request that names thousands of partitions, which are looked up some at a time.

    A commit between two pieces is in the later one: each offset is one that was committed while the request waited.
    """
    by_group = version >= OFFSET_FETCH_GROUPS_SINCE
    wanted_groups = request.groups if by_group else (OffsetFetchGroup(request.group_id, request.topics),)
    groups: list[OffsetFetchGroupResponse] = []
    for number, wanted in enumerate(_each_once(wanted_groups), 1):
        error = check(wanted)
        book = book_of(wanted.group_id)
        told: list[OffsetFetchTopicResponse] = []
        if error:
            if version < OFFSET_FETCH_ERROR_SINCE:
                for asked in wanted.topics or ():
                    told.append((yield from _refused_in_pieces(asked, error)))
        elif wanted.topics is None:
            for topic in _all(wanted.group_id, version, topics, book, wish=_wish(request)):
                told.append(topic)
                yield None
        else:
            for at, asked in enumerate(wanted.topics, 1):
                told.append(
                    (
                        yield from _asked_in_pieces(
                            wanted.group_id,
                            asked,
                            version,
                            topics=topics,
                            book=book,
                            wish=_wish(request),
                        )
                    )
                )
                if not at % PIECE:
                    yield None
        groups.append(OffsetFetchGroupResponse(wanted.group_id, tuple(told), error))
        if not number % PIECE:
            yield None
    if by_group:
        return OffsetFetchResponse(groups=tuple(groups))
    return OffsetFetchResponse(groups[0].topics, groups[0].error_code)


def _wish(request: OffsetFetchRequest) -> Wish:
    return Wish(request.require_stable, request.with_commit_times)


def _asked_in_pieces(
    group: str,
    asked: OffsetFetchTopic,
    version: int,
    *,
    topics: Topics,
    book: OffsetBook | None,
    wish: Wish,
) -> Steps[OffsetFetchTopicResponse]:
    if len(asked.partition_indexes) <= PIECE:
        return _asked(group, asked, version, topics=topics, book=book, wish=wish)
    by_id = version >= TOPIC_IDS_SINCE
    topic = topics.by_id(asked.topic_id) if by_id else topics.by_name(asked.name)
    if by_id and topic is None:
        return (yield from _refused_in_pieces(asked, int(ErrorCode.UNKNOWN_TOPIC_ID)))

    def told(index: int) -> OffsetFetchPartitionResponse:
        return _told(group, index, topic, book, wish=wish)

    partitions = yield from in_pieces(told, asked.partition_indexes)
    return OffsetFetchTopicResponse(asked.name, asked.topic_id, partitions)


def _refused_in_pieces(asked: OffsetFetchTopic, error: int) -> Steps[OffsetFetchTopicResponse]:
    def refused(index: int) -> OffsetFetchPartitionResponse:
        return OffsetFetchPartitionResponse(index, error_code=error)

    partitions = yield from in_pieces(refused, asked.partition_indexes)
    return OffsetFetchTopicResponse(asked.name, asked.topic_id, partitions)


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
    wanted: OffsetFetchGroup,
    version: int,
    *,
    topics: Topics,
    error: int,
    book: OffsetBook | None,
    wish: Wish,
) -> OffsetFetchGroupResponse:
    told = tuple(_topics(wanted, version, topics=topics, error=error, book=book, wish=wish))
    return OffsetFetchGroupResponse(wanted.group_id, told, error)


def _topics(
    wanted: OffsetFetchGroup,
    version: int,
    *,
    topics: Topics,
    error: int,
    book: OffsetBook | None,
    wish: Wish,
) -> Iterator[OffsetFetchTopicResponse]:
    group = wanted.group_id
    if error:
        if version < OFFSET_FETCH_ERROR_SINCE:
            yield from refused_topics(wanted.topics or (), error)
    elif wanted.topics is None:
        yield from _all(group, version, topics, book, wish=wish)
    else:
        for asked in wanted.topics:
            yield _asked(group, asked, version, topics=topics, book=book, wish=wish)


def _all(
    group: str, version: int, topics: Topics, book: OffsetBook | None, *, wish: Wish
) -> Iterator[OffsetFetchTopicResponse]:
    # Its names only: a commit between two topics may change the dictionary.
    for name in list(book.of(group)) if book is not None else ():
        topic = topics.by_name(name)
        partitions = book.of(group).get(name) if book is not None else None
        if topic is None or not partitions:
            continue
        told = [_told(group, partition, topic, book, wish=wish) for partition in sorted(partitions)]
        there = tuple(each for each in told if each.committed_offset >= 0 or each.error_code)
        if there:
            yield _topic_response(topic, version, there)


def _asked(
    group: str,
    asked: OffsetFetchTopic,
    version: int,
    *,
    topics: Topics,
    book: OffsetBook | None,
    wish: Wish,
) -> OffsetFetchTopicResponse:
    by_id = version >= TOPIC_IDS_SINCE
    topic = topics.by_id(asked.topic_id) if by_id else topics.by_name(asked.name)
    if by_id and topic is None:
        error = int(ErrorCode.UNKNOWN_TOPIC_ID)
        return refused_topics((asked,), error)[0]
    told = tuple(_told(group, index, topic, book, wish=wish) for index in asked.partition_indexes)
    return OffsetFetchTopicResponse(asked.name, asked.topic_id, told)


def _topic_response(
    topic: Topic, version: int, partitions: tuple[OffsetFetchPartitionResponse, ...]
) -> OffsetFetchTopicResponse:
    if version >= TOPIC_IDS_SINCE:
        return OffsetFetchTopicResponse(topic_id=topic.topic_id, partitions=partitions)
    return OffsetFetchTopicResponse(topic.name, partitions=partitions)


def _told(
    group: str, index: int, topic: Topic | None, book: OffsetBook | None, *, wish: Wish
) -> OffsetFetchPartitionResponse:
    if book is None or topic is None:
        return OffsetFetchPartitionResponse(index)
    if wish.stable and book.pending.is_open and book.pending.has(group, topic.name, index):
        return OffsetFetchPartitionResponse(index, error_code=_UNSTABLE)
    value = book.value(group, topic.name, index)
    if value is None:
        return OffsetFetchPartitionResponse(index)
    committed = parse_value(value)
    if committed.topic_id not in (NO_UUID, topic.topic_id):
        return OffsetFetchPartitionResponse(index)
    return OffsetFetchPartitionResponse(
        index,
        committed.offset,
        committed.metadata,
        0,
        committed.leader_epoch,
        committed.commit_ms if wish.times else -1,
    )
