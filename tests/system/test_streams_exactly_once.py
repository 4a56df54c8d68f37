"""A Kafka Streams application with exactly_once_v2 goes wrong in no record, whatever is killed while it works.

It copies, and it counts by a state store behind a repartition topic (java/CountByUser.java). Its output, as a reader of
committed records sees it, is compared with what was put in: each record copied once and in order, each user's counts
without a gap and without a repetition. With APPLIANCE_JUDGE=kafka it runs on Apache Kafka.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.clients.adapters.confluent import ConfluentClient
from tests.support import kafka_streams
from tests.support.apache_kafka import ApacheKafka, compiled, java
from tests.support.broker import Appliance, Broker, end_with_the_test_runner
from tests.support.judge import ENDS_AT_ONCE, running_broker

SOURCE: Final = Path(__file__).with_name("java") / "CountByUser.java"
PARTITIONS: Final = 3
USERS: Final = 20
SESSION_MS: Final = 6_000
SETTINGS: Final = {"group.initial.rebalance.delay.ms": 0, **ENDS_AT_ONCE}
ROLES: Final = ("ioproc", "coordinator", "netproc", "controller")


class Application:
    """One instance of the application, killed and started again on its state directory."""

    def __init__(self, address: str, directory: Path, name: str) -> None:
        libs = kafka_streams.install()
        classes = compiled(SOURCE, libs)
        options = ("-Xmx192m", "-XX:TieredStopAtLevel=1")
        state = str(directory / name)
        self._command = [
            *java(*options, classes=classes, more=libs),
            "CountByUser",
            address,
            state,
            str(SESSION_MS),
        ]
        self.output = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
            )

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)

    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None


@dataclass(slots=True)
class Events:
    """What is put in, by partition: a thread sends it, acknowledged and once, until it is told to end."""

    address: str
    sent: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    _over: threading.Event = field(default_factory=threading.Event)

    def send(self, pace: float) -> None:
        chance = random.Random(1)
        producer = Producer(
            {"bootstrap.servers": self.address, "enable.idempotence": True, "message.timeout.ms": 300_000}
        )
        number = 0
        while not self._over.is_set():
            partition = number % PARTITIONS
            value = f"user-{chance.randrange(USERS)} {number}"
            producer.produce("events", value, key=f"p{partition}", partition=partition)
            self.sent[partition].append(value)
            producer.poll(0)
            number += 1
            time.sleep(pace)
        assert producer.flush(120) == 0

    @contextmanager
    def flowing(self, pace: float) -> Iterator[None]:
        """Records are sent while the block runs."""
        thread = threading.Thread(target=self.send, args=(pace,))
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(150)
        assert not thread.is_alive(), "records could not be sent"

    def count(self) -> int:
        return sum(map(len, self.sent.values()))


class Reader:
    """A reader of the committed records of a topic, from its start."""

    def __init__(self, address: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "not-used",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._consumer.assign(
            [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
        )
        self.values: dict[str, list[str]] = defaultdict(list)

    def read(self, count: int, timeout_s: float) -> int:
        """Reads until there are `count` records or the time is over; how many there are."""
        deadline = time.monotonic() + timeout_s
        while self.count() < count and time.monotonic() < deadline:
            self._take(0.2)
        return self.count()

    def read_all(self, count: int, timeout_s: float) -> int:
        """Reads `count` records and what comes in a moment after them; how many there are."""
        self.read(count, timeout_s)
        while self._take(2.0):
            pass
        self._consumer.close()
        return self.count()

    def count(self) -> int:
        return sum(map(len, self.values.values()))

    def _take(self, timeout_s: float) -> bool:
        message = self._consumer.poll(timeout_s)
        if message is None or message.error() is not None:
            return False
        key, value = message.key(), message.value()
        assert key is not None
        assert value is not None
        self.values[key.decode()].append(value.decode())
        return True


def assert_exactly_once(events: Events, address: str, timeout_s: float) -> None:
    expected: dict[str, list[int]] = defaultdict(list)
    for values in events.sent.values():
        for value in values:
            user, number = value.split()
            expected[user].append(int(number))
    copies, totals = Reader(address, "copies"), Reader(address, "totals")
    assert copies.read_all(events.count(), timeout_s) == events.count()
    assert copies.values == {f"p{partition}": values for partition, values in events.sent.items()}
    assert totals.read_all(events.count(), timeout_s) == events.count()
    assert totals.values.keys() == expected.keys()
    for user, numbers in expected.items():
        updates = [tuple(map(int, value.split())) for value in totals.values[user]]
        assert [count for count, _ in updates] == list(range(1, len(numbers) + 1)), user
        sums = [total for _, total in updates]
        assert sorted(after - before for before, after in pairwise([0, *sums])) == sorted(numbers)


def kill_one_of(broker: Broker, chance: random.Random) -> str:
    """Kills a process of the broker, which comes back by itself, or the judge, which is started again."""
    if isinstance(broker, Appliance):
        role = chance.choice(ROLES)
        broker.kill_role(role)
        return role
    assert isinstance(broker, ApacheKafka)
    broker.kill()
    broker.start()
    return "kafka"


@contextmanager
def stage(tmp_path: Path) -> Iterator[Broker]:
    with running_broker(tmp_path / "data", SETTINGS) as broker:
        admin = ConfluentClient(broker.address)
        for topic in ("events", "copies", "totals"):
            admin.create_topic(topic, PARTITIONS)
        yield broker


def test_streams_counts_each_record_once_when_it_and_the_broker_are_killed(tmp_path: Path) -> None:
    with stage(tmp_path) as broker:
        application = Application(broker.address, tmp_path, "state")
        events = Events(broker.address)
        application.start()
        copies = Reader(broker.address, "copies")
        try:
            with events.flowing(0.005):
                assert copies.read(100, 90) >= 100, application.output.read_text()[-3000:]
                if isinstance(broker, Appliance):
                    for role in ROLES:
                        broker.kill_role(role)
                        time.sleep(0.7)
                application.kill()
                application.start()
                time.sleep(3)
            assert_exactly_once(events, broker.address, 90)
            assert application.lives(), application.output.read_text()[-3000:]
        finally:
            application.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_streams_counts_each_record_once_in_five_minutes_of_kills(tmp_path: Path) -> None:
    chance = random.Random(29)
    with stage(tmp_path) as broker:
        applications = [Application(broker.address, tmp_path, f"state-{number}") for number in range(2)]
        events = Events(broker.address)
        for application in applications:
            application.start()
        killed: dict[str, int] = defaultdict(int)
        try:
            with events.flowing(0.004):
                deadline = time.monotonic() + 300
                while time.monotonic() < deadline:
                    time.sleep(chance.uniform(3, 12))
                    if chance.random() < 0.4:
                        application = chance.choice(applications)
                        application.kill()
                        application.start()
                        killed["application"] += 1
                    else:
                        killed[kill_one_of(broker, chance)] += 1
            print(f"{events.count()} records, killed: {dict(killed)}")
            assert_exactly_once(events, broker.address, 240)
            assert sum(killed.values()) > 20
        finally:
            for application in applications:
                application.kill()
