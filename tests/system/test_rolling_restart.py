"""`appliance slots restart` under traffic, and a backup of several slots: clients see no error, and nothing is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer

from tests.checker.campaign import compare_replicas
from tests.cli.command import appliance
from tests.support.broker import Appliance
from tests.system.acked_load import AckedLoad, bootstrap, create, read_all, settled
from tests.system.raw import generations, wait_until

SLOTS: Final = 3
PARTITIONS: Final = 6
TOPIC: Final = "rolled"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    at = tmp_path_factory.mktemp("slots")
    settings = {"metadata.store": "embedded", "log.segment.bytes": 1 << 20}
    started = Appliance(at / "data", slots=SLOTS, settings=settings, output_to=at / "log")
    started.start()
    create(started, TOPIC, PARTITIONS, replicas=3, min_insync_replicas="2")
    yield started
    started.stop()


class Reading:
    """A group of one consumer, on a thread: the numbers that it has read, and errors that it was given."""

    def __init__(self, broker: Appliance) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap(broker), "group.id": "rolling", "auto.offset.reset": "earliest"}
        )
        self._consumer.subscribe([TOPIC])
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.read: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        self.errors: list[str] = []

    def __enter__(self) -> Reading:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(30)
        self._consumer.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            for message in self._consumer.consume(500, 0.2):
                if (error := message.error()) is not None:
                    if not error.retriable():
                        self.errors.append(str(error))
                    continue
                self.read[message.partition() or 0].append(int(message.value() or b""))


def test_rolling_restart_shows_clients_no_error_and_loses_nothing(broker: Appliance) -> None:
    before = generations(broker)
    with Reading(broker) as reading:
        with AckedLoad(broker, TOPIC, PARTITIONS) as load:
            load.until(300)
            told = restart(broker, "--rolling")
            assert [(each["slot"], each["result"]) for each in told] == [
                (n, "restarted") for n in range(SLOTS)
            ]
            assert generations(broker) == before
            load.until(300)
            restart(broker, "1", "2", "--data-dir", broker.data_dir)
            load.until(300)
        assert not load.failed
        wait_until(
            lambda: all(set(load.acked[each]) <= set(reading.read[each]) for each in range(PARTITIONS)),
            "the group reads all",
            timeout_s=30,
        )
    assert not reading.errors
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)
    restarted = {
        role for role, (_, generation) in generations(broker).items() if generation > before[role][1]
    }
    assert restarted == {"ioproc 1.0", "replica 1", "ioproc 2.0", "replica 2"}
    listed = json.loads(
        appliance("partitions", "list", TOPIC, "--json", "-b", broker.address).succeeded().text
    )
    assert all(each["leader"] == each["replicas"][0] for each in listed), "preferred leaders lead again"


def restart(broker: Appliance, *arguments: object) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(
        appliance("slots", "restart", *arguments, "--json", "-b", broker.address).succeeded().text
    )
    return told


def test_restart_is_refused_where_a_partition_would_have_no_leader(broker: Appliance) -> None:
    create(broker, "alone", 1, replicas=1)
    refused = appliance("slots", "restart", "--rolling", "-b", broker.address)
    assert refused.code == 1
    assert "alone-0" in refused.errors
    assert appliance("slots", "restart", "-b", broker.address).code == 2
    appliance("topics", "delete", "alone", "--yes", "-b", broker.address)


def test_backup_of_several_slots_is_restored_with_all_replicas(broker: Appliance, tmp_path: Path) -> None:
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(600)
        appliance("backup", broker.data_dir, tmp_path / "target").succeeded()
        load.until(100)
    at_backup = {number: max(load.acked[number]) for number in range(PARTITIONS)}
    restored = Appliance(
        tmp_path / "data", slots=SLOTS, settings={"metadata.store": "embedded"}, output_to=tmp_path / "log"
    )
    appliance("restore", tmp_path / "target", restored.data_dir).succeeded()
    restored.start()
    try:
        wait_until(
            lambda: (
                not json.loads(
                    appliance(
                        "partitions", "list", "--under-replicated", "--json", "-b", restored.address
                    ).text
                )
            ),
            "all replicas are in sync",
            timeout_s=30,
        )
        then, now = read_all(restored, TOPIC, PARTITIONS), read_all(broker, TOPIC, PARTITIONS)
        for number in range(PARTITIONS):
            assert then[number]
            assert then[number] == now[number][: len(then[number])]
            assert then[number][-1] <= at_backup[number]
    finally:
        restored.stop()
    assert not compare_replicas(restored, TOPIC)
