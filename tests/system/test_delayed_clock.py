"""Delayed delivery while the broker's clock is set by hours, both ways."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest
from confluent_kafka import Producer

from tests.support.broker import Appliance
from tests.support.stepped_clock import SteppedClock
from tests.system.delayed import LEVELS, PATIENCE_S, Load, check, consumed, create

HOUR_S: Final = 3_600
ANY_TIMESTAMP: Final = str(1 << 62)
"""Producers do not see the broker's clock."""


class Broker(Appliance):
    """`clock` is that of its processes."""

    clock: SteppedClock


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("delayed")
    clock = SteppedClock(directory / "clock")
    broker = Broker(
        directory / "data",
        settings={"services.processes": 1, "delivery.delay.levels": [*LEVELS, "2h"]},
        wrapper=clock.wrapper(),
    )
    broker.clock = clock
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def broker(started: Broker) -> Iterator[Broker]:
    yield started
    started.clock.set_ahead(0)


def test_a_clock_that_is_set_forward_delivers_what_is_due_by_the_new_time(broker: Broker) -> None:
    create(broker, "forward", message_timestamp_after_max_ms=ANY_TIMESTAMP)
    now_ms = int(time.time() * 1000)
    client = Producer({"bootstrap.servers": broker.address})
    for hours in (1, 5):
        at = b"%d" % (now_ms + hours * HOUR_S * 1000)
        client.produce("forward", b"%d" % hours, partition=0, headers=[("delivery.at", at)])
    client.flush(PATIENCE_S)
    broker.clock.set_ahead(3 * HOUR_S)
    (found,) = consumed(broker, "forward", 1, more_s=1.5)
    assert found.value() == b"1", "the other one is due in two hours"
    assert found.timestamp()[1] >= now_ms + 3 * HOUR_S * 1000
    broker.clock.set_ahead(6 * HOUR_S)
    assert [each.value() for each in consumed(broker, "forward", 2, more_s=0.5)] == [b"1", b"5"]


def test_a_clock_that_is_set_back_prolongs_no_delay_and_delivers_nothing_before_its_time(
    broker: Broker,
) -> None:
    create(broker, "back", message_timestamp_after_max_ms=ANY_TIMESTAMP)
    sent_s = time.time()
    client = Producer({"bootstrap.servers": broker.address})
    client.produce("back", b"delay", partition=0, headers=[("delivery.delay", b"2000")])
    at = b"%d" % int((sent_s + 2) * 1000)
    client.produce("back", b"time", partition=0, headers=[("delivery.at", at)])
    client.flush(PATIENCE_S)
    broker.clock.set_ahead(-3 * HOUR_S)
    assert [each.value() for each in consumed(broker, "back", 1, more_s=2.0)] == [b"delay"]
    assert time.time() >= sent_s + 2
    broker.clock.set_ahead(0)
    assert [each.value() for each in consumed(broker, "back", 2)] == [b"delay", b"time"]


def test_each_comes_once_while_the_clock_is_set_to_and_fro_and_the_services_process_is_killed(
    broker: Broker,
) -> None:
    create(broker, "stepped", message_timestamp_after_max_ms=ANY_TIMESTAMP)
    load = Load(broker, "stepped")
    load.start()
    for hours in (2, -3, 0, 5, -1):
        time.sleep(0.6)
        broker.clock.set_ahead(hours * HOUR_S)
        if hours in {-3, 5}:
            broker.kill_role("services")
    time.sleep(0.6)
    load.end()
    check(broker, load, is_clock_kept=False)
