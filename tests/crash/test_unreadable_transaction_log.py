"""A partition of `__transaction_state` that cannot be read: its ids are refused, all others go on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from appliance.cli import transaction_view
from appliance.cli.cluster_view import cluster_view
from appliance.cli.connecting import BrokerError
from appliance.cli.hanging_transactions import hanging_transactions
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest
from appliance.protocol.apis.list_transactions import ListTransactionsRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition
from appliance.protocol.records.batch import batches
from tests.checker.raw_transactions import RawProducer
from tests.checker.transaction_history import Place
from tests.checker.transaction_readers import undecided, values_in
from tests.cli.command import appliance
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.acked_load import create, in_sync, leaders
from tests.system.raw import ask, generations, wait_until

TOPIC: Final = "data"
LOG_PARTITIONS: Final = 4
NAMES: Final = tuple(f"id-{number}" for number in range(12))
DAMAGED: Final = group_partition(NAMES[0], LOG_PARTITIONS)
LOST: Final = tuple(name for name in NAMES if group_partition(name, LOG_PARTITIONS) == DAMAGED)
SOUND: Final = tuple(name for name in NAMES if name not in LOST)
TRIES_S: Final = 3.5
"""The coordinator tries again after 0.1, 0.2, 0.4, 0.8 and 1.6 s."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    """Stopped: each id has committed something, and the first one has a transaction open."""
    settings = {"transaction.state.log.num.partitions": LOG_PARTITIONS, "offsets.topic.num.partitions": 1}
    appliance = Appliance(tmp_path / "data", settings=settings)
    appliance.start()
    create(appliance, TOPIC, len(NAMES), replicas=1)
    for number, name in enumerate(NAMES):
        producer = producer_of(appliance, name)
        commit(producer, number, b"before")
        if name == NAMES[0]:
            producer.begin()
            producer.write(Place(TOPIC, number), [b"open"])
        producer.close()
    appliance.stop()
    try:
        yield appliance
    finally:
        appliance.stop()


def producer_of(broker: Appliance, name: str) -> RawProducer:
    ports = range(broker.port, broker.port + broker.slots)
    producer = RawProducer(ports, name, timeout_ms=600_000)
    producer.start()
    return producer


def commit(producer: RawProducer, partition: int, value: bytes) -> None:
    producer.begin()
    producer.write(Place(TOPIC, partition), [value])
    producer.end(commit=True)


def log_file(broker: Appliance) -> Path:
    (path,) = (broker.data_dir / "slot-0" / f"__transaction_state-{DAMAGED}").glob("*.log")
    return path


def flip_bytes_in_the_middle(path: Path) -> None:
    """The last two bytes of a batch, which its checksum covers."""
    raw = path.read_bytes()
    ends = [position + header.size_bytes for position, header in batches(raw)]
    end = ends[(len(ends) - 1) // 2]
    with path.open("r+b") as file:  # its owner may have it mapped, so it keeps its length
        file.seek(end - 2)
        file.write(bytes(each ^ 0xFF for each in raw[end - 2 : end]))


def error_of(broker: Appliance, name: str) -> ErrorCode:
    """What InitProducerId is answered."""
    with WireSocket(broker.port) as connection:
        answer = ask(connection, ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(name, 60_000), version=5)
    return ErrorCode(answer.error_code)


def complaints(broker: Appliance) -> list[str]:
    return [line for line in broker.output().splitlines() if "WARNING coordinator" in line]


def test_damaged_partition_takes_its_ids_offline_with_one_line_and_no_others(broker: Appliance) -> None:
    path = log_file(broker)
    flip_bytes_in_the_middle(path)
    broker.start()
    living = generations(broker)
    for name in SOUND:
        producer = producer_of(broker, name)
        commit(producer, NAMES.index(name), b"after")
        producer.close()
    # Between two tries the partition is not there, and while one runs it is being loaded. It is never served.
    refused = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    until = time.monotonic() + TRIES_S
    while time.monotonic() < until:
        assert {error_of(broker, name) for name in LOST} <= refused
        time.sleep(0.1)
    (line,) = complaints(broker)
    assert f"__transaction_state-{DAMAGED} cannot be read, its requests are refused until it can" in line
    assert str(path) in line
    assert "fails its checksum" in line
    assert generations(broker) == living, "nobody died of it"

    def listed() -> set[str]:
        with WireSocket(broker.port) as connection:
            answer = ask(connection, ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest())
        return {each.transactional_id for each in answer.transaction_states}

    wait_until(lambda: listed() == set(SOUND), "the others are listed")


def test_ids_that_are_offline_are_not_taken_for_hanging_ones(
    broker: Appliance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who aborts what looks hanging would abort what their coordinator may have decided to commit."""
    monkeypatch.setattr(transaction_view, "PATIENCE_S", 1.0)
    flip_bytes_in_the_middle(log_file(broker))
    broker.start()
    view = cluster_view(broker.address)
    open_for_long = list(view.of_topic(TOPIC))
    with pytest.raises(BrokerError, match=f"__transaction_state-{DAMAGED} cannot be read now.*look hanging"):
        hanging_transactions(view, broker.address, open_for_long, now_ms=1 << 62, older_than_ms=0)


def test_restored_file_puts_its_ids_back_without_a_restart(broker: Appliance) -> None:
    path = log_file(broker)
    sound = path.read_bytes()
    flip_bytes_in_the_middle(path)
    broker.start()
    wait_until(lambda: bool(complaints(broker)), "the damage was found")
    assert error_of(broker, LOST[-1]) is not ErrorCode.NONE
    with path.open("r+b") as file:
        file.write(sound)
    producer = producer_of(broker, LOST[-1])
    assert producer.epoch > 0, "the id is known"
    commit(producer, NAMES.index(LOST[-1]), b"after")
    producer.close()
    again = "is replayed, its requests are served again"
    wait_until(lambda: again in complaints(broker)[-1], "the log says so")


def test_partition_without_its_log_begins_anew_and_what_it_left_open_is_found_and_aborted(
    broker: Appliance,
) -> None:
    """What docs/exactly-once.md tells an operator to do who has no other copy."""
    log_file(broker).rename(broker.data_dir.with_name("aside.log"))
    broker.start()
    place = Place(TOPIC, 0)
    before = producer_of(broker, LOST[-1])
    assert before.epoch == 0, "the id is new"
    commit(before, NAMES.index(LOST[-1]), b"after")
    before.close()
    assert undecided(broker.address, [place], within_s=1) != {}, "its readers wait"

    def told(*arguments: object) -> list[dict[str, object]]:
        words = ("transactions", *arguments, "--bootstrap", broker.address)
        return list(json.loads(appliance(*words, "--json").succeeded().text))

    (hanging,) = told("find-hanging", "--max-transaction-timeout", "0")
    assert (hanging["topic"], hanging["partition"]) == (place.topic, place.partition)
    start = hanging["start_offset"]
    words = ("transactions", "abort", f"{TOPIC}:0", "--start-offset", start, "--bootstrap", broker.address)
    appliance(*words).succeeded()
    assert undecided(broker.address, [place], within_s=30) == {}
    assert values_in(broker.address, [place])[place] == [b"before"]


def test_damage_that_a_coordinator_reads_is_repaired_from_another_slot_while_all_runs(tmp_path: Path) -> None:
    settings = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
    broker = Appliance(tmp_path / "data", slots=3, settings=settings)
    broker.start()
    try:
        create(broker, TOPIC, 1, replicas=3)
        producer = producer_of(broker, "id")
        commit(producer, 0, b"before")
        epoch = producer.epoch
        producer.close()
        leader = leaders(broker, "__transaction_state")[0]
        wait_until(lambda: len(in_sync(broker, "__transaction_state")[0]) == 3, "all slots have it")
        (path,) = (broker.data_dir / f"slot-{leader}" / "__transaction_state-0").glob("*.log")
        sound = path.read_bytes()
        flip_bytes_in_the_middle(path)
        assert path.read_bytes() != sound
        broker.kill_role("coordinator")  # the next one reads the log from its beginning
        wait_until(lambda: "is repaired from the copy of" in broker.output(), "the worker repaired it")
        producer = producer_of(broker, "id")
        assert producer.epoch == epoch + 1
        commit(producer, 0, b"after")
        producer.close()
        used = sound.rstrip(b"\0")
        assert path.read_bytes()[: len(used)] == used
    finally:
        broker.stop()
