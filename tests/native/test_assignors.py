"""Who reads what: every partition once, balanced, and moved only where it must be."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from appliance.errors import MalformedFrame
from appliance_client.assignors import (
    Assignment,
    Broadcast,
    CooperativeSticky,
    Range,
    RoundRobin,
    Sticky,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from appliance_client.values import TopicPartition

TOPICS = ("a", "b", "c")
PARTITIONS = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12), min_size=1)
MEMBERS = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(7)]),
    st.lists(st.sampled_from(TOPICS), min_size=1, unique=True).map(tuple),
    min_size=1,
)
SHARING = (Range(), RoundRobin(), Sticky(), CooperativeSticky())


def subscriptions(members: dict[str, tuple[str, ...]]) -> dict[str, Subscription]:
    return {name: Subscription(topics) for name, topics in members.items()}


def holders(assignment: Assignment) -> Counter[TopicPartition]:
    return Counter(place for places in assignment.values() for place in places)


@pytest.mark.parametrize("assignor", SHARING, ids=lambda each: each.name)
@given(partitions=PARTITIONS, members=MEMBERS)
def test_every_partition_that_somebody_wants_has_one_owner_who_wants_it(
    assignor: Range, partitions: dict[str, int], members: dict[str, tuple[str, ...]]
) -> None:
    assignment = assignor.assign(partitions, subscriptions(members))
    wanted = {topic for topics in members.values() for topic in topics}
    expected = {
        TopicPartition(topic, n)
        for topic, count in partitions.items()
        if topic in wanted
        for n in range(count)
    }
    assert holders(assignment) == Counter(expected)
    assert all(place.topic in members[name] for name, places in assignment.items() for place in places)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(Range(), RangePartitionAssignor), (RoundRobin(), RoundRobinPartitionAssignor)],
    ids=["range", "roundrobin"],
)
@given(partitions=PARTITIONS, members=MEMBERS)
def test_members_of_other_libraries_get_what_their_own_leader_would_give(
    ours: Range, theirs: type, partitions: dict[str, int], members: dict[str, tuple[str, ...]]
) -> None:
    class Cluster:
        def partitions_for_topic(self, topic: str) -> set[int] | None:
            return set(range(partitions[topic])) if topic in partitions else None

    if ours.name == "roundrobin":  # theirs fails where a member does not want a topic
        members = dict.fromkeys(members, TOPICS)
    asked = [
        SimpleNamespace(member_id=name, group_instance_id=None, metadata=SimpleNamespace(topics=list(topics)))
        for name, topics in members.items()
    ]
    given_by_them = theirs.assign(Cluster(), asked)  # type: ignore[attr-defined]
    assignment = ours.assign(partitions, subscriptions(members))
    for name, places in assignment.items():
        there = given_by_them[name].encode()
        assert set(places) == set(decode_assignment(there))


@given(partitions=PARTITIONS, members=MEMBERS, leaver=st.integers(0, 6))
def test_sticky_is_balanced_and_moves_nothing_that_need_not_move(
    partitions: dict[str, int], members: dict[str, tuple[str, ...]], leaver: int
) -> None:
    members = dict.fromkeys(members, tuple(partitions))
    first = Sticky().assign(partitions, subscriptions(members))
    assert max(map(len, first.values())) - min(map(len, first.values())) <= 1
    stays = dict(members)
    if len(stays) > 1:
        del stays[sorted(stays)[leaver % len(stays)]]
    again = Sticky().assign(
        partitions, {name: Subscription(stays[name], tuple(first[name]), 1) for name in stays}
    )
    assert max(map(len, again.values())) - min(map(len, again.values())) <= 1
    for name in stays:
        assert set(first[name]) <= set(again[name]), "who stays keeps what it had, since others only left"


@given(partitions=PARTITIONS, members=MEMBERS)
def test_cooperative_gives_nothing_away_that_its_owner_has_not_given_up(
    partitions: dict[str, int], members: dict[str, tuple[str, ...]]
) -> None:
    members = dict.fromkeys(members, tuple(partitions))
    owner = min(members)
    everything = tuple(TopicPartition(topic, n) for topic, count in partitions.items() for n in range(count))
    said = {
        name: Subscription(topics, everything if name == owner else (), 1) for name, topics in members.items()
    }
    first = CooperativeSticky().assign(partitions, said)
    assert all(not places for name, places in first.items() if name != owner)
    kept = {name: Subscription(members[name], tuple(first[name]), 2) for name in members}
    second = CooperativeSticky().assign(partitions, kept)
    assert holders(second) == Counter(everything)
    assert max(map(len, second.values())) - min(map(len, second.values())) <= 1


def test_broadcast_gives_everything_to_everybody() -> None:
    assignment = Broadcast().assign({"a": 2, "b": 1}, subscriptions({"x": ("a", "b"), "y": ("a",)}))
    a = [TopicPartition("a", 0), TopicPartition("a", 1)]
    assert assignment == {"x": [*a, TopicPartition("b", 0)], "y": a}


PLACES = st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 50)), unique=True).map(
    lambda listed: tuple(sorted(TopicPartition(*each) for each in listed))
)


@given(
    st.lists(st.text(max_size=20), unique=True), PLACES, st.integers(-1, 9), st.none() | st.binary(max_size=9)
)
def test_what_members_say_comes_back(
    topics: list[str], owned: tuple[TopicPartition, ...], generation: int, user_data: bytes | None
) -> None:
    said = Subscription(tuple(sorted(topics)), owned, generation, user_data)
    assert decode_subscription(encode_subscription(said), None) == said
    assert decode_assignment(encode_assignment(owned)) == owned


@given(st.binary(max_size=60))
def test_what_another_member_says_cannot_break_the_leader(raw: bytes) -> None:
    try:
        decode_subscription(raw, None)
    except MalformedFrame:
        return


@pytest.mark.parametrize("late_first", [True, False])
def test_a_member_that_missed_a_generation_holds_up_nobody(late_first: bool) -> None:
    """It still claims what was given to another member since then: that one keeps it, without a pause."""
    kept = Subscription(("t",), (TopicPartition("t", 0), TopicPartition("t", 1)), 5)
    late = Subscription(("t",), (TopicPartition("t", 0), TopicPartition("t", 1)), 4)
    members = {"late": late, "kept": kept} if late_first else {"kept": kept, "late": late}
    given = CooperativeSticky().assign({"t": 4}, members)
    assert set(kept.owned) <= set(given["kept"])
