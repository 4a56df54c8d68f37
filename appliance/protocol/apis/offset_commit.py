"""OffsetCommit (8), versions 2-10: how far a group has come in each partition.

v5 drops the retention time, v6 adds leader epochs, v7 static members (KIP-345), v9 member epochs of the new consumer
protocol (KIP-848), v10 names topics by their ids.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from appliance.protocol.primitives import NO_UUID

DEFAULT_RETENTION = -1


class OffsetCommitPartition(msgspec.Struct, frozen=True):
    """`committed_leader_epoch` is that of the last consumed record, -1 where unknown."""

    partition_index: int
    committed_offset: int
    committed_metadata: str | None = None
    committed_leader_epoch: int = -1


class OffsetCommitTopic(msgspec.Struct, frozen=True):
    """By `name` up to v9, by `topic_id` from v10 on."""

    name: str = ""
    topic_id: UUID = NO_UUID
    partitions: tuple[OffsetCommitPartition, ...] = ()


class OffsetCommitRequest(msgspec.Struct, frozen=True):
    """A generation below 0 without a member is a consumer that is in no group; `retention_time_ms` -1: the broker's."""

    group_id: str
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    topics: tuple[OffsetCommitTopic, ...] = ()
    group_instance_id: str | None = None
    retention_time_ms: int = DEFAULT_RETENTION


class OffsetCommitPartitionResponse(msgspec.Struct, frozen=True):
    partition_index: int
    error_code: int = 0


class OffsetCommitTopicResponse(msgspec.Struct, frozen=True):
    name: str = ""
    topic_id: UUID = NO_UUID
    partitions: tuple[OffsetCommitPartitionResponse, ...] = ()


class OffsetCommitResponse(msgspec.Struct, frozen=True):
    topics: tuple[OffsetCommitTopicResponse, ...] = ()
    throttle_time_ms: int = 0
