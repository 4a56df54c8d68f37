"""A log directory that Apache Kafka wrote is taken over: every record is there, and producers go on where they were.

Kafka runs for real and is stopped, or killed; what its consumers read before is what ours read after.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import BatchHeader, batches
from appliance.protocol.records.record import Record, encode_batch
from tests.cli.command import appliance
from tests.support.apache_kafka import ApacheKafka, tool
from tests.support.broker import Appliance
from tests.support.wire import WireSocket, free_ports
from tests.system.raw import new_producer_id, produce, wait_until

pytestmark = pytest.mark.slow

Row = tuple[int | None, int, bytes | None, bytes | None, str]
Contents = dict[tuple[str, int, str], list[Row]]

GROUP: Final = "billing"
TRANSACTIONS: Final = "org.apache.kafka.tools.TransactionsCommand"
COMMITTED: Final = {0: 17, 1: 0, 2: 400}

# Kafka's records may be of any time. Adoption fills the embedded store, whatever store the run asks for.
ADOPTED: Final = {"metadata.store": "embedded", "log.message.timestamp.before.max.ms": 1 << 62}

TOPICS: Final = {
    "plain": (3, {}),
    "codec-gzip": (1, {}),
    "codec-snappy": (1, {}),
    "codec-lz4": (1, {}),
    "codec-zstd": (1, {"segment.bytes": "1048576"}),
    "idempotent": (1, {"segment.bytes": "1048576", "retention.ms": "-1"}),
    "transactions": (2, {}),
    "squeezed": (
        1,
        {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"},
    ),
    "trimmed": (1, {"max.message.bytes": "2000000"}),
}


def run_adopt(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "appliance", "adopt", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def adopt(*arguments: object) -> str:
    done = run_adopt(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def contents(address: str) -> Contents:
    """Every record of every topic, as a consumer of all and as a consumer of committed records sees them."""
    found: Contents = {}
    for isolation in ("read_uncommitted", "read_committed"):
        consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "nobody",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
            }
        )
        wanted = [TopicPartition(t, p, OFFSET_BEGINNING) for t, (n, _) in TOPICS.items() for p in range(n)]
        consumer.assign(wanted)
        open_yet = {(each.topic, each.partition) for each in wanted}
        found |= {(*each, isolation): [] for each in open_yet}
        while open_yet:
            message = consumer.poll(30)
            assert message is not None, f"nothing more of {open_yet}"
            topic, partition, fault = message.topic(), message.partition(), message.error()
            assert topic is not None
            assert partition is not None
            if fault is not None:
                assert fault.code() == KafkaError._PARTITION_EOF, fault
                open_yet.discard((topic, partition))
                continue
            found[topic, partition, isolation].append(
                (
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    repr(message.headers()),
                )
            )
        consumer.close()
    return found


def send(
    address: str, topic: str, values: int, *, partition: int = 0, settings: Mapping[str, Any] | None = None
) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, **(settings or {})})
    for number in range(values):
        producer.produce(
            topic,
            b"%s %d " % (topic.encode(), number) + bytes(range(256)) * 8,
            b"key-%d" % (number % 17),
            partition=partition,
            headers=[("number", b"%d" % number)],
        )
        producer.poll(0)
    assert producer.flush(60) == 0


def write_everything(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(t, n, 1, config=c) for t, (n, c) in TOPICS.items()]).values():
        future.result(30)
    for partition in range(3):
        send(address, "plain", 400, partition=partition)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        send(address, f"codec-{codec}", 700, settings={"compression.type": codec})
    send(address, "idempotent", 2000, settings={"enable.idempotence": True})
    transactional = Producer(
        {"bootstrap.servers": address, "transactional.id": "payments", "transaction.timeout.ms": 800_000}
    )
    transactional.init_transactions(30)
    for number in range(6):
        transactional.begin_transaction()
        for partition in range(2):
            for each in range(5):
                transactional.produce("transactions", b"%d/%d" % (number, each), partition=partition)
        transactional.flush(30)
        if number % 2:
            transactional.commit_transaction(30)
        else:
            transactional.abort_transaction(30)
    send(address, "squeezed", 1500)
    send(address, "trimmed", 300)
    for future in admin.delete_records([TopicPartition("trimmed", 0, 123)]).values():
        future.result(30)
    # The last transaction stays open.
    transactional.begin_transaction()
    transactional.produce("transactions", b"never ended", partition=1)
    transactional.flush(30)


def commit_as_a_member(address: str) -> None:
    """A group with a member comes to a place in each partition, and its member leaves."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": GROUP, "enable.auto.commit": False})
    consumer.subscribe(["plain"])
    wait_until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 3, "all", timeout_s=60)
    places = [TopicPartition("plain", number, offset) for number, offset in COMMITTED.items()]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def committed(address: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": GROUP})
    found = consumer.committed([TopicPartition("plain", number) for number in COMMITTED], timeout=30)
    consumer.close()
    return {each.partition: each.offset for each in found}


def is_cleaned(kafka: ApacheKafka) -> Callable[[], bool]:
    """Whether Kafka's cleaner has been through the compacted topic."""
    log = kafka.data_dir / "log" / "squeezed-0"
    return lambda: sum(path.stat().st_size for path in log.glob("*.log")) < 2_000_000


@dataclass(frozen=True, slots=True)
class Left:
    """What Kafka left: log directories by the way it ended, and what its consumers had read."""

    directories: dict[str, Path]
    contents: Contents
    refusal: str


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    root = tmp_path_factory.mktemp("kafka")
    kafka = ApacheKafka(
        root / "broker",
        settings={
            "log.cleaner.backoff.ms": 200,
            "log.flush.start.offset.checkpoint.interval.ms": 200,
            "transaction.state.log.num.partitions": 2,
        },
    )
    log = kafka.data_dir / "log"
    kafka.start()
    try:
        write_everything(kafka.address)
        commit_as_a_member(kafka.address)
        wait_until(is_cleaned(kafka), "Kafka has compacted", timeout_s=60)
        # A new log start is only in memory until then, in Kafka as well.
        starts = log / "log-start-offset-checkpoint"
        wait_until(lambda: "trimmed 0 123" in starts.read_text(), "Kafka wrote log starts", timeout_s=60)
        read = contents(kafka.address)
        refused = run_adopt(log, "--data-dir", root / "refused")
        assert refused.returncode == 1, refused.stdout
        kafka.kill()
        shutil.copytree(log, root / "killed")
        kafka.start()
        assert contents(kafka.address) == read
    finally:
        kafka.stop()
    assert (log / ".kafka_cleanshutdown").exists()
    return Left({"stopped": log, "killed": root / "killed"}, read, refused.stderr)


def files(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Inode, size and content of everything below a directory."""
    return {
        str(path.relative_to(root)): (path.stat().st_ino, path.stat().st_size, path.read_bytes())
        for path in root.rglob("*")
        if path.is_file() and path.name != ".lock"  # to hold the directory makes it
    }


def last_batch(directory: Path) -> tuple[BatchHeader, bytes]:
    """The last batch of a partition, off the disk."""
    data = max(directory.glob("*.log")).read_bytes()
    position, header = list(batches(data))[-1]
    # As a producer sends it: the base offset is the broker's to set.
    return header, bytes(8) + data[position + 8 : position + header.size_bytes]


def assert_producers_go_on(appliance: Appliance, header: BatchHeader, batch: bytes) -> None:
    """What was sent last is a duplicate; the next sequence is taken, no other; a new producer is nobody else."""
    end = header.last_offset + 1

    def sent(sequence: int, producer: tuple[int, int]) -> bytes:
        return encode_batch(
            [Record(b"ours")], producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence
        )

    known = header.producer_id, header.producer_epoch
    with WireSocket(appliance.port) as connection:
        again = produce(connection, "idempotent", batch)
        assert (again.error, again.base_offset) == (0, header.base_offset)
        skipped = produce(connection, "idempotent", sent(header.last_sequence + 5, known))
        assert skipped.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        following = produce(connection, "idempotent", sent(header.last_sequence + 1, known))
        assert (following.error, following.base_offset) == (0, end)
        new = new_producer_id(appliance.port)
        assert new[0] > header.producer_id
        first = produce(connection, "idempotent", sent(0, new))
        assert (first.error, first.base_offset) == (0, end + 1)


def group_is_known(address: str) -> bool:
    admin = AdminClient({"bootstrap.servers": address})
    return GROUP in {
        each.group_id for each in admin.list_consumer_groups(request_timeout=30).result(30).valid
    }


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_every_record_of_kafkas_is_served_and_producers_go_on(left: Left, tmp_path: Path, how: str) -> None:
    source = left.directories[how]
    before = files(source)
    header, batch = last_batch(source / "idempotent-0")
    told = json.loads(adopt(source, "--data-dir", tmp_path / "data", "--json"))
    topics = {topic["name"]: topic for topic in told["topics"]}
    assert told["clean"] == (how == "stopped")
    assert topics.keys() >= TOPICS.keys() | {"__transaction_state"}
    for name, (partitions, configs) in TOPICS.items():
        assert topics[name]["configs"] == configs
        assert len(topics[name]["partitions"]) == partitions
    assert "__cluster_metadata" not in topics
    appliance = Appliance(tmp_path / "data", settings=ADOPTED)
    appliance.start()
    try:
        assert contents(appliance.address) == left.contents
        assert_producers_go_on(appliance, header, batch)
        # The first question may meet a coordinator that replays.
        wait_until(lambda: group_is_known(appliance.address), "groups are there", timeout_s=30)
        assert committed(appliance.address) == COMMITTED
        for codec in ("gzip", "zstd"):
            send(appliance.address, f"codec-{codec}", 50, settings={"compression.type": codec})
        read = contents(appliance.address)
        for key, rows in left.contents.items():
            assert read[key][: len(rows)] == rows
        appliance.kill()
        appliance.start()
        assert contents(appliance.address) == read
    finally:
        appliance.stop()
    after = files(source)
    assert after == before, "Kafka's own files are as they were: the way back"


def committed_end(address: str, topic: str, partition: int) -> tuple[int, int]:
    """(last stable offset, end offset) of a partition."""
    ends = []
    for isolation in ("read_committed", "read_uncommitted"):
        settings = {"bootstrap.servers": address, "group.id": "nobody", "isolation.level": isolation}
        consumer = Consumer(settings)
        ends.append(consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)[1])
        consumer.close()
    return ends[0], ends[1]


def test_kafkas_tool_ends_a_transaction_that_was_open_when_it_was_adopted(left: Left, tmp_path: Path) -> None:
    adopt(left.directories["stopped"], "--data-dir", tmp_path / "data")
    appliance = Appliance(tmp_path / "data", settings=ADOPTED)
    appliance.start()
    try:
        stable, end = committed_end(appliance.address, "transactions", 1)
        assert stable == end - 1
        where = ("--topic", "transactions", "--partition", "1", "--start-offset", str(stable))
        tool(TRANSACTIONS, "--bootstrap-server", appliance.address, "abort", *where)
        assert committed_end(appliance.address, "transactions", 1) == (end + 1, end + 1)
        # The aborted record is not read, and a restart from a kill finds the marker.
        appliance.kill()
        appliance.start()
        assert committed_end(appliance.address, "transactions", 1) == (end + 1, end + 1)
        rows = contents(appliance.address)
        assert rows == left.contents
    finally:
        appliance.stop()


def test_a_running_kafka_is_not_adopted(left: Left) -> None:
    assert "is in use" in left.refusal
    assert "stop the broker" in left.refusal


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_kafkas_own_directory_is_not_served_and_stays_as_it_is(left: Left, how: str) -> None:
    source = left.directories[how]
    before = files(source)
    outcome = appliance("serve", "--data-dir", source, "--port", free_ports())
    assert outcome.code == 2
    assert f"appliance adopt {source}" in outcome.errors
    assert files(source) == before


def test_a_dry_run_tells_and_makes_nothing(left: Left, tmp_path: Path) -> None:
    told = adopt(left.directories["stopped"], "--data-dir", tmp_path / "data", "--dry-run")
    assert "squeezed" in told
    assert "cleanup.policy=compact" in told
    assert "__cluster_metadata-0" in told
    assert not (tmp_path / "data").exists()
