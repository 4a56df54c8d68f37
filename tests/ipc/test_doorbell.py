from __future__ import annotations

import os

import pytest

from appliance.ipc.doorbell import Doorbell
from tests.support.ready import is_readable


@pytest.fixture
def doorbell() -> Doorbell:
    return Doorbell(Doorbell.create_eventfd(), memoryview(bytearray(8)).cast("q"))


def test_nobody_rings_at_a_process_that_is_awake(doorbell: Doorbell) -> None:
    assert not doorbell.ring()
    assert not is_readable(doorbell.eventfd)


def test_a_sleeping_process_is_woken(doorbell: Doorbell) -> None:
    doorbell.announce_sleep()
    assert doorbell.is_sleeping()
    assert doorbell.ring()
    assert is_readable(doorbell.eventfd)


def test_awake_stops_the_ringing_and_drain_takes_off_what_rang(doorbell: Doorbell) -> None:
    doorbell.announce_sleep()
    assert doorbell.ring()
    assert doorbell.ring()
    doorbell.awake()
    assert not doorbell.ring()
    assert doorbell.drain() == 2
    assert doorbell.drain() == 0
    assert not is_readable(doorbell.eventfd)


def test_a_full_counter_still_wakes(doorbell: Doorbell) -> None:
    os.eventfd_write(doorbell.eventfd, 2**64 - 2)
    doorbell.announce_sleep()
    assert doorbell.ring()
    assert is_readable(doorbell.eventfd)


def test_the_flag_is_one_word() -> None:
    with pytest.raises(ValueError, match="word"):
        Doorbell(0, memoryview(bytearray(16)).cast("q"))
