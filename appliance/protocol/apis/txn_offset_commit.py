"""TxnOffsetCommit (28), versions 0-5: offsets that a group has come to when the transaction commits.

v2 adds leader epochs, v3 the member and its generation, so that a fenced member cannot commit (KIP-447). With v5 the
broker adds the group's partition to the transaction itself (KIP-890).
"""

from __future__ import annotations

import msgspec


class TxnOffsetCommitPartition(msgspec.Struct, frozen=True):
    """`committed_leader_epoch` is that of the last consumed record, -1 where unknown."""

    partition_index: int
    committed_offset: int
    committed_metadata: str | None = None
    committed_leader_epoch: int = -1


class TxnOffsetCommitTopic(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[TxnOffsetCommitPartition, ...] = ()


class TxnOffsetCommitRequest(msgspec.Struct, frozen=True):
    """A generation below 0 without a member is a producer that is in no group."""

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    topics: tuple[TxnOffsetCommitTopic, ...] = ()
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class TxnOffsetCommitPartitionResponse(msgspec.Struct, frozen=True):
    partition_index: int
    error_code: int = 0


class TxnOffsetCommitTopicResponse(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[TxnOffsetCommitPartitionResponse, ...] = ()


class TxnOffsetCommitResponse(msgspec.Struct, frozen=True):
    topics: tuple[TxnOffsetCommitTopicResponse, ...] = ()
    throttle_time_ms: int = 0
