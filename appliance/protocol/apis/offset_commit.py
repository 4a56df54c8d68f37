"""OffsetCommit (8), versions 2-10: how far a group has come in each partition.

v5 drops the retention time, v6 adds leader epochs, v7 static members (KIP-345), v9 member epochs of the new consumer
protocol (KIP-848), v10 names topics by their ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from appliance.protocol.primitives import NO_UUID

DEFAULT_RETENTION = -1


@dataclass(frozen=True, slots=True)
class OffsetCommitPartition:
    """`committed_leader_epoch` is that of the last consumed record, -1 where unknown."""

    partition_index: int
    committed_offset: int
    committed_metadata: str | None = None
    committed_leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetCommitTopic:
    """By `name` up to v9, by `topic_id` from v10 on."""

    name: str = ""
    topic_id: UUID = NO_UUID
    partitions: tuple[OffsetCommitPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest:
    """A generation below 0 without a member is a consumer that is in no group; `retention_time_ms` -1: the broker's."""

    group_id: str
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    topics: tuple[OffsetCommitTopic, ...] = ()
    group_instance_id: str | None = None
    retention_time_ms: int = DEFAULT_RETENTION


@dataclass(frozen=True, slots=True)
class OffsetCommitPartitionResponse:
    partition_index: int
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class OffsetCommitTopicResponse:
    name: str = ""
    topic_id: UUID = NO_UUID
    partitions: tuple[OffsetCommitPartitionResponse, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetCommitResponse:
    topics: tuple[OffsetCommitTopicResponse, ...] = ()
    throttle_time_ms: int = 0
