from __future__ import annotations

from pathlib import Path

import pytest

from appliance.log.config import LogSettings
from appliance.services.forwarder import State
from tests.services.delivering import TOPIC, Delivering


@pytest.fixture
def house(tmp_path: Path) -> Delivering:
    return Delivering(tmp_path)


def test_records_are_delivered_in_due_order_and_not_before(house: Delivering) -> None:
    house.store(b"a", b"b")
    house.pass_ms(4_800)
    assert (house.forwarder.state, house.delivered()) == (State.RUNNING, [])
    house.pass_ms(400)
    assert house.delivered() == [b"a", b"b"]


def test_a_delivery_whose_answer_was_lost_is_repeated_once_by_the_next_process(house: Delivering) -> None:
    house.logs.lost = {TOPIC}
    house.store(b"a", b"b")
    house.pass_ms(6_000)
    house.logs.lost = set()
    house.new_forwarder()
    house.pass_ms(1_000)
    assert house.delivered() == [b"a", b"b"]
    assert (house.counts.delivered, house.counts.dropped) == (2, 0)


def test_a_clock_that_was_set_back_while_nobody_leads_drops_nothing(house: Delivering) -> None:
    house.logs.settings[TOPIC] = LogSettings(message_timestamp_after_max_ms=60_000)
    house.store(b"a", b"b")
    house.pass_ms(4_800)
    house.logs.slow = {"__delayed_state"}  # the round has begun, and is not written down yet
    house.pass_ms(400)
    house.clock.set_wall(house.clock.now_ms() - 3_600_000)
    house.logs.slow = set()
    house.pass_ms(1_000)
    assert house.delivered() == [b"a", b"b"]
    assert house.counts.dropped == 0
