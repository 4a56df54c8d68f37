"""Streams in a real Spark session over a real broker: each record once, whoever is killed, and lag that shows."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions

from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.client import Received
from tests.spark.stream_job import start_copy
from tests.spark.topics import consumed, end, until, wait_for_state, write_by_several_clients, write_more
from tests.support.broker import Appliance, end_with_the_test_runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

TOPIC = "orders"
JOB_TIMEOUT_S = 600


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """A broker of one slot with one topic."""
    started = Appliance(tmp_path_factory.mktemp("streams") / "data")
    started.start()
    try:
        write_by_several_clients(started.address, TOPIC)
        wait_for_state(started.data_dir, ConfluentClient(started.address), TOPIC)
        yield started
    finally:
        end(started)


def stream(spark: SparkSession, broker: Appliance, **options: str) -> DataStreamReader:
    asked = (
        spark.readStream.format("appliance").option("path", str(broker.data_dir)).option("subscribe", TOPIC)
    )
    for name, text in options.items():
        asked = asked.option(name, text)
    return asked


def marks(records: list[Received]) -> list[tuple[int, int, bytes | None]]:
    return [(each.partition, each.offset, each.value) for each in records]


def written(spark: SparkSession, out: Path) -> list[tuple[int, int, bytes | None]]:
    """The rows of a Parquet directory, by partition and offset; one that is there twice comes twice."""
    rows = spark.read.parquet(str(out)).select("partition", "offset", "value").collect()
    found = [(row[0], row[1], None if row[2] is None else bytes(row[2])) for row in rows]
    return sorted(found, key=lambda each: each[:2])


def _until_offsets(checkpoint: Path, count: int, query: Any) -> None:
    def are_there() -> bool:
        return len(list((checkpoint / "offsets").glob("[0-9]*"))) >= count or not query.isActive

    until(are_there, f"{count} micro-batches begun", patience_s=JOB_TIMEOUT_S)


def test_a_running_query_sees_what_is_produced_and_its_lag_shows_in_a_group(
    spark: SparkSession, broker: Appliance, tmp_path: Path
) -> None:
    client = ConfluentClient(broker.address)
    before = consumed(client, TOPIC)
    group = {"commitGroup": "spark-copy", "kafka.bootstrap.servers": broker.address}
    query = (
        stream(spark, broker, startingOffsets="latest", **group)
        .load()
        .writeStream.format("memory")
        .queryName("live")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        _until_offsets(
            tmp_path / "checkpoint", 1, query
        )  # begins where the log ends now, and that is written down
        write_more(broker.address, TOPIC)
        fresh = [each for each in consumed(client, TOPIC) if each not in set(before)]

        def has_come() -> bool:
            assert query.exception() is None
            return int(spark.sql("select count(*) from live").collect()[0][0]) >= len(fresh)

        until(has_come, "all records are there", patience_s=JOB_TIMEOUT_S)
        rows = spark.sql("select partition, offset, value from live").collect()
        found = sorted((row[0], row[1], row[2] if row[2] is None else bytes(row[2])) for row in rows)
        assert [each[:2] for each in found] == [(each.partition, each.offset) for each in fresh]
        ends = {partition: client.offset_range(TOPIC, partition)[1] for partition in (0, 1)}
        write_more(broker.address, TOPIC)  # an end is committed when the micro-batch after it begins
        until(lambda: _committed(client) >= ends.items(), "the group is told", patience_s=JOB_TIMEOUT_S)
    finally:
        query.stop()


class _Ends(dict[int, int]):
    """Offsets by partition; greater or equal where each of them is."""

    def __ge__(self, other: Any) -> bool:
        return all(self.get(partition, -1) >= offset for partition, offset in other)


def _committed(client: ConfluentClient) -> _Ends:
    asked = [ConsumerGroupTopicPartitions("spark-copy")]
    (answer,) = client._admin.list_consumer_group_offsets(asked).values()
    return _Ends({each.partition: each.offset for each in answer.result(30).topic_partitions})


@pytest.mark.timeout(3000)
def test_a_query_that_is_killed_gives_each_record_once(
    spark: SparkSession, broker: Appliance, tmp_path: Path
) -> None:
    kill_at_random(broker, tmp_path, times=1)  # each takes a Spark of its own, 15 s; ten are below
    assert copied_to_the_end(spark, broker, tmp_path) == marks(
        consumed(ConfluentClient(broker.address), TOPIC)
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_query_that_is_killed_ten_times_gives_each_record_once(
    spark: SparkSession, broker: Appliance, tmp_path: Path
) -> None:
    write_more(broker.address, TOPIC, rounds=3)
    client = ConfluentClient(broker.address)
    wait_for_state(broker.data_dir, client, TOPIC)
    kill_at_random(broker, tmp_path, times=10)
    assert copied_to_the_end(spark, broker, tmp_path) == marks(consumed(client, TOPIC))


def copied_to_the_end(
    spark: SparkSession, broker: Appliance, at: Path
) -> list[tuple[int, int, bytes | None]]:
    """What stands in the sink when the query that was killed has gone on, here, to its end."""
    query = start_copy(spark, str(broker.data_dir), TOPIC, checkpoint=at / "checkpoint", out=at / "out")
    assert query.awaitTermination(JOB_TIMEOUT_S)
    return written(spark, at / "out")


def kill_at_random(broker: Appliance, at: Path, *, times: int) -> None:
    """Has processes of their own copy the topic, one after another, each killed once it has begun a micro-batch."""
    source = random.Random(7)
    command = [sys.executable, "-m", "tests.spark.stream_job", str(broker.data_dir), TOPIC]
    command += [str(at / "checkpoint"), str(at / "out")]
    for turn in range(times):
        with (at / f"job-{turn}.log").open("wb") as log:
            job = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.getcwd()},
                start_new_session=True,
                preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
            )
            try:
                _until_more(at / "checkpoint", job)
                time.sleep(source.random() / 4)  # anywhere in a micro-batch: what is asserted holds wherever
            finally:
                with suppress(ProcessLookupError):  # one that we looked at too late has come to its end
                    os.killpg(job.pid, signal.SIGKILL)
                job.wait(30)


def _until_more(checkpoint: Path, job: subprocess.Popen[bytes]) -> None:
    """Returns when the job has begun a micro-batch, or has ended."""
    begun = len(list((checkpoint / "offsets").glob("[0-9]*"))) if checkpoint.exists() else 0

    def more() -> bool:
        found = len(list((checkpoint / "offsets").glob("[0-9]*"))) if checkpoint.exists() else 0
        return found > begun or job.poll() is not None

    until(more, "a micro-batch begun", patience_s=JOB_TIMEOUT_S)
