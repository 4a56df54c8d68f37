"""MirrorMaker 2 with exactly-once support copies each committed record once, whatever is killed, and no aborted one.

It is Kafka 4.3's own (`connect-mirror-maker.sh`), in its dedicated mode, from one appliance to another. Transactions
write the source topic, and a third of them abort. With APPLIANCE_JUDGE=kafka both brokers are Apache Kafka, and only
MirrorMaker is killed.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaException, Producer

from tests.cli.command import appliance
from tests.clients.adapters.confluent import ConfluentClient
from tests.support import kafka_streams
from tests.support.broker import Appliance, Broker
from tests.support.java_program import JavaProgram
from tests.support.judge import running_broker
from tests.support.wire import free_ports
from tests.system.committed_values import committed_values, count, wait_for_values

PARTITIONS: Final = 3
SOURCE_TOPIC: Final = "payments"
TARGET_TOPIC: Final = "a.payments"
ROLES: Final = ("ioproc", "coordinator", "netproc", "controller")
SETTINGS: Final = {"group.initial.rebalance.delay.ms": 0}


class MirrorMaker(JavaProgram):
    """From the cluster `a` to the cluster `b`, in one process."""

    def __init__(self, source: Broker, target: Broker, directory: Path) -> None:
        settings = {
            "clusters": "a, b",
            "a.bootstrap.servers": source.address,
            "b.bootstrap.servers": target.address,
            "a->b.enabled": "true",
            "a->b.topics": SOURCE_TOPIC,
            "b->a.enabled": "false",
            "b.exactly.once.source.support": "enabled",
            "a.consumer.isolation.level": "read_committed",
            "dedicated.mode.enable.internal.rest": "true",
            "listeners": f"http://127.0.0.1:{free_ports()}",
            "tasks.max": 2,
            "sync.topic.acls.enabled": "false",
            "emit.heartbeats.enabled": "false",
            "emit.checkpoints.enabled": "false",
            **{
                f"{name}.replication.factor": 1
                for name in (
                    *("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic"),
                    *("offset.storage", "status.storage", "config.storage"),
                )
            },
            "replication.factor": 1,
            # The worker belongs to the target. One that was killed is missed after six seconds.
            "plugin.discovery": "service_load",  # looks into no class file: seconds of each start
            "b.plugin.discovery": "service_load",
            "b.session.timeout.ms": 6_000,
            "b.heartbeat.interval.ms": 1_500,
            "b.scheduled.rebalance.max.delay.ms": 0,
        }
        properties = directory / "mirror-maker.properties"
        properties.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
        super().__init__(
            ["org.apache.kafka.connect.mirror.MirrorMaker", str(properties)],
            directory / "mirror-maker.log",
            more=kafka_streams.install(),
        )


@dataclass(slots=True)
class Payments:
    """Transactions over all partitions, one after the other: every third one aborts."""

    address: str
    committed: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    aborted: int = 0
    _number: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def write(self, producer: Producer, records: int = 12) -> None:
        self._number += 1
        producer.begin_transaction()
        sent: dict[int, list[str]] = defaultdict(list)
        fate = "aborted" if self._number % 3 == 0 else "committed"
        for number in range(records):
            value = f"{fate} {self._number} {number}"
            producer.produce(SOURCE_TOPIC, value, partition=number % PARTITIONS)
            sent[number % PARTITIONS].append(value)
        if fate == "aborted":
            assert producer.flush(60) == 0  # an abort would purge what was not sent
            _retried(producer.abort_transaction)
            self.aborted += records
            return
        try:
            _retried(producer.commit_transaction)
        except KafkaException as exception:
            if not exception.args[0].txn_requires_abort():
                raise
            _retried(producer.abort_transaction)
            self.aborted += records
            return
        for partition, values in sent.items():
            self.committed[partition] += values

    def producer(self) -> Producer:
        producer = Producer(
            {"bootstrap.servers": self.address, "transactional.id": "payments", "log_level": 0}
        )
        producer.init_transactions(60)
        return producer

    @contextmanager
    def flowing(self, producer: Producer, pace_s: float) -> Iterator[None]:
        """Transactions are written while the block runs."""

        failed: list[BaseException] = []

        def write() -> None:
            try:
                while not self._over.wait(pace_s):
                    self.write(producer)
            except BaseException as exception:
                failed.append(exception)
                raise

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(240)
        assert not thread.is_alive(), "a transaction could not be ended"
        assert failed == []

    def count(self) -> int:
        return sum(map(len, self.committed.values()))

    def values(self) -> list[list[str]]:
        return [self.committed[partition] for partition in range(PARTITIONS)]


def _retried(commit: Callable[[float], object]) -> None:
    """What librdkafka says may be tried again is tried again, as its documentation asks for."""
    deadline = time.monotonic() + 120
    while True:
        try:
            commit(60)
            return
        except KafkaException as exception:
            if not exception.args[0].retriable() or time.monotonic() > deadline:
                raise


def kill_a_process_of(broker: Broker, role: str) -> None:
    """Of the appliance, which starts it again.

    Apache Kafka is left alone: 4.3.1, killed between a decision and its markers, wrote CompleteCommit after its start
    and no marker. The transaction stayed open, and MirrorMaker waited for its end for ever.
    """
    if isinstance(broker, Appliance):
        broker.kill_role(role)


def transactional_ids(broker: Broker) -> set[str]:
    listed = appliance("transactions", "list", "--json", "-b", broker.address).succeeded()
    return {each["transactional_id"] for each in json.loads(listed.output)}


@contextmanager
def two_brokers(tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    with (
        running_broker(tmp_path / "source", SETTINGS) as source,
        running_broker(tmp_path / "target", SETTINGS) as target,
    ):
        ConfluentClient(source.address).create_topic(SOURCE_TOPIC, PARTITIONS)
        # Of the same number of partitions, before the mirror: its own creation needs a look at the source first.
        ConfluentClient(target.address).create_topic(TARGET_TOPIC, PARTITIONS)
        yield source, target


@pytest.mark.slow
def test_mirror_maker_copies_each_committed_record_once_when_it_and_the_brokers_are_killed(
    tmp_path: Path,
) -> None:
    with two_brokers(tmp_path) as (source, target):
        mirror = MirrorMaker(source, target, tmp_path)
        mirror.start()
        payments = Payments(source.address)
        producer = payments.producer()
        try:
            with payments.flowing(producer, 0.1):
                first = wait_for_values(target.address, TARGET_TOPIC, PARTITIONS, 100, timeout_s=90)
                assert count(first) >= 100, mirror.told()
                for broker in (target, source):
                    for role in ("ioproc", "coordinator"):
                        kill_a_process_of(broker, role)
                mirror.kill()
                mirror.start()
            assert payments.aborted > 0
            values = wait_for_values(
                target.address, TARGET_TOPIC, PARTITIONS, payments.count(), timeout_s=120
            )
            assert values == payments.values(), mirror.told()
            assert any("MirrorSourceConnector" in name for name in transactional_ids(target))
            assert committed_values(source.address, SOURCE_TOPIC, PARTITIONS) == payments.values()
        finally:
            mirror.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mirror_maker_copies_each_committed_record_once_in_minutes_of_kills(tmp_path: Path) -> None:
    chance = random.Random(29)
    with two_brokers(tmp_path) as (source, target):
        mirror = MirrorMaker(source, target, tmp_path)
        mirror.start()
        payments = Payments(source.address)
        producer = payments.producer()
        killed: dict[str, int] = defaultdict(int)
        try:
            with payments.flowing(producer, 0.05):
                deadline = time.monotonic() + 150
                while time.monotonic() < deadline:
                    time.sleep(chance.uniform(2, 10))
                    if chance.random() < 0.3 or not mirror.lives():
                        mirror.kill()
                        mirror.start()
                        killed["mirror"] += 1
                    else:
                        role = chance.choice(ROLES)
                        kill_a_process_of(chance.choice((source, target)), role)
                        killed[role] += 1
            # A task that met an error it may not go on from waits for an operator, who starts the mirror again.
            mirror.kill()
            mirror.start()
            values = wait_for_values(
                target.address, TARGET_TOPIC, PARTITIONS, payments.count(), timeout_s=240
            )
            print(f"{payments.count()} records, {payments.aborted} aborted; killed: {dict(killed)}")
            assert values == payments.values(), mirror.told()
            assert sum(killed.values()) > 10
            assert killed["mirror"] > 0
        finally:
            mirror.kill()
