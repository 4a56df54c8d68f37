"""The appliance on a ZooKeeper: the data plane needs no store, and the store may come and go."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.broker import Appliance
from tests.support.store import on_zookeeper
from tests.support.zookeeper import ZooKeeper

WAIT_S = 30.0


def until(what: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def create(broker: Appliance, topic: str) -> bool:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    (answer,) = admin.create_topics([NewTopic(topic, 2, 1)], operation_timeout=10).values()
    refusal = answer.exception(timeout=WAIT_S)
    # A try before this one may have taken place though its answer did not come.
    return refusal is None or refusal.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS


def produce(broker: Appliance, topic: str, values: list[str]) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": broker.address, "acks": "all", "log_level": 0})
    for value in values:
        producer.produce(
            topic, value, partition=0, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(WAIT_S) == 0
    assert not failed, failed


def consumed(broker: Appliance, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "none",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(count, timeout=0.5):
            assert message.error() is None, message.error()
            found.append((message.value() or b"").decode())
    consumer.close()
    return found


def test_records_flow_while_controller_and_zookeeper_die_and_come_back(
    tmp_path: Path, own_zookeeper: ZooKeeper
) -> None:
    data_dir = tmp_path / "data"
    options = {**on_zookeeper(own_zookeeper.address, data_dir), "zookeeper.session.timeout.ms": 6000}
    own_zookeeper.kill()
    broker = Appliance(data_dir, settings=options)
    # A server ends with the thread that started it: this one lives as long as the test.
    with ThreadPoolExecutor(1) as beside:
        came = beside.submit(start_once_missed, own_zookeeper, broker)
        try:
            broker.start()
            came.result()
            live_through_everything(broker, own_zookeeper)
        finally:
            broker.stop()


def start_once_missed(server: ZooKeeper, broker: Appliance) -> None:
    until("it does not say that there is no ZooKeeper", lambda: "does not answer" in broker.output())
    server.start()


def live_through_everything(broker: Appliance, own_zookeeper: ZooKeeper) -> None:
    until("no topic is created", lambda: create(broker, "first"))
    produce(broker, "first", ["0"])

    broker.kill_role("controller")
    until("no controller follows the killed one", lambda: create(broker, "second"))
    produce(broker, "second", ["0"])

    own_zookeeper.kill()
    assert not create(broker, "refused")
    produce(broker, "first", ["1"])
    until("the session is not given up", lambda: "may have expired" in broker.output())
    produce(broker, "first", ["2"])
    assert consumed(broker, "first", 3) == ["0", "1", "2"]

    own_zookeeper.start()
    until("the store is not used again", lambda: create(broker, "third"))
    produce(broker, "first", ["3"])
    broker.stop()
    broker.start()
    assert consumed(broker, "first", 4) == ["0", "1", "2", "3"]
    assert consumed(broker, "second", 1) == ["0"]
    topics = (
        AdminClient({"bootstrap.servers": broker.address, "log_level": 0}).list_topics(timeout=WAIT_S).topics
    )
    assert {"first", "second", "third"} <= set(topics)


def test_data_directory_of_one_store_is_refused_with_the_other(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    for own, other in (("embedded", "zookeeper"), ("zookeeper", "embedded")):
        data_dir = tmp_path / own
        options = on_zookeeper(zookeeper.address, data_dir)
        broker = Appliance(data_dir, settings=options if own == "zookeeper" else {"metadata.store": own})
        broker.start()
        broker.stop()
        asked = [f"--set={name}={value}" for name, value in options.items() if other == "zookeeper"]
        refused = subprocess.run(
            [sys.executable, "-m", "appliance", "serve", "--data-dir", str(data_dir), *asked],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert refused.returncode == 2, refused.stdout
        assert f"are kept with metadata.store = {own}" in refused.stderr
