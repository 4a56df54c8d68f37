"""DescribeQuorum (55), versions 0-2: leader, voters and observers of the log that holds the cluster's metadata.

v1 adds when a replica last fetched and was caught up (KIP-836), v2 messages, directory ids and endpoints (KIP-853).
"""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

import msgspec


class PartitionData(msgspec.Struct, frozen=True):
    partition_index: int


class TopicData(msgspec.Struct, frozen=True):
    topic_name: str
    partitions: tuple[PartitionData, ...]


class DescribeQuorumRequest(msgspec.Struct, frozen=True):
    topics: tuple[TopicData, ...]


class ReplicaState(msgspec.Struct, frozen=True):
    WIRE_NAMES: ClassVar[dict[str, str]] = {
        "last_fetch_timestamp": "last_fetch_timestamp_ms",
        "last_caught_up_timestamp": "last_caught_up_timestamp_ms",
    }

    replica_id: int
    log_end_offset: int
    replica_directory_id: UUID | None = None
    last_fetch_timestamp_ms: int = -1
    last_caught_up_timestamp_ms: int = -1


class QuorumPartition(msgspec.Struct, frozen=True):
    partition_index: int
    error_code: int = 0
    error_message: str | None = None
    leader_id: int = 0
    leader_epoch: int = 0
    high_watermark: int = 0
    current_voters: tuple[ReplicaState, ...] = ()
    observers: tuple[ReplicaState, ...] = ()


class QuorumTopic(msgspec.Struct, frozen=True):
    topic_name: str
    partitions: tuple[QuorumPartition, ...]


class Listener(msgspec.Struct, frozen=True):
    name: str
    host: str
    port: int


class QuorumNode(msgspec.Struct, frozen=True):
    node_id: int
    listeners: tuple[Listener, ...]


class DescribeQuorumResponse(msgspec.Struct, frozen=True):
    topics: tuple[QuorumTopic, ...]
    error_code: int = 0
    error_message: str | None = None
    nodes: tuple[QuorumNode, ...] = ()
