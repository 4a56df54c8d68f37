"""Each process of the real appliance is killed in turn; it serves again and says so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.broker import Appliance
from tests.support.pace import Pace

ROLES = (
    "acceptor",
    "netproc 0",
    "netproc 1",
    "coordinator",
    "cleaner",
    "ioproc 0.0",
    "purgatory",
    "controller",
)
BACK_WITHIN_S = 2.0
TOPIC = "kept"


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    data_dir: Path = tmp_path_factory.mktemp("supervised") / "data"
    broker = Appliance(data_dir)
    broker.start()
    yield broker
    broker.stop()


def produce(appliance: Appliance, value: str) -> float:
    """Seconds until one record of a new client is acknowledged."""
    failed: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failed.append(str(error))

    producer = Producer(
        {"bootstrap.servers": appliance.address, "linger.ms": 0, "acks": "all", "reconnect.backoff.ms": 20}
    )
    began = time.monotonic()
    producer.produce(TOPIC, value=value, on_delivery=delivered)
    left = producer.flush(30)
    assert left == 0, "not acknowledged"
    assert not failed, failed
    return time.monotonic() - began


def consume(appliance: Appliance, count: int) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": appliance.address, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    values: list[str] = []
    deadline = time.monotonic() + 30
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            value = message.value()
            assert value is not None
            values.append(value.decode())
    consumer.close()
    return values


def wait_generation(appliance: Appliance, role: str, generation: int) -> None:
    """Until that life of the role is told: who takes no part in a produce may be back after it."""
    deadline = time.monotonic() + 30
    while True:
        told = [row.generation for row in appliance.processes() if row.role == role]
        if told == [generation]:
            return
        assert not told or told[0] < generation
        assert time.monotonic() < deadline, told


def test_every_process_comes_back_as_next_generation_with_every_acknowledged_record(
    appliance: Appliance,
) -> None:
    produce(appliance, "before")
    for role in ROLES:
        generation = next(row.generation for row in appliance.processes() if row.role == role)
        pace = Pace()
        appliance.kill_role(role)
        pace.check(produce(appliance, role), within_s=BACK_WITHIN_S)
        wait_generation(appliance, role, generation + 1)
    assert consume(appliance, len(ROLES) + 1) == ["before", *ROLES]
