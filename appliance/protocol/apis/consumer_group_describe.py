"""ConsumerGroupDescribe (69), versions 0-1: epochs, members and assignments of consumer groups (KIP-848).

v1 adds which protocol each member speaks (KIP-1099).
"""

from __future__ import annotations

from uuid import UUID

import msgspec

NO_AUTHORIZED_OPERATIONS = -(2**31)

MEMBER_UNKNOWN = -1
MEMBER_CLASSIC = 0
MEMBER_CONSUMER = 1


class ConsumerGroupDescribeRequest(msgspec.Struct, frozen=True):
    group_ids: tuple[str, ...]
    include_authorized_operations: bool = False


class DescribedTopicPartitions(msgspec.Struct, frozen=True):
    topic_id: UUID | None
    topic_name: str
    partitions: tuple[int, ...] = ()


class DescribedAssignment(msgspec.Struct, frozen=True):
    topic_partitions: tuple[DescribedTopicPartitions, ...] = ()


class DescribedConsumer(msgspec.Struct, frozen=True):
    member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment
    instance_id: str | None = None
    rack_id: str | None = None
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    member_type: int = MEMBER_UNKNOWN


class DescribedConsumerGroup(msgspec.Struct, frozen=True):
    group_id: str
    error_code: int = 0
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedConsumer, ...] = ()
    authorized_operations: int = NO_AUTHORIZED_OPERATIONS


class ConsumerGroupDescribeResponse(msgspec.Struct, frozen=True):
    groups: tuple[DescribedConsumerGroup, ...]
    throttle_time_ms: int = 0
