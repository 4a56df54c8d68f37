"""ElectLeaders (43), versions 0-2: the preferred leader, or any, for partitions.

v0 elects preferred leaders only, and has no top-level error. v1 adds unclean elections (KIP-460).
"""

from __future__ import annotations

from dataclasses import dataclass

PREFERRED = 0
UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    topic: str
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ElectLeadersRequest:
    """`topic_partitions` is None for all partitions."""

    topic_partitions: tuple[TopicPartitions, ...] | None
    timeout_ms: int = 60_000
    election_type: int = PREFERRED


@dataclass(frozen=True, slots=True)
class PartitionResult:
    partition_id: int
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class ReplicaElectionResult:
    topic: str
    partition_result: tuple[PartitionResult, ...]


@dataclass(frozen=True, slots=True)
class ElectLeadersResponse:
    replica_election_results: tuple[ReplicaElectionResult, ...]
    error_code: int = 0
    throttle_time_ms: int = 0
