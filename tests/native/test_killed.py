"""Processes of the appliance die while native clients write and read, on each transport: each record arrives once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from appliance_client import Consumer, Producer, TopicPartition
from appliance_client.errors import AbortableError, ClientError
from tests.native.transports import TRANSPORTS
from tests.support.broker import Appliance
from tests.support.judge import JUDGE
from tests.support.wire import free_ports

ROLES: Final = ("netproc", "ioproc", "coordinator", "acceptor")
PATIENCE_S: Final = 90.0
PARTITIONS: Final = 2


class Killed:
    """An appliance on all transports, whose processes are killed one after the other."""

    def __init__(self, home: Path) -> None:
        ipc, tcp = f"ipc://{home}/z", f"tcp://127.0.0.1:{free_ports(3)}"
        self.broker = Appliance(
            home / "data",
            settings={
                "listeners.zeromq": [ipc, tcp],
                "zeromq.tcp.insecure": True,
                "shared.memory.lanes.max": 100,
                "num.partitions": PARTITIONS,
            },
        )
        self.broker.start(180)
        self.places = {"tcp": self.broker.address, "zmq+ipc": f"zmq+{ipc}", "zmq+tcp": f"zmq+{tcp}"}
        self.places["shm"] = f"shm://{self.broker.data_dir}"

    def kill_each(self, done: threading.Event) -> None:
        """One process of each role, with time between them."""
        try:
            for role in ROLES:
                time.sleep(0.7)
                self.broker.kill_role(role)
            time.sleep(0.7)
        finally:
            done.set()


def read_all(address: str, topic: str, count: int) -> list[bytes]:
    values: list[bytes] = []
    until = time.monotonic() + PATIENCE_S
    with Consumer(bootstrap_servers=address, isolation_level="read_committed") as consumer:
        places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(places)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(places)
        while time.monotonic() < until:
            for found in consumer.poll(200).values():
                values += [each.value for each in found]
            if len(values) >= count and all(consumer.position(place) >= ends[place] for place in places):
                break
    return values


if JUDGE != "kafka":

    @pytest.fixture(scope="module")
    def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
        made = Killed(tmp_path_factory.mktemp("k"))
        try:
            yield made
        finally:
            made.broker.stop()

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("transport", TRANSPORTS)
    def test_every_record_of_an_idempotent_producer_is_there_once(killed: Killed, transport: str) -> None:
        address, topic = killed.places[transport], f"once-{transport.replace('+', '-')}"
        done = threading.Event()
        futures: list[Any] = []
        with Producer(bootstrap_servers=address, linger_ms=1) as producer:
            producer.send(topic, b"first", partition=0).get(PATIENCE_S)
            thread = threading.Thread(target=killed.kill_each, args=(done,))
            thread.start()
            while not done.is_set():
                number = len(futures)
                futures.append(producer.send(topic, b"%d" % number, partition=number % PARTITIONS))
                time.sleep(0.001)
            thread.join()
            for future in futures:
                future.get(PATIENCE_S)
        found = read_all(address, topic, len(futures) + 1)
        assert len(futures) > 100
        assert sorted(found) == sorted([b"first", *(b"%d" % number for number in range(len(futures)))])

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("transport", TRANSPORTS)
    def test_committed_transactions_are_there_whole_and_aborted_ones_are_not(
        killed: Killed, transport: str
    ) -> None:
        address, topic = killed.places[transport], f"whole-{transport.replace('+', '-')}"
        done = threading.Event()
        committed: list[int] = []
        aborted: list[int] = []
        with Producer(bootstrap_servers=address, transactional_id=topic, linger_ms=1) as producer:
            producer.init_transactions()
            thread = threading.Thread(target=killed.kill_each, args=(done,))
            thread.start()
            number = 0
            while not done.is_set():
                producer.begin_transaction()
                try:
                    for index in range(10):
                        producer.send(topic, b"%d-%d" % (number, index), partition=index % PARTITIONS)
                    if number % 5 == 4:
                        raise AbortableError("every fifth one is")
                    ended(producer.commit_transaction)
                    committed.append(number)
                except AbortableError:
                    ended(producer.abort_transaction)
                    aborted.append(number)
                number += 1
            thread.join()
        found = read_all(address, topic, 10 * len(committed))
        assert len(committed) > 5
        assert aborted
        assert sorted(found) == sorted(b"%d-%d" % (each, index) for each in committed for index in range(10))


def ended(call: Any) -> None:
    """Commit or abort, again where it took too long: the outcome is the same."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            call()
            return
        except ClientError as error:
            if not error.retriable or time.monotonic() > until:
                raise
