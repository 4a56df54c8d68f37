"""Members that speak the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup (KIP-848).

Such a member is told that somebody else leads. Its generation is its member epoch, its SyncGroup fetches what it is
assigned, and a heartbeat that should bring it to its next epoch answers REBALANCE_IN_PROGRESS: it joins anew, with the
partitions it owns in its subscription. It is out when it does not come back in its rebalance timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from appliance.control.coordinator.group.append_errors import for_member
from appliance.control.coordinator.group.classic_rebalance import refused_join, said_in
from appliance.control.coordinator.group.consumer_changes import Draft
from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.consumer_records import (
    ClassicProtocols,
    MemberState,
    MemberSubscription,
)
from appliance.control.coordinator.group.consumer_turns import fence, restart_session, write
from appliance.control.coordinator.group.downgrade import assignment_bytes
from appliance.control.coordinator.group.group_book import GroupBook
from appliance.control.coordinator.group.held_bytes import weigh_subscription
from appliance.control.coordinator.group.subscription import PROTOCOL_TYPE, Subscription, read_subscription
from appliance.control.coordinator.group.upgrade import by_id
from appliance.control.coordinator.runtime.effects import Client
from appliance.errors import MalformedFrame
from appliance.protocol.apis.heartbeat import HeartbeatRequest, HeartbeatResponse
from appliance.protocol.apis.join_group import NO_MEMBER, JoinGroupRequest, JoinGroupResponse
from appliance.protocol.apis.leave_group import MemberIdentity, MemberResponse
from appliance.protocol.apis.sync_group import SyncGroupRequest, SyncGroupResponse
from appliance.protocol.errors import ErrorCode

_MEMBER_ID_REQUIRED_FROM = 4


# ── JoinGroup ─────────────────────────────────────────────────────────────────────────────────────────────


def join(
    book: GroupBook, group: ConsumerGroup, request: JoinGroupRequest, client: Client, reply: object
) -> None:
    """Updates the member and takes it a step further; answers when that is committed."""

    def refuse(error: ErrorCode, member_id: str = request.member_id) -> None:
        book.answer(reply, said_in(refused_join(error, member_id), client.api_version))

    said = _subscription(group, request)
    if said is None:
        refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return
    instance_id, is_new = request.group_instance_id, request.member_id == NO_MEMBER
    if is_new and instance_id is None and client.api_version >= _MEMBER_ID_REQUIRED_FROM:
        refuse(ErrorCode.MEMBER_ID_REQUIRED, book.new_member_id(client.client_id))
        return
    member_id = book.new_member_id(instance_id or client.client_id) if is_new else request.member_id
    existing = None if instance_id is None else group.static_member_id(instance_id)
    if instance_id is not None and not is_new and existing != member_id:
        refuse(ErrorCode.UNKNOWN_MEMBER_ID if existing is None else ErrorCode.FENCED_INSTANCE_ID)
        return
    is_known = member_id in group.subscriptions or existing is not None
    if not is_known and (
        len(group.subscriptions) >= book.settings.consumer_max_size or not book.limits.has_room_for_member()
    ):
        refuse(ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER)
        return
    replaced = existing if existing != member_id else None
    subscription = _said(request, client, said)
    more = weigh_subscription(member_id, subscription) - group.counted_bytes(existing or member_id)
    if not book.limits.has_room_for_bytes(group.held.bytes, more):
        refuse(ErrorCode.GROUP_MAX_SIZE_REACHED)
        return
    draft = _step(book, group, subscription, member_id=member_id, replaced=replaced, said=said)
    response = JoinGroupResponse(
        generation_id=draft.current(member_id).member_epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=request.protocols[0].name,
        member_id=member_id,
    )

    def written(error_code: int) -> None:
        if error_code:
            refuse(for_member(error_code))
            return
        if replaced is not None:
            group.cancel_timers(replaced)
        restart_session(book, group, member_id)
        _expect(book, group, member_id, anew=True)
        book.answer(reply, said_in(response, client.api_version))

    write(book, group, draft, written)


def _said(request: JoinGroupRequest, client: Client, said: Subscription) -> MemberSubscription:
    return MemberSubscription(
        request.group_instance_id,
        said.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        topic_names=tuple(sorted(set(said.topics))),
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        classic=ClassicProtocols(request.session_timeout_ms, request.protocols),
    )


def _step(
    book: GroupBook,
    group: ConsumerGroup,
    subscription: MemberSubscription,
    *,
    member_id: str,
    replaced: str | None,
    said: Subscription,
) -> Draft:
    """What the member's request to join changes."""
    draft = Draft(book, group)
    if replaced is not None:
        draft.replace_member(replaced, member_id)
    draft.subscribe(member_id, subscription)
    draft.assign()
    draft.reconcile(member_id, by_id(book, said.owned))
    return draft


def _subscription(group: ConsumerGroup, request: JoinGroupRequest) -> Subscription | None:
    """What the member says of itself; None if it does not fit into this group, or cannot be read."""
    if request.protocol_type != PROTOCOL_TYPE or not _has_common_protocol(group, request):
        return None
    try:
        return read_subscription(request.protocols[0].metadata)
    except MalformedFrame:
        return None


def _has_common_protocol(group: ConsumerGroup, request: JoinGroupRequest) -> bool:
    """Whether all classic members know one of the protocols; they may have to be a classic group again."""
    offered = {protocol.name for protocol in request.protocols}
    for member_id, subscription in group.subscriptions.items():
        if subscription.classic is not None and member_id != request.member_id:
            offered &= {protocol.name for protocol in subscription.classic.protocols}
    return bool(offered)


# ── SyncGroup, Heartbeat, LeaveGroup ──────────────────────────────────────────────────────────────────────


def sync(book: GroupBook, group: ConsumerGroup, request: SyncGroupRequest, reply: object) -> None:
    """Answers what the member is assigned in its epoch."""
    member_id = request.member_id
    error = _fault(group, member_id, request.group_instance_id, generation_id=request.generation_id)
    current = group.current(member_id)
    if not error and _names_another(group, request):
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if (
        not error
        and group.epoch > current.member_epoch
        and current.state is not MemberState.UNREVOKED_PARTITIONS
    ):
        _expect(book, group, member_id, anew=False)
        error = ErrorCode.REBALANCE_IN_PROGRESS
    if error:
        book.answer(reply, SyncGroupResponse(error_code=error))
        return
    _expect_no_more(group, member_id)
    restart_session(book, group, member_id)
    book.answer(
        reply,
        SyncGroupResponse(
            assignment=assignment_bytes(book, group, member_id),
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
        ),
    )


def _names_another(group: ConsumerGroup, request: SyncGroupRequest) -> bool:
    classic = group.subscriptions[request.member_id].classic
    known = {protocol.name for protocol in classic.protocols} if classic is not None else set()
    return request.protocol_type not in (None, PROTOCOL_TYPE) or (
        request.protocol_name is not None and request.protocol_name not in known
    )


def heartbeat(book: GroupBook, group: ConsumerGroup, request: HeartbeatRequest, reply: object) -> None:
    """NONE, or REBALANCE_IN_PROGRESS where joining anew would bring the member further."""
    member_id = request.member_id
    error = _fault(group, member_id, request.group_instance_id, generation_id=request.generation_id)
    if not error:
        restart_session(book, group, member_id)
        if _has_a_step_to_take(group, member_id):
            _expect(book, group, member_id, anew=False)
            error = ErrorCode.REBALANCE_IN_PROGRESS
    book.answer(reply, HeartbeatResponse(error_code=error))


def _has_a_step_to_take(group: ConsumerGroup, member_id: str) -> bool:
    current = group.current(member_id)
    if current.member_epoch < group.epoch or current.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    if current.state is MemberState.STABLE:
        return False
    return any(
        group.is_free(topic_id, partition)
        for topic_id, partitions in group.target(member_id).items()
        for partition in partitions - current.assigned.get(topic_id, frozenset())
    )


def leave(
    book: GroupBook,
    group: ConsumerGroup,
    leaving: tuple[MemberIdentity, ...],
    then: Callable[[tuple[MemberResponse, ...]], None],
) -> None:
    """Take the members out, of whichever protocol; `then` gets each one's answer when that is committed.

    An administrator removes members of the consumer protocol this way, too: no other request does
    (`removeMembersFromConsumerGroup` of the Java client). Source: `classicGroupLeaveToConsumerGroup` of Kafka 4.3.
    """
    draft = Draft(book, group)
    answers: list[MemberResponse] = []
    out: dict[str, None] = {}
    for one in leaving:
        member_id, error = identify(group, one)
        if not error:
            out[member_id] = None
        answers.append(MemberResponse(one.member_id, one.group_instance_id, error_code=error))
    last = _last_of_the_new_protocol(group, out)
    draft.remove_all([member_id for member_id in out if member_id != last])

    def tell(error_code: int) -> None:
        if error_code:
            failed = for_member(error_code)
            then(tuple(MemberResponse(a.member_id, a.group_instance_id, error_code=failed) for a in answers))
        else:
            then(tuple(answers))

    def written(error_code: int) -> None:
        if not error_code:
            for member_id in out:
                if member_id != last:
                    group.cancel_timers(member_id)
        if error_code or last is None:
            tell(error_code)
        else:
            group.in_turn(lambda: take_out(last))

    def take_out(member_id: str) -> None:
        if book.groups.get(group.group_id) is group and member_id in group.subscriptions:
            fence(book, group, member_id, tell)
        else:
            tell(0)

    write(book, group, draft, written)


def identify(group: ConsumerGroup, one: MemberIdentity) -> tuple[str, ErrorCode]:
    """(member id, NONE) of a member that is to leave, or why it is none."""
    member_id: str = one.member_id
    if member_id == NO_MEMBER and one.group_instance_id is not None:
        member_id = group.static_member_id(one.group_instance_id) or NO_MEMBER
    return member_id, _no_member(group, member_id, one.group_instance_id)


def _last_of_the_new_protocol(group: ConsumerGroup, out: Mapping[str, None]) -> str | None:
    """The member whose leaving makes a classic group of the others, so that it is taken out by itself; None where
    classic members are not all that is left."""
    left = [one for member_id, one in group.subscriptions.items() if member_id not in out]
    new = [member_id for member_id in out if group.subscriptions[member_id].classic is None]
    return new[-1] if new and left and all(one.classic is not None for one in left) else None


def _fault(
    group: ConsumerGroup, member_id: str, instance_id: str | None, *, generation_id: int | None = None
) -> ErrorCode:
    """Why the member may not speak: it is none, its place was taken, it speaks the other protocol, or of an old
    epoch."""
    error = _no_member(group, member_id, instance_id)
    if error:
        return error
    if group.subscriptions[member_id].classic is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if generation_id is not None and generation_id != group.current(member_id).member_epoch:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


def _no_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    """NONE for a member of the group, of whichever protocol."""
    if instance_id is not None:
        existing = group.static_member_id(instance_id)
        if existing is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if existing != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.subscriptions else ErrorCode.UNKNOWN_MEMBER_ID


# ── who is waited for ─────────────────────────────────────────────────────────────────────────────────────


def _expect(book: GroupBook, group: ConsumerGroup, member_id: str, *, anew: bool) -> None:
    """The member has to join, or after that to sync, in its rebalance timeout."""
    running = group.rebalances.get(member_id)
    if running is not None and running.waits and not anew:
        return
    if running is not None:
        running.cancel()

    def missing() -> None:
        def turn() -> None:
            if book.groups.get(group.group_id) is not group or member_id not in group.subscriptions:
                return
            # It may have joined while the timeout waited for its turn: then it is not this one that counts.
            if group.rebalances.get(member_id) is expected:
                fence(book, group, member_id, lambda _: None)

        group.in_turn(turn)

    timeout_ms = group.subscriptions[member_id].rebalance_timeout_ms
    expected = group.rebalances[member_id] = book.after(timeout_ms, missing)


def _expect_no_more(group: ConsumerGroup, member_id: str) -> None:
    running = group.rebalances.pop(member_id, None)
    if running is not None:
        running.cancel()
