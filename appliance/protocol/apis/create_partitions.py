"""CreatePartitions (37), versions 0-3: more partitions for a topic. v3 may answer
THROTTLING_QUOTA_EXCEEDED."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionAssignment:
    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionsTopic:
    """`count` is the whole number after the change; `assignments`, if given, speak of the added ones in
    order."""

    name: str
    count: int
    assignments: tuple[PartitionAssignment, ...] | None = None


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest:
    topics: tuple[PartitionsTopic, ...]
    timeout_ms: int
    validate_only: bool


@dataclass(frozen=True, slots=True)
class PartitionsTopicResult:
    name: str
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class CreatePartitionsResponse:
    results: tuple[PartitionsTopicResult, ...]
    throttle_time_ms: int = 0
