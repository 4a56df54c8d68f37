"""The session that `session()` makes, and what it does to one that is there already."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from spark_connector.session import PUSH_DOWN, TUNED, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("setting", sorted(TUNED))
def test_a_session_starts_tuned(spark: SparkSession, setting: str) -> None:
    assert spark.conf.get(setting) == TUNED[setting]


def test_its_workers_run_the_python_that_asked_for_it(spark: SparkSession) -> None:
    told = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert told == [sys.executable]


def test_a_session_that_runs_already_is_used_and_gets_conditions_handed_down(spark: SparkSession) -> None:
    spark.conf.set(PUSH_DOWN, "false")
    try:
        assert session("another") is spark
        assert spark.conf.get(PUSH_DOWN) == "true"
    finally:
        spark.conf.set(PUSH_DOWN, "true")
