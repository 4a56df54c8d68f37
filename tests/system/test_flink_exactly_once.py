"""A Flink job with DeliveryGuarantee.EXACTLY_ONCE writes each record once, whatever is killed while it works.

The job copies a topic (java/CopyByFlink.java). It flushes its transactions at a checkpoint and commits them after it.
A job that starts from a checkpoint commits what the checkpoint names, by producer id and epoch and without
InitProducerId. It aborts what the checkpoint does not name. The output, as a reader of committed records sees it, is
compared with the input, record for record and in order. With APPLIANCE_JUDGE=kafka the job runs on Apache Kafka.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from tests.clients.adapters.confluent import ConfluentClient
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import Appliance, Broker
from tests.support.flink import FlinkJob
from tests.support.judge import running_broker
from tests.system.committed_values import committed_values, count, wait_for_values

SOURCE: Final = Path(__file__).with_name("java") / "CopyByFlink.java"
PARTITIONS: Final = 4
ROLES: Final = ("ioproc", "coordinator", "netproc", "controller")


class Events:
    """What is put in: `partition number`, and `partition number fail` where the job shall fail."""

    def __init__(self, address: str) -> None:
        self.sent: list[list[str]] = [[] for _ in range(PARTITIONS)]
        self.fail = threading.Event()
        self._over = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": address, "enable.idempotence": True, "message.timeout.ms": 300_000}
        )

    def _send(self) -> None:
        number = 0
        while not self._over.is_set():
            partition = number % PARTITIONS
            value = f"{partition} {number}"
            if self.fail.is_set():
                self.fail.clear()
                value += " fail"
            self._producer.produce("events", value, partition=partition)
            self.sent[partition].append(value)
            self._producer.poll(0)
            number += 1
            time.sleep(0.01)
        assert self._producer.flush(120) == 0

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Records are sent while the block runs."""
        thread = threading.Thread(target=self._send)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(150)
        assert not thread.is_alive(), "records could not be sent"


class Stage:
    """A broker with the topics, the events, and a job."""

    def __init__(self, broker: Broker, directory: Path, naming: str) -> None:
        self.broker = broker
        self.events = Events(broker.address)
        self.job = FlinkJob(SOURCE, broker.address, directory, naming)

    def copied(self, more: int, timeout_s: float = 240) -> None:
        """Waits until the job has committed some more."""
        wanted = count(committed_values(self.broker.address, "copies", PARTITIONS)) + more
        values = wait_for_values(
            self.broker.address,
            "copies",
            PARTITIONS,
            wanted,
            timeout_s=timeout_s,
            meanwhile=self._check_the_job,
        )
        assert count(values) >= wanted, self.job.told()

    def _check_the_job(self) -> None:
        assert self.job.lives(), self.job.told()

    def check(self, timeout_s: float = 240) -> None:
        """Each event was copied once, in order; a second look finds no more than the first."""
        expected = [["copy of " + value for value in values] for values in self.events.sent]
        wait_for_values(self.broker.address, "copies", PARTITIONS, count(expected), timeout_s=timeout_s)
        time.sleep(1)
        assert committed_values(self.broker.address, "copies", PARTITIONS) == expected, self.job.told()


@contextmanager
def stage(tmp_path: Path, naming: str) -> Iterator[Stage]:
    with running_broker(tmp_path / "data") as broker:
        admin = ConfluentClient(broker.address)
        for topic in ("events", "copies"):
            admin.create_topic(topic, PARTITIONS)
        made = Stage(broker, tmp_path, naming)
        try:
            yield made
        finally:
            made.job.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("naming", ["INCREMENTING", "POOLING"])
def test_a_cancelled_job_that_starts_from_its_checkpoint_has_copied_each_record_once(
    naming: str, tmp_path: Path
) -> None:
    with stage(tmp_path, naming) as at:
        at.job.start()
        with at.events.flowing():
            at.copied(100)
            at.events.fail.set()
            at.copied(100)
            at.job.cancel()
            assert at.job.checkpoint() is not None
            at.job.start()
            at.copied(100)
        at.check()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("naming", ["INCREMENTING", "POOLING"])
def test_a_job_that_is_killed_with_its_broker_s_processes_copies_each_record_once(
    naming: str, tmp_path: Path
) -> None:
    chance = random.Random(29)
    with stage(tmp_path, naming) as at:
        at.job.start()
        with at.events.flowing():
            at.copied(100)
            for turn in range(12):
                if turn % 2:
                    at.job.kill()
                    at.job.start()
                else:
                    _kill_one_of(at.broker, chance)
                at.copied(50)
                time.sleep(chance.uniform(0, 1))
        at.check()


def _kill_one_of(broker: Broker, chance: random.Random) -> None:
    """Kills a process of the broker, which comes back by itself, or the judge, which is started again."""
    if isinstance(broker, Appliance):
        broker.kill_role(chance.choice(ROLES))
    else:
        assert isinstance(broker, ApacheKafka)
        broker.kill()
        broker.start()
