"""ListPartitionReassignments (46), version 0: partitions whose replicas are changing (KIP-455)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsTopics:
    name: str
    partition_indexes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsRequest:
    """`topics` is None for all partitions that are being reassigned."""

    topics: tuple[ListPartitionReassignmentsTopics, ...] | None
    timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class OngoingPartitionReassignment:
    """`replicas` are those of before and after together."""

    partition_index: int
    replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OngoingTopicReassignment:
    name: str
    partitions: tuple[OngoingPartitionReassignment, ...]


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsResponse:
    topics: tuple[OngoingTopicReassignment, ...]
    error_code: int = 0
    error_message: str | None = None
    throttle_time_ms: int = 0
