"""Logs part ways where leaders changed before all had the same; epochs say where (KIP-101, KIP-279)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.log.leader_epochs import LeaderEpochs
from appliance.replicas.truncation import common_end

Entries = list[tuple[int, int]]


def epochs(entries: Entries) -> LeaderEpochs:
    return LeaderEpochs(Path("nowhere"), entries)


@pytest.mark.parametrize(
    ("own", "own_end", "leader", "leader_end", "expected"),
    [
        # The same leader goes on.
        ([(0, 0)], 10, [(0, 0)], 20, 10),
        # KIP-101, scenario 1: nothing is cut by a high watermark that was late.
        ([(0, 0)], 2, [(0, 0), (1, 2)], 2, 2),
        # KIP-101, scenario 2: records that only the old leader had go, though offsets fit.
        ([(0, 0), (1, 1)], 2, [(0, 0), (2, 1)], 3, 1),
        # KIP-279: epochs that neither knows of the other; the newest that both have counts.
        ([(1, 0), (2, 40)], 70, [(1, 0), (3, 40), (4, 90)], 100, 40),
        ([(1, 0), (3, 40)], 100, [(1, 0), (3, 40), (4, 90)], 120, 90),
        ([(0, 0), (2, 10), (4, 20)], 30, [(0, 0), (3, 15), (5, 25)], 40, 10),
        # The follower is behind by epochs.
        ([(0, 0)], 5, [(0, 0), (1, 7), (2, 9)], 20, 5),
        # Nothing in common is known.
        ([], 0, [(0, 0)], 10, None),
        ([(0, 0)], 5, [], 0, None),
    ],
)
def test_a_follower_cuts_what_its_leader_does_not_have(
    own: Entries, own_end: int, leader: Entries, leader_end: int, expected: int | None
) -> None:
    assert common_end(epochs(own), own_end, epochs(leader), leader_end) == expected


def entries_of(log: list[int]) -> Entries:
    """A log is the epoch of each record, rising."""
    return [(epoch, log.index(epoch)) for epoch in sorted(set(log))]


@given(
    common=st.lists(st.integers(0, 3), max_size=6).map(sorted),
    ours=st.lists(st.sampled_from([4, 6, 8]), max_size=5).map(sorted),
    theirs=st.lists(st.sampled_from([5, 7, 9]), max_size=5).map(sorted),
)
def test_what_is_kept_is_in_both_logs_and_nothing_common_is_cut(
    common: list[int], ours: list[int], theirs: list[int]
) -> None:
    own, leader = common + ours, common + theirs
    # The leader has an entry for its own epoch, though it may have no record of it.
    found = common_end(
        epochs(entries_of(own)), len(own), epochs([*entries_of(leader), (10, len(leader))]), len(leader)
    )
    if not own:
        assert found is None
    elif common or not ours:
        assert found == len(common)
    else:
        assert found in (None, 0)
