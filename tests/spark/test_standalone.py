"""Executors that are processes of their own, and get the connector as one archive."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from appliance.log.config import LogSettings
from spark_connector.archive import build
from tests.cli.command import appliance
from tests.log.batches import batch_of
from tests.spark.logs import make_log, publish
from tests.spark.standalone import HOME, spark_environment, standalone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

JOB = """
import json, os, sys
from pyspark.sql import SparkSession
import spark_connector
from spark_connector.session import register

spark = register(SparkSession.builder.getOrCreate())
frame = spark.read.format("appliance").option("subscribe", "orders").option("splitBytes", 1 << 20).load(sys.argv[1])
rows = frame.select("partition", "offset").rdd.map(lambda row: (row[0], row[1], os.getpid())).collect()
where = spark.sparkContext.parallelize([0, 1], 2).map(lambda _: spark_connector.__file__).collect()
print(json.dumps({"rows": rows, "where": where}))
"""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("standalone")) as address:
        yield address


def two_partitions(home: Path) -> list[tuple[int, int]]:
    """A topic of some megabytes; its partitions and offsets."""
    expected = []
    for partition in range(2):
        log, state_file = make_log(home, f"orders-{partition}", settings=LogSettings(segment_bytes=1 << 20))
        for _ in range(30):
            log.append(batch_of([b"v" * 1000] * 100), leader_epoch=0)
        publish(log, state_file)
        expected += [(partition, offset) for offset in range(log.log_end_offset)]
    return expected


def test_executors_read_with_the_archive_alone(master: str, tmp_path: Path) -> None:
    expected = two_partitions(tmp_path / "data")
    build(tmp_path / "connector.zip")
    (tmp_path / "job.py").write_text(JOB)
    done = subprocess.run(
        [
            *(HOME / "bin" / "spark-submit", "--master", master, "--py-files", tmp_path / "connector.zip"),
            *(
                "--conf",
                "spark.executor.memory=600m",
                "--conf",
                "spark.python.unix.domain.socket.enabled=true",
            ),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR"),
            *(tmp_path / "job.py", tmp_path / "data"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=tmp_path,
        env=spark_environment(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert sorted((partition, offset) for partition, offset, _ in told["rows"]) == expected
    assert len({pid for _, _, pid in told["rows"]}) > 1
    assert all(path.split("/")[-3].endswith(".zip") for path in told["where"])


def test_an_export_runs_on_a_cluster(master: str, tmp_path: Path) -> None:
    expected = two_partitions(tmp_path / "data")
    to = tmp_path / "to"
    appliance(
        *("export", "parquet", "orders", "--to", to, "--data-dir", tmp_path / "data"),
        *("--master", master, "--task-mib", "1"),
        timeout_s=600,
        more={**spark_environment(), "SPARK_CONF_DIR": str(tmp_path)},
    ).succeeded()
    table = ds.dataset(to, format="parquet", partitioning="hive").to_table(columns=["partition", "offset"])
    assert sorted(zip(*table.to_pydict().values(), strict=True)) == expected
