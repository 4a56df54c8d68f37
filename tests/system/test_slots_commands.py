"""Slots are stopped, partitions reassigned, leaders elected: by commands and by clients, while records are written."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, TopicPartition

from tests.cli.command import Outcome, appliance
from tests.support.broker import Appliance
from tests.system.acked_load import AckedLoad, create, settled

SLOTS = 3
PARTITIONS = 6
TOPIC = "moved"
WAIT_S = 30.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    started = Appliance(tmp_path / "data", slots=SLOTS)
    started.start()
    yield started
    started.stop()


class Console:
    """The command, with the address of slot 0."""

    def __init__(self, broker: Appliance) -> None:
        self._broker = broker

    def __call__(self, *arguments: object) -> Outcome:
        return appliance(*arguments, more={"APPLIANCE_BOOTSTRAP": self._broker.address})

    def json(self, *arguments: object) -> Any:
        return json.loads(self(*arguments, "--json").succeeded().output)

    def partitions(self, *arguments: object) -> dict[int, dict[str, Any]]:
        return {each["partition"]: each for each in self.json("partitions", "list", TOPIC, *arguments)}

    def until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < deadline, f"waited in vain for {what}"


@pytest.fixture
def run(broker: Appliance) -> Console:
    return Console(broker)


def test_a_slot_is_stopped_and_started_under_load_and_loses_nothing(broker: Appliance, run: Console) -> None:
    create(broker, TOPIC, PARTITIONS, replicas=3, min_insync_replicas="2")
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(300)
        assert run("slots", "stop", 1).succeeded().text == "stopped slot 1\n"
        states = {row["slot"]: row["state"] for row in run.json("slots", "list")}
        assert states == {0: "live", 1: "stopped", 2: "live"}
        seen = run.partitions("--under-replicated")
        assert len(seen) == PARTITIONS
        assert all(each["leader"] != 1 and 1 not in each["isr"] for each in seen.values())
        assert run.partitions("--unavailable") == {}
        load.until(300)
        assert run("slots", "start", 1).succeeded().text == "started slot 1\n"
        run.until(lambda: not run.partitions("--under-replicated"), "slot 1 to catch up")
        assert run("partitions", "elect", "--all").succeeded().text.count("elected a leader of moved-") == 2
        assert all(each["leader"] == each["replicas"][0] for each in run.partitions().values())
        load.until(300)
    assert not load.failed
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)


@pytest.mark.slow
def test_a_slot_that_alone_has_a_partition_is_stopped_by_force_only(broker: Appliance, run: Console) -> None:
    create(broker, TOPIC, 3, replicas=1)
    (alone,) = [number for number, each in run.partitions().items() if each["leader"] == 2]
    refused = run("slots", "stop", 2)
    assert refused.code == 1
    assert f"{TOPIC}-{alone}" in refused.errors
    assert {row["state"] for row in run.json("slots", "list")} == {"live"}
    run("slots", "stop", 2, "--force").succeeded()
    assert list(run.partitions("--unavailable")) == [alone]
    run("slots", "start", 2).succeeded()
    run.until(lambda: not run.partitions("--unavailable"), "the partition to be led again")


def test_partitions_move_under_load_and_lose_nothing(broker: Appliance, run: Console) -> None:
    create(broker, TOPIC, PARTITIONS, replicas=1)
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(300)
        run("reassign", "move", TOPIC, "--to", "0,1,2").succeeded()
        run.until(lambda: run.json("reassign", "status") == [], "more replicas")
        assert all(sorted(each["isr"]) == [0, 1, 2] for each in run.partitions().values())
        load.until(300)
        run("reassign", "move", TOPIC, "--to", "2,1").succeeded()
        run.until(lambda: run.json("reassign", "status") == [], "fewer replicas")
        load.until(300)
    assert not load.failed
    load.check(broker)
    assert {frozenset(each["replicas"]) for each in run.partitions().values()} == {frozenset((1, 2))}
    left = broker.data_dir / "slot-0"
    names = {f"{TOPIC}-{number}" for number in range(PARTITIONS)}
    run.until(lambda: not names & set(os.listdir(left)), f"{sorted(os.listdir(left))} to go")


def test_a_throttled_move_waits_for_its_rate_and_ends_when_that_is_taken_back(
    broker: Appliance, run: Console
) -> None:
    create(broker, TOPIC, 1, replicas=1)
    (before,) = run.partitions().values()
    (source,) = before["replicas"]
    producer = Producer({"bootstrap.servers": broker.address})
    for _ in range(40):
        producer.produce(TOPIC, os.urandom(100_000), partition=0)
    assert producer.flush(WAIT_S) == 0
    target = (source + 1) % SLOTS
    copy = broker.data_dir / f"slot-{target}" / f"{TOPIC}-0" / "00000000000000000000.log"
    moved = run("reassign", "move", TOPIC, "--to", f"{target},{source}", "--throttle", 1)
    moved.succeeded()
    run.until(lambda: copy.exists() and copy.stat().st_size > 0, "the first read, which is free")
    # A second read would be free in a million seconds.
    assert run.json("reassign", "status") != []
    assert run.partitions()[0]["isr"] == [source]
    run("reassign", "unthrottle").succeeded()
    run.until(lambda: run.json("reassign", "status") == [], "the rest")
    assert sorted(run.partitions()[0]["isr"]) == sorted((source, target))
    told = run("configs", "describe", "--broker", target, "--all").succeeded().text
    assert "follower.replication.throttled.rate" in told


def test_what_cannot_be_is_said_in_one_sentence_and_changes_nothing(broker: Appliance, run: Console) -> None:
    create(broker, TOPIC, 1, replicas=2)
    before = run.partitions()
    for arguments, said in (
        (("reassign", "move", TOPIC, "--to", "0,9"), "there is no slot 9; there are 0,1,2"),
        (("reassign", "move", "nothing", "--to", "0"), "there is no topic nothing"),
        (("reassign", "move", f"{TOPIC}:7", "--to", "0"), f"there is no partition {TOPIC}-7"),
        (("reassign", "cancel", TOPIC), "NO_REASSIGNMENT_IN_PROGRESS"),
        (("slots", "stop", 7), "there is no slot 7"),
    ):
        outcome = run(*arguments)
        assert outcome.code == 1, arguments
        assert said in outcome.errors
        assert "Traceback" not in outcome.errors
    assert run("reassign", "move", TOPIC, "--to", "a").code == 2
    assert run.partitions() == before


@pytest.mark.slow
def test_kafka_python_elects_leaders_reassigns_lists_and_calls_back(broker: Appliance, run: Console) -> None:
    create(broker, TOPIC, PARTITIONS, replicas=2)
    run("slots", "stop", 0).succeeded()
    run("slots", "start", 0).succeeded()
    run.until(lambda: not run.partitions("--under-replicated"), "slot 0 to catch up")
    client = KafkaAdminClient(bootstrap_servers=broker.address)
    try:
        client.elect_leaders(0, {TOPIC: [*range(PARTITIONS)]}, raise_errors=False)
        assert all(each["leader"] == each["replicas"][0] for each in run.partitions().values())
        replicas = run.partitions()[0]["replicas"]
        (newcomer,) = {0, 1, 2} - set(replicas)
        place = TopicPartition(TOPIC, 0)
        with sleeping(broker, f"replica {newcomer}"):
            assert not any(client.alter_partition_reassignments({place: [newcomer]}).values())
            run.until(lambda: len(run.json("reassign", "status")) == 1, "the reassignment to be seen")
            (listed,) = client.list_partition_reassignments().values()
            assert listed["adding_replicas"] == [newcomer]
            assert sorted(listed["removing_replicas"]) == sorted(replicas)
            assert not any(client.alter_partition_reassignments({place: None}).values())
        run.until(lambda: client.list_partition_reassignments() == {}, "the end of it")
    finally:
        client.close()
    assert sorted(run.partitions()[0]["replicas"]) == sorted(replicas)


@contextmanager
def sleeping(broker: Appliance, role: str) -> Iterator[None]:
    """A process stands still, and nobody is told."""
    (pid,) = [row.pid for row in broker.processes() if row.role == role]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
