"""A topic that many transactions write, on a running appliance: Spark's committed rows are those of a Java consumer.

Producers of both versions of the protocol write it: librdkafka speaks version 1, Kafka's Java client version 2. Some
transactions commit, some abort, some stay open. The judge is Kafka's console consumer with
`--isolation-level read_committed`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from spark_connector.bounds import end_offset
from spark_connector.directory import Directories, Isolation
from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.adapters.driver_process import end_idle_drivers
from tests.clients.transactional.confluent import ConfluentTransactions
from tests.clients.transactional.drivers import JavaTransactions
from tests.clients.transactional.library import TransactionalLibrary, TransactionalProducer
from tests.spark.topics import until
from tests.support.apache_kafka import tool
from tests.support.broker import Appliance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

TOPIC: Final = "payments"
PARTITIONS: Final = 2
PRODUCERS: Final = 5
"""Of each version."""
TURNS: Final = 120
PADDING: Final = "." * 8000
"""The topic has several segments."""

Row = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Written:
    """A running appliance, and the producers whose transactions are open."""

    broker: Appliance
    still_open: dict[str, TransactionalProducer]

    def end_offsets(self, isolation: Isolation) -> list[int]:
        """As the files say."""
        directories = Directories([self.broker.data_dir])
        return [end_offset(directories.partition(TOPIC, each), isolation) for each in range(PARTITIONS)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    broker = Appliance(tmp_path_factory.mktemp("transactions") / "data")
    broker.start()
    try:
        settings = {"segment.bytes": str(1 << 20), "index.interval.bytes": "4096"}
        ConfluentClient(broker.address).create_topic(TOPIC, PARTITIONS, settings=settings)
        plain = ConfluentTransactions(broker.address)
        libraries: dict[str, TransactionalLibrary] = {"v1": plain, "v2": JavaTransactions(broker.address)}
        producers = {
            f"{version}-{number}": library.producer(f"{version}-{number}", timeout_ms=800_000)
            for version, library in libraries.items()
            for number in range(PRODUCERS)
        }
        yield Written(broker, write(plain, producers))
        for library in libraries.values():
            library.close()
    finally:
        broker.stop()
        end_idle_drivers()


def write(
    plain: ConfluentTransactions, producers: dict[str, TransactionalProducer]
) -> dict[str, TransactionalProducer]:
    """Interleaved transactions, a few of which stay open; those."""
    chance = random.Random(29)
    for producer in producers.values():
        producer.init()
    began: dict[str, int] = {}
    for turn in range(TURNS):
        name = chance.choice(list(producers))
        producer = producers[name]
        if name not in began:
            producer.begin()
            began[name] = turn
            send(producer, name, turn, chance)
        elif chance.random() < 0.4:
            send(producer, name, turn, chance)
        else:
            (producer.abort if began.pop(name) % 3 == 0 else producer.commit)()
        if turn % 10 == 0:
            plain.send(TOPIC, [f"plain {turn} {PADDING}".encode()], turn // 10 % PARTITIONS)
    for name in list(began):
        (producers[name].abort if began.pop(name) % 3 == 0 else producers[name].commit)()
    # A decided record lies before each open transaction, and another one behind it.
    kept = {}
    for name in ("v1-0", "v2-0"):
        producers[name].begin()
        send(producers[name], name, 1, random.Random(0))
        kept[name] = producers[name]
        for partition in range(PARTITIONS):
            plain.send(TOPIC, [b"behind what is open"], partition)
    return kept


def send(producer: TransactionalProducer, name: str, turn: int, chance: random.Random) -> None:
    for partition in range(PARTITIONS):
        values = [f"{name} {turn} {number} {PADDING}".encode() for number in range(chance.randrange(1, 4))]
        producer.send(TOPIC, values, partition)


def by_java(broker: Appliance, isolation: str, count: int) -> list[Row]:
    """What the console consumer prints: one more than `count` would be printed, too."""
    printed = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.address, "--topic", TOPIC, "--from-beginning"),
        *("--isolation-level", isolation, "--max-messages", str(count + 1), "--timeout-ms", "6000"),
        *("--formatter-property", "print.partition=true", "--formatter-property", "print.offset=true"),
    )
    rows = []
    for line in printed.splitlines():
        partition, offset, value = line.split("\t")
        rows.append((int(partition.partition(":")[2]), int(offset.partition(":")[2]), value))
    return sorted(rows)


def by_spark(spark: SparkSession, directory: Path, isolation: str) -> list[Row]:
    frame = (
        spark.read.format("appliance")
        .option("subscribe", TOPIC)
        .option("isolationLevel", isolation)
        .option("splitBytes", "1m")
        .load(str(directory))
    )
    rows = frame.selectExpr("partition", "offset", "string(value) as value").collect()
    return sorted((row["partition"], row["offset"], row["value"]) for row in rows)


def assert_alike(spark: SparkSession, written: Written) -> tuple[list[Row], list[Row]]:
    """(committed, all) rows, which are a Java consumer's."""
    directory = written.broker.data_dir
    client = ConfluentClient(written.broker.address)

    def files_say_what_the_broker_says() -> bool:
        ends = [client.offset_range(TOPIC, each)[1] for each in range(PARTITIONS)]
        return written.end_offsets(Isolation.READ_UNCOMMITTED) == ends

    until(files_say_what_the_broker_says, "the files say what the broker says")
    committed, everything = (
        by_spark(spark, directory, each) for each in ("read_committed", "read_uncommitted")
    )
    assert committed == by_java(written.broker, "read_committed", len(committed))
    assert everything == by_java(written.broker, "read_uncommitted", len(everything))
    return committed, everything


def test_committed_rows_are_those_of_a_java_consumer_while_transactions_are_open(
    spark: SparkSession, written: Written
) -> None:
    committed, everything = assert_alike(spark, written)
    assert len(list((written.broker.data_dir / "slot-0" / f"{TOPIC}-0").glob("*.log"))) > 1
    last_stable = written.end_offsets(Isolation.READ_COMMITTED)
    undecided = [row for row in everything if row[1] >= last_stable[row[0]]]
    aborted = [row for row in everything if row not in committed and row not in undecided]
    assert {row[2] for row in undecided} > {"behind what is open"}
    for version in ("v1", "v2"):
        for rows in (committed, aborted, undecided):
            assert any(row[2].startswith(version) for row in rows), version
    # What was open is decided: one way for the one, the other for the other.
    written.still_open["v1-0"].commit()
    written.still_open["v2-0"].abort()
    until(
        lambda: (
            written.end_offsets(Isolation.READ_COMMITTED) == written.end_offsets(Isolation.READ_UNCOMMITTED)
        ),
        "the files say that all is decided",
    )
    later, _ = assert_alike(spark, written)
    news = {row[2].split()[0] for row in later if row not in committed}
    assert news == {"v1-0", "behind"}
