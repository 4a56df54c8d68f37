"""ConsumerGroupDescribe (69), versions 0-1: epochs, members and assignments of consumer groups (KIP-848).

v1 adds which protocol each member speaks (KIP-1099).
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

NO_AUTHORIZED_OPERATIONS = -(2**31)

MEMBER_UNKNOWN = -1
MEMBER_CLASSIC = 0
MEMBER_CONSUMER = 1


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeRequest:
    group_ids: tuple[str, ...]
    include_authorized_operations: bool = False


@dataclass(frozen=True, slots=True)
class DescribedTopicPartitions:
    topic_id: UUID | None
    topic_name: str
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedAssignment:
    topic_partitions: tuple[DescribedTopicPartitions, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedConsumer:
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


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    group_id: str
    error_code: int = 0
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedConsumer, ...] = ()
    authorized_operations: int = NO_AUTHORIZED_OPERATIONS


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeResponse:
    groups: tuple[DescribedConsumerGroup, ...]
    throttle_time_ms: int = 0
