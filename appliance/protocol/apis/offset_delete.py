"""OffsetDelete (47), version 0: takes committed offsets away (KIP-496)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OffsetDeletePartition:
    partition_index: int


@dataclass(frozen=True, slots=True)
class OffsetDeleteTopic:
    name: str
    partitions: tuple[OffsetDeletePartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequest:
    group_id: str
    topics: tuple[OffsetDeleteTopic, ...]


@dataclass(frozen=True, slots=True)
class OffsetDeletePartitionResponse:
    partition_index: int
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class OffsetDeleteTopicResponse:
    name: str
    partitions: tuple[OffsetDeletePartitionResponse, ...]


@dataclass(frozen=True, slots=True)
class OffsetDeleteResponse:
    """With a top-level error there are no topics."""

    error_code: int = 0
    topics: tuple[OffsetDeleteTopicResponse, ...] = ()
    throttle_time_ms: int = 0
