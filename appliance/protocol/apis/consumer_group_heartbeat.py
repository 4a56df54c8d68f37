"""ConsumerGroupHeartbeat (68), versions 0-1: a member of a consumer group says all it has to say (KIP-848).

Joining, leaving, subscribing, giving partitions up and staying alive are one request; the coordinator answers with the
partitions the member should have. A field that did not change since the last heartbeat is null. v1 adds subscriptions
by regular expression, and has the member choose its own id (KIP-1082).
"""

from __future__ import annotations

from uuid import UUID

import msgspec

LEAVE_GROUP_EPOCH = -1
LEAVE_GROUP_STATIC_EPOCH = -2
"""A static member leaves for a while: its partitions are kept for whoever comes back with its instance id."""

JOIN_GROUP_EPOCH = 0
UNCHANGED_MS = -1


class OwnedTopicPartitions(msgspec.Struct, frozen=True):
    topic_id: UUID | None
    partitions: tuple[int, ...] = ()


class ConsumerGroupHeartbeatRequest(msgspec.Struct, frozen=True):
    """None, and a rebalance timeout of -1, mean: as before."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = UNCHANGED_MS
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: tuple[OwnedTopicPartitions, ...] | None = None


class AssignedTopicPartitions(msgspec.Struct, frozen=True):
    topic_id: UUID | None
    partitions: tuple[int, ...] = ()


class HeartbeatAssignment(msgspec.Struct, frozen=True):
    topic_partitions: tuple[AssignedTopicPartitions, ...] = ()


class ConsumerGroupHeartbeatResponse(msgspec.Struct, frozen=True):
    """`assignment` None means: as before."""

    error_code: int = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: HeartbeatAssignment | None = None
    throttle_time_ms: int = 0
