"""LeaveGroup (13), versions 0-5, for classic groups.

Up to v2 a member names itself; from v3 on many leave at once, and an administrator may name static members by their
instance id alone. One rebalance follows, however many left.
"""

from __future__ import annotations

from appliance.control.coordinator.group import classic_in_consumer_group
from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.classic_rebalance import (
    after_removal,
    complete_if_all_joined,
    remove_member,
)
from appliance.control.coordinator.group.classic_state import ClassicState
from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.group_book import GroupBook
from appliance.control.coordinator.runtime.effects import Client
from appliance.protocol.apis.join_group import NO_MEMBER
from appliance.protocol.apis.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from appliance.protocol.errors import ErrorCode

_MANY_FROM = 3


def handle(book: GroupBook, request: LeaveGroupRequest, client: Client, reply: object) -> None:
    error = book.fault_of(request.group_id, client) if request.group_id else ErrorCode.INVALID_GROUP_ID
    if error:
        book.answer(reply, LeaveGroupResponse(error_code=error))
        return
    many = client.api_version >= _MANY_FROM
    leaving = request.members if many else (MemberIdentity(request.member_id),)

    def tell(results: tuple[MemberResponse, ...]) -> None:
        if many:
            book.answer(reply, LeaveGroupResponse(members=results))
        else:
            book.answer(reply, LeaveGroupResponse(error_code=results[0].error_code))

    other = book.groups.get(request.group_id)
    if isinstance(other, ConsumerGroup):
        consumer_group = other
        book.in_turn(
            consumer_group,
            request,
            client,
            reply=reply,
            action=lambda: classic_in_consumer_group.leave(book, consumer_group, leaving, tell),
        )
        return
    results = tuple(_leave(book, other, one) for one in leaving)
    tell(results)
    if other is not None and any(not result.error_code for result in results):
        if other.state is ClassicState.PREPARING_REBALANCE:
            complete_if_all_joined(book, other)
        else:
            after_removal(book, other)
        book.drop_if_unborn(other)


def _leave(book: GroupBook, group: ClassicGroup | None, leaving: MemberIdentity) -> MemberResponse:
    return MemberResponse(
        leaving.member_id, leaving.group_instance_id, error_code=_remove(book, group, leaving)
    )


def _remove(book: GroupBook, group: ClassicGroup | None, leaving: MemberIdentity) -> ErrorCode:
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    member_id = leaving.member_id
    if member_id == NO_MEMBER:
        member_id = group.static_member_id(leaving.group_instance_id) or NO_MEMBER
    elif member_id in group.pending_joins:
        group.remove(member_id)
        return ErrorCode.NONE
    error = group.fault_of(member_id, leaving.group_instance_id)
    if error is ErrorCode.NONE:
        remove_member(book, group, group.members[member_id])
    return error
