"""Server-side assignors of consumer groups (KIP-848): pure functions of members, topics and what was assigned before.

    uniform   every member the same number of partitions, as near as its subscription allows, and as few moves as that
              takes; members with the same subscription differ by one at most
    range     of each topic a contiguous range to each member, in the order of the members: partitions of the same
              number of topics with the same subscribers go to the same member

Kafka's assignors of these names promise the same, not the same partition for the same member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from appliance.control.coordinator.group.consumer_records import Assignment

Partition: TypeAlias = tuple[UUID, int]


class AssignedMember(msgspec.Struct, frozen=True):
    """A member as an assignor sees it; `topics` exist, all of them."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    before: Assignment = msgspec.field(default_factory=dict)


Assignor: TypeAlias = Callable[[Sequence[AssignedMember], Mapping[UUID, int]], dict[str, Assignment]]
"""(members, topic id → partition count) → member id → its partitions, for every member."""


# ── uniform ───────────────────────────────────────────────────────────────────────────────────────────────


def uniform(members: Sequence[AssignedMember], partition_counts: Mapping[UUID, int]) -> dict[str, Assignment]:
    """Running time O(P log M) for P partitions and M members with one subscription; O(P M) otherwise."""
    if not members:
        return {}
    shares = _kept(members, partition_counts)
    if len({member.topics for member in members}) == 1:
        _give_up_excess(shares, sum(partition_counts[topic_id] for topic_id in members[0].topics))
        _hand_out(shares, _unassigned(shares, members[0].topics, partition_counts))
    else:
        subscribed = frozenset().union(*(member.topics for member in members))
        _hand_out_by_subscription(shares, members, _unassigned(shares, subscribed, partition_counts))
        _level(shares, members)
    return {member_id: _grouped(share) for member_id, share in shares.items()}


Shares: TypeAlias = dict[str, set[Partition]]


def _kept(members: Sequence[AssignedMember], partition_counts: Mapping[UUID, int]) -> Shares:
    """What each has and may keep: it is still subscribed, and the partition exists."""
    taken: set[Partition] = set()
    shares: Shares = {}
    for member in members:
        share = {
            (topic_id, partition)
            for topic_id, partitions in member.before.items()
            if topic_id in member.topics
            for partition in partitions
            if partition < partition_counts[topic_id] and (topic_id, partition) not in taken
        }
        taken |= share
        shares[member.member_id] = share
    return shares


def _give_up_excess(shares: Shares, total: int) -> None:
    """Members above their quota give up; those who may have one more are those who have it already."""
    quota, extra = divmod(total, len(shares))
    for share in sorted(shares.values(), key=len, reverse=True):
        allowed = quota + 1 if extra and len(share) > quota else quota
        extra -= allowed > quota
        excess = max(0, len(share) - allowed)
        for partition in sorted(share, key=_order, reverse=True)[:excess]:
            share.discard(partition)


def _unassigned(
    shares: Shares, topics: frozenset[UUID], partition_counts: Mapping[UUID, int]
) -> list[Partition]:
    taken = set().union(*shares.values())
    return [
        (topic_id, partition)
        for topic_id in sorted(topics)
        for partition in range(partition_counts[topic_id])
        if (topic_id, partition) not in taken
    ]


def _hand_out(shares: Shares, unassigned: list[Partition]) -> None:
    """Each partition to whoever has least."""
    heap = [(len(share), member_id) for member_id, share in shares.items()]
    heapify(heap)
    for partition in unassigned:
        count, member_id = heappop(heap)
        shares[member_id].add(partition)
        heappush(heap, (count + 1, member_id))


def _hand_out_by_subscription(
    shares: Shares, members: Sequence[AssignedMember], unassigned: list[Partition]
) -> None:
    """The same where not everybody may have everything: topics with the fewest subscribers first."""
    subscribers: dict[UUID, list[str]] = {}
    for member in members:
        for topic_id in member.topics:
            subscribers.setdefault(topic_id, []).append(member.member_id)
    for topic_id, partition in sorted(unassigned, key=lambda one: (len(subscribers[one[0]]), _order(one))):
        least = min(subscribers[topic_id], key=lambda member_id: (len(shares[member_id]), member_id))
        shares[least].add((topic_id, partition))


def _level(shares: Shares, members: Sequence[AssignedMember]) -> None:
    """Moves partitions from who has more to a subscriber who has at least two less, until there is no such pair.

    Each move lowers the sum of squares of the shares, so it ends.
    """
    topics = {member.member_id: member.topics for member in members}
    moved = True
    while moved:
        moved = False
        for giver in sorted(shares, key=lambda member_id: (-len(shares[member_id]), member_id)):
            for partition in sorted(shares[giver], key=_order):
                takers = [taker for taker in shares if partition[0] in topics[taker]]
                taker = min(takers, key=lambda member_id: (len(shares[member_id]), member_id))
                if len(shares[taker]) + 1 < len(shares[giver]):
                    shares[giver].discard(partition)
                    shares[taker].add(partition)
                    moved = True


def _order(partition: Partition) -> tuple[int, int]:
    return partition[0].int, partition[1]


def _grouped(share: set[Partition]) -> Assignment:
    grouped: dict[UUID, set[int]] = {}
    for topic_id, partition in sorted(share, key=_order):
        grouped.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in grouped.items()}


# ── range ─────────────────────────────────────────────────────────────────────────────────────────────────


def ranges(members: Sequence[AssignedMember], partition_counts: Mapping[UUID, int]) -> dict[str, Assignment]:
    """Static members first, by their instance ids, then the others by their member ids; earlier ones may get one
    more."""
    ordered = sorted(members, key=lambda m: (m.instance_id is None, m.instance_id or m.member_id))
    assignments: dict[str, dict[UUID, frozenset[int]]] = {member.member_id: {} for member in ordered}
    for topic_id in sorted({topic_id for member in ordered for topic_id in member.topics}):
        subscribers = [member.member_id for member in ordered if topic_id in member.topics]
        quota, extra = divmod(partition_counts[topic_id], len(subscribers))
        start = 0
        for position, member_id in enumerate(subscribers):
            end = start + quota + (position < extra)
            if end > start:
                assignments[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(assignments)


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": ranges}
"""By the name that members ask for; group.consumer.assignors says which are offered."""
