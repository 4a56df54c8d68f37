"""What the server-side assignors promise, for any members, topics and earlier assignments."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.control.coordinator.group.consumer_assignors import (
    ASSIGNORS,
    AssignedMember,
    ranges,
    uniform,
)
from appliance.control.coordinator.group.consumer_records import Assignment

A, B, C = (UUID(int=number) for number in (1, 2, 3))


def member(
    name: str, *topics: UUID, before: Assignment | None = None, static: str | None = None
) -> AssignedMember:
    return AssignedMember(name, static, frozenset(topics), before or {})


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[AssignedMember], dict[UUID, int]]:
    counts = {topic: draw(st.integers(1, 7)) for topic in (A, B, C)}
    members = []
    for number in range(draw(st.integers(1, 6))):
        before = {topic: frozenset(draw(st.sets(st.integers(0, 8), max_size=4))) for topic in (A, B, C)}
        topics = draw(st.sets(st.sampled_from([A, B, C])))
        members.append(AssignedMember(f"m{number}", None, frozenset(topics), before))
    return members, counts


@pytest.mark.parametrize("name", ASSIGNORS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_every_partition_of_a_subscribed_topic_has_one_owner_who_subscribed(
    name: str, data: st.DataObject
) -> None:
    members, counts = data.draw(groups())
    made = ASSIGNORS[name](members, counts)
    assert made.keys() == {one.member_id for one in members}
    given_out = [
        (topic, partition)
        for one in members
        for topic, partitions in made[one.member_id].items()
        for partition in partitions
        if topic in one.topics
    ]
    wanted = {
        (topic, partition)
        for topic in set().union(*(one.topics for one in members))
        for partition in range(counts[topic])
    }
    assert len(given_out) == len(set(given_out)) == sum(len(p) for one in made.values() for p in one.values())
    assert set(given_out) == wanted


@settings(max_examples=100, deadline=None)
@given(group=groups())
def test_uniform_leaves_no_pair_of_members_that_could_be_more_alike(
    group: tuple[list[AssignedMember], dict[UUID, int]],
) -> None:
    members, counts = group
    made = uniform(members, counts)
    shares = {name: sum(len(partitions) for partitions in one.values()) for name, one in made.items()}
    for giver in members:
        for taker in members:
            if giver.topics & taker.topics & made[giver.member_id].keys():
                assert shares[giver.member_id] - shares[taker.member_id] <= 1


@settings(max_examples=50, deadline=None)
@given(group=groups())
def test_uniform_moves_nothing_without_a_reason(
    group: tuple[list[AssignedMember], dict[UUID, int]],
) -> None:
    members, counts = group
    made = uniform(members, counts)
    again = [AssignedMember(one.member_id, None, one.topics, made[one.member_id]) for one in members]
    assert uniform(again, counts) == made


def test_uniform_moves_only_what_a_new_member_gets() -> None:
    before = uniform([member("a", A), member("b", A)], {A: 9})
    kept = [member(name, A, before=before[name]) for name in ("a", "b")]
    after = uniform([*kept, member("c", A)], {A: 9})
    assert [len(after[name][A]) for name in "abc"] == [3, 3, 3]
    assert after["a"][A] <= before["a"][A]
    assert after["b"][A] <= before["b"][A]


def test_partitions_that_are_not_there_are_not_kept() -> None:
    assert uniform([member("a", A, before={A: frozenset({0, 5}), B: frozenset({0})})], {A: 2, B: 1}) == {
        "a": {A: frozenset({0, 1})}
    }


def test_range_puts_static_members_first_and_gives_like_topics_alike() -> None:
    made = ranges([member("a", A, B), member("b", A, B, static="x"), member("c", A)], {A: 4, B: 4})
    assert made == {
        "b": {A: frozenset({0, 1}), B: frozenset({0, 1})},
        "a": {A: frozenset({2}), B: frozenset({2, 3})},
        "c": {A: frozenset({3})},
    }


def test_a_large_group_is_shared_out_in_no_time() -> None:
    members = [member(f"m{number:03}", A) for number in range(500)]
    made = uniform(members, {A: 10_000})
    assert {len(one[A]) for one in made.values()} == {20}
