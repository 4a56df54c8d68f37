"""CreateTopics (19), versions 2-7.

v4 allows -1 for the broker's default of partitions and replication factor (KIP-464). v5 answers with what
was made and its configuration (KIP-525), v7 with the topic's id.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

BROKER_DEFAULT = -1


class ReplicaAssignment(msgspec.Struct, frozen=True):
    partition_index: int
    broker_ids: tuple[int, ...]


class TopicConfig(msgspec.Struct, frozen=True):
    name: str
    value: str | None


class CreatableTopic(msgspec.Struct, frozen=True):
    """With `assignments`, partitions and replication factor are both -1."""

    name: str
    num_partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[TopicConfig, ...] = ()


class CreateTopicsRequest(msgspec.Struct, frozen=True):
    topics: tuple[CreatableTopic, ...]
    timeout_ms: int = 60_000
    validate_only: bool = False


class CreatedTopicConfig(msgspec.Struct, frozen=True):
    """`config_source` as in DescribeConfigs."""

    name: str
    value: str | None
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False


class CreatableTopicResult(msgspec.Struct, frozen=True):
    """`configs` is None where the client may not see them; `topic_config_error_code` then says why."""

    name: str
    topic_id: UUID | None = None
    error_code: int = 0
    error_message: str | None = None
    num_partitions: int = -1
    replication_factor: int = -1
    configs: tuple[CreatedTopicConfig, ...] | None = ()
    topic_config_error_code: int = 0


class CreateTopicsResponse(msgspec.Struct, frozen=True):
    topics: tuple[CreatableTopicResult, ...]
    throttle_time_ms: int = 0
