"""The rebalance of a classic group: who starts it, how long it waits for whom, and how it ends.

    Empty ──first member──→ PreparingRebalance, for group.initial.rebalance.delay.ms, longer while more members come
    Stable, CompletingRebalance ──a change──→ PreparingRebalance, until all have joined or the rebalance timeout
    PreparingRebalance ──→ CompletingRebalance: dynamic members that did not come are out, all others are answered
    CompletingRebalance ──the leader's assignment is in the log──→ Stable (sync_group.py)

Source: Kafka's `GroupMetadataManager.java` (prepareRebalance, completeClassicGroupJoin and what they call).
"""

from __future__ import annotations

from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.classic_member import ClassicMember
from appliance.control.coordinator.group.classic_state import ClassicState
from appliance.control.coordinator.group.group_book import GroupBook
from appliance.control.coordinator.group.group_limits import PENDING_TIMEOUT_MAX_MS
from appliance.protocol.apis.join_group import NO_MEMBER, JoinGroupMember, JoinGroupResponse
from appliance.protocol.apis.sync_group import SyncGroupResponse
from appliance.protocol.errors import ErrorCode

_PROTOCOL_NULLABLE_FROM = 7


# ── beginning ─────────────────────────────────────────────────────────────────────────────────────────────


def rebalance_or_complete(book: GroupBook, group: ClassicGroup) -> None:
    """A member came, went or changed: starts a rebalance, or ends the one under way if that was all it waited for."""
    if group.can_rebalance:
        prepare(book, group)
    else:
        complete_if_all_joined(book, group)


def prepare(book: GroupBook, group: ClassicGroup) -> None:
    """Asks everybody to join anew."""
    if group.state is ClassicState.COMPLETING_REBALANCE:
        end_syncs(book, group, ErrorCode.REBALANCE_IN_PROGRESS)
    group.pending_syncs.clear()
    _cancel_sync_timer(group)
    is_first = group.state is ClassicState.EMPTY
    group.move_to(ClassicState.PREPARING_REBALANCE, book.clock.now_ms())
    if is_first:
        delay_ms = book.settings.initial_rebalance_delay_ms
        group.new_member_added = False
        _wait_for_first_members(book, group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
    elif group.all_joined:
        complete(book, group)
    else:
        _wait_for_joins(book, group)


def complete_if_all_joined(book: GroupBook, group: ClassicGroup) -> None:
    """Ends the waiting for joins if nobody is missing. The first rebalance of a group waits for its delay all the
    same."""
    if (
        group.state is ClassicState.PREPARING_REBALANCE
        and group.all_joined
        and not group.waits_for_first_members
    ):
        complete(book, group)


def _wait_for_first_members(book: GroupBook, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
    def delayed() -> None:
        if group.new_member_added and remaining_ms > 0:
            group.new_member_added = False
            next_delay_ms = min(book.settings.initial_rebalance_delay_ms, remaining_ms)
            _wait_for_first_members(book, group, next_delay_ms, max(remaining_ms - delay_ms, 0))
        else:
            complete(book, group)

    _cancel_join_timer(group)
    group.join_timer = book.after(delay_ms, delayed)


def _wait_for_joins(book: GroupBook, group: ClassicGroup) -> None:
    _cancel_join_timer(group)
    group.join_timer = book.after(group.rebalance_timeout_ms, lambda: complete(book, group))


# ── ending ────────────────────────────────────────────────────────────────────────────────────────────────


def complete(book: GroupBook, group: ClassicGroup) -> None:
    """Makes the next generation of whoever has joined.

    Static members that have not are kept: they are away, not gone (KIP-345).
    """
    _cancel_join_timer(group)
    if group.state is not ClassicState.PREPARING_REBALANCE:
        return
    for member in [m for m in group.members.values() if m.joining is None and not m.is_static]:
        group.remove(member.member_id)
    if group.members and not group.elect_joined_leader():
        # Only static members that are away: their sessions will end, or one of them comes back.
        _wait_for_joins(book, group)
        return
    group.next_generation(book.clock.now_ms())
    if not group.members:
        group.in_log = True
        # When this is not written the last generation stands in the log, whose members will time out after a restart.
        book.append(group.group_id, (group.record({}),), lambda _: None)
        return
    for member in list(group.members.values()):
        answer_join(book, group, member)
        restart_session(book, group, member)
        member.is_new = False
        group.pending_syncs.add(member.member_id)
    generation_id = group.generation_id
    group.sync_timer = book.after(
        group.rebalance_timeout_ms, lambda: _expire_syncs(book, group, generation_id)
    )


def answer_join(book: GroupBook, group: ClassicGroup, member: ClassicMember) -> None:
    """Tells the member its generation if it waits; the leader hears of all the others."""
    end_join(
        book, group, member, generation(group, member.member_id, is_leader=group.leader == member.member_id)
    )


def generation(group: ClassicGroup, member_id: str, *, is_leader: bool) -> JoinGroupResponse:
    """What a member is told about the generation it is in."""
    protocol_name = group.protocol_name
    members: tuple[JoinGroupMember, ...] = ()
    if is_leader and protocol_name is not None:
        members = tuple(
            JoinGroupMember(m.member_id, m.metadata(protocol_name), group_instance_id=m.instance_id)
            for m in group.members.values()
        )
    return JoinGroupResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=protocol_name,
        leader=group.leader or "",
        member_id=member_id,
        members=members,
    )


def refused_join(error: ErrorCode, member_id: str = NO_MEMBER) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=member_id)


def said_in(response: JoinGroupResponse, api_version: int) -> JoinGroupResponse:
    """The response as its version can say it: up to v6 a missing protocol is an empty name."""
    if response.protocol_name is None and api_version < _PROTOCOL_NULLABLE_FROM:
        return JoinGroupResponse(
            error_code=response.error_code,
            generation_id=response.generation_id,
            protocol_name="",
            leader=response.leader,
            member_id=response.member_id,
            members=response.members,
        )
    return response


def end_join(
    book: GroupBook, group: ClassicGroup, member: ClassicMember, response: JoinGroupResponse
) -> None:
    """Answers the member if it waits to join."""
    waiting = member.joining
    if waiting is not None:
        group.set_joining(member, None)
        book.answer(waiting.reply, said_in(response, waiting.client.api_version))


def end_sync(book: GroupBook, member: ClassicMember, response: SyncGroupResponse) -> bool:
    """Answers the member if it waits for its assignment; whether it did."""
    waiting = member.syncing
    if waiting is None:
        return False
    member.syncing = None
    book.answer(waiting.reply, response)
    return True


def end_syncs(book: GroupBook, group: ClassicGroup, error: ErrorCode) -> None:
    """Nobody gets an assignment in this generation."""
    for member in group.members.values():
        group.assign(member, b"")
        if end_sync(book, member, SyncGroupResponse(error_code=error)):
            restart_session(book, group, member)


def _expire_syncs(book: GroupBook, group: ClassicGroup, generation_id: int) -> None:
    """Members that joined this generation and never asked for their assignment are out."""
    waits = (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE)
    if generation_id == group.generation_id and group.state in waits and not group.all_synced:
        for member_id in list(group.pending_syncs):
            group.remove(member_id)
        prepare(book, group)


def synced(group: ClassicGroup, member_id: str) -> None:
    """The member has asked for its assignment."""
    group.pending_syncs.discard(member_id)
    if group.all_synced:
        _cancel_sync_timer(group)


# ── members ───────────────────────────────────────────────────────────────────────────────────────────────


def restart_session(
    book: GroupBook, group: ClassicGroup, member: ClassicMember, timeout_ms: int | None = None
) -> None:
    """The member was heard of: it may be silent for its session timeout from now on."""
    if member.session is not None:
        member.session.cancel()

    def silent() -> None:
        if group.members.get(member.member_id) is member and not member.may_be_silent:
            remove_member(book, group, member)
            after_removal(book, group)

    member.session = book.after(member.session_timeout_ms if timeout_ms is None else timeout_ms, silent)


def add_pending(book: GroupBook, group: ClassicGroup, member_id: str, timeout_ms: int) -> None:
    """Keeps a place for a member that was given its id and has to come back with it in time."""

    def gone() -> None:
        if group.pending_joins.pop(member_id, None) is not None:
            complete_pending_removal(book, group)

    group.pending_joins[member_id] = book.after(min(timeout_ms, PENDING_TIMEOUT_MAX_MS), gone)
    forgotten = book.limits.given_out(group, member_id)
    if forgotten is not None:
        other, other_id = forgotten
        other.remove(other_id)
        complete_pending_removal(book, other)


def complete_pending_removal(book: GroupBook, group: ClassicGroup) -> None:
    """A pending member is out: it may have been all that a rebalance waited for."""
    if group.state is ClassicState.PREPARING_REBALANCE and group.all_joined:
        complete(book, group)
    book.drop_if_unborn(group)


def remove_member(book: GroupBook, group: ClassicGroup, member: ClassicMember) -> None:
    """Takes a member out. If it waits it is told that nobody knows it, so that it joins again if it lives."""
    end_join(book, group, member, refused_join(ErrorCode.UNKNOWN_MEMBER_ID))
    end_sync(book, member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    group.remove(member.member_id)


def after_removal(book: GroupBook, group: ClassicGroup) -> None:
    """What becomes of the group when its members are fewer."""
    if group.can_rebalance and group.state is not ClassicState.EMPTY:
        prepare(book, group)
    elif group.state is ClassicState.PREPARING_REBALANCE and group.all_joined:
        complete(book, group)


def _cancel_join_timer(group: ClassicGroup) -> None:
    if group.join_timer is not None:
        group.join_timer.cancel()
        group.join_timer = None


def _cancel_sync_timer(group: ClassicGroup) -> None:
    if group.sync_timer is not None:
        group.sync_timer.cancel()
        group.sync_timer = None


def go_on(book: GroupBook, group: ClassicGroup) -> None:
    """The group, whose timers were cancelled and whose waiting members were answered, is one again: it rebalances."""
    for member in group.members.values():
        restart_session(book, group, member)
    if group.state is ClassicState.PREPARING_REBALANCE:
        _wait_for_joins(book, group)
    elif group.can_rebalance and group.members:
        prepare(book, group)


def cancel_timers(group: ClassicGroup) -> None:
    """Nothing of the group goes off any more."""
    _cancel_join_timer(group)
    _cancel_sync_timer(group)
    for member in group.members.values():
        if member.session is not None:
            member.session.cancel()
    for task in group.pending_joins.values():
        task.cancel()
