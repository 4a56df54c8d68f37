"""`appliance.testing.Broker`: a real broker for test runners without fixtures, and the faults a test can cause."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from appliance.cli.connecting import BrokerError
from appliance.control.supervisor.scratch import MEMORY
from appliance.testing import Broker, BrokerFailed


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def three() -> Iterator[Broker]:
    with Broker(slots=3, options={"min.insync.replicas": 2}) as broker:
        yield broker


def produce(broker: Broker, topic: str, *values: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers.split(","), acks="all")
    try:
        for value in values:
            producer.send(topic, value).get(timeout=30)
    finally:
        producer.close()


def consume(broker: Broker, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers.split(","),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    try:
        consumer.assign([TopicPartition(topic, 0)])
        values: list[bytes] = []
        deadline = time.monotonic() + 30
        while len(values) < count and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=500).values():
                values += [record.value for record in records]
        return values
    finally:
        consumer.close()


def test_a_closed_broker_leaves_no_process_no_data_and_no_shared_memory() -> None:
    before = set(os.listdir(MEMORY))
    with Broker() as broker:
        supervisor = psutil.Process(broker.pid)
        family = [supervisor, *supervisor.children()]
        assert broker.data_dir.is_relative_to(MEMORY)
        produce(broker, "t", b"one")
        assert consume(broker, "t", 1) == [b"one"]
        directory = broker.data_dir.parent
    assert not any(process.is_running() for process in family)
    assert not directory.exists()
    left = {name for name in set(os.listdir(MEMORY)) - before if "ephemeral" in name}
    assert left == set()
    assert not broker.is_running


def test_an_asynchronous_program_uses_it_with_async_with() -> None:
    async def main() -> list[bytes]:
        async with Broker() as broker:
            await asyncio.to_thread(produce, broker, "t", b"one")
            return await asyncio.to_thread(consume, broker, "t", 1)

    assert asyncio.run(main()) == [b"one"]


def test_a_cancelled_start_leaves_no_broker() -> None:
    broker = Broker()

    async def main() -> None:
        starting = asyncio.create_task(broker.__aenter__())
        await asyncio.sleep(0.05)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(main())
    assert not broker.is_running
    assert not broker.data_dir.exists()


def test_a_first_rebalance_waits_for_nobody(shared: Broker) -> None:
    produce(shared, "grouped", b"one")
    began = time.monotonic()
    consumer = KafkaConsumer(
        "grouped", bootstrap_servers=shared.bootstrap_servers, group_id="g", auto_offset_reset="earliest"
    )
    try:
        assert [record.value for _, record in zip(range(1), consumer, strict=False)] == [b"one"]
    finally:
        consumer.close()
    assert time.monotonic() - began < 2.5, "group.initial.rebalance.delay.ms is 3 s by default"


def test_topics_are_there_when_create_returns(shared: Broker) -> None:
    shared.topics.create("orders", "refunds", partitions=3, configs={"cleanup.policy": "compact"})
    assert {"orders", "refunds"} <= set(shared.topics.names())
    assert {path.name for path in (shared.data_dir / "slot-0").iterdir()} >= {"orders-0", "orders-2"}
    shared.topics.delete("refunds")
    assert "refunds" not in shared.topics.names()
    with pytest.raises(BrokerError, match=r"topic orders: .*TOPIC_ALREADY_EXISTS"):
        shared.topics.create("orders")
    with pytest.raises(BrokerError, match=r"topic wrong: .*INVALID_CONFIG"):
        shared.topics.create("wrong", configs={"cleanup.policy": "sometimes"})


def test_a_killed_process_is_replaced_and_the_records_are_there(shared: Broker) -> None:
    produce(shared, "killed", b"one")
    killed = shared.kill("ioproc")
    shared.wait_until_whole()
    (worker,) = [each for each in shared.processes() if each.role == "ioproc 0.0"]
    assert worker.pid != killed
    assert worker.generation == 2
    produce(shared, "killed", b"two")
    assert consume(shared, "killed", 2) == [b"one", b"two"]


def test_a_role_that_does_not_exist_is_named_with_those_that_do(shared: Broker) -> None:
    with pytest.raises(BrokerFailed, match=r"'zookeeper'; there are acceptor, .*controller.*supervisor"):
        shared.kill("zookeeper")


def test_dropped_connections_are_closed(shared: Broker) -> None:
    with socket.create_connection(("127.0.0.1", shared.port), timeout=10) as connection:
        connection.sendall(b"\x00\x00")  # a request that has begun
        time.sleep(0.2)  # until a network process has the connection
        shared.drop_connections()
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    shared.wait_until_whole()


def test_a_frozen_process_goes_on_afterwards(shared: Broker) -> None:
    with shared.frozen("ioproc"):
        (worker,) = [each for each in shared.processes() if each.role == "ioproc 0.0"]
        assert psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED
    produce(shared, "thawed", b"one")
    assert consume(shared, "thawed", 1) == [b"one"]


def test_data_outlive_a_kill_of_everything_and_a_restart() -> None:
    with Broker() as broker:
        port = broker.port
        produce(broker, "t", b"one")
        broker.kill_all()
        assert not broker.is_running
        broker.start()
        produce(broker, "t", b"two")
        broker.restart()
        assert broker.port == port
        assert consume(broker, "t", 2) == [b"one", b"two"]
        broker.kill("supervisor")
        assert not broker.is_running
        broker.start()
        assert consume(broker, "t", 2) == [b"one", b"two"]
        assert broker.log().count("INFO supervisor: stopped") == 1, "only the restart was clean"


def test_three_slots_have_three_replicas_and_one_of_them_can_be_stopped(three: Broker) -> None:
    assert len(three.bootstrap_servers.split(",")) == 3
    three.topics.create("replicated", partitions=3)
    for slot in range(3):
        assert (three.data_dir / f"slot-{slot}" / "replicated-0").is_dir()
    three.stop_slot(0)
    produce(three, "replicated", b"one")
    three.start_slot(0)
    three.kill("ioproc 1.0")
    three.wait_until_whole()
    produce(three, "replicated", b"two")


def test_a_wrong_option_fails_the_start_with_the_brokers_own_words() -> None:
    broker = Broker(options={"log.retention.sometimes": 1})
    with pytest.raises(BrokerFailed, match=r"(?s)exit code 2.*log.retention.sometimes: no such option"):
        broker.start()
    broker.close()
    assert broker.log() == ""


def test_a_taken_port_fails_the_start_and_says_so(shared: Broker) -> None:
    with (
        pytest.raises(BrokerFailed, match=rf"(?s)exit code 5.*port {shared.port} is taken"),
        Broker(port=shared.port),
    ):
        pass


def test_a_broker_that_was_not_started_says_so() -> None:
    broker = Broker()
    with pytest.raises(BrokerFailed, match="was not started"):
        _ = broker.bootstrap_servers
    broker.close()


def test_data_may_lie_on_a_disk(tmp_path: Path) -> None:
    with Broker(directory=tmp_path) as broker:
        assert broker.data_dir.is_relative_to(tmp_path)
        produce(broker, "t", b"one")
    assert list(tmp_path.iterdir()) == []


def stored_ms(broker: Broker, topic: str) -> int:
    """Return when the broker says it has appended one more record."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers.split(","), acks="all")
    try:
        return int(producer.send(topic, b"v").get(timeout=30).timestamp)
    finally:
        producer.close()


def test_a_test_sets_the_clock_of_a_broker_that_runs() -> None:
    day_s = 86_400
    with Broker(options={"log.retention.check.interval.ms": 200, "log.roll.ms": 1_000}) as broker:
        stamps = {"message.timestamp.type": "LogAppendTime", "retention.ms": str(7 * day_s * 1000)}
        broker.topics.create("t", configs=stamps)
        produce(broker, "t", b"old")
        for ahead_s in (-3_600, 30, 0):
            broker.set_clock_ahead(ahead_s)
            assert stored_ms(broker, "t") == pytest.approx((time.time() + ahead_s) * 1000, abs=5_000)
        broker.set_clock_ahead(8 * day_s)
        produce(broker, "t", b"new")
        deadline = time.monotonic() + 30
        while (values := consume(broker, "t", 1)) != [b"new"]:
            assert time.monotonic() < deadline, values
        broker.kill_all()
        broker.start()
        assert stored_ms(broker, "t") == pytest.approx((time.time() + 8 * day_s) * 1000, abs=5_000)
        with pytest.raises(ValueError, match="cannot be set"):
            broker.set_clock_ahead(float("inf"))


def test_a_broker_that_was_never_started_has_no_clock() -> None:
    with pytest.raises(BrokerFailed, match="no clock"):
        Broker().set_clock_ahead(1)
