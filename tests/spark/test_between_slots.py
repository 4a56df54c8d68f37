"""A partition that goes from slot to slot while it is written and read: every look has what was there before."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from spark_connector.bounds import end_offset
from spark_connector.directory import Directories, Isolation
from spark_connector.errors import NotReadable, UnknownTopic
from spark_connector.options import read_options
from spark_connector.topics import topic
from spark_connector.views import count_records
from tests.cli.command import appliance
from tests.spark.test_streams import JOB_TIMEOUT_S
from tests.spark.topics import end, until
from tests.support.broker import Appliance
from tests.system.acked_load import AckedLoad, create, read_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC: Final = "moved"
PARTITIONS: Final = 2
SETTINGS: Final = {"segment_bytes": "1048576", "retention_ms": "-1"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    started = Appliance(tmp_path / "data", slots=3)
    started.start()
    try:
        create(started, TOPIC, PARTITIONS, replicas=1, **SETTINGS)
        yield started
    finally:
        end(started)


def ask(broker: Appliance, *arguments: str) -> Any:
    asked = appliance(*arguments, "--json", more={"APPLIANCE_BOOTSTRAP": broker.address})
    return json.loads(asked.succeeded().output)


def move(broker: Appliance, slots: str) -> None:
    """Returns when the partitions lie there, and nowhere else."""
    appliance(
        "reassign", "move", TOPIC, "--to", slots, more={"APPLIANCE_BOOTSTRAP": broker.address}
    ).succeeded()
    until(lambda: ask(broker, "reassign", "status") == [], f"the move to {slots}", patience_s=120)
    kept = {f"slot-{slot}" for slot in slots.split(",")}
    for number in range(PARTITIONS):

        def lies_there(number: int = number) -> bool:
            found = {path.parent.name for path in broker.data_dir.glob(f"slot-*/{TOPIC}-{number}")}
            return found == kept

        until(lies_there, f"{TOPIC}-{number} to lie on {kept}", patience_s=120)


def readable(broker: Appliance) -> int:
    """How many records the files say there are; of these partitions every record is one offset."""
    directories = Directories([broker.data_dir])
    looks = [directories.partition(TOPIC, number) for number in range(PARTITIONS)]
    return sum(end_offset(look, Isolation.READ_UNCOMMITTED) for look in looks)


def wait_for(broker: Appliance, count: int) -> None:
    def is_there() -> bool:
        try:
            return readable(broker) >= count
        except (UnknownTopic, NotReadable):
            return False

    until(is_there, f"the files say {count} records", patience_s=60)


class Looking:
    """Counts on a thread, one look after another, from entering to leaving."""

    def __init__(self, look: Callable[[], int]) -> None:
        self._look = look
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.counts: list[int] = []
        self.faults: list[BaseException] = []

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.counts.append(self._look())
            except BaseException as fault:
                self.faults.append(fault)
                return

    def __enter__(self) -> Looking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_every_look_while_partitions_move_has_what_was_acknowledged_before(broker: Appliance) -> None:
    options = read_options({"path": str(broker.data_dir), "subscribe": TOPIC}, streaming=False)
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(2000)
    assert not load.failed
    wait_for(broker, load.count)
    with Looking(lambda: count_records(options)) as looking:
        for slots in ("1", "2,0", "0"):
            move(broker, slots)
    assert looking.faults == []
    assert looking.counts
    assert set(looking.counts) == {load.count}


@pytest.mark.slow
def test_queries_and_a_stream_have_every_record_though_partitions_move_under_them(
    spark: SparkSession, broker: Appliance, tmp_path: Path
) -> None:
    path, out = str(broker.data_dir), tmp_path / "out"
    with AckedLoad(broker, TOPIC, PARTITIONS, pace_s=0.01) as load:
        load.until(1000)
        wait_for(broker, 1000)
        query = (
            spark.readStream.format("appliance")
            .options(path=path, subscribe=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger="2000")
            .load()
            .writeStream.format("parquet")
            .option("path", str(out))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            fixed = spark.read.format("appliance").option("subscribe", TOPIC).load(path)
            fresh = topic(spark, TOPIC, path=path)
            count, least = fixed.count(), 1000
            for slots in ("1", "2,0", "0"):
                with Looking(lambda: int(fresh.where("partition < 5").count())) as looking:
                    move(broker, slots)
                assert looking.faults == []
                assert fixed.count() == count  # planned where the partitions lay at first
                assert looking.counts
                assert min(looking.counts) >= least
                least = looking.counts[-1]
                load.until(500)
        finally:
            if query.exception() is not None:
                query.stop()
    assert not load.failed
    load.check(broker)
    expected = read_all(broker, TOPIC, PARTITIONS)
    total = sum(map(len, expected.values()))

    def has_come() -> bool:
        assert query.exception() is None
        return int(spark.read.parquet(str(out)).count()) >= total

    until(has_come, "the stream has all of it", patience_s=JOB_TIMEOUT_S)
    query.stop()
    for found in (spark.read.parquet(str(out)), fresh):
        rows = found.selectExpr("partition", "offset", "cast(cast(value AS string) AS long)").collect()
        by_partition: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        for partition, offset, value in sorted(rows):
            assert offset == len(by_partition[partition])
            by_partition[partition].append(value)
        assert by_partition == expected
