"""OffsetDelete 0 (KIP-496): takes a group's offsets away, of topics that nobody in it consumes.

| answered | when |
|---|---|
| what the group says, for all | it is not there (GROUP_ID_NOT_FOUND); its members consume no topics (NON_EMPTY_GROUP) |
| GROUP_SUBSCRIBED_TO_TOPIC, for a topic's partitions | a member is subscribed to it |
| UNKNOWN_TOPIC_OR_PARTITION | the topic is not there |
| 0 | it is gone, or was not there; what an open transaction has of it is gone, too |

Source: `OffsetMetadataManager.java`, `KafkaApis.scala` of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from appliance.control.coordinator.group.effects import Topics
from appliance.control.coordinator.offsets.offset_book import OffsetBook
from appliance.control.coordinator.pieces import PIECE, Steps
from appliance.control.coordinator.runtime.effects import Record
from appliance.protocol.apis.offset_delete import (
    OffsetDeletePartitionResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteTopicResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.offset_records import offset_key

Deleted = tuple[tuple[Record, ...], OffsetDeleteResponse]
"""(tombstones, the answer once they are committed)."""


class PlannedTopic(NamedTuple):
    """What a topic is answered, and the tombstone of each of its partitions that has an offset."""

    answer: OffsetDeleteTopicResponse
    records: dict[int, Record]


def plan_delete(
    request: OffsetDeleteRequest, *, topics: Topics, book: OffsetBook, check_topic: Callable[[str], int]
) -> Steps[list[PlannedTopic]]:
    """The plan of a request, which may name thousands of partitions; `settle` makes of it what is written.

    `check_topic`: why a topic's offsets must stay, 0 if not.
    """
    planned: list[PlannedTopic] = []
    errors: dict[str, int] = {}
    done = 0
    group = request.group_id
    for wanted in request.topics:
        name = wanted.name
        topic = topics.by_name(name)
        if name not in errors:
            errors[name] = check_topic(name) if topic else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        error = errors[name]
        results: list[OffsetDeletePartitionResponse] = []
        records: dict[int, Record] = {}
        for each in wanted.partitions:
            index = each.partition_index
            there = topic is not None and 0 <= index < topic.partitions
            fault = error or (0 if there else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            results.append(OffsetDeletePartitionResponse(index, fault))
            if (
                not fault
                and index not in records
                and (book.value(group, name, index) is not None or book.pending.has(group, name, index))
            ):
                records[index] = Record(offset_key(group, name, index), None)
            done += 1
            if done >= PIECE:
                done = 0
                yield None
        planned.append(PlannedTopic(OffsetDeleteTopicResponse(name, tuple(results)), records))
        done += 1
        if done >= PIECE:
            done = 0
            yield None
    return planned


def settle(planned: list[PlannedTopic], check_topic: Callable[[str], int]) -> Deleted:
    """What is written. `check_topic` is asked again about topics of which something is deleted, because a member may
    have subscribed to one since the plan was begun."""
    records: list[Record] = []
    answers: list[OffsetDeleteTopicResponse] = []
    errors: dict[str, int] = {}
    for answer, tombstones in planned:
        error = 0
        if tombstones:
            if answer.name not in errors:
                errors[answer.name] = check_topic(answer.name)
            error = errors[answer.name]
        if error:
            refused = tuple(replace(each, error_code=each.error_code or error) for each in answer.partitions)
            answers.append(OffsetDeleteTopicResponse(answer.name, refused))
        else:
            answers.append(answer)
            records += tombstones.values()
    return tuple(records), OffsetDeleteResponse(topics=tuple(answers))
