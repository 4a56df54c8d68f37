"""Kafka's own TransactionalMessageCopier: three instances of a group copy each record once, whatever is killed.

Each instance reads committed records as a member of the group, and commits its offsets in the transaction of the
copies. Some transactions abort at random. Instances that die and come back make the group rebalance. With
APPLIANCE_JUDGE=kafka the test runs on Apache Kafka.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from tests.clients.adapters.confluent import ConfluentClient
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import Appliance, Broker
from tests.support.java_program import JavaProgram
from tests.support.judge import ENDS_AT_ONCE, running_broker
from tests.system.committed_values import wait_for_values

PARTITIONS: Final = 3
INSTANCES: Final = 3
ROLES: Final = ("ioproc", "coordinator", "netproc", "controller")
SETTINGS: Final = {"group.initial.rebalance.delay.ms": 0, **ENDS_AT_ONCE}


def copier(address: str, directory: Path, number: int, transaction_size: int) -> JavaProgram:
    arguments = [
        *("--broker-list", address, "--input-topic", "in", "--output-topic", "out"),
        *("--input-partition", "-1", "--group-mode", "--use-group-metadata", "--consumer-group", "copiers"),
        *("--transactional-id", f"copier-{number}", "--transaction-timeout", "10000"),
        *("--transaction-size", str(transaction_size), "--enable-random-aborts"),
    ]
    name = "org.apache.kafka.tools.TransactionalMessageCopier"
    return JavaProgram([name, *arguments], directory / f"copier-{number}.log")


def fill(address: str, records: int) -> list[list[str]]:
    """Writes the input; what is in each partition."""
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    values: list[list[str]] = [[] for _ in range(PARTITIONS)]
    for number in range(records):
        values[number % PARTITIONS].append(str(number))
        producer.produce("in", str(number), key=str(number), partition=number % PARTITIONS)
        if number % 10_000 == 0:
            assert producer.flush(120) == 0  # librdkafka keeps 100,000 records at most
    assert producer.flush(120) == 0
    return values


def copy_all(
    broker: Broker, directory: Path, *, records: int, transaction_size: int, kills: int, pause_s: float
) -> None:
    chance = random.Random(29)
    admin = ConfluentClient(broker.address)
    for topic in ("in", "out"):
        admin.create_topic(topic, PARTITIONS)
    values = fill(broker.address, records)
    copiers = [copier(broker.address, directory, number, transaction_size) for number in range(INSTANCES)]
    for each in copiers:
        each.start()
    try:
        started = wait_for_values(broker.address, "out", PARTITIONS, 1, timeout_s=120)
        assert any(started), copiers[0].told()
        assert sum(map(len, started)) < records, "the kills come while they copy"
        for _ in range(kills):
            time.sleep(chance.uniform(0.5, 1.5) * pause_s)
            victim = chance.choice(copiers)
            victim.kill()
            if isinstance(broker, Appliance):
                broker.kill_role(chance.choice(ROLES))
            else:
                assert isinstance(broker, ApacheKafka)
                broker.kill()
                broker.start()
            victim.start()

        def start_who_is_needed() -> None:
            """One ends with 0 when its partitions are copied, and with 1 at an error it may not go on from."""
            nobody = not any(each.lives() for each in copiers)
            for each in copiers:
                if not each.lives() and (nobody or each.exit_code() != 0):
                    each.start()

        copied = wait_for_values(
            broker.address, "out", PARTITIONS, records, timeout_s=240, meanwhile=start_who_is_needed
        )
        told = "\n".join(each.told() for each in copiers)
        # Who takes a partition over begins at the offsets that were committed with the copies: order is kept, too.
        assert [list(map(int, each)) for each in copied] == [list(map(int, each)) for each in values], told
    finally:
        for each in copiers:
            each.kill()


@pytest.mark.timeout(600)
def test_three_copiers_copy_each_record_once_when_one_and_the_broker_are_killed(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", SETTINGS) as broker:
        copy_all(broker, tmp_path, records=6_000, transaction_size=50, kills=1, pause_s=0.5)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_three_copiers_copy_each_record_once_through_twelve_kills(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", SETTINGS) as broker:
        copy_all(broker, tmp_path, records=150_000, transaction_size=100, kills=12, pause_s=5)
