"""What is asked of each reader. A query returns a number that must be the same for all that read real records."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions

from benchmarks.spark.data import DAY_MS, FIRST_MS, DataSet
from spark_connector.options import read_options
from spark_connector.views import count_records

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Places:
    """Where the records lie."""

    data_dir: Path
    kafka: str
    parquet: Path


@dataclass(frozen=True, slots=True)
class Query:
    """`run` answers over a DataFrame with the source's columns."""

    name: str
    what: str
    columns: str
    """Those that it needs, for the reader that is told."""
    run: Callable[[DataFrame], int]


def select_all(frame: DataFrame) -> int:
    frame.write.format("noop").mode("overwrite").save()
    return 0


def sum_of_lengths(frame: DataFrame) -> int:
    return int(frame.agg(functions.sum(functions.length("value"))).collect()[0][0] or 0)


def group_by_key(frame: DataFrame) -> int:
    return len(frame.groupBy("key").count().collect())


def window(frame: DataFrame) -> int:
    begin = FIRST_MS + DAY_MS // 2
    since, until = (datetime.fromtimestamp(at / 1000, UTC) for at in (begin, begin + MINUTE_MS))
    return frame.where((functions.col("timestamp") >= since) & (functions.col("timestamp") < until)).count()


def count(frame: DataFrame) -> int:
    return frame.count()


QUERIES = (
    Query("spark_select_all", "every row, every column, to nowhere", "", select_all),
    Query("spark_sum_of_lengths", "the sum of the lengths of all values", "value", sum_of_lengths),
    Query("spark_group_by_key", "how many records of each of 1,000 keys", "key", group_by_key),
    Query("spark_window", "the records of one minute out of a day", "timestamp", window),
    Query("spark_count", "how many records", "offset", count),
)


def readers(places: Places) -> dict[str, Callable[[SparkSession, DataSet, Query], int]]:
    """By name. `told` is the connector with the needed columns named, or the headers asked instead of the records."""

    def appliance(spark: SparkSession, data: DataSet, query: Query) -> int:
        return query.run(_ours(spark, places, data).load())

    def told(spark: SparkSession, data: DataSet, query: Query) -> int:
        if query.name == "spark_count":
            given = {"path": str(places.data_dir), "subscribe": data.name}
            return count_records(read_options(given, streaming=False))
        ours = _ours(spark, places, data)
        if query.name == "spark_window":
            ours = ours.option("timestampDisorder", "0s")
        return query.run(ours.option("columns", query.columns).load() if query.columns else ours.load())

    def kafka(spark: SparkSession, data: DataSet, query: Query) -> int:
        source = spark.read.format("kafka").option("kafka.bootstrap.servers", places.kafka)
        return query.run(source.option("subscribe", data.name).option("minPartitions", 8).load())

    def parquet(spark: SparkSession, data: DataSet, query: Query) -> int:
        return query.run(spark.read.parquet(str(places.parquet / data.name)))

    def ceiling(spark: SparkSession, data: DataSet, query: Query) -> int:
        source = spark.read.format("ceiling").option("rows", data.rows)
        return query.run(source.option("value_bytes", data.value_bytes).load())

    return {
        "appliance": appliance,
        "told": told,
        "kafka": kafka,
        "parquet": parquet,
        "ceiling": ceiling,
    }


def _ours(spark: SparkSession, places: Places, data: DataSet) -> Any:
    return spark.read.format("appliance").option("path", str(places.data_dir)).option("subscribe", data.name)
