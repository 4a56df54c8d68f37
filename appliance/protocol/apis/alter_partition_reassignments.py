"""AlterPartitionReassignments (45), versions 0-1: other replicas for partitions, or back to those of before (KIP-455).

v1 lets the client forbid that the number of replicas changes (KIP-860).
"""

from __future__ import annotations

import msgspec


class ReassignablePartition(msgspec.Struct, frozen=True):
    """`replicas` is None to call back the reassignment that is under way."""

    partition_index: int
    replicas: tuple[int, ...] | None = None


class ReassignableTopic(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[ReassignablePartition, ...]


class AlterPartitionReassignmentsRequest(msgspec.Struct, frozen=True):
    topics: tuple[ReassignableTopic, ...]
    timeout_ms: int = 60_000
    allow_replication_factor_change: bool = True


class ReassignablePartitionResponse(msgspec.Struct, frozen=True):
    partition_index: int
    error_code: int = 0
    error_message: str | None = None


class ReassignableTopicResponse(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[ReassignablePartitionResponse, ...]


class AlterPartitionReassignmentsResponse(msgspec.Struct, frozen=True):
    responses: tuple[ReassignableTopicResponse, ...]
    error_code: int = 0
    error_message: str | None = None
    throttle_time_ms: int = 0
    allow_replication_factor_change: bool = True
