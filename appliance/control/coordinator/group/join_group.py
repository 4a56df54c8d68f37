"""JoinGroup (11), versions 0-9, for classic groups.

A new member of v4 and later is first given its id and asked to come again with it (KIP-394). A static member that
comes back takes its old place; in a stable group whose protocol stays the same that costs no rebalance (KIP-345), and
a static leader of v9 is told to skip the assignment (KIP-814).

Left out: the record that Kafka writes for a new group without members. If the first member of a new group receives its
id and does not join with it, the appliance forgets the group together with this member.
"""

from __future__ import annotations

from msgspec.structs import replace

from appliance.control.coordinator.group import classic_in_consumer_group
from appliance.control.coordinator.group.append_errors import for_member
from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.classic_member import ClassicMember, Waiting
from appliance.control.coordinator.group.classic_rebalance import (
    add_pending,
    complete_if_all_joined,
    end_join,
    end_sync,
    generation,
    prepare,
    rebalance_or_complete,
    refused_join,
    restart_session,
    said_in,
)
from appliance.control.coordinator.group.classic_state import ClassicState
from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.consumer_records import record_of
from appliance.control.coordinator.group.group_book import GroupBook
from appliance.control.coordinator.group.held_bytes import weigh_member
from appliance.control.coordinator.runtime.effects import Client
from appliance.protocol.apis.join_group import NO_MEMBER, UNSET_MS, JoinGroupRequest, JoinGroupResponse
from appliance.protocol.apis.sync_group import SyncGroupResponse
from appliance.protocol.errors import ErrorCode

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""How long a new member may wait to join: it cannot send heartbeats, and its connection may be gone. Kafka's."""

PROTOCOLS_MAX = 100
"""Protocols that a member may offer: each rebalance looks at those of all members. Clients offer one to three."""

_MEMBER_ID_REQUIRED_FROM = 4
_SKIPS_ASSIGNMENT_FROM = 9


def handle(book: GroupBook, request: JoinGroupRequest, client: Client, reply: object) -> None:
    """Answers now what is refused or already known; keeps `reply` where a rebalance has to come first."""
    error = _fault(book, request, client)
    if error:
        _refuse(book, error, client=client, reply=reply, member_id=request.member_id)
        return
    if request.rebalance_timeout_ms == UNSET_MS:
        request = replace(request, rebalance_timeout_ms=request.session_timeout_ms)
    other = book.groups.get(request.group_id)
    if isinstance(other, ConsumerGroup) and not make_place(book, other):
        consumer_group = other
        book.in_turn(
            consumer_group,
            request,
            client,
            reply=reply,
            action=lambda: classic_in_consumer_group.join(book, consumer_group, request, client, reply),
        )
        return
    group = book.classic(request.group_id)
    if group is None:
        if request.member_id != NO_MEMBER:
            _refuse(
                book, ErrorCode.UNKNOWN_MEMBER_ID, client=client, reply=reply, member_id=request.member_id
            )
            return
        if not book.limits.has_room_for_group():
            _refuse(book, ErrorCode.GROUP_MAX_SIZE_REACHED, client=client, reply=reply)
            return
        group = book.groups[request.group_id] = ClassicGroup(request.group_id, book.clock.now_ms())
    if not _has_room(book, group, request.member_id):
        _refuse(book, ErrorCode.GROUP_MAX_SIZE_REACHED, client=client, reply=reply)
        group.remove(request.member_id)
        complete_if_all_joined(book, group)
    elif not group.supports(request.protocol_type, request.protocols):
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        _refuse(book, error, client=client, reply=reply, member_id=request.member_id)
    elif not _has_room_for_bytes(book, group, request, client):
        error = ErrorCode.GROUP_MAX_SIZE_REACHED
        _refuse(book, error, client=client, reply=reply, member_id=request.member_id)
        if request.member_id in group.pending_joins:
            group.remove(request.member_id)
            complete_if_all_joined(book, group)
    elif request.member_id == NO_MEMBER:
        _join_new(book, group, request, Waiting(reply, client))
    else:
        _join_known(book, group, request, Waiting(reply, client))
    book.drop_if_unborn(group)


def make_place(book: GroupBook, group: ConsumerGroup) -> bool:
    """An empty consumer group goes, so that a classic one can come; False: it has members, or is about to.

    Its tombstones are on their way before anything of the new group; should they be lost, the new group's first record
    takes its place in the log all the same.
    """
    if not group.may_go:
        return False
    del book.groups[group.group_id]
    records = tuple(record_of(group.group_id, change) for change in group.end())
    book.append(group.group_id, records, lambda _: None)
    return True


def _fault(book: GroupBook, request: JoinGroupRequest, client: Client) -> int:
    settings = book.settings
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if len(request.protocols) > PROTOCOLS_MAX:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return book.fault_of(request.group_id, client)


def _has_room(book: GroupBook, group: ClassicGroup, member_id: str) -> bool:
    """Whether the member may come in. In a rebalance the first to join have the places; outside of one, those who
    are in."""
    size_max = book.settings.max_size
    if group.state is ClassicState.EMPTY:
        return True
    member = group.members.get(member_id)
    if group.state is ClassicState.PREPARING_REBALANCE:
        return (member is not None and member.joining is not None) or group.joining_count < size_max
    return member is not None or len(group.members) < size_max


def _has_room_for_bytes(
    book: GroupBook, group: ClassicGroup, request: JoinGroupRequest, client: Client
) -> bool:
    """Whether the group may hold what the member sends, in place of what it holds of it now."""
    more = weigh_member(
        request.member_id,
        request.group_instance_id,
        client.client_id,
        client.host,
        protocols=request.protocols,
    )
    member = group.members.get(request.member_id or group.static_member_id(request.group_instance_id) or "")
    return book.limits.has_room_for_bytes(group.held.bytes, more - (member.counted_bytes if member else 0))


# ── new members ───────────────────────────────────────────────────────────────────────────────────────────


def _join_new(book: GroupBook, group: ClassicGroup, request: JoinGroupRequest, waiting: Waiting) -> None:
    client = waiting.client
    if request.group_instance_id is not None:
        member_id = book.new_member_id(request.group_instance_id)
        old_id = group.static_member_id(request.group_instance_id)
        if old_id is None:
            _add_if_room(book, group, request, waiting, member_id=member_id)
        else:
            _replace_static(book, group, request, waiting, old_id=old_id, new_id=member_id)
        return
    member_id = book.new_member_id(client.client_id)
    if client.api_version >= _MEMBER_ID_REQUIRED_FROM:
        add_pending(book, group, member_id, request.session_timeout_ms)
        response = refused_join(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        book.answer(waiting.reply, said_in(response, client.api_version))
    else:
        _add_if_room(book, group, request, waiting, member_id=member_id)


def _add_if_room(
    book: GroupBook, group: ClassicGroup, request: JoinGroupRequest, waiting: Waiting, *, member_id: str
) -> None:
    if book.limits.has_room_for_member():
        _add(book, group, request, waiting, member_id=member_id)
    else:
        _refuse(book, ErrorCode.GROUP_MAX_SIZE_REACHED, client=waiting.client, reply=waiting.reply)


def _add(
    book: GroupBook, group: ClassicGroup, request: JoinGroupRequest, waiting: Waiting, *, member_id: str
) -> None:
    member = ClassicMember(
        member_id,
        request.group_instance_id,
        client_id=waiting.client.client_id,
        client_host=waiting.client.host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=request.protocols,
        is_new=True,
        joining=waiting,
    )
    if group.waits_for_first_members:
        group.new_member_added = True
    group.add(member)
    restart_session(book, group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
    rebalance_or_complete(book, group)


# ── members that are known ────────────────────────────────────────────────────────────────────────────────


def _join_known(book: GroupBook, group: ClassicGroup, request: JoinGroupRequest, waiting: Waiting) -> None:
    member_id = request.member_id
    if member_id in group.pending_joins and request.group_instance_id is None:
        _add_if_room(book, group, request, waiting, member_id=member_id)
        return
    error = group.fault_of(member_id, request.group_instance_id)
    if error is not ErrorCode.NONE or group.state is ClassicState.EMPTY:
        error = error or ErrorCode.UNKNOWN_MEMBER_ID
        _refuse(book, error, client=waiting.client, reply=waiting.reply, member_id=member_id)
        return
    member = group.members[member_id]
    is_leader = group.leader == member_id
    same = member.protocols == request.protocols
    if same and (
        group.state is ClassicState.COMPLETING_REBALANCE
        or (group.state is ClassicState.STABLE and not is_leader)
    ):
        # It may not have received the answer of this generation: here it is again.
        wants_members = is_leader and group.state is ClassicState.COMPLETING_REBALANCE
        response = generation(group, member_id, is_leader=wants_members)
        book.answer(waiting.reply, said_in(response, waiting.client.api_version))
        return
    # A leader that joins a stable group asks for a new assignment: it has seen something that we do not look at.
    _update(group, member, request)
    _wait_to_join(book, group, member, waiting)
    rebalance_or_complete(book, group)


def _update(group: ClassicGroup, member: ClassicMember, request: JoinGroupRequest) -> None:
    group.set_protocols(member, request.protocols)
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.session_timeout_ms = request.session_timeout_ms


def _wait_to_join(book: GroupBook, group: ClassicGroup, member: ClassicMember, waiting: Waiting) -> None:
    """A member has one request to join; an older one, whose answer nobody reads any more, ends."""
    end_join(book, group, member, refused_join(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
    group.set_joining(member, waiting)


# ── static members that come back ─────────────────────────────────────────────────────────────────────────


def _replace_static(
    book: GroupBook,
    group: ClassicGroup,
    request: JoinGroupRequest,
    waiting: Waiting,
    *,
    old_id: str,
    new_id: str,
) -> None:
    """The member goes on under its new id; whoever still has the old one is fenced."""
    old = group.members[old_id]
    before = (old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms)
    leader_before = group.leader or ""
    end_join(book, group, old, refused_join(ErrorCode.FENCED_INSTANCE_ID, old_id))
    end_sync(book, old, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
    member = group.replace_static(old_id, new_id)
    _update(group, member, request)
    group.set_joining(member, waiting)
    restart_session(book, group, member)
    if group.state is ClassicState.COMPLETING_REBALANCE:
        # The leader may have assigned partitions to the old id already.
        prepare(book, group)
        return
    if group.state is ClassicState.PREPARING_REBALANCE or group.choose_protocol() != group.protocol_name:
        rebalance_or_complete(book, group)
        return
    record = group.record(group.assignments())

    def stored(error_code: int) -> None:
        if group.members.get(new_id) is not member or member.joining is not waiting:
            return
        if error_code:
            group.set_joining(member, None)
            group.replace_static(new_id, old_id)
            group.set_protocols(member, before[0])
            member.rebalance_timeout_ms, member.session_timeout_ms = before[1:]
            restart_session(book, group, member)
            _refuse(book, for_member(error_code), client=waiting.client, reply=waiting.reply)
            return
        end_join(book, group, member, _returned(group, member, waiting.client, leader_before))

    book.append(group.group_id, (record,), stored)


def _returned(
    group: ClassicGroup, member: ClassicMember, client: Client, leader_before: str
) -> JoinGroupResponse:
    """What a static member hears that took its old place in a stable group.

    Older clients that lead must not assign again: they are told that their old id leads, and hear of no members.
    """
    is_leader = group.leader == member.member_id
    if client.api_version >= _SKIPS_ASSIGNMENT_FROM:
        response = generation(group, member.member_id, is_leader=is_leader)
        return replace(response, skip_assignment=is_leader)
    return replace(generation(group, member.member_id, is_leader=False), leader=leader_before)


def _refuse(
    book: GroupBook, error: int, *, client: Client, reply: object, member_id: str = NO_MEMBER
) -> None:
    book.answer(reply, said_in(refused_join(ErrorCode(error), member_id), client.api_version))
