"""OffsetDelete (47), version 0: takes committed offsets away (KIP-496)."""

from __future__ import annotations

import msgspec


class OffsetDeletePartition(msgspec.Struct, frozen=True):
    partition_index: int


class OffsetDeleteTopic(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[OffsetDeletePartition, ...]


class OffsetDeleteRequest(msgspec.Struct, frozen=True):
    group_id: str
    topics: tuple[OffsetDeleteTopic, ...]


class OffsetDeletePartitionResponse(msgspec.Struct, frozen=True):
    partition_index: int
    error_code: int = 0


class OffsetDeleteTopicResponse(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[OffsetDeletePartitionResponse, ...]


class OffsetDeleteResponse(msgspec.Struct, frozen=True):
    """With a top-level error there are no topics."""

    error_code: int = 0
    topics: tuple[OffsetDeleteTopicResponse, ...] = ()
    throttle_time_ms: int = 0
