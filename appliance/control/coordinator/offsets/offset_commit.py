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

from dataclasses import dataclass

from appliance.control.coordinator.group.effects import Record, Topic, Topics
from appliance.control.coordinator.offsets.offset_records import (
    NO_EXPIRY,
    CommittedOffset,
    encode_value,
    key_prefix,
    partition_suffix,
)
from appliance.protocol.apis.offset_commit import (
    DEFAULT_RETENTION,
    OffsetCommitPartition,
    OffsetCommitPartitionResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetCommitTopicResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.primitives import NO_UUID

_TIME_MAX_MS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Put:
    """What a record will have changed once it is committed."""

    topic: str
    partition: int
    value: bytes


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """`response` holds once `records`, which are as many as `puts`, are committed."""

    records: tuple[Record, ...]
    puts: tuple[Put, ...]
    response: OffsetCommitResponse


def plan_commit(
    request: OffsetCommitRequest, *, topics: Topics, now_ms: int, metadata_max: int
) -> CommitPlan:
    """What the request comes to, for a member that may commit."""
    records: list[Record] = []
    puts: list[Put] = []
    answers: list[OffsetCommitTopicResponse] = []
    retention_ms = request.retention_time_ms
    expire_ms = NO_EXPIRY if retention_ms == DEFAULT_RETENTION else min(now_ms + retention_ms, _TIME_MAX_MS)
    for wanted in request.topics:
        topic, missing = _topic(wanted, topics)
        results: list[OffsetCommitPartitionResponse] = []
        prefix = b"" if topic is None else key_prefix(request.group_id, topic.name)
        for each in wanted.partitions:
            error = missing or _fault(each, topic, metadata_max)
            results.append(OffsetCommitPartitionResponse(each.partition_index, error))
            if error or topic is None:
                continue
            value = encode_value(
                CommittedOffset(
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata or "",
                    now_ms,
                    expire_ms,
                    topic.topic_id,
                )
            )
            records.append(Record(prefix + partition_suffix(each.partition_index), value))
            puts.append(Put(topic.name, each.partition_index, value))
        answers.append(OffsetCommitTopicResponse(wanted.name, wanted.topic_id, tuple(results)))
    return CommitPlan(tuple(records), tuple(puts), OffsetCommitResponse(tuple(answers)))


def failed_commit(response: OffsetCommitResponse, error: int) -> OffsetCommitResponse:
    """`response`, where what would have been committed was not: it has `error` now."""
    return OffsetCommitResponse(
        tuple(
            OffsetCommitTopicResponse(
                topic.name,
                topic.topic_id,
                tuple(
                    OffsetCommitPartitionResponse(p.partition_index, p.error_code or error)
                    for p in topic.partitions
                ),
            )
            for topic in response.topics
        )
    )


def _topic(wanted: OffsetCommitTopic, topics: Topics) -> tuple[Topic | None, int]:
    if wanted.topic_id != NO_UUID:
        topic = topics.by_id(wanted.topic_id)
        return topic, 0 if topic else int(ErrorCode.UNKNOWN_TOPIC_ID)
    topic = topics.by_name(wanted.name)
    if topic is None and not wanted.name:
        return None, int(ErrorCode.UNKNOWN_TOPIC_ID)
    return topic, 0 if topic else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _fault(wanted: OffsetCommitPartition, topic: Topic | None, metadata_max: int) -> int:
    if topic is not None and not 0 <= wanted.partition_index < topic.partitions:
        return int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if wanted.committed_metadata is not None and len(wanted.committed_metadata) > metadata_max:
        return int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
    return 0
