"""CreatePartitions (37), versions 0-3: more partitions for a topic. v3 may answer
THROTTLING_QUOTA_EXCEEDED."""

from __future__ import annotations

import msgspec


class PartitionAssignment(msgspec.Struct, frozen=True):
    broker_ids: tuple[int, ...]


class PartitionsTopic(msgspec.Struct, frozen=True):
    """`count` is the whole number after the change; `assignments`, if given, speak of the added ones in
    order."""

    name: str
    count: int
    assignments: tuple[PartitionAssignment, ...] | None = None


class CreatePartitionsRequest(msgspec.Struct, frozen=True):
    topics: tuple[PartitionsTopic, ...]
    timeout_ms: int
    validate_only: bool


class PartitionsTopicResult(msgspec.Struct, frozen=True):
    name: str
    error_code: int = 0
    error_message: str | None = None


class CreatePartitionsResponse(msgspec.Struct, frozen=True):
    results: tuple[PartitionsTopicResult, ...]
    throttle_time_ms: int = 0
