"""An export beside a broker that runs, is killed and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest
from confluent_kafka import Producer

from spark_connector.export.job import export_parquet
from tests.clients.adapters.confluent import ConfluentClient
from tests.spark.topics import wait_for_state
from tests.support.broker import Appliance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "orders"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path / "data")
    appliance.start()
    try:
        yield appliance
    finally:
        appliance.stop()


def produce(broker: Appliance, codec: str, numbers: range) -> None:
    """Records that all the columns can be told from; every third has no key, every fifth no value. Returns when readers
    off the disk are told of them."""
    producer = Producer({"bootstrap.servers": broker.address, "compression.type": codec})
    for number in numbers:
        key = None if number % 3 == 0 else b"%d" % number
        value = None if number % 5 == 0 else b"value-%d" % number
        producer.produce(TOPIC, value, key, headers=[("number", b"%d" % number), ("none", None)])
    assert producer.flush(60) == 0
    wait_for_state(broker.data_dir, ConfluentClient(broker.address), TOPIC, partitions=1)


def test_what_a_client_produced_is_exported_whether_the_broker_runs_or_not(
    spark: SparkSession, broker: Appliance, tmp_path: Path
) -> None:
    to, paths = tmp_path / "to", [str(broker.data_dir)]
    produce(broker, "lz4", range(300))
    assert export_parquet(spark, TOPIC, paths=paths, to=to).rows == 300
    produce(broker, "zstd", range(300, 500))
    broker.kill()
    assert export_parquet(spark, TOPIC, paths=paths, to=to).rows == 200
    assert export_parquet(spark, TOPIC, paths=paths, to=to).rows == 0
    broker.start()
    produce(broker, "none", range(500, 600))
    assert export_parquet(spark, TOPIC, paths=paths, to=to).rows == 100
    table = ds.dataset(to, format="parquet", partitioning="hive").to_table()
    rows = sorted(table.to_pylist(), key=lambda row: int(row["headers"][0]["value"]))
    for number, row in enumerate(rows):
        assert row["key"] == (None if number % 3 == 0 else b"%d" % number)
        assert row["value"] == (None if number % 5 == 0 else b"value-%d" % number)
        headers = [(each["key"], each["value"]) for each in row["headers"]]
        assert headers == [("number", b"%d" % number), ("none", None)]
    assert len(rows) == 600
