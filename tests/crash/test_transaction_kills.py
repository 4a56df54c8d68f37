"""`kill -9` in each state of a transaction: it is visible as a whole or not at all, as its producer was answered."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.find_coordinator import TRANSACTION, FindCoordinatorRequest
from appliance.protocol.errors import ErrorCode
from tests.checker.raw_transactions import Fenced, InDoubt, ProducerFailed, RawProducer
from tests.checker.transaction_history import Place
from tests.checker.transaction_readers import undecided, values_in
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.acked_load import leaders
from tests.system.raw import ask, create_topic, suspend, wait_until

TOPIC = "killed"
PARTITIONS = 6
SLOTS = 3
PLACES = tuple(Place(TOPIC, number) for number in range(PARTITIONS))
SETTINGS = {
    # Of one replica each, so that a slot that stands still keeps no other one's log from being committed.
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "default.replication.factor": 1,
    "process.restart.backoff.max.ms": 100,
}
SHORT_TIMEOUT_MS = 1_000
RACES = 6

each_protocol = pytest.mark.parametrize("protocol", [1, 2], ids=["version 1", "version 2"])
each_end = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(1, marks=pytest.mark.slow, id="one coordinator"),
        pytest.param(2, id="two coordinators"),
    ],
)
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Appliance]:
    settings = {**SETTINGS, "coordinator.processes": request.param}
    appliance = Appliance(tmp_path_factory.mktemp("transactions") / "data", slots=SLOTS, settings=settings)
    appliance.start()
    try:
        assert create_topic(appliance.port, TOPIC, partitions=PARTITIONS) == 0
        yield appliance
    finally:
        appliance.stop()


def producer_of(broker: Appliance, name: str, *, protocol: int, timeout_ms: int = 30_000) -> RawProducer:
    ports = range(broker.port, broker.port + SLOTS)
    producer = RawProducer(ports, name, protocol=protocol, timeout_ms=timeout_ms)
    producer.start()
    return producer


def filled(producer: RawProducer, word: str) -> dict[Place, bytes]:
    """Writes a value to every partition in a new transaction; returns them."""
    values = {place: f"{word} {place}".encode() for place in PLACES}
    producer.begin()
    for place, value in values.items():
        producer.write(place, [value])
    return values


def seen(broker: Appliance, values: dict[Place, bytes]) -> int:
    """In how many partitions a read_committed reader finds its value; each at most once. Waits for what is open."""
    addresses = ",".join(f"127.0.0.1:{broker.port + slot}" for slot in range(SLOTS))
    assert undecided(addresses, PLACES, within_s=60) == {}
    found = values_in(addresses, PLACES)
    counts = [found[place].count(value) for place, value in values.items()]
    assert max(counts) <= 1, counts
    return sum(counts)


def coordinating_slot(broker: Appliance, name: str) -> int:
    """The slot that leads the partition of `__transaction_state` of this transactional id."""
    with WireSocket(broker.port) as connection:
        request = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=(name,))
        (found,) = ask(connection, ApiKey.FIND_COORDINATOR, request, version=4).coordinators
    return int(found.port) - broker.port


def kill_coordinators(broker: Appliance) -> None:
    """All of them, since any may be the one."""
    for index in range(len(broker.pids("coordinator"))):
        broker.kill_role("coordinator", index)


def kill_everything(broker: Appliance) -> None:
    broker.kill()
    broker.start()


def kill_workers(broker: Appliance) -> None:
    for index in range(SLOTS):
        broker.kill_role("ioproc", index)


def kill_network_processes(broker: Appliance) -> None:
    for index in range(len(broker.pids("netproc"))):
        broker.kill_role("netproc", index)


each_victim = pytest.mark.parametrize(
    "kill", [kill_coordinators, kill_workers, kill_network_processes, kill_everything]
)


@each_protocol
@each_end
@each_victim
def test_open_transaction_can_be_ended_after_a_kill(
    broker: Appliance,
    request: pytest.FixtureRequest,
    protocol: int,
    commit: bool,
    kill: Callable[[Appliance], None],
) -> None:
    producer = producer_of(broker, request.node.name, protocol=protocol)
    values = filled(producer, request.node.name)
    kill(broker)
    producer.end(commit=commit)
    assert seen(broker, values) == (PARTITIONS if commit else 0)
    again = filled(producer, f"{request.node.name} again")
    producer.end(commit=True)
    assert seen(broker, again) == PARTITIONS
    producer.close()


@each_protocol
@each_end
def test_decided_transaction_gets_the_markers_that_its_killed_coordinator_had_not_written(
    broker: Appliance, request: pytest.FixtureRequest, protocol: int, commit: bool
) -> None:
    """A worker stands still, so that the end is answered and its markers are missing when the coordinator dies."""
    name = request.node.name
    producer = producer_of(broker, name, protocol=protocol)
    values = filled(producer, name)
    home = coordinating_slot(broker, name)
    still = next(slot for slot in set(leaders(broker, TOPIC).values()) if slot != home)
    pid = broker.pids("ioproc")[still]
    suspend(pid)
    try:
        producer.end(commit=commit)
        kill_coordinators(broker)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert seen(broker, values) == (PARTITIONS if commit else 0)
    again = filled(producer, f"{name} again")
    producer.end(commit=True)
    assert seen(broker, again) == PARTITIONS
    producer.close()


@each_protocol
@each_end
def test_kills_at_random_instants_of_an_end_leave_it_whole(
    broker: Appliance, request: pytest.FixtureRequest, protocol: int, commit: bool
) -> None:
    chance = random.Random(protocol)
    producer = producer_of(broker, request.node.name, protocol=protocol)
    told: list[tuple[dict[Place, bytes], bool | None]] = []
    for number in range(8):
        values = filled(producer, f"{request.node.name} {number}")
        killing = threading.Timer(chance.uniform(0.0, 0.02), kill_coordinators, [broker])
        killing.start()
        try:
            producer.end(commit=commit)
            told.append((values, commit))
        except InDoubt:
            told.append((values, None))
        except Fenced:
            told.append((values, False))
        finally:
            killing.join()
        if told[-1][1] is not commit:
            producer.close()
            producer = producer_of(broker, request.node.name, protocol=protocol)
    producer.close()
    for values, is_committed in told:
        allowed = {None: {0, PARTITIONS}, True: {PARTITIONS}, False: {0}}[is_committed]
        assert seen(broker, values) in allowed
    assert sum(is_committed is commit for _, is_committed in told) > len(told) / 2, "most ends are answered"


@each_protocol
def test_worker_killed_between_permit_and_append_takes_the_write_all_the_same(
    broker: Appliance, request: pytest.FixtureRequest, protocol: int
) -> None:
    """Permits are in its memory alone: the leader asks the coordinator again."""
    name = request.node.name
    producer = producer_of(broker, name, protocol=protocol)
    producer.begin()
    for place in PLACES:
        producer.add(place)
    kill_workers(broker)
    values = {place: f"{name} {place}".encode() for place in PLACES}
    for place, value in values.items():
        producer.write(place, [value])
    producer.end(commit=True)
    assert seen(broker, values) == PARTITIONS
    producer.close()


@each_protocol
def test_write_that_was_permitted_before_a_kill_and_comes_after_the_end_is_refused(
    broker: Appliance, request: pytest.FixtureRequest, protocol: int
) -> None:
    name = request.node.name
    producer = producer_of(broker, name, protocol=protocol)
    values = filled(producer, name)
    late = producer.late_write(PLACES[0], [b"late " + name.encode()])
    producer.end(commit=True)
    assert seen(broker, values) == PARTITIONS
    kill_workers(broker)
    assert late() != 0
    assert seen(broker, {PLACES[0]: b"late " + name.encode()}) == 0
    producer.close()


@each_protocol
def test_abandoned_transaction_times_out_although_its_coordinator_was_killed(
    broker: Appliance, request: pytest.FixtureRequest, protocol: int
) -> None:
    name = request.node.name
    producer = producer_of(broker, name, protocol=protocol, timeout_ms=SHORT_TIMEOUT_MS)
    values = filled(producer, name)
    kill_coordinators(broker)
    assert seen(broker, values) == 0
    with pytest.raises(ProducerFailed):
        producer.end(commit=True)
    producer.close()


@each_protocol
def test_two_ends_that_race_with_a_timeout_agree_with_what_is_visible(
    broker: Appliance, request: pytest.FixtureRequest, protocol: int
) -> None:
    """Six races at the same time: an open transaction holds up what others see, so they are read behind the last."""

    def race(number: int) -> tuple[dict[Place, bytes], set[int]]:
        """What was written, and how much of it may be visible."""
        chance = random.Random(f"{protocol} {number}")
        name = f"{request.node.name} {number}"
        producer = producer_of(broker, name, protocol=protocol, timeout_ms=SHORT_TIMEOUT_MS)
        began = time.monotonic()
        values = filled(producer, name)
        abort = producer.late_end(commit=False)
        time.sleep(max(0.0, began + SHORT_TIMEOUT_MS / 1000 + chance.uniform(-0.1, 0.3) - time.monotonic()))
        rival = threading.Timer(chance.uniform(0.0, 0.005), abort)
        rival.start()
        allowed = {PARTITIONS}
        try:
            producer.end(commit=True)
        except Fenced:
            allowed = {0}
        except InDoubt:
            allowed = {0, PARTITIONS}
        rival.join()
        producer.close()
        return values, allowed

    with ThreadPoolExecutor(RACES) as pool:
        for values, allowed in list(pool.map(race, range(RACES))):
            assert seen(broker, values) in allowed


def test_worker_killed_after_each_append_of_a_transaction_keeps_it_whole(
    broker: Appliance, request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    producer = producer_of(broker, name, protocol=2)
    producer.begin()
    values = {place: f"{name} {place}".encode() for place in PLACES}
    for place, value in values.items():
        producer.write(place, [value])
        leader = leaders(broker, TOPIC)[place.partition]
        broker.kill_role("ioproc", leader)
    wait_until(broker.is_whole, "all workers are back")
    producer.end(commit=True)
    assert seen(broker, values) == PARTITIONS
    producer.close()


@pytest.mark.parametrize("late_commit", [True, False], ids=["late commit", "late abort"])
def test_late_end_of_a_transaction_does_not_end_the_next_one_after_a_kill(
    broker: Appliance, request: pytest.FixtureRequest, late_commit: bool
) -> None:
    """Of version 2, whose epochs tell them apart. Under version 1 Kafka ends the next one, too."""
    name = request.node.name
    producer = producer_of(broker, name, protocol=2)
    first = filled(producer, f"{name} first")
    late = producer.late_end(commit=late_commit)
    producer.end(commit=late_commit)
    second = filled(producer, f"{name} second")
    kill_coordinators(broker)
    wait_until(lambda: late() == ErrorCode.PRODUCER_FENCED, "the late end is refused")
    producer.end(commit=not late_commit)
    assert seen(broker, first) == (PARTITIONS if late_commit else 0)
    assert seen(broker, second) == (0 if late_commit else PARTITIONS)
    producer.close()
