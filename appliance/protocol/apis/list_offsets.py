"""ListOffsets (2), versions 1-11: the offset at an edge of the log, or the first at or after a time.

v2 adds the isolation level, v4 leader epochs, v10 a timeout (for tiered storage, which we do not have).
What the timestamp may be grows: v7 the maximum, v8 the local log start, v9 the last tiered, v11 the
earliest pending upload.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6

SPECIAL_TIMESTAMP_SINCE = {
    LATEST_TIMESTAMP: 1,
    EARLIEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}
"""Special timestamp to the first version that allows it (KIP-734, KIP-405, KIP-1005, KIP-1023). A negative
timestamp that its version does not allow is answered with UNSUPPORTED_VERSION."""


class ListOffsetsPartition(msgspec.Struct, frozen=True):
    """`timestamp_ms` is a time in ms since 1970 or one of the special values above."""

    WIRE_NAMES: ClassVar[dict[str, str]] = {"timestamp": "timestamp_ms"}

    partition_index: int
    timestamp_ms: int
    current_leader_epoch: int = -1


class ListOffsetsTopic(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[ListOffsetsPartition, ...]


class ListOffsetsRequest(msgspec.Struct, frozen=True):
    """`replica_id` is -1 for a consumer; `isolation_level` 0 reads uncommitted, 1 committed."""

    replica_id: int
    topics: tuple[ListOffsetsTopic, ...]
    isolation_level: int = 0
    timeout_ms: int = 0


class ListOffsetsPartitionResponse(msgspec.Struct, frozen=True):
    """An offset of -1 says that nothing was found; then the timestamp is -1 too."""

    WIRE_NAMES: ClassVar[dict[str, str]] = {"timestamp": "timestamp_ms"}

    partition_index: int
    error_code: int = 0
    timestamp_ms: int = -1
    offset: int = -1
    leader_epoch: int = -1


class ListOffsetsTopicResponse(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[ListOffsetsPartitionResponse, ...]


class ListOffsetsResponse(msgspec.Struct, frozen=True):
    topics: tuple[ListOffsetsTopicResponse, ...]
    throttle_time_ms: int = 0
