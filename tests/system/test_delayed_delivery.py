"""Delayed delivery through real clients: each record once, none early, whatever dies. See docs/delayed-delivery.md."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from kafka import KafkaConsumer, KafkaProducer

from tests.support.apache_kafka import tool
from tests.support.broker import Appliance
from tests.system.delayed import (
    PARTITIONS,
    PATIENCE_S,
    Load,
    check,
    consumed,
    counter,
    create,
    records_in,
    refusal_of,
    started,
)
from tests.system.raw import wait_until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    made = started(tmp_path_factory.mktemp("delayed") / "data")
    yield made
    made.stop()


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd", "snappy"])
def test_delayed_records_leave_gaps_and_come_when_they_are_due(broker: Appliance, codec: str) -> None:
    topic = f"mixed-{codec}"
    create(broker, topic)
    client = Producer({"bootstrap.servers": broker.address, "compression.type": codec, "linger.ms": 100})
    offsets: dict[bytes, int] = {}

    def note(error: KafkaError | None, message: Any) -> None:
        assert error is None, error
        offsets[message.value()] = message.offset()

    sent_ms = time.time() * 1000
    for number in range(30):
        headers: list[tuple[str, str | bytes | None]] = [("n", b"%d" % number)]
        headers += [("delivery.delay", b"700")] if number % 3 else []
        client.produce(topic, b"%d" % number, b"key", 0, on_delivery=note, headers=headers)
    client.flush(PATIENCE_S)
    assert offsets == {b"%d" % number: number for number in range(30)}, "as if none were delayed"

    found = consumed(broker, topic, 30)
    assert [int(each.value()) for each in found] == [
        *(number for number in range(30) if not number % 3),
        *(number for number in range(30) if number % 3),
    ]
    for each in found[10:]:
        delivered = dict(each.headers())
        assert delivered["n"] == each.value()
        assert int(delivered["delivery.offset"]) == int(each.value())
        assert "delivery.delay" not in delivered
        assert each.timestamp()[1] >= sent_ms + 1000, "700 ms are raised to the level of one second"
        assert each.key() == b"key"


def test_a_plain_kafka_python_program_reads_past_a_batch_of_delayed_records_only(broker: Appliance) -> None:
    create(broker, "plain")
    producer = KafkaProducer(bootstrap_servers=broker.address)
    at_ms = int(time.time() * 1000) + 3_000
    sent = producer.send("plain", b"later", headers=[("delivery.at", b"%d" % at_ms)], partition=1)
    assert sent.get(PATIENCE_S).offset == 0
    assert producer.send("plain", b"now", partition=1).get(PATIENCE_S).offset == 1
    producer.close()
    consumer = KafkaConsumer(
        "plain", bootstrap_servers=broker.address, auto_offset_reset="earliest", group_id=None
    )
    found = [next(consumer) for _ in range(2)]
    consumer.close()
    assert [(each.offset, each.value) for each in found] == [(1, b"now"), (2, b"later")]
    assert time.time() * 1000 >= at_ms


def test_a_delay_above_the_largest_level_takes_several_steps(broker: Appliance) -> None:
    create(broker, "long")
    begun = time.time()
    client = Producer({"bootstrap.servers": broker.address})
    client.produce("long", b"x", headers=[("delivery.delay", b"2800")])
    client.flush(PATIENCE_S)
    (found,) = consumed(broker, "long", 1)
    late_s = found.timestamp()[1] / 1000 - begun
    assert late_s >= 2.8
    assert dict(found.headers())["delivery.offset"] == b"0"


def test_exact_records_come_when_they_are_due_and_wait_in_one_place(broker: Appliance) -> None:
    create(broker, "exact", delivery_delay_mode="exact")
    client = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
    due: dict[bytes, int] = {}
    for number in range(40):
        at_ms = int(time.time() * 1000) + 300 + 37 * number
        due[b"%d" % number] = at_ms
        client.produce("exact", b"%d" % number, partition=0, headers=[("delivery.at", b"%d" % at_ms)])
        client.poll(0)
    client.flush(PATIENCE_S)
    late_ms = sorted(each.timestamp()[1] - due[each.value()] for each in consumed(broker, "exact", 40))
    assert late_ms[0] >= 0
    assert late_ms[len(late_ms) // 2] < 200
    assert records_in(broker, "__delayed_exact_1m") == 40


def test_short_delays_are_not_held_up_by_long_ones_and_come_in_due_order(broker: Appliance) -> None:
    create(broker, "order")
    client = Producer({"bootstrap.servers": broker.address, "linger.ms": 60_000})
    for delay in (2000, 1000, 500):
        client.produce("order", b"%d" % delay, partition=0, headers=[("delivery.delay", b"%d" % delay)])
    client.flush(PATIENCE_S)  # in one batch, so all wait from the same moment
    assert [each.value() for each in consumed(broker, "order", 3)] == [b"500", b"1000", b"2000"]


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ([("delivery.delay", b"soon")], "delivery.delay"),
        ([("delivery.at", b"")], "delivery.at"),
        ([("delivery.delay", b"-5")], "delivery.delay"),
        ([("delivery.at", b"9999999999999999999999")], "delivery.at"),
        ([("delivery.delay", b"%d" % (300 * 366 * 86_400_000))], "delivery.delay.max.ms"),
        ([("delivery.delay", b"1000"), ("delivery.delay", b"2000")], "twice"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    broker: Appliance, headers: Sequence[tuple[str, bytes]], why: str
) -> None:
    create_once(broker, "refused")
    error = refusal_of(broker, "refused", headers)
    assert error.code() == KafkaError.INVALID_RECORD
    producer = KafkaProducer(bootstrap_servers=broker.address)
    with pytest.raises(Exception, match=why):
        producer.send("refused", b"x", headers=list(headers)).get(PATIENCE_S)
    producer.close()


def test_a_header_of_one_megabyte_is_refused_and_stops_nothing(broker: Appliance) -> None:
    create_once(broker, "large-header")
    client = Producer({"bootstrap.servers": broker.address, "message.max.bytes": 4 << 20, "linger.ms": 0})
    errors: list[KafkaError | None] = []
    for header in (bytes(1 << 20), b"small"):
        client.produce(
            "large-header",
            b"x",
            partition=0,
            headers=[("delivery.delay", b"300"), ("large", header)],
            on_delivery=lambda error, _message: errors.append(error),
        )
        client.flush(PATIENCE_S)
    assert [None if each is None else each.code() for each in errors] == [KafkaError.MSG_SIZE_TOO_LARGE, None]
    assert [each.value() for each in consumed(broker, "large-header", 1, more_s=0.5)] == [b"x"]


@pytest.mark.parametrize("mode", ["levels", "exact"])
def test_a_compressed_batch_of_thousands_of_different_times_comes_in_due_order(
    broker: Appliance, mode: str
) -> None:
    topic, count = f"many-{mode}", 10_000
    create(broker, topic, delivery_delay_mode=mode)
    client = Producer({"bootstrap.servers": broker.address, "linger.ms": 500, "compression.type": "zstd"})
    now_ms = int(time.time() * 1000)
    due_ms = [now_ms + 4_000 + each * 7_919 % 3_000 for each in range(count)]
    for each in due_ms:
        client.produce(topic, b"%d" % each, partition=0, headers=[("delivery.at", b"%d" % each)])
    client.flush(PATIENCE_S)
    found = consumed(broker, topic, count, more_s=0.5)
    values = [int(each.value()) for each in found]
    assert sorted(values) == sorted(due_ms)
    assert all(each.timestamp()[1] >= value for each, value in zip(found, values, strict=True))
    if mode == "exact":
        assert values == sorted(values)


def create_once(broker: Appliance, topic: str) -> None:
    if topic not in AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=PATIENCE_S).topics:
        create(broker, topic)


def test_a_time_before_the_records_own_is_at_once(broker: Appliance) -> None:
    create(broker, "past")
    client = Producer({"bootstrap.servers": broker.address})
    client.produce("past", b"x", headers=[("delivery.at", b"1000")])
    client.produce("past", b"y", headers=[("delivery.delay", b"0")])
    client.flush(PATIENCE_S)
    assert sorted(each.value() for each in consumed(broker, "past", 2)) == [b"x", b"y"]


def test_a_deleted_topic_holds_up_no_other(broker: Appliance) -> None:
    create(broker, "doomed")
    create(broker, "healthy")
    client = Producer({"bootstrap.servers": broker.address})
    for topic in ("doomed", "healthy"):
        for partition in range(PARTITIONS):
            client.produce(topic, b"x", partition=partition, headers=[("delivery.delay", b"5000")])
    client.flush(PATIENCE_S)
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.delete_topics(["doomed"])["doomed"].result(PATIENCE_S)
    assert len(consumed(broker, "healthy", PARTITIONS)) == PARTITIONS
    wait_until(lambda: counter(broker, "dropped_records") >= PARTITIONS, "the others are counted")


def test_internal_topics_are_read_by_kafkas_tools_and_written_by_nobody(broker: Appliance) -> None:
    create(broker, "seen")
    client = Producer({"bootstrap.servers": broker.address})
    client.produce("seen", b"value", headers=[("delivery.delay", b"2000")])
    client.flush(PATIENCE_S)
    found = consumed_by_tool(broker, "__delayed_2s")
    assert "__delayed:1," in found
    error = refusal_of(broker, "__delayed_2s", [])
    assert error.code() == KafkaError.TOPIC_EXCEPTION
    admin = AdminClient({"bootstrap.servers": broker.address})
    with pytest.raises(KafkaException):
        admin.create_partitions([NewPartitions("__delayed_2s", 9)])["__delayed_2s"].result(PATIENCE_S)


def consumed_by_tool(broker: Appliance, topic: str) -> str:
    return tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server",
        broker.address,
        "--topic",
        topic,
        "--from-beginning",
        "--max-messages",
        "1",
        "--formatter-property",
        "print.headers=true",
    )


def test_each_comes_once_whatever_kills_the_services_process(broker: Appliance) -> None:
    create(broker, "killed")
    load = Load(broker, "killed")
    load.start()
    for _ in range(5):
        time.sleep(0.6)
        broker.kill_role("services")
    load.end()
    check(broker, load)


@pytest.mark.slow
def test_each_comes_once_whatever_kills_workers_and_network_processes(broker: Appliance) -> None:
    create(broker, "all-killed")
    load = Load(broker, "all-killed")
    load.start()
    for role in ("ioproc", "netproc", "services", "ioproc", "netproc"):
        time.sleep(0.8)
        broker.kill_role(role)
    load.end()
    check(broker, load)


def test_each_comes_once_after_kills_of_everything(tmp_path: Path) -> None:
    broker = started(tmp_path / "data")
    try:
        create(broker, "t")
        load = Load(broker, "t")
        load.start()
        time.sleep(2.0)
        broker.kill()
        broker.start()
        time.sleep(0.5)
        load.end()
        check(broker, load)
    finally:
        broker.stop()


@pytest.mark.slow
def test_each_comes_once_while_leaders_change(tmp_path: Path) -> None:
    broker = started(tmp_path / "data", slots=3)
    try:
        create(broker, "t", replicas=3)
        load = Load(broker, "t")
        load.start()
        for slot in (0, 1, 2, 0, 1, 2):
            time.sleep(1.0)
            broker.kill_role(f"ioproc {slot}.0")
        load.end()
        check(broker, load)
    finally:
        broker.stop()


def test_without_services_processes_no_topic_can_have_it(tmp_path: Path) -> None:
    broker = Appliance(tmp_path / "data")
    broker.start()
    try:
        with pytest.raises(KafkaException, match=r"services\.processes"):
            create(broker, "t")
        assert broker.pids("services") == []
    finally:
        broker.stop()
