"""ConsumerGroupDescribe (69), versions 0-1: epochs, members and assignments of consumer groups (KIP-848).

v1 tells which protocol a member speaks (KIP-1099).
"""

from __future__ import annotations

from msgspec.structs import replace

from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.consumer_records import Assignment
from appliance.control.coordinator.group.effects import GROUP_OPERATIONS
from appliance.control.coordinator.group.group_book import GroupBook, shown
from appliance.control.coordinator.runtime.effects import Client
from appliance.protocol.apis.consumer_group_describe import (
    MEMBER_CLASSIC,
    MEMBER_CONSUMER,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedTopicPartitions,
)
from appliance.protocol.errors import ErrorCode


def handle(book: GroupBook, request: ConsumerGroupDescribeRequest, client: Client, reply: object) -> None:
    groups = (_describe(book, group_id, client) for group_id in dict.fromkeys(request.group_ids))
    if request.include_authorized_operations:
        groups = (
            each if each.error_code else replace(each, authorized_operations=GROUP_OPERATIONS)
            for each in groups
        )
    book.answer_in_pieces(reply, groups, lambda groups: ConsumerGroupDescribeResponse(groups=groups))


def _describe(book: GroupBook, group_id: str, client: Client) -> DescribedConsumerGroup:
    if not group_id:
        return DescribedConsumerGroup(group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    error = book.fault_of(group_id, client)
    if error:
        return DescribedConsumerGroup(group_id, error_code=error)
    group = book.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        what = "not found" if group is None else "is not a consumer group"
        return DescribedConsumerGroup(
            group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {shown(group_id)} {what}.",
        )
    return DescribedConsumerGroup(
        group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor(
            group.subscriptions.values(), book.settings.consumer_assignors
        ),
        members=tuple(_member(book, group, member_id) for member_id in group.subscriptions),
    )


def _member(book: GroupBook, group: ConsumerGroup, member_id: str) -> DescribedConsumer:
    subscription, current = group.subscriptions[member_id], group.current(member_id)
    return DescribedConsumer(
        member_id,
        current.member_epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        assignment=_named(book, current.assigned),
        target_assignment=_named(book, group.target(member_id)),
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        subscribed_topic_names=tuple(sorted(subscription.topic_names)),
        subscribed_topic_regex=subscription.regex or "",
        member_type=MEMBER_CONSUMER if subscription.classic is None else MEMBER_CLASSIC,
    )


def _named(book: GroupBook, assignment: Assignment) -> DescribedAssignment:
    """With the topics' names; a topic that is gone meanwhile is left out."""
    topics = ((book.topics.by_id(topic_id), partitions) for topic_id, partitions in assignment.items())
    return DescribedAssignment(
        tuple(
            DescribedTopicPartitions(topic.topic_id, topic.name, partitions=tuple(sorted(partitions)))
            for topic, partitions in topics
            if topic is not None
        )
    )
