"""AlterReplicaLogDirs (34), versions 1-2: partitions move to another log directory of the broker that is asked.

The versions differ in their encoding only. No error of a partition means that its move has begun, or that it is there.
"""

from __future__ import annotations

import msgspec


class AlterReplicaLogDirTopic(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[int, ...] = ()


class AlterReplicaLogDir(msgspec.Struct, frozen=True):
    """`path` is absolute."""

    path: str
    topics: tuple[AlterReplicaLogDirTopic, ...]


class AlterReplicaLogDirsRequest(msgspec.Struct, frozen=True):
    dirs: tuple[AlterReplicaLogDir, ...]


class AlterReplicaLogDirPartitionResult(msgspec.Struct, frozen=True):
    partition_index: int
    error_code: int = 0


class AlterReplicaLogDirTopicResult(msgspec.Struct, frozen=True):
    topic_name: str
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...]


class AlterReplicaLogDirsResponse(msgspec.Struct, frozen=True):
    results: tuple[AlterReplicaLogDirTopicResult, ...]
    throttle_time_ms: int = 0
