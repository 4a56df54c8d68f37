"""DeleteRecords (21), versions 0-2: everything before an offset is given up; -1 is the high watermark.

The versions differ in their encoding only.
"""

from __future__ import annotations

import msgspec

HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1


class DeleteRecordsPartition(msgspec.Struct, frozen=True):
    """`offset` is the first that stays."""

    partition_index: int
    offset: int


class DeleteRecordsTopic(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


class DeleteRecordsRequest(msgspec.Struct, frozen=True):
    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: int


class DeleteRecordsPartitionResult(msgspec.Struct, frozen=True):
    """`low_watermark` is the least offset that any replica still has; -1 with an error."""

    partition_index: int
    low_watermark: int = NO_LOW_WATERMARK
    error_code: int = 0


class DeleteRecordsTopicResult(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[DeleteRecordsPartitionResult, ...]


class DeleteRecordsResponse(msgspec.Struct, frozen=True):
    topics: tuple[DeleteRecordsTopicResult, ...]
    throttle_time_ms: int = 0
