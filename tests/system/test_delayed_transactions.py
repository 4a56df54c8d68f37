"""Delayed records in transactions: delivered once if committed, never if aborted, whatever dies."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException, Producer

from tests.support.broker import Appliance
from tests.system.delayed import PARTITIONS, PATIENCE_S, consumed, counter, create, started
from tests.system.raw import wait_until

TIMEOUT_MS: Final = 10_000
DELAY: Final[list[tuple[str, str | bytes | None]]] = [("delivery.delay", b"700")]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    made = started(tmp_path_factory.mktemp("delayed") / "data")
    yield made
    made.stop()


def transactional(broker: Appliance, name: str, *, timeout_ms: int = TIMEOUT_MS, **options: Any) -> Producer:
    client = Producer(
        {
            "bootstrap.servers": broker.address,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 5,
            **options,
        }
    )
    client.init_transactions(PATIENCE_S)
    return client


def test_committed_records_come_when_due_and_aborted_ones_never(broker: Appliance) -> None:
    create(broker, "outcomes")
    client = transactional(broker, "outcomes")
    for number in range(6):
        client.begin_transaction()
        for part in range(PARTITIONS):
            value = b"%d-%d" % (number, part)
            client.produce("outcomes", value + b" later", partition=part, headers=DELAY)
            client.produce("outcomes", value + b" now", partition=part)
        client.flush(PATIENCE_S)
        if number % 2:
            client.abort_transaction(PATIENCE_S)
        else:
            client.commit_transaction(PATIENCE_S)
    committed = [b"%d-%d" % (number, part) for number in (0, 2, 4) for part in range(PARTITIONS)]
    wanted = Counter(value + end for value in committed for end in (b" later", b" now"))
    found = consumed(broker, "outcomes", 2 * len(committed), more_s=1.5)
    assert Counter(each.value() for each in found) == wanted
    first = {each.value(): each.timestamp()[1] for each in found}
    for value in committed:
        assert first[value + b" later"] >= first[value + b" now"] + 700


def test_nothing_comes_before_the_commit_and_a_record_that_is_due_by_then_comes_at_once(
    broker: Appliance,
) -> None:
    create(broker, "long")
    client = transactional(broker, "long")
    client.begin_transaction()
    client.produce("long", b"x", partition=0, headers=[("delivery.delay", b"500")])
    client.flush(PATIENCE_S)
    time.sleep(1.5)
    committed_ms = time.time() * 1000
    client.commit_transaction(PATIENCE_S)
    (found,) = consumed(broker, "long", 1)
    assert found.timestamp()[1] >= int(committed_ms)
    assert found.timestamp()[1] < committed_ms + 900, "the services process was woken by the marker"


def test_a_transaction_that_nobody_ends_is_aborted_and_holds_up_others_no_longer(broker: Appliance) -> None:
    create(broker, "abandoned")
    create(broker, "behind")
    abandoned = transactional(broker, "abandoned", timeout_ms=1_500)
    abandoned.begin_transaction()
    behind = transactional(broker, "behind")
    behind.begin_transaction()
    for part in range(PARTITIONS):
        abandoned.produce("abandoned", b"never", partition=part, headers=DELAY)
        abandoned.flush(PATIENCE_S)
        behind.produce("behind", b"%d" % part, partition=part, headers=DELAY)
    behind.commit_transaction(PATIENCE_S)
    assert len(consumed(broker, "behind", PARTITIONS)) == PARTITIONS
    client = Producer({"bootstrap.servers": broker.address})
    client.produce("abandoned", b"plain", partition=0)
    client.flush(PATIENCE_S)
    assert [each.value() for each in consumed(broker, "abandoned", 1, more_s=1.0)] == [b"plain"]
    with pytest.raises(KafkaException):
        abandoned.commit_transaction(PATIENCE_S)


def test_a_fenced_producer_delivers_nothing(broker: Appliance) -> None:
    create(broker, "fenced")
    old = transactional(broker, "fenced")
    old.begin_transaction()
    old.produce("fenced", b"old", partition=0, headers=DELAY)
    old.flush(PATIENCE_S)
    new = transactional(broker, "fenced")
    old.produce("fenced", b"zombie", partition=0, headers=DELAY)
    with pytest.raises(KafkaException, match="fenced"):
        old.commit_transaction(PATIENCE_S)
    new.begin_transaction()
    new.produce("fenced", b"new", partition=0, headers=DELAY)
    new.commit_transaction(PATIENCE_S)
    assert [each.value() for each in consumed(broker, "fenced", 1, more_s=1.5)] == [b"new"]


class Transactions(threading.Thread):
    """A producer of transactions with delayed and plain records, every third of them aborted, until it is stopped.

    `committed` and `aborted` have the values whose outcome is known.
    """

    def __init__(self, broker: Appliance, topic: str) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.committed: set[bytes] = set()
        self.aborted: set[bytes] = set()
        self.failed: list[BaseException] = []
        self._broker = broker
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            client = transactional(self._broker, self.topic, timeout_ms=60_000)
            number = 0
            while not self._ended.is_set():
                self._one(client, number)
                number += 1
        except BaseException as fault:
            self.failed.append(fault)
            raise

    def _one(self, client: Producer, number: int) -> None:
        values = {b"%d-%d" % (number, each) for each in range(4)}
        client.begin_transaction()
        for at, value in enumerate(sorted(values)):
            delay = b"%d" % (0, 300, 900, 1900)[at]
            client.produce(
                self.topic, value, partition=number % PARTITIONS, headers=[("delivery.delay", delay)]
            )
        try:
            if number % 3 == 2:
                client.flush(PATIENCE_S)
                client.abort_transaction(PATIENCE_S)
                self.aborted |= values
            else:
                _until_done(lambda: client.commit_transaction(PATIENCE_S))
                self.committed |= values
        except KafkaException as failed:
            if not failed.args[0].txn_requires_abort():
                raise
            _until_done(lambda: client.abort_transaction(PATIENCE_S))
            self.aborted |= values

    def end(self) -> None:
        self._ended.set()
        self.join(PATIENCE_S * 2)
        assert not self.is_alive()
        assert not self.failed, self.failed


def _until_done(step: Any) -> None:
    """Repeat a step of a transaction while the client says that it may be repeated."""
    while True:
        try:
            step()
        except KafkaException as failed:
            if not failed.args[0].retriable():
                raise
        else:
            return


def check_outcomes(broker: Appliance, load: Transactions) -> None:
    """Each committed record is there once, and no aborted one."""
    found = consumed(broker, load.topic, len(load.committed), more_s=2.5)
    times = Counter(each.value() for each in found)
    assert {value for value, count in times.items() if count > 1} == set()
    assert times.keys() & load.aborted == set()
    assert times.keys() == load.committed
    assert load.aborted


@pytest.mark.parametrize(
    "roles",
    [
        ("services", "services", "services"),
        ("coordinator", "services", "coordinator"),
        pytest.param(("netproc", "ioproc", "netproc", "ioproc"), marks=pytest.mark.slow),
    ],
    ids=lambda roles: "-".join(sorted(set(roles))),
)
def test_each_outcome_holds_whatever_is_killed(broker: Appliance, roles: tuple[str, ...]) -> None:
    topic = "killed-" + "-".join(sorted(set(roles)))
    create(broker, topic)
    load = Transactions(broker, topic)
    load.start()
    for role in roles:
        time.sleep(0.8)
        broker.kill_role(role)
    time.sleep(0.5)
    load.end()
    check_outcomes(broker, load)
    wait_until(lambda: counter(broker, "waiting_deliveries") == 0, "no delivery is open")
