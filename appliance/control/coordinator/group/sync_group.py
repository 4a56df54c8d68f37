"""SyncGroup (14), versions 0-5, for classic groups.

The leader's request carries everybody's assignment: it goes to the log, and when it is there the group is stable and
all who wait are answered. A follower's request waits for that, or fetches what is there.
"""

from __future__ import annotations

from msgspec.structs import replace

from appliance.control.coordinator.group import classic_in_consumer_group
from appliance.control.coordinator.group.append_errors import for_member
from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.classic_member import Waiting
from appliance.control.coordinator.group.classic_rebalance import (
    end_sync,
    end_syncs,
    rebalance_or_complete,
    restart_session,
    synced,
)
from appliance.control.coordinator.group.classic_state import STATES, WAITS, ClassicState
from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.group_book import GroupBook
from appliance.control.coordinator.pieces import PIECE, Steps
from appliance.control.coordinator.runtime.effects import Client
from appliance.protocol.apis.sync_group import SyncGroupAssignment, SyncGroupRequest, SyncGroupResponse
from appliance.protocol.errors import ErrorCode


def handle(book: GroupBook, request: SyncGroupRequest, client: Client, reply: object) -> None:
    """Answers at once, or when the assignment of this generation is in the log."""
    error = book.fault_of(request.group_id, client) if request.group_id else ErrorCode.INVALID_GROUP_ID
    other = book.groups.get(request.group_id)
    if isinstance(other, ConsumerGroup) and not error:
        consumer_group = other
        book.in_turn(
            consumer_group,
            request,
            client,
            reply=reply,
            action=lambda: classic_in_consumer_group.sync(book, consumer_group, request, reply),
        )
        return
    group = book.classic(request.group_id)
    if not error:
        error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else _fault(group, request)
    if error or group is None:
        book.answer(reply, SyncGroupResponse(error_code=error))
        return
    member = group.members[request.member_id]
    answer = STATES[group.state].sync
    if answer is WAITS:
        if member.syncing is not None:
            end_sync(book, member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        member.syncing = Waiting(reply, client)
        synced(group, member.member_id)
        if group.leader == member.member_id:
            _store(book, group, request)
    elif answer is ErrorCode.NONE:
        synced(group, member.member_id)
        book.answer(reply, _assigned(group, member.assignment))
    else:
        book.answer(reply, SyncGroupResponse(error_code=answer))


def handle_in_pieces(
    book: GroupBook, request: SyncGroupRequest, client: Client, reply: object
) -> Steps[None]:
    """`handle` of a request with many assignments: first those for strangers are dropped, some at a time.

    A leader assigns to the members of its generation, and nobody joins one that has begun.
    """
    given: dict[str, SyncGroupAssignment] = {}
    for first in range(0, len(request.assignments), PIECE):
        group = book.classic(request.group_id)
        if group is not None:
            members = group.members
            given.update(
                (one.member_id, one)
                for one in request.assignments[first : first + PIECE]
                if one.member_id in members
            )
        yield None
    handle(book, replace(request, assignments=tuple(given.values())), client, reply)


def _fault(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    """Who asks must be a member of this generation and speak of its protocol, if it names one (KIP-559)."""
    error = group.fault_of(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if _differ(request.protocol_type, group.protocol_type) or _differ(
        request.protocol_name, group.protocol_name
    ):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _differ(theirs: str | None, ours: str | None) -> bool:
    return theirs is not None and ours is not None and theirs != ours


def _store(book: GroupBook, group: ClassicGroup, request: SyncGroupRequest) -> None:
    """Writes the assignment; those who wait are answered when it is in the log.

    Members that the leader left out get nothing, and what it gives to strangers is dropped. Assignments for whose
    bytes there is no room are refused: GROUP_MAX_SIZE_REACHED.
    """
    given = {one.member_id: one.assignment for one in request.assignments}
    generation_id = group.generation_id

    def stored(error_code: int) -> None:
        if group.state is not ClassicState.COMPLETING_REBALANCE or group.generation_id != generation_id:
            return  # another rebalance has begun: who waited was told
        if error_code:
            end_syncs(book, group, for_member(error_code))
            rebalance_or_complete(book, group)
            return
        group.move_to(ClassicState.STABLE, book.clock.now_ms())
        for member in group.members.values():
            group.assign(member, given.get(member.member_id, b""))
            if end_sync(book, member, _assigned(group, member.assignment)):
                restart_session(book, group, member)

    assigned_bytes = sum([len(given.get(member_id, b"")) for member_id in group.members])
    held_bytes = sum([len(member.assignment) for member in group.members.values()])
    if not book.limits.has_room_for_bytes(group.held.bytes, assigned_bytes - held_bytes):
        end_syncs(book, group, ErrorCode.GROUP_MAX_SIZE_REACHED)
        rebalance_or_complete(book, group)
        return
    group.in_log = True
    book.append(group.group_id, (group.record(given),), stored)


def _assigned(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        assignment=assignment, protocol_type=group.protocol_type, protocol_name=group.protocol_name
    )
