"""Kafka Connect with exactly-once support for sources: each line of a file is one record, whatever is killed.

The worker runs in distributed mode. The connector of files is Kafka's own, and is asked whether it supports exactly
once (`exactly.once.support=required`). With APPLIANCE_JUDGE=kafka the test runs on Apache Kafka.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.clients.adapters.confluent import ConfluentClient
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import Appliance, Broker
from tests.support.judge import running_broker
from tests.support.kafka_connect import ConnectWorker
from tests.system.committed_values import committed_values, wait_for_values

CONNECTOR: Final = "lines"
TOPIC: Final = "lines"
ROLES: Final = ("ioproc", "coordinator", "netproc", "controller")
SETTINGS: Final = {"group.initial.rebalance.delay.ms": 0}


@dataclass(slots=True)
class Lines:
    """A file that grows, line by line, while the block of `growing` runs."""

    path: Path
    written: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.path.touch()

    def write(self, number: int) -> None:
        with self.path.open("a") as file:
            for _ in range(number):
                line = f"line {len(self.written)}"
                file.write(line + "\n")
                self.written.append(line)

    @contextmanager
    def growing(self, pace_s: float) -> Iterator[None]:
        def grow() -> None:
            while not self._over.wait(pace_s):
                self.write(5)

        thread = threading.Thread(target=grow)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def connector(self) -> dict[str, object]:
        return {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "file": self.path,
            "topic": TOPIC,
            "batch.size": 20,
            "tasks.max": 1,
            "exactly.once.support": "required",
            "transaction.boundary": "poll",
        }


@contextmanager
def broker_with_topic(tmp_path: Path) -> Iterator[Broker]:
    with running_broker(tmp_path / "data", SETTINGS) as broker:
        ConfluentClient(broker.address).create_topic(TOPIC, 1)
        yield broker


def kill_a_process_of(broker: Broker, role: str) -> None:
    """One process of the appliance, which comes back by itself, or the judge, which is started again."""
    if isinstance(broker, Appliance):
        broker.kill_role(role)
        return
    assert isinstance(broker, ApacheKafka)
    broker.kill()
    broker.start()


def arrived(broker: Broker, lines: Lines, worker: ConnectWorker, timeout_s: float) -> list[str]:
    """The committed records, when all lines written so far are among them. A failed task is restarted meanwhile.

    The file grows by a line at each look: after a full batch, the connector keeps the rest of what it has read until
    the file has more.
    """
    wanted = len(lines.written)

    def meanwhile() -> None:
        worker.restart_what_failed(CONNECTOR)
        lines.write(1)

    (values,) = wait_for_values(broker.address, TOPIC, 1, wanted, timeout_s=timeout_s, meanwhile=meanwhile)
    assert len(values) >= wanted, worker.told()
    return values


@pytest.mark.slow
def test_a_connect_source_writes_each_line_once_when_its_worker_and_the_broker_are_killed(
    tmp_path: Path,
) -> None:
    with broker_with_topic(tmp_path) as broker:
        lines = Lines(tmp_path / "lines.txt")
        worker = ConnectWorker(broker.address, tmp_path, "worker")
        worker.start()
        try:
            lines.write(100)
            worker.configure(CONNECTOR, lines.connector())
            arrived(broker, lines, worker, 90)
            with lines.growing(0.02):
                for role in ROLES:
                    kill_a_process_of(broker, role)
                    time.sleep(0.3)
                worker.kill()  # within a transaction, more often than not
                worker.start()
            values = arrived(broker, lines, worker, 120)
            assert values == lines.written[: len(values)], worker.told()
        finally:
            worker.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_connect_source_writes_each_line_once_in_minutes_of_kills_and_zombies(tmp_path: Path) -> None:
    chance = random.Random(29)
    with broker_with_topic(tmp_path) as broker:
        lines = Lines(tmp_path / "lines.txt")
        workers = [ConnectWorker(broker.address, tmp_path, f"worker-{number}") for number in range(2)]
        for worker in workers:
            worker.start()
        done = {"worker killed": 0, "worker paused": 0, "process killed": 0}
        try:
            workers[0].configure(CONNECTOR, lines.connector())
            with lines.growing(0.02):
                deadline = time.monotonic() + 150
                while time.monotonic() < deadline:
                    time.sleep(chance.uniform(2, 8))
                    worker = chance.choice(workers)
                    what = chance.choice(list(done))
                    done[what] += 1
                    if what == "worker killed":
                        worker.kill()
                        worker.start()
                    elif what == "worker paused":
                        worker.pause()
                        time.sleep(9)  # the other one has its task by now, and its transactional id
                        worker.go_on()
                    else:
                        kill_a_process_of(broker, chance.choice(ROLES))
                    for each in workers:
                        each.restart_what_failed(CONNECTOR)
            values = arrived(broker, lines, workers[0], 240)
            print(f"{len(values)} lines; {done}; restarts {[each.restarts for each in workers]}")
            assert values == lines.written[: len(values)], workers[0].told()
            assert min(done.values()) > 0
            time.sleep(2)  # a zombie would write now
            (values,) = committed_values(broker.address, TOPIC, 1)
            assert values == lines.written[: len(values)], workers[0].told()
        finally:
            for worker in workers:
                worker.go_on()
                worker.kill()
