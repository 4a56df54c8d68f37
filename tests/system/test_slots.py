"""Three slots: each acknowledged record is there once, in order, on every replica, whoever is killed meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.broker import Appliance
from tests.system.acked_load import AckedLoad, bootstrap, create, leaders, settled

SLOTS = 3
PARTITIONS = 6
TOPIC = "followed"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path / "data", slots=SLOTS, settings={"replica.lag.time.max.ms": 3000})
    appliance.start()
    yield appliance
    appliance.stop()


def kill_slot(broker: Appliance, slot: int) -> None:
    """SIGKILL for a slot's worker and replica at once."""
    pids = [row.pid for row in broker.processes() if row.role in (f"ioproc {slot}.0", f"replica {slot}")]
    assert len(pids) == 2
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_clients_see_three_brokers_and_replicas_become_the_same(broker: Appliance) -> None:
    create(broker, TOPIC, PARTITIONS, replicas=3)
    found = AdminClient({"bootstrap.servers": bootstrap(broker)}).list_topics(timeout=10)
    assert {(each.id, each.port) for each in found.brokers.values()} == {
        (slot, broker.port + slot) for slot in range(SLOTS)
    }
    assert set(leaders(broker, TOPIC).values()) == set(range(SLOTS))
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(3000)
    assert not load.failed
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)


@pytest.mark.parametrize(
    "victim",
    [
        "ioproc 1.0",
        pytest.param("replica 1", marks=pytest.mark.slow),
        pytest.param("slot 1", marks=pytest.mark.slow),
        pytest.param("controller", marks=pytest.mark.slow),
    ],
)
def test_acked_records_survive_kills(broker: Appliance, victim: str) -> None:
    create(broker, TOPIC, PARTITIONS, replicas=3, min_insync_replicas="2")
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        for _ in range(3):
            load.until(500)
            if victim == "slot 1":
                kill_slot(broker, 1)
            else:
                broker.kill_role(victim)
            load.until(500)
    assert not load.failed
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)


@pytest.mark.slow
def test_replicas_are_the_same_after_a_stop_and_a_start(broker: Appliance) -> None:
    create(broker, TOPIC, PARTITIONS, replicas=3)
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(1000)
    broker.stop()
    broker.start()
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)
    with AckedLoad(broker, TOPIC, PARTITIONS) as more:
        more.until(500)
    assert not more.failed
    settled(broker, TOPIC, PARTITIONS)


def test_acked_records_survive_kill_of_everything(broker: Appliance) -> None:
    create(broker, TOPIC, PARTITIONS, replicas=3)
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(1000)
        broker.kill()
        broker.start()
        load.until(500, timeout_s=60)
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)
