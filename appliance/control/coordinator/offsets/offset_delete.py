"""OffsetDelete 0 (KIP-496): takes a group's offsets away, of topics that nobody in it consumes.

| answered | when |
|---|---|
| what the group says, for all | it is not there (GROUP_ID_NOT_FOUND); its members consume no topics (NON_EMPTY_GROUP) |
| GROUP_SUBSCRIBED_TO_TOPIC, for a topic's partitions | a member is subscribed to it |
| UNKNOWN_TOPIC_OR_PARTITION | the topic is not there |
| 0 | it is gone, or was not there |

Source: `OffsetMetadataManager.java`, `KafkaApis.scala` of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.control.coordinator.group.effects import Topics
from appliance.control.coordinator.offsets.offset_book import OffsetBook
from appliance.control.coordinator.offsets.offset_records import offset_key
from appliance.control.coordinator.runtime.effects import Record
from appliance.protocol.apis.offset_delete import (
    OffsetDeletePartitionResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteTopicResponse,
)
from appliance.protocol.errors import ErrorCode


def plan_delete(
    request: OffsetDeleteRequest, *, topics: Topics, book: OffsetBook, check_topic: Callable[[str], int]
) -> tuple[tuple[Record, ...], OffsetDeleteResponse]:
    """(tombstones, the answer once they are committed). `check_topic`: why its offsets must stay, 0 if not."""
    records: list[Record] = []
    answers: list[OffsetDeleteTopicResponse] = []
    for wanted in request.topics:
        topic = topics.by_name(wanted.name)
        results: list[OffsetDeletePartitionResponse] = []
        error = check_topic(wanted.name) if topic else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for each in wanted.partitions:
            index = each.partition_index
            there = topic is not None and 0 <= index < topic.partitions
            fault = error or (0 if there else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            results.append(OffsetDeletePartitionResponse(index, fault))
            if not fault and book.value(request.group_id, wanted.name, index) is not None:
                records.append(Record(offset_key(request.group_id, wanted.name, index), None))
        answers.append(OffsetDeleteTopicResponse(wanted.name, tuple(results)))
    return tuple(records), OffsetDeleteResponse(topics=tuple(answers))
