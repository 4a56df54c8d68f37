"""The table of crash points in docs/exactly-once.md, cell by cell: who dies, and where in a transaction.

A process that stands still (SIGSTOP) keeps the transaction at the point while somebody else is killed:

    while records are written    half of the partitions have their record
    before the decision          EndTxn has arrived; the worker that leads the log partition of the id stands still
    after the decision           PrepareCommit is committed; a worker that leads data partitions stands still
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from appliance.protocol import messages
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from appliance.protocol.apis.describe_transactions import DescribeTransactionsRequest
from appliance.protocol.apis.end_txn import EndTxnRequest
from appliance.protocol.apis.find_coordinator import TRANSACTION, FindCoordinatorRequest
from appliance.protocol.errors import ErrorCode
from tests.checker.raw_transactions import RawProducer
from tests.checker.transaction_history import Place
from tests.checker.transaction_readers import undecided, values_in
from tests.support.broker import Appliance
from tests.support.power_loss import after_power_loss, layer_environment
from tests.support.store import copy_metadata
from tests.support.wire import WireSocket
from tests.system.acked_load import bootstrap, create, in_sync, leaders
from tests.system.raw import ask, suspend, wait_until

DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs" / "exactly-once.md"
TOPIC, SOURCE, READ_TO = "crashed", "source", 4711
PARTITIONS, SLOTS = 6, 3
PLACES: Final = tuple(Place(TOPIC, number) for number in range(PARTITIONS))
SETTINGS: Final = {
    "transaction.state.log.num.partitions": 6,
    "offsets.topic.num.partitions": 6,
    "process.restart.backoff.max.ms": 100,
    "replica.lag.time.max.ms": 3_000,
}


@dataclass(slots=True)
class Scene:
    """A transaction at a crash point: where it is coordinated, and what stands still."""

    broker: Appliance
    name: str
    protocol: int
    producer: RawProducer
    home: int
    """The slot that leads the id's partition of `__transaction_state`."""
    other: int
    """A slot that leads data partitions and is not `home`."""
    is_end_sent: bool = False
    values: dict[Place, bytes] = field(default_factory=dict)
    stopped: list[int] = field(default_factory=list)
    asked: WireSocket | None = None
    """The connection on which EndTxn was sent; nobody has read its answer."""

    @property
    def places_elsewhere(self) -> list[Place]:
        led = leaders(self.broker, TOPIC)
        return [place for place in PLACES if led[place.partition] != self.home]

    def write(self, places: tuple[Place, ...]) -> None:
        for place in places:
            self.values[place] = f"{self.name} {place}".encode()
            self.producer.write(place, [self.values[place]])

    def fill(self) -> None:
        """Half of the partitions, then the other half, and the offsets of the group."""
        self.producer.begin()
        self.write(PLACES[:3])
        self.finish_writing()

    def finish_writing(self) -> None:
        self.write(PLACES[3:])
        self.producer.send_offsets(self.name, {Place(SOURCE, 0): READ_TO})

    def stand_still(self, slot: int) -> None:
        for pid in worker_pids(self.broker, slot):
            suspend(pid)
            self.stopped.append(pid)

    def go_on(self) -> None:
        for pid in self.stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.stopped.clear()

    def send_end(self) -> None:
        """EndTxn, whose answer is not read."""
        self.asked = WireSocket(self.broker.port + self.home)
        request = EndTxnRequest(self.name, self.producer.producer_id, self.producer.epoch, True)
        version = 5 if self.protocol == 2 else 4
        self.asked.send(messages.encode_request(ApiKey.END_TXN, version, request, 1, client_id="killed"))
        self.is_end_sent = True

    def is_deciding(self) -> bool:
        """Whether a transition waits for its record. Adds a partition that the transaction has."""
        topic = AddPartitionsToTxnTopic(TOPIC, (self.places_elsewhere[0].partition,))
        request = AddPartitionsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            topics=(topic,),
        )
        with WireSocket(self.broker.port + self.home) as connection:
            answer = ask(connection, ApiKey.ADD_PARTITIONS_TO_TXN, request, version=3)
        error = answer.results_by_topic[0].results_by_partition[0].partition_error_code
        return bool(error == ErrorCode.CONCURRENT_TRANSACTIONS)

    def state(self) -> str:
        """As the coordinator has it committed."""
        with WireSocket(self.broker.port + self.home) as connection:
            request = DescribeTransactionsRequest((self.name,))
            (found,) = ask(connection, ApiKey.DESCRIBE_TRANSACTIONS, request).transaction_states
        return str(found.transaction_state)

    def close(self) -> None:
        self.go_on()
        if self.asked is not None:
            self.asked.close()
        self.producer.close()


def worker_pids(broker: Appliance, slot: int) -> list[int]:
    return [row.pid for row in broker.processes() if row.role.startswith(f"ioproc {slot}.")]


def set_up(broker: Appliance) -> None:
    create(broker, SOURCE, 1, replicas=SLOTS)
    create(broker, TOPIC, PARTITIONS, replicas=SLOTS)


def _is_whole(broker: Appliance, topic: str) -> bool:
    return all(len(isr) == SLOTS for isr in in_sync(broker, topic).values())


@contextmanager
def scene_of(broker: Appliance, name: str, protocol: int) -> Iterator[Scene]:
    wait_until(broker.is_whole, "all processes live")
    for topic in (TOPIC, SOURCE):
        wait_until(partial(_is_whole, broker, topic), f"all replicas of {topic} in the ISR")
    producer = RawProducer(range(broker.port, broker.port + SLOTS), name, protocol=protocol)
    producer.start()
    with WireSocket(broker.port) as connection:
        request = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=(name,))
        (found,) = ask(connection, ApiKey.FIND_COORDINATOR, request, version=4).coordinators
    home = found.port - broker.port
    other = next(slot for slot in leaders(broker, TOPIC).values() if slot != home)
    scene = Scene(broker, name, protocol, producer, home, other)
    try:
        yield scene
    finally:
        scene.close()


# Where it dies


def while_records_are_written(scene: Scene) -> None:
    scene.producer.begin()
    scene.write(PLACES[:3])
    assert scene.state() == "Ongoing"


def before_the_decision(scene: Scene) -> None:
    scene.fill()
    scene.stand_still(scene.home)
    scene.send_end()
    wait_until(scene.is_deciding, "EndTxn has arrived")
    assert scene.state() == "Ongoing"


def after_the_decision(scene: Scene) -> None:
    scene.fill()
    scene.stand_still(scene.other)
    scene.send_end()
    wait_until(lambda: scene.state() == "PrepareCommit", "the decision is committed")


POINTS: Final[dict[str, Callable[[Scene], None]]] = {
    "while records are written": while_records_are_written,
    "at the commit, before the decision": before_the_decision,
    "at the commit, after the decision": after_the_decision,
}

# Who dies


def the_client(scene: Scene) -> None:
    scene.producer.close()
    if scene.asked is not None:
        scene.asked.close()


def network_processes(scene: Scene) -> None:
    _kill_all(scene.broker, "netproc")


def a_worker(scene: Scene) -> None:
    for pid in worker_pids(scene.broker, scene.other):
        os.kill(pid, signal.SIGKILL)


def replica_processes(scene: Scene) -> None:
    _kill_all(scene.broker, "replica")


def the_coordinator(scene: Scene) -> None:
    _kill_all(scene.broker, "coordinator")


def the_controller(scene: Scene) -> None:
    _kill_all(scene.broker, "controller")


def a_slot(scene: Scene) -> None:
    """Before the decision the one that leads the id's log partition, else one that leads data."""
    slot = scene.home if scene.is_end_sent and scene.state() == "Ongoing" else scene.other
    halves = (f"ioproc {slot}.", f"replica {slot}")
    for row in scene.broker.processes():
        if row.role.startswith(halves):
            os.kill(row.pid, signal.SIGKILL)


def the_whole_host(scene: Scene) -> None:
    scene.broker.kill()
    scene.broker.start()


def _kill_all(broker: Appliance, role: str) -> None:
    pids = broker.pids(role)
    assert pids, f"there is no {role}"
    for index in range(len(pids)):
        broker.kill_role(role, index)


POWER_CUT: Final = "the whole host, by a power cut"
VICTIMS: Final[dict[str, Callable[[Scene], None]]] = {
    "the client": the_client,
    "a network process": network_processes,
    "a worker": a_worker,
    "a replica process": replica_processes,
    "the coordinator": the_coordinator,
    "the controller": the_controller,
    "a slot that leads a partition": a_slot,
    "all processes of the appliance, by `kill -9`": the_whole_host,
}

# What is seen


def visible_records(broker: Appliance, values: dict[Place, bytes]) -> int:
    """How many of the values a read_committed reader finds, each at most once."""
    assert undecided(bootstrap(broker), PLACES, within_s=60) == {}
    found = values_in(bootstrap(broker), PLACES)
    counts = [found[place].count(value) for place, value in values.items()]
    assert max(counts) <= 1, counts
    return sum(counts)


def committed_offset(broker: Appliance, group: str) -> int | None:
    """What a consumer would start at: it waits while the offset is undecided."""
    with Consumer({"bootstrap.servers": bootstrap(broker), "group.id": group}) as consumer:
        offset = consumer.committed([TopicPartition(SOURCE, 0)], timeout=60)[0].offset
    return offset if offset >= 0 else None


def check(scene: Scene, broker: Appliance, *, is_committed: bool) -> None:
    """All of it is visible, or nothing; and the id can be used again."""
    assert visible_records(broker, scene.values) == (len(scene.values) if is_committed else 0)
    assert committed_offset(broker, scene.name) == (READ_TO if is_committed else None)
    scene.name = f"{scene.name} again"
    scene.values.clear()
    scene.fill()
    scene.producer.end(commit=True)
    assert visible_records(broker, scene.values) == PARTITIONS
    assert committed_offset(broker, scene.name) == READ_TO


def finish(scene: Scene) -> None:
    """The producer goes on where it was, and commits."""
    if not scene.is_end_sent:
        scene.finish_writing()
    scene.producer.end(commit=True)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path_factory.mktemp("crash-points") / "data", slots=SLOTS, settings=SETTINGS)
    appliance.start()
    try:
        set_up(appliance)
        yield appliance
        assert "Traceback" not in appliance.output()
    finally:
        appliance.stop()


each_protocol = pytest.mark.parametrize(
    "protocol", [pytest.param(1, marks=pytest.mark.slow, id="version 1"), pytest.param(2, id="version 2")]
)
each_point = pytest.mark.parametrize("point", POINTS)


@each_protocol
@each_point
@pytest.mark.parametrize("victim", VICTIMS)
def test_death_at_a_crash_point_leaves_the_transaction_whole(
    broker: Appliance, request: pytest.FixtureRequest, victim: str, point: str, protocol: int
) -> None:
    with scene_of(broker, request.node.name, protocol) as scene:
        POINTS[point](scene)
        VICTIMS[victim](scene)
        scene.go_on()
        if victim != "the client":
            finish(scene)
            check(scene, broker, is_committed=True)
            return
        successor = RawProducer(range(broker.port, broker.port + SLOTS), scene.name, protocol=protocol)
        successor.start()
        scene.producer = successor
        check(scene, broker, is_committed=scene.is_end_sent)


@pytest.mark.slow
@each_protocol
@each_point
def test_power_cut_at_a_crash_point_leaves_the_transaction_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, protocol: int
) -> None:
    """With `durability = "fsync"`, as the table says. What was not flushed is gone."""
    shadow, left = tmp_path / "shadow", tmp_path / "left"
    shadow.mkdir()
    left.mkdir()
    settings = {**SETTINGS, "durability": "fsync"}
    for name, value in (layer_environment() | {"DISK_LAYER_SHADOW": str(shadow)}).items():
        monkeypatch.setenv(name, value)
    before = Appliance(tmp_path / "data", slots=SLOTS, settings=settings)
    before.start()
    try:
        set_up(before)
        with scene_of(before, "cut", protocol) as scene:
            POINTS[point](scene)
            before.kill()
    finally:
        before.kill()
    same_tree = copy_metadata(tmp_path / "data", left)
    for slot in range(SLOTS):
        after_power_loss(tmp_path / f"data/slot-{slot}", shadow, left / f"slot-{slot}")
    monkeypatch.undo()
    after = Appliance(left, slots=SLOTS, settings={**settings, **same_tree})
    after.start()
    try:
        scene.broker = after
        scene.producer.move_to(range(after.port, after.port + SLOTS))
        finish(scene)
        check(scene, after, is_committed=True)
        scene.close()
    finally:
        after.stop()


def test_table_of_crash_points_has_a_test_for_each_row_and_column() -> None:
    rows = table_of(DOCUMENT.read_text(), heading="## What happens when a process dies")
    header, *lines = rows
    assert header == ["failure", *POINTS]
    assert [line[0] for line in lines] == [*VICTIMS, POWER_CUT]
    assert all(len(line) == len(header) and all(line) for line in lines)


def table_of(text: str, *, heading: str) -> list[list[str]]:
    """The cells of the first table behind the heading, without the line below its head."""
    section = text.split(f"{heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if not re.fullmatch(r"[|\-]+", line)
    ]
