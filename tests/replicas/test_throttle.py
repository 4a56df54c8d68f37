"""A copy that is not in sync takes no more than its rates, and one read too early is paid back."""

from __future__ import annotations

import pytest

from appliance.channels.control_channel import ReplicationRates
from appliance.clock import ManualClock
from appliance.replicas.throttle import FREE, Throttle, Throttled, throttled

FOLLOWERS = "follower.replication.throttled.replicas"
LEADERS = "leader.replication.throttled.replicas"


@pytest.mark.parametrize(
    ("configs", "by_follower", "leader"),
    [
        ({}, False, -1),
        ({FOLLOWERS: "*"}, True, -1),
        ({LEADERS: "*"}, False, 0),
        ({FOLLOWERS: "3:2,4:1", LEADERS: "3:1,3:0"}, True, 0),
        ({FOLLOWERS: "4:2,3:1,13:2,3:22", LEADERS: "4:0,3:2"}, False, -1),
        ({FOLLOWERS: "", LEADERS: ""}, False, -1),
    ],
)
def test_pairs_of_partition_and_slot_say_which_copies_are_meant(
    configs: dict[str, str], by_follower: bool, leader: int
) -> None:
    found = throttled(configs, 3, slot=2, leader=0)
    assert found == Throttled(by_follower, leader)
    assert bool(found) == (found is not FREE)


def copied(throttle: Throttle, clock: ManualClock, how: Throttled, *, read_bytes: int, seconds: int) -> int:
    """Bytes that a copy gets which never lacks any."""
    total, until_ns = 0, clock.monotonic_ns() + seconds * 1_000_000_000
    while clock.monotonic_ns() < until_ns:
        if pause_ms := throttle.pause_ms(how):
            clock.advance(pause_ms)
        else:
            throttle.copied(how, read_bytes)
            total += read_bytes
    return total


@pytest.mark.parametrize("read_bytes", [100, 70_000, 1_000_000])
def test_a_rate_holds_whatever_the_size_of_a_read(read_bytes: int) -> None:
    clock = ManualClock(0)
    throttle = Throttle(clock)
    throttle.go_by(ReplicationRates(follower=100_000))
    total = copied(throttle, clock, Throttled(by_follower=True), read_bytes=read_bytes, seconds=60)
    assert 60 * 100_000 - read_bytes <= total <= 61 * 100_000 + read_bytes


def test_the_smaller_of_both_rates_counts_and_only_where_it_is_meant() -> None:
    clock = ManualClock(0)
    throttle = Throttle(clock)
    throttle.go_by(ReplicationRates(follower=50_000, leaders={1: 10_000}))
    both = copied(throttle, clock, Throttled(True, 1), read_bytes=1_000, seconds=30)
    assert 290_000 <= both <= 320_000
    other_leader = copied(throttle, clock, Throttled(True, 0), read_bytes=1_000, seconds=30)
    assert 1_490_000 <= other_leader <= 1_560_000
    assert throttle.pause_ms(FREE) == 0


def test_a_rate_of_nothing_stops_it_and_one_that_is_taken_back_frees_it() -> None:
    clock = ManualClock(0)
    throttle = Throttle(clock)
    how = Throttled(by_follower=True)
    throttle.go_by(ReplicationRates(follower=0))
    assert throttle.pause_ms(how) > 0
    clock.advance(3_600_000)
    assert throttle.pause_ms(how) > 0
    throttle.go_by(ReplicationRates())
    assert throttle.pause_ms(how) == 0
