"""Heartbeat (12), versions 0-4, for classic groups: how each state answers stands in `classic_state.STATES`."""

from __future__ import annotations

from appliance.control.coordinator.group import classic_in_consumer_group
from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.classic_rebalance import restart_session
from appliance.control.coordinator.group.classic_state import STATES
from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.group_book import GroupBook
from appliance.control.coordinator.runtime.effects import Client
from appliance.protocol.apis.heartbeat import HeartbeatRequest, HeartbeatResponse
from appliance.protocol.errors import ErrorCode


def handle(book: GroupBook, request: HeartbeatRequest, client: Client, reply: object) -> None:
    error = book.fault_of(request.group_id, client) if request.group_id else ErrorCode.INVALID_GROUP_ID
    if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        # While its group is being loaded a member is not expected to do anything but wait.
        book.answer(reply, HeartbeatResponse())
        return
    group = None if error else book.groups.get(request.group_id)
    if isinstance(group, ConsumerGroup):
        consumer_group = group
        book.in_turn(
            consumer_group,
            request,
            client,
            reply=reply,
            action=lambda: classic_in_consumer_group.heartbeat(book, consumer_group, request, reply),
        )
        return
    if not error:
        error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else _beat(book, group, request)
    book.answer(reply, HeartbeatResponse(error_code=error))


def _beat(book: GroupBook, group: ClassicGroup, request: HeartbeatRequest) -> ErrorCode:
    error = group.fault_of(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    restart_session(book, group, group.members[request.member_id])
    return STATES[group.state].heartbeat
