"""DescribeTopicPartitions (75), version 0: topics and partitions page by page (KIP-966)."""

from __future__ import annotations

from uuid import UUID

import msgspec

from appliance.protocol.apis.metadata import UNKNOWN_OPERATIONS


class TopicName(msgspec.Struct, frozen=True):
    name: str


class PartitionCursor(msgspec.Struct, frozen=True):
    """The first topic and partition of the next page."""

    topic_name: str
    partition_index: int


class DescribeTopicPartitionsRequest(msgspec.Struct, frozen=True):
    """An empty `topics` asks for all of them. Topics are answered in the order of their names."""

    topics: tuple[TopicName, ...]
    response_partition_limit: int = 2000
    cursor: PartitionCursor | None = None


class DescribedPartition(msgspec.Struct, frozen=True):
    """Eligible leader replicas are None where the broker does not keep them, as ours."""

    error_code: int
    partition_index: int
    leader_id: int
    leader_epoch: int = -1
    replica_nodes: tuple[int, ...] = ()
    isr_nodes: tuple[int, ...] = ()
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    offline_replicas: tuple[int, ...] = ()


class DescribedTopic(msgspec.Struct, frozen=True):
    error_code: int
    name: str | None
    topic_id: UUID | None = None
    is_internal: bool = False
    partitions: tuple[DescribedPartition, ...] = ()
    topic_authorized_operations: int = UNKNOWN_OPERATIONS


class DescribeTopicPartitionsResponse(msgspec.Struct, frozen=True):
    topics: tuple[DescribedTopic, ...]
    next_cursor: PartitionCursor | None = None
    throttle_time_ms: int = 0
