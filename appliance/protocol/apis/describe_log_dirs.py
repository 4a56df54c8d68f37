"""DescribeLogDirs (35), versions 1-5: the log directories of a broker, and the sizes of what lies in them.

v3 has an error for the whole request, v4 the room of the file system, v5 whether new partitions go there (KIP-1066).
"""

from __future__ import annotations

import msgspec

UNKNOWN_BYTES = -1


class DescribableLogDirTopic(msgspec.Struct, frozen=True):
    topic: str
    partitions: tuple[int, ...] = ()


class DescribeLogDirsRequest(msgspec.Struct, frozen=True):
    """`topics` None asks for every partition."""

    topics: tuple[DescribableLogDirTopic, ...] | None


class DescribeLogDirsPartition(msgspec.Struct, frozen=True):
    """`offset_lag`: how far the log end is behind the high watermark; of a future log, behind the log it copies."""

    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool


class DescribeLogDirsTopic(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[DescribeLogDirsPartition, ...]


class DescribeLogDirsResult(msgspec.Struct, frozen=True):
    """One directory. `total_bytes` and `usable_bytes` are its file system's."""

    error_code: int
    log_dir: str
    topics: tuple[DescribeLogDirsTopic, ...] = ()
    total_bytes: int = UNKNOWN_BYTES
    usable_bytes: int = UNKNOWN_BYTES
    is_cordoned: bool = False


class DescribeLogDirsResponse(msgspec.Struct, frozen=True):
    results: tuple[DescribeLogDirsResult, ...]
    error_code: int = 0
    throttle_time_ms: int = 0
