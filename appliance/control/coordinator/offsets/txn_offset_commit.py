"""TxnOffsetCommit 0-5: offsets that count when the producer's transaction is committed.

| a partition is answered | when |
|---|---|
| UNKNOWN_TOPIC_OR_PARTITION | the topic, or the partition, is not there; the group is not asked for those |
| INVALID_GROUP_ID | the group id is empty |
| NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS | the group's partition is elsewhere, or not replayed yet |
| ILLEGAL_GENERATION | a group that is not there has no generation; the member's generation or epoch is another |
| UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID | the member is not in the group; its place was taken |
| OFFSET_METADATA_TOO_LARGE | as of OffsetCommit |
| what became of the append | see below; 0 once the record is committed, which is before the transaction is |

A member with generation -1, without id and instance id, may commit for every group: clients before KIP-447 name none.
Unlike OffsetCommit it is allowed in a rebalance, and is no sign of life.

The network process has had the partition of `__consumer_offsets` added to the transaction, or verified, before it
handed the request over. The owner of the log refuses the batch if the permit for it is gone by then (INVALID_TXN_STATE:
its leader has changed, or the transaction has ended in between). The client gets COORDINATOR_LOAD_IN_PROGRESS and
asks again; the network process then asks the transaction coordinator once more.

Before version 2 COORDINATOR_NOT_AVAILABLE stands for COORDINATOR_LOAD_IN_PROGRESS, which crashes old producers
(KAFKA-7296). What is left out: nothing. Source: `KafkaApis.handleTxnOffsetCommitRequest`,
`GroupCoordinatorService.java`, `OffsetMetadataManager.java` of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.control.coordinator.pieces import Steps, in_pieces
from appliance.protocol.apis.txn_offset_commit import (
    TxnOffsetCommitPartition,
    TxnOffsetCommitPartitionResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitTopicResponse,
)
from appliance.protocol.coordinator_errors import told_to_committer
from appliance.protocol.errors import ErrorCode
from appliance.protocol.offset_commit import CommitRequest, CommittedPartition, CommittedTopic, TopicErrors

PENDING_BYTES_MAX: Final = 64 << 20
"""Of memory for offsets of open transactions; with more, commits get COORDINATOR_LOAD_IN_PROGRESS."""
_UNKNOWN_PARTITION: Final = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def as_commit(request: TxnOffsetCommitRequest) -> Steps[CommitRequest]:
    """The request as an OffsetCommit, which is planned like any other."""
    topics: list[CommittedTopic] = []
    for topic in request.topics:
        topics.append((topic.name, (yield from in_pieces(_partition, topic.partitions))))
    return CommitRequest(
        request.group_id,
        topics,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
    )


def _partition(asked: TxnOffsetCommitPartition) -> CommittedPartition:
    metadata = (asked.committed_metadata or "").encode()
    return asked.partition_index, asked.committed_offset, asked.committed_leader_epoch, metadata


def names_something(errors: Sequence[TopicErrors]) -> bool:
    """Whether any of the partitions is there, so that the group is asked."""
    return any(error != _UNKNOWN_PARTITION for _, each in errors for _, error in each)


def refused(errors: Sequence[TopicErrors], error: int) -> list[TopicErrors]:
    """`errors` of a plan for a member that may not commit: those that are there have `error`."""
    return [
        (topic, [(index, found if found == _UNKNOWN_PARTITION else error) for index, found in each])
        for topic, each in errors
    ]


def response_of(errors: Sequence[TopicErrors], version: int) -> Steps[TxnOffsetCommitResponse]:
    """The answer."""

    def told(result: tuple[int, int]) -> TxnOffsetCommitPartitionResponse:
        index, error = result
        return TxnOffsetCommitPartitionResponse(index, told_to_committer(error, version))

    topics: list[TxnOffsetCommitTopicResponse] = []
    for topic, each in errors:
        topics.append(TxnOffsetCommitTopicResponse(str(topic), (yield from in_pieces(told, each))))
    return TxnOffsetCommitResponse(tuple(topics))
