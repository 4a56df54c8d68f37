"""A consumer group in which only classic members are left is a classic group again (KIP-848).

The last member that speaks the new protocol is out: the others are a classic group, in the generation of the newest
member's epoch, so that commits under way still count, and rebalance. `group.consumer.migration.policy` has to allow it;
otherwise they stay classic members of a consumer group. Source: Kafka's `ClassicGroup.fromConsumerGroup`, which takes
the group's epoch for the generation.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.classic_member import ClassicMember
from appliance.control.coordinator.group.classic_rebalance import prepare, restart_session
from appliance.control.coordinator.group.classic_state import ClassicState
from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.consumer_records import record_of
from appliance.control.coordinator.group.group_book import GroupBook
from appliance.control.coordinator.group.subscription import PROTOCOL_TYPE, encode_assignment
from appliance.control.coordinator.runtime.effects import Record

POLICIES = ("bidirectional", "downgrade")


def may_downgrade(book: GroupBook, group: ConsumerGroup, leaving: str) -> bool:
    """Whether only members that speak the classic protocol are left when `leaving` is out."""
    left = [one for member_id, one in group.subscriptions.items() if member_id != leaving]
    return (
        bool(left)
        and book.settings.consumer_migration_policy in POLICIES
        and len(left) <= book.settings.max_size
        and all(one.classic is not None for one in left)
    )


def downgrade(book: GroupBook, group: ConsumerGroup, leaving: str, then: Callable[[int], None]) -> None:
    """Makes a classic group of all members but `leaving`; `then` hears when that is committed, or why it is not."""
    classic = _as_classic_group(book, group, leaving)
    gone = [record_of(group.group_id, change) for change in group.end()]
    # The log has them in the next generation already: after a crash before the rebalance is through they have to join,
    # or what the one who left was assigned would be nobody's.
    classic.generation_id += 1
    records: list[Record] = [*gone, classic.record(classic.assignments())]
    classic.generation_id -= 1
    group.is_busy = True

    def written(error_code: int) -> None:
        group.is_busy = False
        if not error_code and book.groups.get(group.group_id) is group:
            group.cancel_all_timers()
            book.groups[group.group_id] = classic
            for member in classic.members.values():
                restart_session(book, classic, member)
            prepare(book, classic)
        then(error_code)
        group.next_turns()

    book.append(group.group_id, tuple(records), written)


def _as_classic_group(book: GroupBook, group: ConsumerGroup, leaving: str) -> ClassicGroup:
    classic = ClassicGroup(group.group_id, book.clock.now_ms())
    classic.in_log = True
    classic.generation_id = max(
        group.current(member_id).member_epoch for member_id in group.subscriptions if member_id != leaving
    )
    for member_id, subscription in group.subscriptions.items():
        if member_id == leaving or subscription.classic is None:
            continue
        member = ClassicMember(
            member_id,
            subscription.instance_id,
            client_id=subscription.client_id,
            client_host=subscription.client_host,
            rebalance_timeout_ms=subscription.rebalance_timeout_ms,
            session_timeout_ms=subscription.classic.session_timeout_ms,
            protocol_type=PROTOCOL_TYPE,
            protocols=subscription.classic.protocols,
        )
        member.assignment = assignment_bytes(book, group, member_id)
        classic.add(member)
    classic.protocol_name = classic.choose_protocol()
    classic.state = ClassicState.STABLE
    return classic


def assignment_bytes(book: GroupBook, group: ConsumerGroup, member_id: str) -> bytes:
    """What the member has, as the classic protocol writes it, in the version that the member writes itself."""
    subscription = group.subscriptions[member_id]
    classic = subscription.classic
    metadata = classic.protocols[0].metadata if classic is not None and classic.protocols else b""
    version = int.from_bytes(metadata[:2], signed=True) if len(metadata) >= 2 else 0
    found = (
        (book.topics.by_id(topic_id), partitions)
        for topic_id, partitions in group.current(member_id).assigned.items()
    )
    named = tuple((topic.name, tuple(sorted(partitions))) for topic, partitions in found if topic is not None)
    return encode_assignment(version, named)
