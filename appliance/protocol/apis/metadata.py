"""Metadata (3), versions 0-13: brokers, topics, partitions and who leads them.

v0 asks for every topic with an empty array, later versions with null (empty asks for none). v4 lets the
client forbid auto-creation. v10 adds topic ids to the answer; questions by id are allowed from v12, while
v10 and v11 have the field and must not use it. v13 adds a top-level error.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from appliance.protocol.apis.topic_selector import TopicSelector

UNKNOWN_OPERATIONS = -(1 << 31)
"""Bit field of authorized operations when nobody asked for it."""


class MetadataRequest(msgspec.Struct, frozen=True):
    """`topics` is None for every topic, empty for none."""

    topics: tuple[TopicSelector, ...] | None
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False

    @staticmethod
    def adapt(version: int, fields: dict[str, Any]) -> None:
        if version == 0 and not fields["topics"]:
            fields["topics"] = None


class MetadataBroker(msgspec.Struct, frozen=True):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class MetadataPartition(msgspec.Struct, frozen=True):
    error_code: int
    partition_index: int
    leader_id: int
    leader_epoch: int = -1
    replica_nodes: tuple[int, ...] = ()
    isr_nodes: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


class MetadataTopic(msgspec.Struct, frozen=True):
    """`name` may be None only from v12 on, for a topic id that is not known."""

    error_code: int
    name: str | None
    topic_id: UUID | None = None
    is_internal: bool = False
    partitions: tuple[MetadataPartition, ...] = ()
    topic_authorized_operations: int = UNKNOWN_OPERATIONS


class MetadataResponse(msgspec.Struct, frozen=True):
    brokers: tuple[MetadataBroker, ...]
    topics: tuple[MetadataTopic, ...]
    cluster_id: str | None = None
    controller_id: int = -1
    error_code: int = 0
    throttle_time_ms: int = 0
    cluster_authorized_operations: int = UNKNOWN_OPERATIONS
