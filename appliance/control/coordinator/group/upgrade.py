"""A classic group with members becomes a consumer group, without a stop (KIP-848).

A member with group.protocol=consumer joins a classic group of consumers: its members become members of a consumer
group in the epoch of their generation, with what they were assigned. They go on speaking the classic protocol
(classic_in_consumer_group.py) until they are restarted with the new one. The way back is downgrade.py.

`group.consumer.migration.policy` has to allow it. A group of another protocol type, one whose metadata we cannot read,
and one in which a partition was given to two members stay as they are. Source: Kafka's
`ConsumerGroup.fromClassicGroup`.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.classic_rebalance import (
    cancel_timers,
    end_join,
    end_sync,
    go_on,
    refused_join,
)
from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.consumer_records import (
    Assignment,
    Change,
    ClassicProtocols,
    CurrentAssignment,
    CurrentChange,
    GroupEpochChange,
    MemberSubscription,
    SubscriptionChange,
    TargetChange,
    TargetEpochChange,
    record_of,
)
from appliance.control.coordinator.group.consumer_turns import restart_session
from appliance.control.coordinator.group.group_book import GroupBook
from appliance.control.coordinator.group.group_metadata_record import tombstone
from appliance.control.coordinator.group.subscription import (
    PROTOCOL_TYPE,
    read_assignment,
    read_subscription,
)
from appliance.errors import MalformedFrame
from appliance.protocol.apis.sync_group import SyncGroupResponse
from appliance.protocol.errors import ErrorCode

POLICIES = ("bidirectional", "upgrade")


def upgrade(book: GroupBook, classic: ClassicGroup) -> ConsumerGroup | None:
    """The consumer group that takes the place of `classic`; None if it has to stay.

    Its records are on their way; requests for it wait for them. If they cannot be written the classic group is back.
    """
    if (
        book.settings.consumer_migration_policy not in POLICIES
        or classic.protocol_type != PROTOCOL_TYPE
        or len(classic.members) > book.settings.consumer_max_size
    ):
        return None
    try:
        changes = _as_consumer_group(book, classic)
    except (MalformedFrame, KeyError):
        return None
    if changes is None:
        return None
    group = ConsumerGroup(classic.group_id)
    for change in changes:
        group.apply(change)
    group.is_busy = True
    cancel_timers(classic)
    for member in classic.members.values():
        end_join(book, classic, member, refused_join(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        end_sync(book, member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    book.groups[group.group_id] = group
    gone = (tombstone(classic.group_id),) if classic.in_log else ()
    records = tuple(record_of(classic.group_id, change) for change in changes)
    book.append(classic.group_id, gone + records, _upgraded(book, group, classic))
    return group


def _upgraded(book: GroupBook, group: ConsumerGroup, classic: ClassicGroup) -> Callable[[int], None]:
    def written(error_code: int) -> None:
        if book.groups.get(group.group_id) is group:
            if error_code:
                book.groups[group.group_id] = classic
                go_on(book, classic)
            else:
                for member_id in group.subscriptions:
                    restart_session(book, group, member_id)
        group.next_turns()

    return written


def _as_consumer_group(book: GroupBook, classic: ClassicGroup) -> list[Change] | None:
    """The changes that make the group what the classic one is; None if a partition has two owners."""
    epoch = classic.generation_id
    subscriptions: list[Change] = []
    assignments: list[Change] = []
    taken: set[tuple[UUID, int]] = set()
    for member in classic.members.values():
        said = read_subscription(member.metadata(classic.protocol_name or member.protocols[0].name))
        assigned = by_id(book, read_assignment(member.assignment))
        owned = {
            (topic_id, partition) for topic_id, partitions in assigned.items() for partition in partitions
        }
        if owned & taken:
            return None
        taken |= owned
        subscription = MemberSubscription(
            member.instance_id,
            said.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            topic_names=tuple(sorted(set(said.topics))),
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=ClassicProtocols(member.session_timeout_ms, member.protocols),
        )
        subscriptions.append(SubscriptionChange(member.member_id, subscription))
        assignments.append(TargetChange(member.member_id, assigned))
        current = CurrentAssignment(epoch, epoch, assigned=assigned)
        assignments.append(CurrentChange(member.member_id, current))
    return [*subscriptions, GroupEpochChange(epoch), *assignments, TargetEpochChange(epoch)]


def by_id(book: GroupBook, named: tuple[tuple[str, tuple[int, ...]], ...]) -> Assignment:
    """An assignment of the classic protocol by topic ids; topics that are gone are left out."""
    found = ((book.topics.by_name(name), partitions) for name, partitions in named)
    return {topic.topic_id: frozenset(partitions) for topic, partitions in found if topic and partitions}
