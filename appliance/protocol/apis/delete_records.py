"""DeleteRecords (21), versions 0-2: everything before an offset is given up; -1 is the high watermark.

The versions differ in their encoding only.
"""

from __future__ import annotations

from dataclasses import dataclass

HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1


@dataclass(frozen=True, slots=True)
class DeleteRecordsPartition:
    """`offset` is the first that stays."""

    partition_index: int
    offset: int


@dataclass(frozen=True, slots=True)
class DeleteRecordsTopic:
    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest:
    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class DeleteRecordsPartitionResult:
    """`low_watermark` is the least offset that any replica still has; -1 with an error."""

    partition_index: int
    low_watermark: int = NO_LOW_WATERMARK
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class DeleteRecordsTopicResult:
    name: str
    partitions: tuple[DeleteRecordsPartitionResult, ...]


@dataclass(frozen=True, slots=True)
class DeleteRecordsResponse:
    topics: tuple[DeleteRecordsTopicResult, ...]
    throttle_time_ms: int = 0
