"""DescribeGroups (15), versions 0-6: state and members of classic groups.

A group that does not exist is Dead; v6 says GROUP_ID_NOT_FOUND besides (KIP-1043). From v3 on who asks is told its
operations (KIP-430).
"""

from __future__ import annotations

from msgspec.structs import replace

from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.classic_member import ClassicMember
from appliance.control.coordinator.group.classic_state import ClassicState
from appliance.control.coordinator.group.effects import GROUP_OPERATIONS
from appliance.control.coordinator.group.group_book import GroupBook, shown
from appliance.control.coordinator.runtime.effects import Client
from appliance.protocol.apis.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from appliance.protocol.errors import ErrorCode

_NOT_FOUND_FROM = 6


def handle(book: GroupBook, request: DescribeGroupsRequest, client: Client, reply: object) -> None:
    # Each once: a group of many members, named over and over, would make a small request worth gigabytes.
    groups = (_describe(book, group_id, client) for group_id in dict.fromkeys(request.groups))
    if request.include_authorized_operations:
        groups = (
            each if each.error_code else replace(each, authorized_operations=GROUP_OPERATIONS)
            for each in groups
        )
    book.answer_in_pieces(reply, groups, lambda groups: DescribeGroupsResponse(groups=groups))


def _describe(book: GroupBook, group_id: str, client: Client) -> DescribedGroup:
    error = book.fault_of(group_id, client)
    if error:
        return DescribedGroup(group_id, error_code=error)
    group = book.classic(group_id)
    if group is None:
        what = "is not a classic group" if group_id in book.groups else "not found"
        return _not_found(group_id, client, what)
    stable = group.state is ClassicState.STABLE
    return DescribedGroup(
        group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if stable else "",
        members=tuple(_member(group, member, stable=stable) for member in group.members.values()),
    )


def _not_found(group_id: str, client: Client, what: str) -> DescribedGroup:
    dead = ClassicState.DEAD.value
    if client.api_version < _NOT_FOUND_FROM:
        return DescribedGroup(group_id, group_state=dead)
    return DescribedGroup(
        group_id,
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=f"Group {shown(group_id)} {what}.",
        group_state=dead,
    )


def _member(group: ClassicGroup, member: ClassicMember, *, stable: bool) -> DescribedGroupMember:
    metadata = member.metadata(group.protocol_name or "") if stable else b""
    return DescribedGroupMember(
        member.member_id,
        member.client_id,
        member.client_host,
        group_instance_id=member.instance_id,
        member_metadata=metadata,
        member_assignment=member.assignment,
    )
