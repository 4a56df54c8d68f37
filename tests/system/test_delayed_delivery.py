"""Delayed delivery through real clients: each record once, none early, whatever dies. See docs/delayed-delivery.md."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from appliance.cli.status import processes_of
from tests.support.apache_kafka import tool
from tests.support.broker import Appliance
from tests.system.raw import wait_until

LEVELS: Final = ["500ms", "1s", "2s"]
PATIENCE_S: Final = 60.0
PARTITIONS: Final = 2
FINE: Final = ("10ms", "20ms", "50ms", "100ms", "200ms")


def started(data_dir: Path, *, slots: int = 1) -> Appliance:
    broker = Appliance(
        data_dir, slots=slots, settings={"services.processes": 1, "delivery.delay.levels": LEVELS}
    )
    broker.start()
    return broker


def create(broker: Appliance, topic: str, *, replicas: int = 1, **configs: str) -> None:
    configs = {
        "delivery.delay.enable": "true",
        **{name.replace("_", "."): each for name, each in configs.items()},
    }
    client = AdminClient({"bootstrap.servers": broker.address})
    client.create_topics([NewTopic(topic, PARTITIONS, replicas, config=configs)])[topic].result(PATIENCE_S)


def consumed(broker: Appliance, topic: str, wanted: int, *, more_s: float = 0.0) -> list[Any]:
    """Return `wanted` records in the order in which they came, and what comes in `more_s` after them."""
    client = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    client.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[Any] = []
    until = time.monotonic() + PATIENCE_S
    while len(found) < wanted and time.monotonic() < until:
        found += [each for each in client.consume(100, 0.1) if each.error() is None]
    assert len(found) >= wanted, f"{len(found)} of {wanted} came: {sorted(each.value() for each in found)}"
    until = time.monotonic() + more_s
    while time.monotonic() < until:
        found += [each for each in client.consume(100, 0.1) if each.error() is None]
    client.close()
    return found


def records_in(broker: Appliance, topic: str) -> int:
    """Return how many records the topic has had."""
    client = Consumer({"bootstrap.servers": broker.address, "group.id": "none"})
    partitions = client.list_topics(topic, PATIENCE_S).topics[topic].partitions
    ends = [client.get_watermark_offsets(TopicPartition(topic, each), PATIENCE_S)[1] for each in partitions]
    client.close()
    return sum(ends)


def refusal_of(
    broker: Appliance, topic: str, headers: Sequence[tuple[str, bytes]], **options: Any
) -> KafkaError:
    """Return the error of producing a record with these headers."""
    errors: list[KafkaError | None] = []
    client = Producer({"bootstrap.servers": broker.address, **options})
    client.produce(topic, b"bad", headers=list(headers), on_delivery=lambda error, _: errors.append(error))
    client.flush(PATIENCE_S)
    (error,) = errors
    assert error is not None, "it was taken"
    return error


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


def test_exact_delays_end_in_small_steps(broker: Appliance) -> None:
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
    assert sum(records_in(broker, f"__delayed_{level}") for level in FINE) > 0, "the last steps are small"


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


def create_once(broker: Appliance, topic: str) -> None:
    if topic not in AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=PATIENCE_S).topics:
        create(broker, topic)


def test_a_transaction_takes_no_delayed_record(broker: Appliance) -> None:
    create(broker, "transactional")
    client = Producer({"bootstrap.servers": broker.address, "transactional.id": "t"})
    client.init_transactions(PATIENCE_S)
    client.begin_transaction()
    client.produce("transactional", b"x", headers=[("delivery.delay", b"1000")])
    with pytest.raises(KafkaException):
        client.commit_transaction(PATIENCE_S)
    client = Producer({"bootstrap.servers": broker.address, "transactional.id": "t"})
    client.init_transactions(PATIENCE_S)
    client.begin_transaction()
    client.produce("transactional", b"plain")
    client.commit_transaction(PATIENCE_S)
    (found,) = consumed(broker, "transactional", 1)
    assert found.value() == b"plain"


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


def counter(broker: Appliance, name: str) -> int:
    rows = processes_of(broker.data_dir.resolve()) or []
    return sum(row.get("counters", {}).get(name, 0) for row in rows)


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


class Load(threading.Thread):
    """A producer that sends delayed and plain records until it is stopped; what was acknowledged is in `acked`."""

    def __init__(self, broker: Appliance, topic: str) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.acked: dict[bytes, float] = {}
        self.failed: list[str] = []
        self._ended = threading.Event()
        self._client = Producer(
            {
                "bootstrap.servers": broker.address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": int(PATIENCE_S * 1000),
                "retry.backoff.ms": 50,
            }
        )

    def run(self) -> None:
        number = 0
        while not self._ended.is_set():
            delay_ms = (0, 400, 900, 1900)[number % 4]
            value = b"%d %d" % (number, delay_ms)
            self._client.produce(
                self.topic,
                value,
                partition=number % PARTITIONS,
                headers=[("delivery.delay", b"%d" % delay_ms)] if delay_ms else [],
                on_delivery=self._note(time.time() + delay_ms / 1000),
            )
            self._client.poll(0.002)
            number += 1
        self._client.flush(PATIENCE_S)

    def _note(self, due: float) -> Any:
        def note(error: KafkaError | None, message: Any) -> None:
            if error is None:
                self.acked[message.value()] = due
            else:
                self.failed.append(str(error))

        return note

    def end(self) -> None:
        self._ended.set()
        self.join(PATIENCE_S * 2)
        assert not self.is_alive()
        assert not self.failed, self.failed[:3]


def check(broker: Appliance, load: Load) -> None:
    """Each acknowledged record is there once, and none came early."""
    found = consumed(broker, load.topic, len(load.acked), more_s=2.0)
    times = Counter(each.value() for each in found)
    assert {value: count for value, count in times.items() if count > 1} == {}
    assert times.keys() == load.acked.keys()
    early = [each.value() for each in found if each.timestamp()[1] < load.acked[each.value()] * 1000 - 1]
    assert early == []
    assert any(b" 1900" in value for value in times)


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
