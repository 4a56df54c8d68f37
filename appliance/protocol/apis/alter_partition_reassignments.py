"""AlterPartitionReassignments (45), versions 0-1: other replicas for partitions, or back to those of before (KIP-455).

v1 lets the client forbid that the number of replicas changes (KIP-860).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReassignablePartition:
    """`replicas` is None to call back the reassignment that is under way."""

    partition_index: int
    replicas: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReassignableTopic:
    name: str
    partitions: tuple[ReassignablePartition, ...]


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsRequest:
    topics: tuple[ReassignableTopic, ...]
    timeout_ms: int = 60_000
    allow_replication_factor_change: bool = True


@dataclass(frozen=True, slots=True)
class ReassignablePartitionResponse:
    partition_index: int
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class ReassignableTopicResponse:
    name: str
    partitions: tuple[ReassignablePartitionResponse, ...]


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsResponse:
    responses: tuple[ReassignableTopicResponse, ...]
    error_code: int = 0
    error_message: str | None = None
    throttle_time_ms: int = 0
    allow_replication_factor_change: bool = True
