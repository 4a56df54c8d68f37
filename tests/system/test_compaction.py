"""A compacted topic under load from real clients: compacted while it is written and read, and while processes die."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.apache_kafka import install, tool
from tests.support.broker import Appliance

TOPIC = "latest"
KEYS = 300
SETTINGS = {"log.cleaner.backoff.ms": 50}
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "0",
}
PATIENCE_S = 30


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    broker = Appliance(tmp_path / "data", settings=SETTINGS)
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIGS)])[TOPIC].result(20)
    yield broker
    broker.stop()


class Load:
    """Writes random keys; `last` holds each key's last value. The producer is idempotent and patient."""

    def __init__(self, broker: Appliance, codec: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "enable.idempotence": True,
                "linger.ms": 2,
                "compression.type": codec,
                "message.timeout.ms": 60_000,
            }
        )
        self._random = random.Random(7)
        self.last: dict[bytes, bytes] = {}
        self.failed: list[str] = []
        self._number = 0

    def write(self, count: int) -> None:
        """Returns when all is acknowledged."""
        for _ in range(count):
            self._number += 1
            key = b"key-%d" % self._random.randrange(KEYS)
            value = b"%d " % self._number + self._random.randbytes(150)
            self.last[key] = value
            self._producer.produce(TOPIC, value, key, on_delivery=self._delivered)
            if self._number % 200 == 0:
                self._producer.poll(0)
        assert self._producer.flush(60) == 0

    def _delivered(self, error: object, _message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))


def read_back(broker: Appliance) -> tuple[dict[bytes, bytes], int]:
    """(last value of every key, records read) from the beginning to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "none",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found: dict[bytes, bytes] = {}
        count, until = 0, time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            message = consumer.poll(1)
            if message is None:
                continue
            fault = message.error()
            if fault is not None:
                if fault.name() == "_PARTITION_EOF":
                    return found, count
                continue
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            found[key] = value
            count += 1
        raise AssertionError(f"no end of the topic within {PATIENCE_S} s, {count} records read")
    finally:
        consumer.close()


def compacted_to(broker: Appliance) -> int:
    """The offset in the cleaner's checkpoint; 0 before there is one."""
    path = broker.data_dir / "slot-0" / "cleaner-offset-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return max((int(line.split()[2]) for line in lines), default=0)


def wait_for_compaction(broker: Appliance, beyond: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while compacted_to(broker) <= beyond:
        assert time.monotonic() < until, f"not compacted beyond {beyond}:\n{broker.output()[-3000:]}"
        time.sleep(0.05)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_topic_is_compacted_while_it_is_written_and_read(appliance: Appliance, codec: str) -> None:
    load = Load(appliance, codec)
    for _ in range(3):
        load.write(8_000)
        found, _ = read_back(appliance)
        assert found == load.last
    wait_for_compaction(appliance, 0)
    found, count = read_back(appliance)
    assert found == load.last
    assert count < 24_000
    assert not load.failed


@pytest.mark.slow
def test_no_last_value_is_lost_when_cleaner_and_worker_are_killed_at_random(appliance: Appliance) -> None:
    load = Load(appliance, "none")
    chance = random.Random(11)
    for number in range(10):
        load.write(8_000)
        time.sleep(chance.random() * 0.3)  # anywhere in a round; not a wait for anything
        appliance.kill_role("cleaner" if number % 2 else "ioproc")
    found, _ = read_back(appliance)
    assert not load.failed
    assert found == load.last
    before = compacted_to(appliance)
    load.write(16_000)
    wait_for_compaction(appliance, before)
    found, count = read_back(appliance)
    assert found == load.last
    assert count < 60_000
    left = [path.name for path in (appliance.data_dir / "slot-0" / f"{TOPIC}-0").iterdir()]
    assert not [name for name in left if name.endswith(".swap")]


@pytest.mark.slow
def test_kafkas_own_dump_tool_finds_no_fault_in_a_compacted_log(appliance: Appliance) -> None:
    install()
    load = Load(appliance, "none")
    for _ in range(3):
        load.write(8_000)
    wait_for_compaction(appliance, 0)
    appliance.stop()
    directory = appliance.data_dir / "slot-0" / f"{TOPIC}-0"
    files = sorted(
        str(path) for path in directory.iterdir() if path.suffix in {".log", ".index", ".timeindex"}
    )
    said = tool("org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(files))
    assert "Mismatches in" not in said, said[-3000:]
    assert "Found timestamp mismatch" not in said, said[-3000:]
    assert "Found out of order timestamp" not in said, said[-3000:]
    assert "isvalid: false" not in said
    appliance.start()


def test_a_record_without_a_key_is_refused(appliance: Appliance) -> None:
    producer = Producer({"bootstrap.servers": appliance.address})
    errors: list[KafkaError | None] = []
    producer.produce(TOPIC, b"value", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20) == 0
    assert [error.name() for error in errors if error is not None] == ["INVALID_RECORD"]
