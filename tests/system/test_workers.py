"""Several I/O workers a slot: a topic's partitions are spread over them, and each lives and dies for itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from appliance.channels.roles import owner_of
from appliance.ipc.time_slice import SLICE_NS
from appliance.log.file_names import CLEAN_SHUTDOWN
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.delete_topics import DeleteTopicsRequest
from appliance.protocol.apis.describe_log_dirs import DescribeLogDirsRequest
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.time_slice import IS_HEARD, scheduled
from tests.support.wire import WireSocket
from tests.system.raw import ask, create_topic, generations, produce, suspend, wait_until

TOPIC: Final = "t"
PARTITIONS: Final = 6
WORKERS: Final = 2
DELIVERY_TIMEOUT_S: Final = 30


def appliance_of(data_dir: Path, workers: int, **settings: object) -> Appliance:
    return Appliance(data_dir, settings={"io.workers": workers, **settings})


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    appliance = appliance_of(tmp_path / "data", WORKERS)
    appliance.start()
    try:
        assert create_topic(appliance.port, TOPIC, partitions=PARTITIONS) == 0
        yield appliance
    finally:
        appliance.stop()


def topic_id(broker: Appliance) -> UUID:
    with WireSocket(broker.port) as connection:
        answer = ask(connection, ApiKey.METADATA, MetadataRequest((TopicSelector(TOPIC),)))
    found: UUID = answer.topics[0].topic_id
    return found


def owned_by(broker: Appliance, worker: int) -> list[int]:
    """The topic's partitions that this worker owns."""
    identity = topic_id(broker)
    return [
        number
        for number in range(PARTITIONS)
        if owner_of(0, identity, number, workers=WORKERS).index == worker
    ]


class Load:
    """An idempotent producer that sends numbered records to every partition until it is told to stop."""

    def __init__(self, broker: Appliance) -> None:
        self.failures: list[str] = []
        self.acked: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        self.sent = 0
        self._producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "enable.idempotence": True,
                "delivery.timeout.ms": DELIVERY_TIMEOUT_S * 1000,
                "error_cb": self._on_error,
                "log_level": 0,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.failures.append(str(error))

    def _run(self) -> None:
        while not self._stop.wait(0.002):
            for partition in range(PARTITIONS):
                self._send(partition, self.sent)
            self.sent += 1
            self._producer.poll(0)
        if self._producer.flush(DELIVERY_TIMEOUT_S):
            self.failures.append("not all were delivered")

    def _send(self, partition: int, number: int) -> None:
        def told(error: KafkaError | None, _: object) -> None:
            if error is None:
                self.acked[partition].append(number)
            else:
                self.failures.append(f"{partition}: {number}: {error}")

        self._producer.produce(TOPIC, b"%d" % number, partition=partition, on_delivery=told)

    def goes_on(self) -> None:
        """Until every partition has taken what is sent from now on."""
        wanted = self.sent + 20

        def went_on() -> bool:
            return bool(self.failures) or all(each and each[-1] >= wanted for each in self.acked.values())

        wait_until(went_on, "acknowledgements of every partition", timeout_s=DELIVERY_TIMEOUT_S)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(DELIVERY_TIMEOUT_S + 10)
        assert not self._thread.is_alive()
        assert self.failures == []


def read_all(broker: Appliance) -> dict[int, list[int]]:
    """The numbers in every partition, in order, as a consumer reads them."""
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "reader", "enable.auto.commit": False}
    )
    places = [TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
    consumer.assign(places)
    ends = {place.partition: consumer.get_watermark_offsets(place)[1] for place in places}
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    while any(len(found[number]) < end for number, end in ends.items()):
        message = consumer.poll(DELIVERY_TIMEOUT_S)
        assert message is not None, {number: (len(found[number]), end) for number, end in ends.items()}
        assert message.error() is None
        partition, value = message.partition(), message.value()
        assert partition is not None
        assert value is not None
        found[partition].append(int(value))
    consumer.close()
    return found


def check(broker: Appliance, load: Load) -> None:
    """What was acknowledged is there, once and in order."""
    load.end()
    for number, found in read_all(broker).items():
        assert found == sorted(set(found)), number
        assert not set(load.acked[number]) - set(found), number


def worker_of(broker: Appliance, index: int) -> int:
    return generations(broker)[f"ioproc 0.{index}"][0]


def lives_again(broker: Appliance, role: str, before: int) -> None:
    wait_until(
        lambda: generations(broker).get(role, (0, 0))[0] not in (0, before),
        f"{role} is restarted",
        timeout_s=30,
    )


def test_only_workers_have_a_short_slice(broker: Appliance) -> None:
    """Network processes with one take the core from the clients that they answer (decision 0063)."""
    everybodys_ns = scheduled().slice_ns
    assert not IS_HEARD or everybodys_ns > SLICE_NS
    slices_ns = {row.role: scheduled(row.pid).slice_ns for row in broker.processes()}
    workers_ns = {slices_ns.pop(role) for role in list(slices_ns) if role.startswith("ioproc")}
    assert workers_ns == {SLICE_NS if IS_HEARD else everybodys_ns}
    assert set(slices_ns.values()) == {everybodys_ns}


def test_a_topic_s_partitions_are_spread_evenly(broker: Appliance) -> None:
    assert {"ioproc 0.0", "ioproc 0.1"} <= set(generations(broker))
    assert [len(owned_by(broker, worker)) for worker in range(WORKERS)] == [3, 3]


def test_what_another_worker_owns_is_served_without_a_gap_while_one_is_dead(broker: Appliance) -> None:
    """Each request is answered, without an error and on the connection that stood before."""
    others = owned_by(broker, 0)
    (lost, *_) = owned_by(broker, 1)
    spared = generations(broker)["ioproc 0.0"]
    killed = worker_of(broker, 1)
    batch = encode_batch([Record(b"v")])
    with WireSocket(broker.port) as connection:
        assert produce(connection, TOPIC, batch, partition=lost).error == 0
        os.kill(killed, signal.SIGKILL)
        answered = 0
        while answered < 50 or generations(broker).get("ioproc 0.1", (0, 0))[0] in (0, killed):
            for partition in others:
                assert produce(connection, TOPIC, batch, partition=partition).error == 0
                answered += 1

        def is_served() -> bool:
            return produce(connection, TOPIC, batch, partition=lost).error == 0

        wait_until(is_served, "the partitions of the worker that was killed")
    assert generations(broker)["ioproc 0.0"] == spared


def test_acknowledged_records_survive_kills_of_one_worker_and_the_other(broker: Appliance) -> None:
    load = Load(broker)
    load.goes_on()
    for index in (0, 1, 0):
        pid = worker_of(broker, index)
        os.kill(pid, signal.SIGKILL)
        lives_again(broker, f"ioproc 0.{index}", pid)
        load.goes_on()
    check(broker, load)
    assert "Traceback" not in broker.output()


def test_acknowledged_records_survive_another_number_of_workers_at_each_start(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    broker = appliance_of(data_dir, 1)
    broker.start()
    assert create_topic(broker.port, TOPIC, partitions=PARTITIONS) == 0
    acked: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
    identity = 0
    for workers, how in ((3, "stop"), (2, "kill"), (1, "stop"), (2, "stop"), (3, "kill"), (1, "stop")):
        with WireSocket(broker.port) as connection:
            for partition in range(PARTITIONS):
                for _ in range(3):
                    batch = encode_batch([Record(b"%d" % identity)])
                    answer = produce(connection, TOPIC, batch, partition=partition)
                    assert (answer.error, answer.base_offset) == (0, acked[partition])
                    acked[partition] += 1
                    identity += 1
        if how == "stop":
            broker.stop()
            assert (data_dir / "slot-0" / CLEAN_SHUTDOWN).exists()
        else:
            broker.kill()
        broker = appliance_of(data_dir, workers)
        broker.start()
        assert not (data_dir / "slot-0" / CLEAN_SHUTDOWN).exists()
        assert {number: len(found) for number, found in read_all(broker).items()} == acked
    broker.stop()
    hidden = {each for each in os.listdir(data_dir / "slot-0") if each.startswith(".")}
    assert hidden == {".lock", CLEAN_SHUTDOWN}, "what one worker alone leaves"


def test_a_worker_that_was_killed_and_came_back_does_not_keep_a_stop_from_being_clean(
    broker: Appliance,
) -> None:
    load = Load(broker)
    load.goes_on()
    pid = worker_of(broker, 1)
    os.kill(pid, signal.SIGKILL)
    lives_again(broker, "ioproc 0.1", pid)
    load.goes_on()
    load.end()
    broker.stop()
    slot = broker.data_dir / "slot-0"
    assert (slot / CLEAN_SHUTDOWN).exists()
    assert not list(slot.glob(".closed-*"))
    broker.start()
    check(broker, load)


def test_a_deleted_topic_goes_from_every_worker(broker: Appliance) -> None:
    with WireSocket(broker.port) as connection:
        for partition in range(PARTITIONS):
            assert produce(connection, TOPIC, encode_batch([Record(b"v")]), partition=partition).error == 0
        answer = ask(connection, ApiKey.DELETE_TOPICS, DeleteTopicsRequest((TopicSelector(TOPIC),), 30_000))
        assert answer.responses[0].error_code == 0
    slot = broker.data_dir / "slot-0"
    wait_until(lambda: not list(slot.glob(f"{TOPIC}-*")), "every directory is removed")
    assert create_topic(broker.port, TOPIC, partitions=PARTITIONS) == 0
    with WireSocket(broker.port) as connection:
        for partition in range(PARTITIONS):
            answer = produce(connection, TOPIC, encode_batch([Record(b"v")]), partition=partition)
            assert (answer.error, answer.base_offset) == (0, 0)


def test_a_log_directory_that_one_worker_has_found_failed_is_told_as_failed(tmp_path: Path) -> None:
    broker = appliance_of(tmp_path / "data", WORKERS, **{"log.dirs": f"{tmp_path}/a,{tmp_path}/b"})
    broker.start()
    try:
        assert create_topic(broker.port, TOPIC, partitions=PARTITIONS) == 0
        # Each worker watches the lock that it holds: one of them sees this, and the other does not.
        (tmp_path / "a" / ".lock-worker1").unlink()

        def errors() -> list[int]:
            with WireSocket(broker.port) as connection:
                answer = ask(connection, ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(None))
            return [each.error_code for each in answer.results]

        wait_until(lambda: errors() == [ErrorCode.KAFKA_STORAGE_ERROR, 0], "the directory is told as failed")
        with WireSocket(broker.port) as connection:
            told = {
                number: produce(connection, TOPIC, encode_batch([Record(b"v")]), partition=number).error
                for number in range(PARTITIONS)
            }
        lost = {number for number in owned_by(broker, 1) if (tmp_path / "a" / f"{TOPIC}-{number}").exists()}
        assert lost
        assert {number for number, error in told.items() if error} == lost
    finally:
        broker.stop()


def test_a_worker_that_hangs_keeps_what_it_owns_from_nobody_for_good(tmp_path: Path) -> None:
    """Nor the rest: an answer that a worker owes holds up what its client asks of the others."""
    broker = appliance_of(tmp_path / "data", WORKERS, **{"worker.hang.timeout.ms": 2000})
    broker.start()
    try:
        assert create_topic(broker.port, TOPIC, partitions=PARTITIONS) == 0
        load = Load(broker)
        load.goes_on()
        suspend(worker_of(broker, 1))
        load.goes_on()
        check(broker, load)
    finally:
        broker.stop()
    assert "ioproc 0.1 did not answer for 2000 ms and was killed" in broker.output()
