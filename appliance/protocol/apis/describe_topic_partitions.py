"""DescribeTopicPartitions (75), version 0: topics and partitions page by page (KIP-966)."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from appliance.protocol.apis.metadata import UNKNOWN_OPERATIONS


@dataclass(frozen=True, slots=True)
class TopicName:
    name: str


@dataclass(frozen=True, slots=True)
class PartitionCursor:
    """The first topic and partition of the next page."""

    topic_name: str
    partition_index: int


@dataclass(frozen=True, slots=True)
class DescribeTopicPartitionsRequest:
    """An empty `topics` asks for all of them. Topics are answered in the order of their names."""

    topics: tuple[TopicName, ...]
    response_partition_limit: int = 2000
    cursor: PartitionCursor | None = None


@dataclass(frozen=True, slots=True)
class DescribedPartition:
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


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    error_code: int
    name: str | None
    topic_id: UUID | None = None
    is_internal: bool = False
    partitions: tuple[DescribedPartition, ...] = ()
    topic_authorized_operations: int = UNKNOWN_OPERATIONS


@dataclass(frozen=True, slots=True)
class DescribeTopicPartitionsResponse:
    topics: tuple[DescribedTopic, ...]
    next_cursor: PartitionCursor | None = None
    throttle_time_ms: int = 0
