"""ConsumerGroupHeartbeat (68), versions 0-1: the one request of a member of a consumer group (KIP-848).

A heartbeat that changes nothing is answered at once. One that does goes through these steps; what they change is one
batch of the log, and the answer leaves when that is committed:

    1. the member is made, replaced or changed         SubscriptionChange
    2. its subscription or the topics changed          GroupEpochChange
    3. the target assignment is older than the group   TargetChange for each that differs, TargetEpochChange
    4. the member takes its next step to its target    CurrentChange

Versions: v1 has subscriptions by regular expression, and wants members to choose their own ids (KIP-1082).

Left out: assignment epochs (KIP-1251). Also racks: the assignors do not use the racks of members.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge

from msgspec.structs import replace

from appliance.control.coordinator.group.append_errors import for_member
from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.classic_state import ClassicState
from appliance.control.coordinator.group.consumer_changes import Draft
from appliance.control.coordinator.group.consumer_group import STATIC_AWAY_EPOCH, ConsumerGroup
from appliance.control.coordinator.group.consumer_reconciliation import owns_no_more_than
from appliance.control.coordinator.group.consumer_records import Assignment, MemberSubscription
from appliance.control.coordinator.group.consumer_turns import fence, restart_session, write
from appliance.control.coordinator.group.delete_groups import end_of
from appliance.control.coordinator.group.group_book import GroupBook, shown
from appliance.control.coordinator.group.held_bytes import weigh_subscription
from appliance.control.coordinator.group.topic_regex import check_regex
from appliance.control.coordinator.group.upgrade import upgrade
from appliance.control.coordinator.pieces import Steps
from appliance.control.coordinator.runtime.effects import Client, Record
from appliance.errors import RejectedRequest
from appliance.protocol.apis.consumer_group_heartbeat import (
    JOIN_GROUP_EPOCH,
    LEAVE_GROUP_EPOCH,
    LEAVE_GROUP_STATIC_EPOCH,
    UNCHANGED_MS,
    AssignedTopicPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.primitives import NO_UUID

_OWN_ID_FROM = 1
_SORTED_AT_ONCE = 512


def handle(book: GroupBook, request: ConsumerGroupHeartbeatRequest, client: Client, reply: object) -> None:
    """Answers at once, or when what the heartbeat changes is in the log."""
    try:
        _validate(request, client, book.settings.consumer_assignors)
        error = book.fault_of(request.group_id, client)
        if error:
            raise RejectedRequest(error, ErrorCode(error).message)
        group, first = _group(book, request)
    except RejectedRequest as refused:
        _refuse(book, reply, refused)
        return

    def turn() -> None:
        try:
            if request.member_epoch < JOIN_GROUP_EPOCH:
                _leave(book, group, request, reply)
            else:
                _beat(book, group, request, client=client, reply=reply, first=first)
        except RejectedRequest as refused:
            _refuse(book, reply, refused)
            book.drop_if_unborn(group)

    book.in_turn(group, request, client, reply=reply, action=turn)


def handle_in_pieces(
    book: GroupBook, request: ConsumerGroupHeartbeatRequest, client: Client, reply: object
) -> Steps[None]:
    """`handle` of a request that names many topics: first they are sorted, some at a time."""
    names = request.subscribed_topic_names
    if names is not None:
        parts: list[list[str]] = []
        for first in range(0, len(names), _SORTED_AT_ONCE):
            parts.append(sorted(names[first : first + _SORTED_AT_ONCE]))
            yield None
        in_order: dict[str, None] = {}
        for number, name in enumerate(merge(*parts), 1):
            in_order[name] = None
            if not number % _SORTED_AT_ONCE:
                yield None
        request = replace(request, subscribed_topic_names=tuple(in_order))
    handle(book, request, client, reply)


def _refuse(book: GroupBook, reply: object, refused: RejectedRequest) -> None:
    book.answer(reply, ConsumerGroupHeartbeatResponse(error_code=refused.code, error_message=refused.message))


# ── what may be asked ─────────────────────────────────────────────────────────────────────────────────────


def _validate(request: ConsumerGroupHeartbeatRequest, client: Client, assignors: Sequence[str]) -> None:
    """Raises RejectedRequest: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR or INVALID_REGULAR_EXPRESSION."""
    _wants(request.group_id.strip() != "", "GroupId can't be empty.")
    _wants(request.instance_id is None or request.instance_id.strip() != "", "InstanceId can't be empty.")
    _wants(request.rack_id is None or request.rack_id.strip() != "", "RackId can't be empty.")
    epoch = request.member_epoch
    _wants(
        epoch >= LEAVE_GROUP_STATIC_EPOCH, f"MemberEpoch is {epoch}, but must be greater than or equal to -2."
    )
    if epoch != JOIN_GROUP_EPOCH or client.api_version >= _OWN_ID_FROM:
        _wants(request.member_id.strip() != "", "MemberId can't be empty.")
    if epoch == LEAVE_GROUP_STATIC_EPOCH:
        _wants(request.instance_id is not None, "InstanceId can't be null.")
    if epoch == JOIN_GROUP_EPOCH:
        _wants(
            request.rebalance_timeout_ms != UNCHANGED_MS,
            "RebalanceTimeoutMs must be provided in first request.",
        )
        _wants(request.topic_partitions == (), "TopicPartitions must be empty when (re-)joining.")
        _wants(
            request.subscribed_topic_names is not None or bool(request.subscribed_topic_regex),
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise RejectedRequest(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {shown(request.server_assignor)} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )
    if request.subscribed_topic_regex:
        check_regex(request.subscribed_topic_regex)


def _wants(condition: bool, message: str) -> None:
    if not condition:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, message)


def _group(
    book: GroupBook, request: ConsumerGroupHeartbeatRequest
) -> tuple[ConsumerGroup, tuple[Record, ...]]:
    """The group, and what has to be written before its first change.

    An empty classic group makes place, one with members becomes a consumer group if that is allowed.

    Raises:
        RejectedRequest: there is no such group, or a classic one with members has the name.
    """
    group_id = request.group_id
    group = book.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return group, ()
    joins = request.member_epoch == JOIN_GROUP_EPOCH
    if group is None and not joins:
        raise RejectedRequest(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {shown(group_id)} not found.")
    if isinstance(group, ClassicGroup) and not (joins and group.state is ClassicState.EMPTY):
        upgraded = upgrade(book, group) if joins else None
        if upgraded is None:
            raise RejectedRequest(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {shown(group_id)} is not a consumer group."
            )
        return upgraded, ()
    if group is None and not book.limits.has_room_for_group():
        raise RejectedRequest(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"There are group.max.count = {book.settings.max_count} groups, so no new one can be made.",
        )
    book.groups[group_id] = made = ConsumerGroup(group_id)
    return made, () if group is None else tuple(end_of(group))


# ── a heartbeat ───────────────────────────────────────────────────────────────────────────────────────────


def _beat(
    book: GroupBook,
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    *,
    client: Client,
    reply: object,
    first: tuple[Record, ...],
) -> None:
    owned = _owned(request)
    member_id, replaced = _member(book, group, request, owned)
    draft = Draft(book, group)
    if replaced is not None:
        draft.replace_member(replaced, member_id)
    before = draft.current(member_id)
    subscription = _subscription(draft, member_id, request, client)
    _wants_room_for_bytes(book, group, draft, member_id, subscription, replaced=replaced)
    draft.subscribe(member_id, subscription)
    draft.assign()
    draft.reconcile(member_id, owned)
    current = draft.current(member_id)
    is_full = request.member_epoch == JOIN_GROUP_EPOCH or (
        request.rebalance_timeout_ms != UNCHANGED_MS
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )
    changed = replaced is not None or current.assigned != before.assigned
    response = ConsumerGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=current.member_epoch,
        heartbeat_interval_ms=book.consumer_times(group.group_id).heartbeat_interval_ms,
        assignment=_assignment(current.assigned) if is_full or changed else None,
    )

    def written(error_code: int) -> None:
        if error_code:
            error = for_member(error_code)
            _refuse(book, reply, RejectedRequest(error, error.message))
            book.drop_if_unborn(group)
            return
        if replaced is not None:
            group.cancel_timers(replaced)
        restart_session(book, group, member_id)
        book.answer(reply, response)

    write(book, group, draft, written, first=first)


def _member(
    book: GroupBook,
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    owned: Assignment | None,
) -> tuple[str, str | None]:
    """(the member's id, that of the static member whose place it takes).

    Raises:
        RejectedRequest: it is no member, was fenced, or there is no room for it.
    """
    member_id = request.member_id or book.new_member_id(request.group_id)
    joins = request.member_epoch == JOIN_GROUP_EPOCH
    if request.instance_id is not None:
        existing = group.static_member_id(request.instance_id)
        if joins and existing is None:
            _wants_room(book, group, member_id)
            return member_id, None
        if joins and existing is not None and existing != member_id:
            is_away = group.current(existing).member_epoch == STATIC_AWAY_EPOCH
            if not is_away and group.subscriptions[existing].classic is None:
                raise RejectedRequest(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"Static member {shown(member_id)} with instance id {shown(request.instance_id)} cannot join "
                    f"the group because the instance id is owned by {shown(existing)} member.",
                )
            return member_id, existing
        _check_instance(existing, member_id, request.instance_id)
    elif member_id not in group.subscriptions:
        if not joins:
            raise _unknown(group, member_id)
        _wants_room(book, group, member_id)
        return member_id, None
    if not joins:
        _check_epoch(group, member_id, request.member_epoch, owned=owned)
    return member_id, None


def _check_instance(existing: str | None, member_id: str, instance_id: str) -> None:
    if existing is None:
        raise RejectedRequest(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {shown(instance_id)} is unknown.")
    if existing != member_id:
        raise RejectedRequest(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {shown(member_id)} with instance id {shown(instance_id)} was fenced by member "
            f"{shown(existing)}.",
        )


def _check_epoch(group: ConsumerGroup, member_id: str, epoch: int, *, owned: Assignment | None) -> None:
    """A member may be one epoch behind if the answer that raised it was lost, and it owns nothing it should not."""
    current = group.current(member_id)
    if epoch == current.member_epoch or (
        epoch == current.previous_epoch and owns_no_more_than(owned, current.assigned)
    ):
        return
    which = "greater" if epoch > current.member_epoch else "smaller"
    raise RejectedRequest(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {which} member epoch ({epoch}) than the one known by the group coordinator "
        f"({current.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def _wants_room(book: GroupBook, group: ConsumerGroup, member_id: str) -> None:
    size_max = book.settings.consumer_max_size
    if member_id not in group.subscriptions and len(group.subscriptions) >= size_max:
        raise RejectedRequest(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {size_max} members.",
        )
    if member_id not in group.subscriptions and not book.limits.has_room_for_member():
        raise RejectedRequest(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"All groups together have group.members.max = {book.settings.members_max} members.",
        )


def _wants_room_for_bytes(
    book: GroupBook,
    group: ConsumerGroup,
    draft: Draft,
    member_id: str,
    subscription: MemberSubscription,
    *,
    replaced: str | None,
) -> None:
    if member_id in group.subscriptions and subscription == draft.subscription(member_id):
        return  # nearly always
    more = weigh_subscription(member_id, subscription) - group.counted_bytes(replaced or member_id)
    if not book.limits.has_room_for_bytes(group.held.bytes, more):
        settings = book.settings
        raise RejectedRequest(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"What the member sends is more than group.max.bytes = {settings.max_bytes} of a group or"
            f" group.members.max.bytes = {settings.members_max_bytes} of all groups have room for.",
        )


def _unknown(group: ConsumerGroup, member_id: str) -> RejectedRequest:
    return RejectedRequest(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"Member {shown(member_id)} is not a member of group {shown(group.group_id)}.",
    )


def _subscription(
    draft: Draft, member_id: str, request: ConsumerGroupHeartbeatRequest, client: Client
) -> MemberSubscription:
    """What the member has said so far, with what it says now."""
    before = draft.subscription(member_id)
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return MemberSubscription(
        before.instance_id if request.instance_id is None else request.instance_id,
        before.rack_id if request.rack_id is None else request.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        # Sorted in pieces before where they are many; then this costs a look at each.
        topic_names=before.topic_names if names is None else tuple(sorted(dict.fromkeys(names))),
        regex=before.regex if regex is None else regex or None,
        rebalance_timeout_ms=before.rebalance_timeout_ms if timeout_ms == UNCHANGED_MS else timeout_ms,
        assignor=before.assignor if request.server_assignor is None else request.server_assignor,
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> Assignment | None:
    if request.topic_partitions is None:
        return None
    return {one.topic_id or NO_UUID: frozenset(one.partitions) for one in request.topic_partitions}


def _assignment(assigned: Assignment) -> HeartbeatAssignment:
    return HeartbeatAssignment(
        tuple(
            AssignedTopicPartitions(topic_id, tuple(sorted(partitions)))
            for topic_id, partitions in assigned.items()
        )
    )


# ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────


def _leave(
    book: GroupBook, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, reply: object
) -> None:
    """A member goes for good, or, if it is static, for a while."""
    member_id = request.member_id
    if request.instance_id is not None:
        _check_instance(group.static_member_id(request.instance_id), member_id, request.instance_id)
    elif member_id not in group.subscriptions:
        raise _unknown(group, member_id)
    response = ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=request.member_epoch)

    def written(error_code: int) -> None:
        if error_code:
            error = for_member(error_code)
            _refuse(book, reply, RejectedRequest(error, error.message))
        else:
            book.answer(reply, response)

    if request.member_epoch == LEAVE_GROUP_EPOCH:
        fence(book, group, member_id, written)
        return
    draft = Draft(book, group)
    draft.send_away(member_id)
    write(book, group, draft, written)
