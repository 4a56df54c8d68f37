"""How a consumer group changes: drafts that are written and then applied, one at a time; members that are out.

A member is fenced, that is, taken out, when its session ends (consumer.session.timeout.ms of the group after
its last heartbeat), or when it stays in UNREVOKED_PARTITIONS in one epoch for longer than its rebalance timeout.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.control.coordinator.group.consumer_changes import Draft
from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.consumer_records import CurrentChange, MemberState, record_of
from appliance.control.coordinator.group.downgrade import downgrade, may_downgrade
from appliance.control.coordinator.group.group_book import GroupBook
from appliance.control.coordinator.runtime.effects import Record


def write(
    book: GroupBook,
    group: ConsumerGroup,
    draft: Draft,
    then: Callable[[int], None],
    *,
    first: tuple[Record, ...] = (),
) -> None:
    """Appends the draft as one batch behind `first`; it is applied before `then` is told that it is committed.

    Without a change `then` is told at once.
    """
    if not draft.changes and not first:
        draft.seen()
        then(0)
        return
    records = tuple(record_of(group.group_id, change) for change in draft.changes)
    group.is_busy = True

    def written(error_code: int) -> None:
        if not error_code and book.groups.get(group.group_id) is group:
            for change in draft.changes:
                group.apply(change)
            draft.seen()
            for change in draft.changes:
                if isinstance(change, CurrentChange):
                    watch_rebalance(book, group, change.member_id)
        group.is_busy = False
        then(error_code)
        group.next_turns()

    book.append(group.group_id, first + records, written)


def restart_session(book: GroupBook, group: ConsumerGroup, member_id: str) -> None:
    """The member was heard of."""
    running = group.sessions.get(member_id)
    if running is not None:
        running.cancel()

    def silent() -> None:
        def turn() -> None:
            # What was written before this turn may have been the member's own heartbeat, which began another session.
            if group.sessions.get(member_id) is session:
                _fence_if_there(book, group, member_id)

        group.in_turn(turn)

    subscription = group.subscriptions.get(member_id)
    classic = None if subscription is None else subscription.classic
    if classic is None:
        timeout_ms = book.consumer_times(group.group_id).session_timeout_ms
    else:
        timeout_ms = classic.session_timeout_ms
    session = group.sessions[member_id] = book.after(timeout_ms, silent)


def watch_rebalance(book: GroupBook, group: ConsumerGroup, member_id: str) -> None:
    """A member that has to give partitions up has its rebalance timeout for it.

    Classic members are watched otherwise: they have to join anew (classic_in_consumer_group.py).
    """
    subscription = group.subscriptions.get(member_id)
    if subscription is not None and subscription.classic is not None:
        return
    running = group.rebalances.pop(member_id, None)
    if running is not None:
        running.cancel()
    current = group.current(member_id)
    if subscription is None or current.state is not MemberState.UNREVOKED_PARTITIONS:
        return

    def unmoved() -> None:
        def turn() -> None:
            now = group.current(member_id)
            if now.member_epoch == current.member_epoch and now.state is MemberState.UNREVOKED_PARTITIONS:
                _fence_if_there(book, group, member_id)

        group.in_turn(turn)

    group.rebalances[member_id] = book.after(subscription.rebalance_timeout_ms, unmoved)


def _fence_if_there(book: GroupBook, group: ConsumerGroup, member_id: str) -> None:
    if book.groups.get(group.group_id) is not group or member_id not in group.subscriptions:
        return

    def written(error_code: int) -> None:
        if error_code:
            # It could not be written that the member is out, so it is not; it gets another session.
            restart_session(book, group, member_id)

    fence(book, group, member_id, written)


def fence(book: GroupBook, group: ConsumerGroup, member_id: str, then: Callable[[int], None]) -> None:
    """Takes the member out of the group; if only classic ones are left, they may be a classic group again."""
    if may_downgrade(book, group, member_id):
        downgrade(book, group, member_id, then)
        return
    draft = Draft(book, group)
    draft.remove(member_id)

    def written(error_code: int) -> None:
        if not error_code:
            group.cancel_timers(member_id)
        then(error_code)

    write(book, group, draft, written)
