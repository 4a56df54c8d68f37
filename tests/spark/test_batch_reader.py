"""How the tasks of a batch query are handed to Spark, without a Spark session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_connector.batch_reader import ScanPartition, ViewPartition
from spark_connector.data_source import ApplianceDataSource
from spark_connector.planning import together
from tests.log.batches import NOW_MS, batch_of
from tests.spark.logs import make_log, publish, tasks_of

PARTITIONS = 3


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for partition in range(PARTITIONS):
        log, state_file = make_log(tmp_path, f"orders-{partition}")
        for number in range(20):
            log.append(batch_of([b"%d-%d" % (partition, number)] * 3, timestamp_ms=NOW_MS), leader_epoch=0)
        publish(log, state_file)
    return tmp_path


def planned(home: Path, **options: str) -> list[ScanPartition]:
    source = ApplianceDataSource({"path": str(home), "subscribe": "orders", **options})
    found = source.reader(source.schema()).partitions()
    assert all(isinstance(each, ScanPartition) for each in found)
    return [each for each in found if isinstance(each, ScanPartition)]


def test_partitions_that_hold_little_are_read_by_one_task(home: Path) -> None:
    (task,) = planned(home)
    assert [each.name for each in task.tasks] == ["orders-0", "orders-1", "orders-2"]


def test_a_task_hands_out_the_rows_of_all_its_partitions_in_order(home: Path) -> None:
    source = ApplianceDataSource({"path": str(home), "subscribe": "orders"})
    reader = source.reader(source.schema())
    (task,) = reader.partitions()
    rows = [row for batch in reader.read(task) for row in batch.to_pylist()]  # type: ignore[union-attr]
    assert [(row["partition"], row["offset"]) for row in rows] == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(60)
    ]
    assert all(row["value"] == b"%d-%d" % (row["partition"], row["offset"] // 3) for row in rows)


def test_batches_of_partitions_that_hold_little_are_told_by_one_task(home: Path) -> None:
    source = ApplianceDataSource({"path": str(home), "subscribe": "orders", "view": "batches"})
    reader = source.reader(source.schema())
    (task,) = reader.partitions()
    assert isinstance(task, ViewPartition)
    rows = [row for batch in reader.read(task) for row in batch.to_pylist()]  # type: ignore[union-attr]
    assert [(row["partition"], row["baseOffset"]) for row in rows] == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(0, 60, 3)
    ]


@pytest.mark.parametrize("option", [{"minPartitions": "3"}, {"maxRecordsPerPartition": "60"}])
def test_who_says_how_tasks_are_cut_gets_each_by_itself(home: Path, option: dict[str, str]) -> None:
    assert [len(task.tasks) for task in planned(home, **option)] == [1, 1, 1]


def test_what_is_put_together_stays_below_its_bound(home: Path) -> None:
    tasks = tasks_of(home, split_bytes=1 << 26, max_records=3)
    sizes = [task.size_bytes for task in tasks]
    assert len(tasks) == 20
    groups = together(tasks, max(sizes) * 3)
    assert [task for group in groups for task in group] == tasks
    assert all(sum(task.size_bytes for task in group) <= max(sizes) * 3 for group in groups)
    assert len(groups) < len(tasks)
    assert [len(group) for group in together(tasks, 1)] == [1] * 20
    assert together([], 1) == []


def test_what_plans_loads_no_compiler() -> None:
    # Spark plans in up to three processes of their own, and each would load it in vain.
    code = "import sys, pyspark_appliance; print('numba' in sys.modules, 'spark_connector.planning' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["False", "True"]
