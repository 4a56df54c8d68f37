"""LeaveGroup (13), versions 0-5, for classic groups.

Up to v2 a member names itself; from v3 on many leave at once, and an administrator may name static members by their
instance id alone. One rebalance follows, however many left. A request that names thousands is worked on in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import msgspec

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
from appliance.control.coordinator.pieces import PIECE, Steps
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


class LeaveOfMany(msgspec.Struct, frozen=True):
    """What is left of a long request for a consumer group: `tell` gets the answers of `members`, each there once."""

    group_id: str
    members: tuple[MemberIdentity, ...]
    tell: Callable[[tuple[MemberResponse, ...]], None]


def handle(book: GroupBook, request: LeaveGroupRequest, client: Client, reply: object) -> None:
    if _is_refused(book, request.group_id, client, reply):
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
    tell(_leave_classic(book, other, leaving))


def handle_in_pieces(
    book: GroupBook, request: LeaveGroupRequest, client: Client, reply: object
) -> Steps[None]:
    """`handle` of a request that names many members.

    Of a classic group some leave at a time, as if each piece were a request of its own: the first one begins the
    rebalance. The members of a consumer group leave together; only who is none of them is found out in pieces.
    """
    if client.api_version < _MANY_FROM:
        handle(book, request, client, reply)
        return
    members = request.members
    answers: list[MemberResponse] = []
    for first in range(0, len(members), PIECE):
        if _is_refused(book, request.group_id, client, reply):
            return
        group = book.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            yield from _leave_consumer_group(book, request, client, reply, answers=answers)
            return
        answers += _leave_classic(book, group, members[first : first + PIECE])
        yield None
    _tell_many(book, reply, iter(answers))


def _leave_consumer_group(
    book: GroupBook,
    request: LeaveGroupRequest,
    client: Client,
    reply: object,
    *,
    answers: list[MemberResponse],
) -> Steps[None]:
    """Those behind the ones that have their `answers`."""
    left = request.members[len(answers) :]
    leaving: dict[str, MemberIdentity] = {}
    errors: list[tuple[str, int]] = []  # of each: the member that it is, or why it is none
    for number, one in enumerate(left, 1):
        group = book.groups.get(request.group_id)
        member_id, error = one.member_id, ErrorCode.UNKNOWN_MEMBER_ID
        if isinstance(group, ConsumerGroup):
            member_id, error = classic_in_consumer_group.identify(group, one)
        if not error:
            leaving.setdefault(member_id, one)
        errors.append((member_id, error))
        if not number % PIECE:
            yield None

    def tell(results: tuple[MemberResponse, ...]) -> None:
        of_member = {member_id: each.error_code for member_id, each in zip(leaving, results, strict=True)}
        others = (
            MemberResponse(one.member_id, one.group_instance_id, error_code=error or of_member[member_id])
            for one, (member_id, error) in zip(left, errors, strict=True)
        )
        _tell_many(book, reply, chain(answers, others))

    handle_many(book, LeaveOfMany(request.group_id, tuple(leaving.values()), tell), client, reply)


def handle_many(book: GroupBook, request: LeaveOfMany, client: Client, reply: object) -> None:
    """The members leave together."""
    if _is_refused(book, request.group_id, client, reply):
        return
    group = book.groups.get(request.group_id)
    if not isinstance(group, ConsumerGroup):
        request.tell(_leave_classic(book, group, request.members))
        return
    consumer_group = group
    book.in_turn(
        consumer_group,
        request,
        client,
        reply=reply,
        action=lambda: classic_in_consumer_group.leave(book, consumer_group, request.members, request.tell),
    )


def _is_refused(book: GroupBook, group_id: str, client: Client, reply: object) -> bool:
    """Whether nothing can be said about the group now; then that is the answer."""
    error = book.fault_of(group_id, client) if group_id else ErrorCode.INVALID_GROUP_ID
    if error:
        book.answer(reply, LeaveGroupResponse(error_code=error))
    return bool(error)


def _tell_many(book: GroupBook, reply: object, answers: Iterator[MemberResponse]) -> None:
    book.answer_in_pieces(reply, answers, lambda some: LeaveGroupResponse(members=some))


def _leave_classic(
    book: GroupBook, group: ClassicGroup | None, leaving: tuple[MemberIdentity, ...]
) -> tuple[MemberResponse, ...]:
    results = tuple([_leave(book, group, one) for one in leaving])
    if group is not None and any(not result.error_code for result in results):
        if group.state is ClassicState.PREPARING_REBALANCE:
            complete_if_all_joined(book, group)
        else:
            after_removal(book, group)
        book.drop_if_unborn(group)
    return results


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
