"""The archive for `--py-files`: the connector, whole, and nothing of the broker's processes."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from spark_connector.archive import build
from tests.spark.logs import filled

READS = """
import sys
sys.path.insert(0, sys.argv[1])
import appliance, spark_connector
assert appliance.__file__.startswith(sys.argv[1]) and spark_connector.__file__.startswith(sys.argv[1])
from spark_connector.directory import Directories
from spark_connector.planning import OffsetRange, plan
from spark_connector.record_batches import record_batches
view = Directories([sys.argv[2]]).partition("orders", 0)
tasks = plan([view], [OffsetRange("orders", 0, 0, view.high_watermark)])
print(sum(batch.num_rows for task in tasks for batch in record_batches(task, ("offset", "value"))))
print(sorted(name for name in sys.modules if name.startswith("appliance.")))
"""
WINGS = ("netproc", "requests", "ioproc", "replicas", "control", "channels", "delayed", "ipc", "cli")


def test_records_are_read_with_nothing_but_the_archive(tmp_path: Path) -> None:
    log, _ = filled(tmp_path / "data", batches=5)
    archive = tmp_path / "connector.zip"
    build(archive)
    done = subprocess.run(
        [sys.executable, "-I", "-c", READS, str(archive), str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    count, loaded = done.stdout.splitlines()
    assert int(count) == log.log_end_offset
    assert not any(f"appliance.{wing}" in loaded for wing in WINGS)


def test_the_same_code_makes_the_same_archive_without_the_brokers_processes(tmp_path: Path) -> None:
    build(tmp_path / "a.zip")
    build(tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        names = archive.namelist()
    assert not [name for name in names if name.startswith(tuple(f"appliance/{wing}/" for wing in WINGS))]
    assert "pyspark_appliance/__init__.py" in names
