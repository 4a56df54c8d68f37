"""ElectLeaders (43), versions 0-2: the preferred leader, or any, for partitions.

v0 elects preferred leaders only, and has no top-level error. v1 adds unclean elections (KIP-460).
"""

from __future__ import annotations

import msgspec

PREFERRED = 0
UNCLEAN = 1


class TopicPartitions(msgspec.Struct, frozen=True):
    topic: str
    partitions: tuple[int, ...] = ()


class ElectLeadersRequest(msgspec.Struct, frozen=True):
    """`topic_partitions` is None for all partitions."""

    topic_partitions: tuple[TopicPartitions, ...] | None
    timeout_ms: int = 60_000
    election_type: int = PREFERRED


class PartitionResult(msgspec.Struct, frozen=True):
    partition_id: int
    error_code: int = 0
    error_message: str | None = None


class ReplicaElectionResult(msgspec.Struct, frozen=True):
    topic: str
    partition_result: tuple[PartitionResult, ...]


class ElectLeadersResponse(msgspec.Struct, frozen=True):
    replica_election_results: tuple[ReplicaElectionResult, ...]
    error_code: int = 0
    throttle_time_ms: int = 0
