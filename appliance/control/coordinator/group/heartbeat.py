"""Heartbeat (12), versions 0-4, for classic groups: how each state answers stands in `classic_state.STATES`."""

from __future__ import annotations

from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.classic_rebalance import restart_session
from appliance.control.coordinator.group.classic_state import STATES
from appliance.control.coordinator.group.effects import Client
from appliance.control.coordinator.group.group_book import GroupBook
from appliance.protocol.apis.heartbeat import HeartbeatRequest, HeartbeatResponse
from appliance.protocol.errors import ErrorCode


def handle(book: GroupBook, request: HeartbeatRequest, client: Client, reply: object) -> None:
    book.answer(reply, HeartbeatResponse(error_code=_answer(book, request, client)))


def _answer(book: GroupBook, request: HeartbeatRequest, client: Client) -> int:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    error = book.fault_of(request.group_id, client)
    if error:
        # While its group is being loaded a member is not expected to do anything but wait.
        return ErrorCode.NONE if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
    group = book.classic(request.group_id)
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return _beat(book, group, request)


def _beat(book: GroupBook, group: ClassicGroup, request: HeartbeatRequest) -> ErrorCode:
    error = group.fault_of(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    restart_session(book, group, group.members[request.member_id])
    return STATES[group.state].heartbeat
