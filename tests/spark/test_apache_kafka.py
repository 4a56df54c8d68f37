"""Directories that Apache Kafka itself writes, in a real Spark session: what its own consumers get, and nothing else.

Transactions that commit, abort, overlap, reach over segments and never end; a topic that Kafka's cleaner has been
through, with transactions and tombstones; records that were deleted. Read while Kafka runs, and after it was killed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from spark_connector.bounds import end_offset
from spark_connector.directory import Directories, Isolation
from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.client import Received
from tests.spark.consumers import consumed_to_the_end
from tests.spark.topics import collected, gaps, until, wait_for_state
from tests.support.apache_kafka import ApacheKafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

PATIENCE_S: Final = 120.0
ISOLATIONS: Final = ("read_uncommitted", "read_committed")
SMALL: Final = {"segment.bytes": str(1 << 20), "index.interval.bytes": "4096"}
TOPICS: Final = {
    "payments": (2, SMALL),
    "balances": (1, {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}),
}
SETTINGS: Final = {
    "log.cleaner.backoff.ms": 100,
    "log.flush.start.offset.checkpoint.interval.ms": 100,
    "replica.high.watermark.checkpoint.interval.ms": 100,
    "transaction.state.log.num.partitions": 2,
}
TRIMMED: Final = 25

Headers = list[tuple[str, str | bytes | None]]


@dataclass(slots=True)
class Written:
    """A directory of Kafka's, and by topic and isolation what its consumers got."""

    kafka: ApacheKafka
    records: dict[tuple[str, str], list[Received]] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return self.kafka.data_dir / "log"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """A running Kafka whose files say by now what its consumers were told."""
    kafka = ApacheKafka(tmp_path_factory.mktemp("kafka") / "broker", settings=SETTINGS)
    kafka.start()
    try:
        write_transactions(kafka.address)
        found = Written(kafka)
        until(lambda: is_cleaned(found), "Kafka's cleaner has been through", patience_s=PATIENCE_S)
        client = ConfluentClient(kafka.address)
        for topic, (partitions, _) in TOPICS.items():
            wait_for_state(found.directory, client, topic, partitions=partitions)
            for isolation in ISOLATIONS:
                found.records[topic, isolation] = consumed_to_the_end(
                    kafka.address, topic, partitions, isolation=isolation
                )
        yield found
    finally:
        kafka.kill()


def write_transactions(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(t, n, 1, config=c) for t, (n, c) in TOPICS.items()]).values():
        future.result(30)
    source = random.Random(3)
    common = {"bootstrap.servers": address, "linger.ms": 1, "transaction.timeout.ms": 800_000}
    quick = Producer({**common, "transactional.id": "quick", "compression.type": "lz4"})
    slow = Producer({**common, "transactional.id": "slow", "compression.type": "zstd"})
    plain = Producer({"bootstrap.servers": address, "compression.type": "gzip"})
    for producer in (quick, slow):
        producer.init_transactions(30)
    for turn in range(4):
        slow.begin_transaction()  # stays open over many of the others', and over segments
        for number in range(15):
            quick.begin_transaction()
            for producer, name in ((quick, b"quick"), (slow, b"slow"), (plain, b"plain")):
                for partition in range(2):
                    body = b"%s %d %d " % (name, turn, number) + source.randbytes(9000)
                    headers: Headers = [("by", name)] if number % 4 else []
                    producer.produce(
                        "payments", body, None if number % 3 else name, partition, headers=headers
                    )
                if producer is not plain:
                    key = b"account %d" % source.randrange(20)
                    money = None if number % 7 == 3 else source.randbytes(20_000)
                    producer.produce("balances", money, key, 0)
                assert producer.flush(60) == 0
            (quick.abort_transaction if number % 3 == 1 else quick.commit_transaction)(60)
        (slow.abort_transaction if turn % 2 else slow.commit_transaction)(60)
    for each in admin.delete_records([TopicPartition("payments", 1, TRIMMED)]).values():
        each.result(30)
    quick.begin_transaction()  # never ends
    quick.produce("payments", b"undecided", partition=0)
    assert quick.flush(60) == 0
    plain.produce("payments", b"behind what is undecided", partition=0)
    assert plain.flush(60) == 0


def is_cleaned(written: Written) -> bool:
    log = written.directory / "balances-0"
    return sum(path.stat().st_size for path in log.glob("*.log")) < 2 << 20


def frame(spark: SparkSession, written: Written, topic: str, **options: str) -> DataFrame:
    asked = spark.read.format("appliance").option("subscribe", topic)
    for name, text in options.items():
        asked = asked.option(name, text)
    return asked.load(str(written.directory))


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("topic", TOPICS)
def test_rows_are_those_that_kafkas_consumers_get(
    spark: SparkSession, written: Written, topic: str, isolation: str
) -> None:
    options = {"isolationLevel": isolation, "splitBytes": "1m"}
    rows = collected(frame(spark, written, topic, includeHeaders="true", **options))
    assert rows == written.records[topic, isolation]
    assert list(gaps(rows)), "control batches are no records"
    counted = frame(spark, written, topic, view="batches", **options).selectExpr("sum(rows)").collect()
    assert counted[0][0] == len(rows)


def test_aborted_transactions_are_told(spark: SparkSession, written: Written) -> None:
    committed = {(each.partition, each.offset) for each in written.records["payments", "read_committed"]}
    told = frame(spark, written, "payments", view="transactions").collect()
    assert {row["partition"] for row in told} == {0, 1}
    for row in told:
        assert row["firstOffset"] <= row["lastOffset"]
        assert (row["partition"], row["firstOffset"]) not in committed


def test_what_is_undecided_is_waited_for(written: Written) -> None:

    uncommitted = [each for each in written.records["payments", "read_uncommitted"] if each.partition == 0]
    assert [each.value for each in uncommitted[-2:]] == [b"undecided", b"behind what is undecided"]
    view = Directories([written.directory]).partition("payments", 0)
    assert end_offset(view, Isolation.READ_COMMITTED) == uncommitted[-2].offset
    assert all(each.offset < uncommitted[-2].offset for each in committed_of(written, 0))


def committed_of(written: Written, partition: int) -> list[Received]:
    return [each for each in written.records["payments", "read_committed"] if each.partition == partition]


def test_a_stream_of_committed_records_gets_each_once(
    spark: SparkSession, written: Written, tmp_path: Path
) -> None:
    query = (
        spark.readStream.format("appliance")
        .options(path=str(written.directory), subscribe="payments", startingOffsets="earliest")
        .options(isolationLevel="read_committed", maxOffsetsPerTrigger="100")
        .load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(PATIENCE_S))
    rows = spark.read.parquet(str(tmp_path / "out")).select("partition", "offset").collect()
    expected = written.records["payments", "read_committed"]
    assert sorted((row[0], row[1]) for row in rows) == [(each.partition, each.offset) for each in expected]


def test_rows_are_the_same_after_kafka_was_killed(spark: SparkSession, written: Written) -> None:
    written.kafka.kill()
    for (topic, isolation), records in written.records.items():
        rows = collected(frame(spark, written, topic, includeHeaders="true", isolationLevel=isolation))
        assert rows == records
