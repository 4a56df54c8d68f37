"""What placement promises for every number of slots, replicas and partitions."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.control.controller.placement import (
    InvalidAssignment,
    check_assignment,
    place,
    start_for,
    start_of,
)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """Node ids (ascending, with gaps), a replication factor that fits, a start."""
    slots = sorted(draw(st.sets(st.integers(0, 40), min_size=1, max_size=12)))
    return slots, draw(st.integers(1, len(slots))), draw(st.integers(0, len(slots) - 1))


@given(clusters(), st.integers(0, 120))
def test_replicas_of_a_partition_lie_on_different_slots(
    cluster: tuple[list[int], int, int], count: int
) -> None:
    slots, factor, start = cluster
    placed = place(range(count), factor, slots=slots, start=start)
    assert len(placed) == count
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= set(slots)
    if placed:
        check_assignment(placed, slots)


@given(clusters(), st.integers(1, 120))
def test_leaders_and_replicas_are_spread_evenly(cluster: tuple[list[int], int, int], count: int) -> None:
    slots, factor, start = cluster
    placed = place(range(count), factor, slots=slots, start=start)
    leaders = Counter(replicas[0] for replicas in placed)
    led = [leaders[slot] for slot in slots]
    assert max(led) - min(led) <= 1
    rounds = [placed[n : n + len(slots)] for n in range(0, count, len(slots))]
    for each in rounds:
        if len(each) == len(slots):
            held = Counter(slot for replicas in each for slot in replicas)
            assert set(held.values()) == {factor}


@given(clusters(), st.integers(1, 60), st.integers(0, 60))
def test_partitions_added_later_lie_where_they_would_have_lain_at_once(
    cluster: tuple[list[int], int, int], first: int, added: int
) -> None:
    slots, factor, start = cluster
    at_once = place(range(first + added), factor, slots=slots, start=start)
    begun = place(range(first), factor, slots=slots, start=start)
    grown = place(range(first, first + added), factor, slots=slots, start=start_of(begun[0], slots))
    assert begun + grown == at_once


@given(clusters(), st.integers(2, 12))
def test_what_a_stopped_slot_led_is_spread_over_the_others(
    cluster: tuple[list[int], int, int], rounds: int
) -> None:
    slots, factor, start = cluster
    if factor < 2:
        return
    count = len(slots)
    placed = place(range(count * (count - 1) * rounds), factor, slots=slots, start=start)
    heirs = Counter(replicas[1] for replicas in placed if replicas[0] == slots[0])
    assert set(heirs) == set(slots) - {slots[0]}
    assert set(heirs.values()) == {rounds}


@given(st.uuids(version=4), st.integers(1, 12))
def test_start_is_the_same_whenever_it_is_asked(topic_id: UUID, count: int) -> None:
    assert start_for(topic_id, count) == start_for(UUID(str(topic_id)), count)
    assert 0 <= start_for(topic_id, count) < count


def test_first_round_is_the_plain_formula() -> None:
    """Partition i → slot (start + i) mod n, replica j → (start + i + j) mod n."""
    for start in range(5):
        placed = place(range(5), 3, slots=range(5), start=start)
        assert placed == [tuple((start + i + j) % 5 for j in range(3)) for i in range(5)]


def test_worked_example_of_the_file_holds() -> None:
    assert place(range(11), 3, slots=range(5), start=0) == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 0),
        (4, 0, 1),
        (0, 2, 3),
        (1, 3, 4),
        (2, 4, 0),
        (3, 0, 1),
        (4, 1, 2),
        (0, 3, 4),
    ]


@pytest.mark.parametrize(
    "assignment", [[], [[]], [[0], []], [[0, 0]], [[0, 3]], [[-1]], [[0, 1], [2]], [[0], [1, 2]]]
)
def test_bad_assignment_by_hand_is_refused(assignment: list[list[int]]) -> None:
    with pytest.raises(InvalidAssignment):
        check_assignment(assignment, [0, 1, 2])


def test_too_many_replicas_are_a_mistake_of_the_caller() -> None:
    for factor in (0, 3):
        with pytest.raises(ValueError, match="replicas"):
            place(range(1), factor, slots=[0, 1], start=0)
