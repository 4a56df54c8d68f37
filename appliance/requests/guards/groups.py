"""Guards of requests about groups, and of FindCoordinator. Source: `KafkaApis.scala`, release 4.3."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from appliance.protocol.acl import AclOperation, ResourceType
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from appliance.protocol.apis.consumer_group_heartbeat import (
    AssignedTopicPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
)
from appliance.protocol.apis.delete_groups import DeletableGroupResult, DeleteGroupsRequest
from appliance.protocol.apis.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from appliance.protocol.apis.find_coordinator import (
    GROUP,
    TRANSACTION,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from appliance.protocol.apis.list_groups import ListGroupsResponse
from appliance.protocol.apis.offset_commit import (
    OffsetCommitPartitionResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopicResponse,
)
from appliance.protocol.apis.offset_delete import (
    OffsetDeletePartitionResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteTopicResponse,
)
from appliance.protocol.apis.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    OffsetFetchPartitionResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
    OffsetFetchTopicResponse,
)
from appliance.protocol.apis.sync_group import SyncGroupRequest
from appliance.protocol.coordinator_errors import OFFSET_FETCH_GROUPS_SINCE, coordinator_error_response
from appliance.protocol.errors import ErrorCode
from appliance.requests.guards.verdict import Caller, Narrowed, Refused, Verdict
from appliance.requests.steps import Steps

_GROUP: Final = ResourceType.GROUP
_TOPIC: Final = ResourceType.TOPIC
_DENIED: Final = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
_TOPIC_DENIED: Final = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_PROTOCOL_SINCE: Final = 5
_OPERATIONS: Final = (
    AclOperation.READ,
    AclOperation.DELETE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
_OF_KEY: Final = {
    GROUP: (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    TRANSACTION: (ResourceType.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
}


def _reads(api: ApiKey, request: Any, caller: Caller) -> Steps[Verdict]:
    """READ on the group."""
    if caller.may(AclOperation.READ, _GROUP, request.group_id):
        return None
    yield None
    return Refused(coordinator_error_response(api, caller.version, request, _DENIED))


join_group = partial(_reads, ApiKey.JOIN_GROUP)


def sync_group(request: SyncGroupRequest, caller: Caller) -> Steps[Verdict]:
    """READ on the group. A request without its protocol is refused for that first."""
    if caller.version >= _PROTOCOL_SINCE and None in {request.protocol_type, request.protocol_name}:
        return None
    return (yield from _reads(ApiKey.SYNC_GROUP, request, caller))


heartbeat = partial(_reads, ApiKey.HEARTBEAT)
leave_group = partial(_reads, ApiKey.LEAVE_GROUP)


def find_coordinator(request: FindCoordinatorRequest, caller: Caller) -> Steps[Verdict]:
    """DESCRIBE on each group, or transactional id."""
    of_key = _OF_KEY.get(request.key_type)
    if of_key is None:
        return None
    kind, error = of_key
    keys = request.coordinator_keys or (request.key,)
    allowed, denied = yield from caller.split(keys, lambda key: caller.may(AclOperation.DESCRIBE, kind, key))
    if not denied:
        return None
    told = tuple(Coordinator(key, error_code=error, error_message=error.message) for key in denied)
    if not allowed:
        first = told[0]
        return Refused(FindCoordinatorResponse(int(error), first.error_message, coordinators=told))

    def amend(response: FindCoordinatorResponse) -> FindCoordinatorResponse:
        return replace(response, coordinators=response.coordinators + told)

    return Narrowed(replace(request, coordinator_keys=allowed), amend)


def offset_commit(request: OffsetCommitRequest, caller: Caller) -> Steps[Verdict]:
    """READ on the group and on each topic."""
    if not caller.may(AclOperation.READ, _GROUP, request.group_id):
        return Refused(coordinator_error_response(ApiKey.OFFSET_COMMIT, caller.version, request, _DENIED))

    def is_allowed(topic: Any) -> bool:
        name = caller.named(topic)
        return name is None or caller.may(AclOperation.READ, _TOPIC, name)

    allowed, denied = yield from caller.split(request.topics, is_allowed)
    if not denied:
        return None
    told = tuple(
        OffsetCommitTopicResponse(
            topic.name,
            topic.topic_id,
            tuple(
                OffsetCommitPartitionResponse(each.partition_index, _TOPIC_DENIED)
                for each in topic.partitions
            ),
        )
        for topic in denied
    )
    if not allowed:
        return Refused(OffsetCommitResponse(told))

    def amend(response: OffsetCommitResponse) -> OffsetCommitResponse:
        return replace(response, topics=response.topics + told)

    return Narrowed(replace(request, topics=allowed), amend)


def offset_fetch(request: OffsetFetchRequest, caller: Caller) -> Steps[Verdict]:
    """DESCRIBE on each group, and on each topic; of all topics those are told that one may describe."""
    if caller.version < OFFSET_FETCH_GROUPS_SINCE:
        group = OffsetFetchGroup(request.group_id, request.topics)
        judged = yield from _of_group(group, caller)
        if isinstance(judged, OffsetFetchGroupResponse):
            return Refused(coordinator_error_response(ApiKey.OFFSET_FETCH, caller.version, request, _DENIED))
        kept, told = judged

        def amend_one(response: OffsetFetchResponse) -> OffsetFetchResponse:
            return replace(response, topics=_seen(response.topics, caller) + told)

        return Narrowed(replace(request, topics=kept.topics), amend_one)
    groups: list[OffsetFetchGroup] = []
    denied: list[OffsetFetchGroupResponse] = []
    of_topics: dict[str, tuple[OffsetFetchTopicResponse, ...]] = {}
    for each in request.groups:
        judged = yield from _of_group(each, caller)
        if isinstance(judged, OffsetFetchGroupResponse):
            denied.append(judged)
        else:
            groups.append(judged[0])
            of_topics[each.group_id] = judged[1]
    if not groups:
        return Refused(OffsetFetchResponse(groups=tuple(denied)))

    def amend(response: OffsetFetchResponse) -> OffsetFetchResponse:
        seen = tuple(
            replace(group, topics=_seen(group.topics, caller) + of_topics.get(group.group_id, ()))
            for group in response.groups
        )
        return replace(response, groups=seen + tuple(denied))

    return Narrowed(replace(request, groups=tuple(groups)), amend)


def _of_group(
    group: OffsetFetchGroup, caller: Caller
) -> Steps[OffsetFetchGroupResponse | tuple[OffsetFetchGroup, tuple[OffsetFetchTopicResponse, ...]]]:
    if not caller.may(AclOperation.DESCRIBE, _GROUP, group.group_id):
        return OffsetFetchGroupResponse(group.group_id, error_code=_DENIED)
    if group.topics is None:
        return group, ()

    def is_allowed(topic: OffsetFetchTopic) -> bool:
        name = caller.named(topic)
        return name is None or caller.may(AclOperation.DESCRIBE, _TOPIC, name)

    allowed, denied = yield from caller.split(group.topics, is_allowed)
    told = tuple(
        OffsetFetchTopicResponse(
            topic.name,
            topic.topic_id,
            tuple(
                OffsetFetchPartitionResponse(number, error_code=_TOPIC_DENIED)
                for number in topic.partition_indexes
            ),
        )
        for topic in denied
    )
    return replace(group, topics=allowed), told


def _seen(
    topics: tuple[OffsetFetchTopicResponse, ...], caller: Caller
) -> tuple[OffsetFetchTopicResponse, ...]:
    def is_seen(topic: OffsetFetchTopicResponse) -> bool:
        name = caller.named(topic)
        return name is None or caller.may(AclOperation.DESCRIBE, _TOPIC, name)

    return tuple(topic for topic in topics if is_seen(topic))


def offset_delete(request: OffsetDeleteRequest, caller: Caller) -> Steps[Verdict]:
    """DELETE on the group, READ on each topic."""
    if not caller.may(AclOperation.DELETE, _GROUP, request.group_id):
        return Refused(OffsetDeleteResponse(error_code=_DENIED))
    allowed, denied = yield from caller.split(
        request.topics, lambda topic: caller.may(AclOperation.READ, _TOPIC, topic.name)
    )
    if not denied:
        return None
    told = tuple(
        OffsetDeleteTopicResponse(
            topic.name,
            tuple(
                OffsetDeletePartitionResponse(each.partition_index, _TOPIC_DENIED)
                for each in topic.partitions
            ),
        )
        for topic in denied
    )

    def amend(response: OffsetDeleteResponse) -> OffsetDeleteResponse:
        return response if response.error_code else replace(response, topics=response.topics + told)

    return Narrowed(replace(request, topics=allowed), amend)


def _operations(group: str, caller: Caller) -> int:
    """What the client may do to a group, as a bit field."""
    return sum(1 << each for each in _OPERATIONS if caller.may(each, _GROUP, group))


def describe_groups(request: DescribeGroupsRequest, caller: Caller) -> Steps[Verdict]:
    """DESCRIBE on each group."""
    allowed, denied = yield from caller.split(
        request.groups, lambda name: caller.may(AclOperation.DESCRIBE, _GROUP, name)
    )
    told = tuple(DescribedGroup(name, _DENIED) for name in denied)

    def with_operations(group: DescribedGroup) -> DescribedGroup:
        if group.error_code or not request.include_authorized_operations:
            return group
        return replace(group, authorized_operations=_operations(group.group_id, caller))

    def amend(response: DescribeGroupsResponse) -> DescribeGroupsResponse:
        return replace(response, groups=tuple(map(with_operations, response.groups)) + told)

    return Narrowed(replace(request, groups=allowed), amend)


def delete_groups(request: DeleteGroupsRequest, caller: Caller) -> Steps[Verdict]:
    """DELETE on each group."""
    allowed, denied = yield from caller.split(
        request.groups_names, lambda name: caller.may(AclOperation.DELETE, _GROUP, name)
    )
    if not denied:
        return None
    told = tuple(DeletableGroupResult(name, _DENIED) for name in denied)
    return Narrowed(
        replace(request, groups_names=allowed),
        lambda response: replace(response, results=response.results + told),
    )


def list_groups(request: Any, caller: Caller) -> Steps[Verdict]:
    """All of them with DESCRIBE on the cluster; else those that one may DESCRIBE."""
    if caller.might_of_cluster(AclOperation.DESCRIBE):
        return None
    yield None

    def amend(response: ListGroupsResponse) -> ListGroupsResponse:
        seen = (each for each in response.groups if caller.may(AclOperation.DESCRIBE, _GROUP, each.group_id))
        return replace(response, groups=tuple(seen))

    return Narrowed(request, amend)


def consumer_group_heartbeat(request: ConsumerGroupHeartbeatRequest, caller: Caller) -> Steps[Verdict]:
    """READ on the group, DESCRIBE on each topic to which the member subscribes by name.

    A regular expression matches every topic at the coordinator, which knows no principals. What the member may not
    describe is taken out of its assignment here, so it neither learns the ids nor waits for topics that Metadata hides.
    """
    if not caller.may(AclOperation.READ, _GROUP, request.group_id):
        return Refused(ConsumerGroupHeartbeatResponse(error_code=_DENIED))
    _allowed, denied = yield from caller.split(
        request.subscribed_topic_names or (), lambda name: caller.may(AclOperation.DESCRIBE, _TOPIC, name)
    )
    if denied:
        return Refused(ConsumerGroupHeartbeatResponse(error_code=_TOPIC_DENIED))

    def is_seen(topic: AssignedTopicPartitions) -> bool:
        name = None if topic.topic_id is None else caller.name_of(topic.topic_id)
        return name is None or caller.may(AclOperation.DESCRIBE, _TOPIC, name)

    def amend(response: ConsumerGroupHeartbeatResponse) -> ConsumerGroupHeartbeatResponse:
        if response.assignment is None:
            return response
        seen = tuple(filter(is_seen, response.assignment.topic_partitions))
        return replace(response, assignment=HeartbeatAssignment(seen))

    return Narrowed(request, amend)


def consumer_group_describe(request: ConsumerGroupDescribeRequest, caller: Caller) -> Steps[Verdict]:
    """DESCRIBE on each group, and on every topic of its members."""
    allowed, denied = yield from caller.split(
        request.group_ids, lambda name: caller.may(AclOperation.DESCRIBE, _GROUP, name)
    )
    told = tuple(DescribedConsumerGroup(name, _DENIED) for name in denied)

    def without_hidden(group: DescribedConsumerGroup) -> DescribedConsumerGroup:
        topics: set[str] = set()
        for member in group.members:
            topics.update(member.subscribed_topic_names)
            for assignment in (member.assignment, member.target_assignment):
                topics.update(each.topic_name for each in assignment.topic_partitions)
        if all(caller.may(AclOperation.DESCRIBE, _TOPIC, name) for name in topics):
            if group.error_code or not request.include_authorized_operations:
                return group
            return replace(group, authorized_operations=_operations(group.group_id, caller))
        return DescribedConsumerGroup(
            group.group_id,
            _TOPIC_DENIED,
            "The group has described topic(s) that the client is not authorized to describe.",
        )

    def amend(response: ConsumerGroupDescribeResponse) -> ConsumerGroupDescribeResponse:
        return replace(response, groups=tuple(map(without_hidden, response.groups)) + told)

    return Narrowed(replace(request, group_ids=allowed), amend)
