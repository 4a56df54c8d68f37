"""`format("appliance")` in a real Spark session, over a real broker's directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.client import Received
from tests.spark.topics import BEGAN_MS, collected, consumed, end, wait_for_state, write_by_several_clients
from tests.support.broker import Appliance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "orders"
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
ZONE = "spark.sql.session.timeZone"


@dataclass(frozen=True, slots=True)
class Made:
    """A directory whose broker has stopped, and what consumers got of its topic."""

    data_dir: Path
    records: list[Received]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """One topic, written by several clients."""
    broker = Appliance(tmp_path_factory.mktemp("source") / "data")
    broker.start()
    try:
        client = ConfluentClient(broker.address)
        write_by_several_clients(broker.address, TOPIC)
        wait_for_state(broker.data_dir, client, TOPIC)
        records = consumed(client, TOPIC)
        broker.stop()
        yield Made(broker.data_dir, records)
    finally:
        end(broker)


def frame(spark: SparkSession, made: Made, **options: str) -> DataFrame:
    asked = spark.read.format("appliance").option("subscribe", TOPIC)
    for name, text in options.items():
        asked = asked.option(name, text)
    return asked.load(str(made.data_dir))


def test_rows_are_those_that_consumers_got_and_no_broker_is_needed(spark: SparkSession, made: Made) -> None:
    whole = frame(spark, made, includeHeaders="true", splitBytes="1m")
    assert collected(whole) == made.records


def test_the_schema_is_that_of_spark_sql_kafka(spark: SparkSession, made: Made) -> None:
    theirs = (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    whole = frame(spark, made, includeHeaders="true").schema
    assert whole.simpleString() == theirs
    assert all(field.nullable for field in whole.fields)
    assert frame(spark, made).columns == whole.names[:-1]


@pytest.mark.parametrize("pushed", ["true", "false"])
def test_conditions_give_the_same_rows_whether_they_are_pushed_down_or_not(
    spark: SparkSession, made: Made, pushed: str
) -> None:
    low, high = BEGAN_MS + 5_000, BEGAN_MS + 30_000
    spark.conf.set(PUSH_DOWN, pushed)
    try:
        found = frame(spark, made, includeHeaders="true").where(
            f"topic = '{TOPIC}' and partition = 1 and offset >= 40 and offset < 300 and key is not null"
            f" and timestamp > timestamp_millis({low}) and timestamp <= timestamp_millis({high})"
        )
        rows = collected(found)
    finally:
        spark.conf.set(PUSH_DOWN, "true")
    assert rows == [
        each
        for each in made.records
        if each.partition == 1
        and 40 <= each.offset < 300
        and each.key is not None
        and low < each.timestamp_ms <= high
    ]
    assert rows


@pytest.mark.parametrize(
    ("zone", "beyond"),
    [("America/Los_Angeles", "< '9999-12-31 23:59:59'"), ("Asia/Tokyo", ">= '0001-01-01 00:00:00'")],
)
def test_a_bound_that_python_cannot_hold_is_sparks_alone(
    spark: SparkSession, made: Made, zone: str, beyond: str
) -> None:
    spark.conf.set(ZONE, zone)
    try:
        found = frame(spark, made).where(f"timestamp {beyond} and offset >= 40").count()
    finally:
        spark.conf.set(ZONE, "UTC")
    assert found == sum(each.offset >= 40 for each in made.records)


def test_a_condition_that_no_partition_meets_reads_nothing(spark: SparkSession, made: Made) -> None:
    assert frame(spark, made).where("topic = 'other'").count() == 0


def test_columns_are_chosen_by_option_or_by_schema(spark: SparkSession, made: Made) -> None:
    by_option = frame(spark, made, columns="offset,value")
    assert by_option.columns == ["offset", "value"]
    by_schema = (
        spark.read.format("appliance")
        .schema("value binary, offset long")
        .option("subscribe", TOPIC)
        .load(str(made.data_dir))
    )
    expected = sorted((each.offset, each.value) for each in made.records if each.value is not None)
    for found in (by_option, by_schema):
        rows = found.where("value is not null").select("offset", "value").collect()
        assert sorted((row["offset"], bytes(row["value"])) for row in rows) == expected


def test_a_count_by_headers_is_the_count_of_the_rows(spark: SparkSession, made: Made) -> None:
    batches = frame(spark, made, view="batches")
    assert batches.selectExpr("sum(rows)").collect()[0][0] == len(made.records)
    codecs = {row[0] for row in batches.select("compression").distinct().collect()}
    assert codecs == {"none", "gzip", "snappy", "lz4", "zstd"}


def test_options_may_be_written_in_any_case(spark: SparkSession, made: Made) -> None:
    asked = spark.read.format("appliance").option("SUBSCRIBE", TOPIC).option("COLUMNS", "Offset")
    found = asked.option("startingoffsets", f'{{"{TOPIC}": {{"0": 40, "1": -2}}}}').load(str(made.data_dir))
    assert found.columns == ["offset"]
    assert found.count() == sum(each.offset >= 40 or each.partition == 1 for each in made.records)


def test_columns_that_contradict_the_schema_are_refused(spark: SparkSession, made: Made) -> None:
    asked = spark.read.format("appliance").schema("offset long").option("subscribe", TOPIC)
    with pytest.raises(Exception, match="option columns: contradicts the schema that was given: offset"):
        asked.option("columns", "value").load(str(made.data_dir)).count()


def test_an_unknown_option_is_refused_by_name(spark: SparkSession, made: Made) -> None:
    with pytest.raises(Exception, match="option startingofsets: is not known"):
        frame(spark, made, startingOfsets="earliest")
