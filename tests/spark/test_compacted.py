"""A compacted topic of a live broker in a real Spark session: what nothing supersedes is there, at every look."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import KafkaError, Message, Producer

from spark_connector.directory import Directories
from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.client import Received
from tests.spark.consumers import consumed_to_the_end
from tests.spark.topics import collected, end, gaps, until, wait_for_state
from tests.support.broker import Appliance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC: Final = "latest"
KEYS: Final = 200
ROUND: Final = 3000
LOOKS: Final = 2
PATIENCE_S: Final = 300.0
SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
    "file.delete.delay.ms": "0",
}

Entry = tuple[bytes, bytes | None]
"""Key and value."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    started = Appliance(tmp_path / "data", settings={"log.cleaner.backoff.ms": 50})
    started.start()
    try:
        ConfluentClient(started.address).create_topic(TOPIC, 1, settings=SETTINGS)
        yield started
    finally:
        end(started)


class Load:
    """Writes random keys, now and then a tombstone. `written` has what lies at each offset."""

    def __init__(self, broker: Appliance) -> None:
        self.written: dict[int, Entry] = {}
        self.is_over = threading.Event()
        self._random = random.Random(7)
        self._producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 2})

    def write(self) -> None:
        """A round; returns when all of it is acknowledged."""
        for number in range(ROUND):
            key = b"key-%d" % self._random.randrange(KEYS)
            value = None if number % 11 == 5 else b"%d " % number + self._random.randbytes(700)
            self._producer.produce(TOPIC, value, key, 0, on_delivery=self._delivered)
            self._producer.poll(0)
        assert self._producer.flush(60) == 0

    def write_on(self) -> None:
        """Rounds until it `is_over`."""
        while not self.is_over.is_set():
            self.write()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        offset, key, value = message.offset(), message.key(), message.value()
        if error is None and offset is not None:
            assert isinstance(key, bytes)
            assert not isinstance(value, str)
            self.written[offset] = key, value


def check(rows: Mapping[int, Entry], written: Mapping[int, Entry], below: int) -> None:
    """Holds what a look below an offset has seen against what was written by the end of the test."""
    assert rows.items() <= written.items()
    last: dict[bytes, int] = {}
    for offset, (key, _) in sorted(written.items()):
        last[key] = offset
    kept = {offset for offset in last.values() if offset < below and written[offset][1] is not None}
    assert kept <= rows.keys()


def frame(spark: SparkSession, broker: Appliance, **options: str) -> DataFrame:
    asked = spark.read.format("appliance").option("subscribe", TOPIC)
    for name, text in options.items():
        asked = asked.option(name, text)
    return asked.load(str(broker.data_dir))


def entries(found: DataFrame) -> dict[int, Entry]:
    rows = found.select("offset", "key", "value").collect()
    assert len({row[0] for row in rows}) == len(rows), "an offset came twice"
    return {row[0]: (bytes(row[1]), None if row[2] is None else bytes(row[2])) for row in rows}


def test_what_nothing_supersedes_is_there_whenever_it_is_read(
    spark: SparkSession, broker: Appliance, tmp_path: Path
) -> None:
    load = Load(broker)
    load.write()
    client = ConfluentClient(broker.address)
    wait_for_state(broker.data_dir, client, TOPIC, partitions=1)
    planned = frame(spark, broker)
    whole = entries(planned)  # Spark keeps this plan: read again below, when other files have the names
    writer = threading.Thread(target=load.write_on)
    writer.start()
    looks: list[tuple[int, dict[int, Entry]]] = []
    compacted = 0
    try:

        def has_seen_enough() -> bool:
            nonlocal compacted
            view = Directories([broker.data_dir]).partition(TOPIC, 0)
            below = json.dumps({TOPIC: {"0": view.high_watermark}})
            looks.append((view.high_watermark, entries(frame(spark, broker, endingOffsets=below))))
            compacted += view.clean_generation > 0
            return compacted >= LOOKS

        until(has_seen_enough, "looks at a compacted log", patience_s=PATIENCE_S)
        again = entries(planned)
    finally:
        load.is_over.set()
        writer.join()
    check(again, load.written, len(whole))
    assert again.items() <= whole.items()
    for below, rows in looks:
        check(rows, load.written, below)
        assert len(rows) <= below
    assert_rows_are_the_consumers(spark, broker, tmp_path)


def assert_rows_are_the_consumers(spark: SparkSession, broker: Appliance, tmp_path: Path) -> None:
    """Once nothing is written any more, and the cleaner has come to rest."""
    wait_for_state(broker.data_dir, ConfluentClient(broker.address), TOPIC, partitions=1)
    rows: list[Received] = []
    before: list[Received] = []

    def is_at_rest() -> bool:
        nonlocal rows, before
        before = consumed_to_the_end(broker.address, TOPIC, 1)
        rows = collected(frame(spark, broker, includeHeaders="true"))
        return consumed_to_the_end(broker.address, TOPIC, 1) == before

    until(is_at_rest, "the cleaner has come to rest", patience_s=PATIENCE_S)
    assert rows == before
    assert list(gaps(rows)), "nothing was compacted away"
    query = (
        spark.readStream.format("appliance")
        .options(path=str(broker.data_dir), subscribe=TOPIC, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", "8000")
        .load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(PATIENCE_S))
    streamed = spark.read.parquet(str(tmp_path / "out")).select("offset").collect()
    assert sorted(row[0] for row in streamed) == [each.offset for each in rows]
