"""Topics as DataFrames and views: always as of now, without a word about how."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from appliance.errors import ConfigurationError
from spark_connector.topics import topic, views
from tests.log.batches import NOW_MS, batch_of
from tests.spark.logs import filled, make_log, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_topic_and_its_view_see_what_came_after_they_were_made(spark: SparkSession, tmp_path: Path) -> None:
    log, state_file = filled(tmp_path, batches=4)
    frame = topic(spark, "orders", path=tmp_path)
    assert views(spark, tmp_path, prefix="fresh-") == ["fresh-orders"]
    before = log.log_end_offset
    for added in range(3):
        assert frame.count() == before + added
        assert spark.sql("SELECT max(offset) FROM `fresh-orders`").collect()[0][0] == before + added - 1
        log.append(batch_of([b"new"]), leader_epoch=0)
        publish(log, state_file)


def test_only_the_named_columns_are_there_in_the_order_of_their_names(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, state_file = filled(tmp_path, batches=2)
    frame = topic(spark, "orders", path=[tmp_path], columns=["value", "partition"])
    assert frame.columns == ["value", "partition"]
    assert frame.count() == log.log_end_offset
    log.append(batch_of([b"new"]), leader_epoch=0)
    publish(log, state_file)
    assert frame.count() == log.log_end_offset


def test_bounds_may_be_moments(spark: SparkSession, tmp_path: Path) -> None:
    filled(tmp_path, batches=10, records=1)  # one a millisecond
    since = datetime.fromtimestamp((NOW_MS + 3) / 1000, UTC)
    until = datetime.fromtimestamp((NOW_MS + 7) / 1000, UTC)
    rows = topic(spark, "orders", path=tmp_path, start=since, end=until).select("offset").collect()
    assert [row.offset for row in rows] == [3, 4, 5, 6]
    with pytest.raises(ConfigurationError, match="time zone"):
        topic(spark, "orders", path=tmp_path, start=datetime(2026, 1, 1))


def test_internal_topics_get_no_view(spark: SparkSession, tmp_path: Path) -> None:
    filled(tmp_path, batches=1)
    log, state_file = make_log(tmp_path, "__consumer_offsets-0")
    publish(log, state_file)
    assert views(spark, tmp_path) == ["orders"]


def test_topics_that_spark_cannot_tell_apart_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("orders-0", "Orders-0"):
        log, state_file = make_log(tmp_path, name)
        publish(log, state_file)
    with pytest.raises(ConfigurationError, match="'Orders' and 'orders'"):
        views(spark, tmp_path)
