"""Spark beside a broker that is killed, and beside one that moves a partition to another disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.clients.adapters.confluent import ConfluentClient
from tests.spark.test_streams import JOB_TIMEOUT_S, marks, written
from tests.spark.topics import (
    collected,
    consumed,
    end,
    until,
    wait_for_state,
    write_by_several_clients,
    write_more,
)
from tests.support.broker import Appliance
from tests.system.raw import create_topic
from tests.system.test_log_moves import MIB, Moving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

TOPIC: Final = "orders"


def test_a_stream_and_a_batch_have_the_right_rows_though_the_broker_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    broker = Appliance(tmp_path / "data")
    broker.start()
    try:
        write_by_several_clients(broker.address, TOPIC)
        out = tmp_path / "out"
        query = (
            spark.readStream.format("appliance")
            .options(path=str(broker.data_dir), subscribe=TOPIC, startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", "50")
            .load()
            .writeStream.format("parquet")
            .option("path", str(out))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        for _ in range(2):
            _until_batches(query, query.lastProgress["batchId"] + 2 if query.lastProgress else 2)
            expected = consumed(ConfluentClient(broker.address), TOPIC)
            wait_for_state(broker.data_dir, ConfluentClient(broker.address), TOPIC)
            broker.kill()
            frame = spark.read.format("appliance").option("subscribe", TOPIC).option("includeHeaders", "true")
            assert collected(frame.load(str(broker.data_dir))) == expected
            broker.start()
            write_more(broker.address, TOPIC)
        expected = consumed(ConfluentClient(broker.address), TOPIC)

        def has_come() -> bool:
            assert query.exception() is None
            return len(written(spark, out)) >= len(expected)

        until(has_come, "all records are there", patience_s=JOB_TIMEOUT_S)
        query.stop()
        assert written(spark, out) == marks(expected)
    finally:
        end(broker)


def _until_batches(query: Any, count: int) -> None:
    def are_done() -> bool:
        assert query.exception() is None
        return query.lastProgress is not None and query.lastProgress["batchId"] >= count

    until(are_done, f"{count} micro-batches", patience_s=JOB_TIMEOUT_S)


def test_a_query_whose_partition_moved_to_another_disk_has_all_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    moving = Moving(tmp_path, **{"log.segment.bytes": MIB, "log.segment.delete.delay.ms": 0})
    moving.broker.start()
    try:
        assert create_topic(moving.broker.port, "t") == 0
        count = moving.fill(5)
        old, new = (moving.paths[name] / "t-0" for name in ("ab" if moving.is_in("a") else "ba"))
        wait_for_state(old.parent, ConfluentClient(moving.broker.address), "t", partitions=1)
        paths = json.dumps([str(path) for path in moving.paths.values()])
        planned = spark.read.format("appliance").option("subscribe", "t").load(paths)
        assert planned.count() == count
        assert moving.alter("b" if new.parent == moving.paths["b"] else "a") == 0
        until(lambda: new.is_dir() and not old.exists(), "moved", patience_s=60)
        assert planned.count() == count
        for path in old.parent.glob("t-0*/.readers/*"):
            path.unlink()  # as the broker does at its cap
        until(lambda: not list(old.parent.glob("t-0*")), "nothing is left", patience_s=60)
        assert planned.count() == count
        assert list(new.glob(".readers/*.lease"))
    finally:
        moving.broker.stop()
