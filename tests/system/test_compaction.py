"""A compacted topic under load from real clients: compacted while it is written and read, and while processes die."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic

from tests.cli.command import appliance as command_line
from tests.support.broker import Appliance
from tests.system.raw import wait_until
from tests.system.test_kafka_reads_our_files import dump_complaints

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

    def __init__(self, broker: Appliance, codec: str, *, topic: str = TOPIC, partition: int = 0) -> None:
        self._topic = topic
        self._partition = partition
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
            self._producer.produce(self._topic, value, key, self._partition, on_delivery=self._delivered)
            if self._number % 200 == 0:
                self._producer.poll(0)
        assert self._producer.flush(60) == 0

    @property
    def written(self) -> int:
        return self._number

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


def checkpointed(directory: Path) -> list[tuple[str, int]]:
    """(partition, offset) in the cleaner's checkpoint of a log directory."""
    path = directory / "cleaner-offset-checkpoint"
    entries = [line.split() for line in path.read_text().splitlines()[2:]] if path.exists() else []
    return [(f"{topic}-{partition}", int(offset)) for topic, partition, offset in entries]


def compacted_to(broker: Appliance, directory: Path | None = None) -> int:
    """The offset in the cleaner's checkpoint; 0 before there is one."""
    return max((offset for _, offset in checkpointed(directory or broker.data_dir / "slot-0")), default=0)


def wait_for_compaction(broker: Appliance, beyond: int, directory: Path | None = None) -> None:
    until = time.monotonic() + PATIENCE_S
    while compacted_to(broker, directory) <= beyond:
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
    """Nor does Apache Kafka's dump tool find a fault in what the kills have left."""
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
    directory = appliance.data_dir / "slot-0" / f"{TOPIC}-0"
    assert not [path.name for path in directory.glob("*.swap")]
    appliance.stop()
    # What was superseded leaves gaps, here as in Kafka.
    told = [line for line in dump_complaints([directory]) if not line.startswith("Non-consecutive offsets")]
    assert not told
    appliance.start()
    assert read_back(appliance)[0] == load.last


@pytest.mark.parametrize("role", ["cleaner", "ioproc"])
def test_a_kill_in_the_midst_of_a_round_costs_no_more_than_the_round(tmp_path: Path, role: str) -> None:
    """The round is slowed down, so that the kill surely meets files that are half written."""
    slow = SETTINGS | {"log.cleaner.io.max.bytes.per.second": 3 << 20}
    broker = Appliance(tmp_path / "data", settings=slow)
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIGS)])[TOPIC].result(20)
        load = Load(broker, "none")
        directory = broker.data_dir / "slot-0" / f"{TOPIC}-0"
        (pid,) = broker.pids(role)

        def is_in_the_midst() -> bool:
            load.write(500)  # there is always something to clean, however late we look
            return any(directory.glob("*.cleaned"))

        wait_until(is_in_the_midst, "a segment in the making", timeout_s=PATIENCE_S)
        before = compacted_to(broker)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: broker.pids(role) not in ([], [pid]), "another life", timeout_s=PATIENCE_S)
        assert read_back(broker)[0] == load.last
        load.write(8_000)
        wait_for_compaction(broker, before)
        found, count = read_back(broker)
        assert found == load.last
        assert count < load.written
        wait_until(lambda: not swap_leftovers(broker), "nothing left of the round", timeout_s=PATIENCE_S)
    finally:
        broker.stop()


def set_policy(broker: Appliance, policy: str) -> None:
    set_config(broker, "cleanup.policy", policy)


def test_a_topic_is_compacted_from_the_moment_its_policy_says_so_and_no_longer(appliance: Appliance) -> None:
    set_policy(appliance, "delete")
    load = Load(appliance, "none")
    load.write(16_000)
    assert read_back(appliance)[1] == 16_000
    assert compacted_to(appliance) == 0
    set_policy(appliance, "compact")
    wait_for_compaction(appliance, 0)
    found, left = read_back(appliance)
    assert found == load.last
    assert left < 16_000
    set_policy(appliance, "delete")
    load.write(16_000)
    found, count = read_back(appliance)
    assert found == load.last
    assert 16_000 <= count <= left + 16_000


def test_compact_and_delete_together_keep_last_values_of_no_more_than_the_limit(appliance: Appliance) -> None:
    """Retention takes whole segments off the front of what compaction has left; DeleteRecords too."""
    set_policy(appliance, "compact,delete")
    load = Load(appliance, "zstd")
    load.write(16_000)
    wait_for_compaction(appliance, 0)
    assert read_back(appliance)[0] == load.last
    admin = AdminClient({"bootstrap.servers": appliance.address})
    deleted = admin.delete_records([TopicPartition(TOPIC, 0, 15_900)])
    for future in deleted.values():
        assert future.result(20).low_watermark == 15_900
    found, count = read_back(appliance)
    assert count <= 100
    assert found.items() <= load.last.items()
    load.write(16_000)
    wait_for_compaction(appliance, 15_900)
    assert {key: load.last[key] for key in read_back(appliance)[0]} == read_back(appliance)[0]
    wait_until(lambda: compacted_to(appliance) <= 32_000 and not swap_leftovers(appliance), "a quiet cleaner")


def set_config(broker: Appliance, name: str, value: str) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC)
    resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.incremental_alter_configs([resource])[resource].result(20)


def test_records_are_safe_for_the_shortest_lag_and_compacted_once_it_is_taken_away(
    appliance: Appliance,
) -> None:
    set_config(appliance, "min.compaction.lag.ms", "3600000")
    load = Load(appliance, "none")
    load.write(16_000)
    # A log beside it, without a lag, shows that the cleaner has been through.
    admin = AdminClient({"bootstrap.servers": appliance.address})
    admin.create_topics([NewTopic("witness", 1, 1, config=CONFIGS)])["witness"].result(20)
    Load(appliance, "none", topic="witness").write(16_000)
    wait_until(
        lambda: any(name == "witness-0" for name, _ in checkpointed(appliance.data_dir / "slot-0")),
        "a compacted witness",
        timeout_s=PATIENCE_S,
    )
    assert read_back(appliance)[1] == 16_000
    set_config(appliance, "min.compaction.lag.ms", "0")
    wait_until(
        lambda: any(name == f"{TOPIC}-0" for name, _ in checkpointed(appliance.data_dir / "slot-0")),
        "a compacted topic",
        timeout_s=PATIENCE_S,
    )
    found, count = read_back(appliance)
    assert found == load.last
    assert count < 16_000


@pytest.mark.parametrize("when", ["from the beginning", "later"])
def test_a_silent_topic_is_compacted_when_the_longest_lag_has_passed(tmp_path: Path, when: str) -> None:
    """Its active segment, too, which nobody appends to and which is neither full nor dirty enough."""
    longest = {"max.compaction.lag.ms": "1500"} if when == "from the beginning" else {}
    broker = Appliance(tmp_path / "data", settings=SETTINGS)
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.address})
        configs = CONFIGS | {"min.cleanable.dirty.ratio": "1"} | longest
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=configs)])[TOPIC].result(20)
        load = Load(broker, "none")
        load.write(1_000)
        if when == "later":
            set_config(broker, "max.compaction.lag.ms", "1500")
        wait_for_compaction(broker, 999)
        found, count = read_back(broker)
        assert found == load.last
        assert count == len(load.last)
    finally:
        broker.stop()


def swap_leftovers(broker: Appliance) -> list[str]:
    directory = broker.data_dir / "slot-0" / f"{TOPIC}-0"
    return [path.name for path in directory.iterdir() if path.suffix in {".swap", ".cleaned"}]


def test_each_directory_has_its_own_checkpoint_and_one_that_is_gone_stops_no_other(tmp_path: Path) -> None:
    disks = tmp_path / "disk-a", tmp_path / "disk-b"
    settings = SETTINGS | {"log.dirs": ",".join(map(str, disks))}
    broker = Appliance(tmp_path / "data", settings=settings)
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic(TOPIC, 2, 1, config=CONFIGS)])[TOPIC].result(20)
        home = {number: next(d for d in disks if (d / f"{TOPIC}-{number}").is_dir()) for number in (0, 1)}
        assert set(home.values()) == set(disks)
        loads = {number: Load(broker, "none", partition=number) for number in (0, 1)}
        for number, load in loads.items():
            load.write(8_000)
            wait_for_compaction(broker, 0, home[number])
            assert [name for name, _ in checkpointed(home[number])] == [f"{TOPIC}-{number}"]
        # Compaction goes on where a partition has moved to, from the checkpoint that moved along.
        (other,) = set(disks) - {home[0]}
        reached = compacted_to(broker, home[0])
        command_line("log-dirs", "move", f"{TOPIC}-0", "--to", other, "-b", broker.address).succeeded()
        loads[0].write(8_000)
        wait_for_compaction(broker, reached, other)
        assert read_back(broker)[0] == loads[0].last
        assert [name for name, _ in checkpointed(home[0])] == []
        command_line("log-dirs", "move", f"{TOPIC}-0", "--to", home[0], "-b", broker.address).succeeded()
        loads[0].write(8_000)
        wait_for_compaction(broker, compacted_to(broker, other), home[0])
        home[1].rename(tmp_path / "taken-out")
        home[1].mkdir()
        before = compacted_to(broker, home[0])
        loads[0].write(16_000)
        wait_for_compaction(broker, before, home[0])
        assert read_back(broker)[0] == loads[0].last
        assert not list(home[1].iterdir())
        assert "Traceback" not in broker.output()
    finally:
        broker.stop()


def test_a_record_without_a_key_is_refused(appliance: Appliance) -> None:
    producer = Producer({"bootstrap.servers": appliance.address})
    errors: list[KafkaError | None] = []
    producer.produce(TOPIC, b"value", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20) == 0
    assert [error.name() for error in errors if error is not None] == ["INVALID_RECORD"]
