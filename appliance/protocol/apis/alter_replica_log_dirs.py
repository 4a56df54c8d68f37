"""AlterReplicaLogDirs (34), versions 1-2: partitions move to another log directory of the broker that is asked.

The versions differ in their encoding only. No error of a partition means that its move has begun, or that it is there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AlterReplicaLogDirTopic:
    name: str
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterReplicaLogDir:
    """`path` is absolute."""

    path: str
    topics: tuple[AlterReplicaLogDirTopic, ...]


@dataclass(frozen=True, slots=True)
class AlterReplicaLogDirsRequest:
    dirs: tuple[AlterReplicaLogDir, ...]


@dataclass(frozen=True, slots=True)
class AlterReplicaLogDirPartitionResult:
    partition_index: int
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class AlterReplicaLogDirTopicResult:
    topic_name: str
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...]


@dataclass(frozen=True, slots=True)
class AlterReplicaLogDirsResponse:
    results: tuple[AlterReplicaLogDirTopicResult, ...]
    throttle_time_ms: int = 0
