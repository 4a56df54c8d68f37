"""Every process is restarted in turn under the transactions of three producers: readers see all of them, and only them.

Apache Kafka's TransactionsBounceTest: every third transaction is aborted.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.checker.raw_transactions import InDoubt, ProducerFailed, RawProducer
from tests.checker.transaction_history import Place
from tests.checker.transaction_readers import undecided, values_in
from tests.support.broker import Appliance
from tests.system.acked_load import bootstrap, create
from tests.system.raw import wait_until

TOPIC: Final = "bounced"
PARTITIONS, SLOTS = 4, 3
PLACES: Final = tuple(Place(TOPIC, number) for number in range(PARTITIONS))
VERSIONS: Final = (1, 2, 2)
COMMITS_BETWEEN: Final = 2
"""Of each producer, between two restarts."""


class Producing(threading.Thread):
    """Transactions over all partitions, one after the other; `told` has the values of each, and what became of it."""

    def __init__(self, broker: Appliance, number: int) -> None:
        super().__init__(name=f"producer-{number}", daemon=True)
        self.told: list[tuple[list[bytes], bool | None]] = []
        self.committed = 0
        self.failure: BaseException | None = None
        self._ports = range(broker.port, broker.port + SLOTS)
        self._version = VERSIONS[number]
        self._stop_asked = threading.Event()

    def run(self) -> None:
        try:
            producer = self._successor()
            while not self._stop_asked.is_set():
                if not self._transaction(producer):
                    producer.close()
                    producer = self._successor()
            producer.close()
        except BaseException as failure:
            self.failure = failure

    def end(self) -> None:
        self._stop_asked.set()
        self.join(120)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure

    def _successor(self) -> RawProducer:
        producer = RawProducer(self._ports, self.name, protocol=self._version)
        producer.start()
        return producer

    def _transaction(self, producer: RawProducer) -> bool:
        """Whether the producer may go on."""
        number = len(self.told)
        values = [f"{self.name} {number} {place}".encode() for place in PLACES]
        commits = number % 3 != 2
        outcome: bool | None = False
        try:
            producer.begin()
            for place, value in zip(PLACES, values, strict=True):
                producer.write(place, [value])
            producer.end(commit=commits)
            outcome = commits
            self.committed += commits
        except InDoubt:
            outcome = None if commits else False
        except ProducerFailed:
            pass
        else:
            self.told.append((values, outcome))
            return True
        self.told.append((values, outcome))
        return False


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    settings = {"transaction.state.log.num.partitions": 6, "process.restart.backoff.max.ms": 100}
    appliance = Appliance(tmp_path / "data", slots=SLOTS, settings=settings)
    appliance.start()
    try:
        create(appliance, TOPIC, PARTITIONS, replicas=SLOTS)
        yield appliance
        assert "Traceback" not in appliance.output()
    finally:
        appliance.stop()


def test_reader_is_complete_after_every_process_was_restarted_in_turn(broker: Appliance) -> None:
    producers = [Producing(broker, number) for number in range(len(VERSIONS))]
    for producer in producers:
        producer.start()

    def all_commit(what: str) -> None:
        wanted = [producer.committed + COMMITS_BETWEEN for producer in producers]
        wait_until(
            lambda: (
                any(producer.failure for producer in producers)
                or all(producer.committed >= count for producer, count in zip(producers, wanted, strict=True))
            ),
            f"all producers commit after {what}",
            timeout_s=60,
        )

    all_commit("the start")
    roles = [row.role for row in broker.processes() if row.role != "supervisor"]
    assert {"controller", "coordinator", "acceptor"} <= set(roles)
    for role in roles:
        wait_until(broker.is_whole, "all processes live")
        (pid,) = (row.pid for row in broker.processes() if row.role == role)
        os.kill(pid, signal.SIGKILL)
        all_commit(f"the restart of {role}")
    wait_until(broker.is_whole, "all processes live")
    for producer in producers:
        producer.end()

    assert undecided(bootstrap(broker), PLACES, within_s=60) == {}
    found = values_in(bootstrap(broker), PLACES)
    for producer in producers:
        expected: list[list[bytes]] = [[] for _ in PLACES]
        for values, is_committed in producer.told:
            counts = [found[place].count(value) for place, value in zip(PLACES, values, strict=True)]
            allowed = {None: (0, 1), True: (1,), False: (0,)}[is_committed]
            assert counts in [[each] * PARTITIONS for each in allowed], (values, is_committed)
            for of_place, value in zip(expected, values, strict=True):
                of_place.extend([value] * counts[0])
        own = f"{producer.name} ".encode()
        for place, values in zip(PLACES, expected, strict=True):
            assert [value for value in found[place] if value.startswith(own)] == values, "in their order"
    assert sum(len(values) for values in found.values()) >= PARTITIONS * COMMITS_BETWEEN * len(roles)
