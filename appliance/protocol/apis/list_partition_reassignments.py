"""ListPartitionReassignments (46), version 0: partitions whose replicas are changing (KIP-455)."""

from __future__ import annotations

import msgspec


class ListPartitionReassignmentsTopics(msgspec.Struct, frozen=True):
    name: str
    partition_indexes: tuple[int, ...] = ()


class ListPartitionReassignmentsRequest(msgspec.Struct, frozen=True):
    """`topics` is None for all partitions that are being reassigned."""

    topics: tuple[ListPartitionReassignmentsTopics, ...] | None
    timeout_ms: int = 60_000


class OngoingPartitionReassignment(msgspec.Struct, frozen=True):
    """`replicas` are those of before and after together."""

    partition_index: int
    replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()


class OngoingTopicReassignment(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[OngoingPartitionReassignment, ...]


class ListPartitionReassignmentsResponse(msgspec.Struct, frozen=True):
    topics: tuple[OngoingTopicReassignment, ...]
    error_code: int = 0
    error_message: str | None = None
    throttle_time_ms: int = 0
