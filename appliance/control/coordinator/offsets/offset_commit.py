"""OffsetCommit 2-10: which records a commit makes, and what its answer will be once they are committed.

| a partition is answered | when |
|---|---|
| UNKNOWN_TOPIC_OR_PARTITION | the topic, or the partition, is not there (v2-9) |
| UNKNOWN_TOPIC_ID | no topic has that id (v10) |
| OFFSET_METADATA_TOO_LARGE | its metadata is longer than offset.metadata.max.bytes, in characters |
| what the group says | the member may not commit (unknown, fenced, of another generation): all partitions alike |
| what became of the append | as `append_errors.py` says; 0 once the record is committed |

The record carries the topic's id, so a topic of the same name that comes later never inherits the offset. What is left
out: nothing. Source: `OffsetMetadataManager.java`, `KafkaApis.scala` of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from appliance.control.coordinator.group.effects import Topic, Topics
from appliance.control.coordinator.offsets.offset_records import (
    NO_EXPIRY,
    CommittedOffset,
    encode_value,
    key_prefix,
    suffix,
    value_encoder,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.offset_commit import (
    DEFAULT_RETENTION,
    CommitRequest,
    CommittedTopic,
    TopicErrors,
)

_TIME_MAX_MS = 2**63 - 1
_UNKNOWN_PARTITION = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_METADATA_TOO_LARGE = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)


class CommitPlan(NamedTuple):
    """`errors` holds once `records`, (key, value), are committed; `puts` is what they will have changed.

    `puts`: topic and, for each of its partitions, the value.
    """

    records: Sequence[tuple[bytes, bytes]]
    puts: Sequence[tuple[str, Sequence[tuple[int, bytes]]]]
    errors: Sequence[TopicErrors]


def plan_commit(request: CommitRequest, *, topics: Topics, now_ms: int, metadata_max: int) -> CommitPlan:
    """What the request comes to, for a member that may commit."""
    records: list[tuple[bytes, bytes]] = []
    puts: list[tuple[str, Sequence[tuple[int, bytes]]]] = []
    answers: list[TopicErrors] = []
    retention_ms = request.retention_ms
    expire_ms = NO_EXPIRY if retention_ms == DEFAULT_RETENTION else min(now_ms + retention_ms, _TIME_MAX_MS)
    for wanted in request.topics:
        topic, missing = _topic(wanted, topics)
        if topic is None:
            answers.append((wanted.topic, [(each[0], missing) for each in wanted.partitions]))
            continue
        prefix = key_prefix(request.group_id, topic.name)
        encode = value_encoder(now_ms, topic.topic_id)
        results: list[tuple[int, int]] = []
        put: list[tuple[int, bytes]] = []
        count = topic.partitions
        for index, offset, leader_epoch, metadata in wanted.partitions:
            if not 0 <= index < count:
                results.append((index, _UNKNOWN_PARTITION))
                continue
            if metadata and _is_too_large(metadata, metadata_max):
                results.append((index, _METADATA_TOO_LARGE))
                continue
            if expire_ms == NO_EXPIRY:
                value = encode(offset, leader_epoch, metadata)
            else:
                value = encode_value(
                    CommittedOffset(offset, leader_epoch, metadata.decode(), now_ms, expire_ms)
                )
            results.append((index, 0))
            records.append((prefix + suffix(index), value))
            put.append((index, value))
        puts.append((topic.name, put))
        answers.append((wanted.topic, results))
    return CommitPlan(records, puts, answers)


def failed_commit(errors: Sequence[TopicErrors], error: int) -> list[TopicErrors]:
    """`errors`, where what would have been committed was not: it has `error` now."""
    return [(topic, [(index, found or error) for index, found in each]) for topic, each in errors]


def _topic(wanted: CommittedTopic, topics: Topics) -> tuple[Topic | None, int]:
    if isinstance(wanted.topic, UUID):
        return topics.by_id(wanted.topic), int(ErrorCode.UNKNOWN_TOPIC_ID)
    return topics.by_name(wanted.topic), _UNKNOWN_PARTITION


def _is_too_large(metadata: bytes, characters_max: int) -> bool:
    # Characters are never more than bytes.
    return len(metadata) > characters_max and len(metadata.decode()) > characters_max
