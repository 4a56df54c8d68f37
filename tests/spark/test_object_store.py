"""An export of segments in an object store, behind a real S3 endpoint, read by the same source."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from appliance.log.partition_log import PartitionLog
from spark_connector.directory import Directories
from spark_connector.errors import NotALogDirectory
from spark_connector.planning import OffsetRange, plan
from spark_connector.segment_export import export_segments
from spark_connector.storage import below, directory_of, shown
from tests.cli.command import appliance
from tests.log.batches import read_all
from tests.spark.logs import filled, read
from tests.spark.topics import until
from tests.support.broker import end_with_the_test_runner
from tests.support.s3 import CREDENTIALS, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_what_stands_behind_an_address_stays_behind_it() -> None:
    address = "s3://key:secret@bucket/logs?endpoint_override=host:9000&scheme=http"
    inside = below(address, "orders-0")
    assert inside == "s3://key:secret@bucket/logs/orders-0?endpoint_override=host:9000&scheme=http"
    assert directory_of(inside) == address
    assert shown(inside) == "s3://bucket/logs/orders-0?endpoint_override=host:9000&scheme=http"
    assert below("/data", "orders-0") == "/data/orders-0"
    assert directory_of("/data/orders-0/x.log") == "/data/orders-0"


def test_a_store_that_is_not_there_is_told_without_what_gives_access(tmp_path: Path) -> None:
    with pytest.raises(NotALogDirectory) as raised:
        Directories([f"file://key:secret@host{tmp_path}/nowhere"])
    assert "secret" not in str(raised.value)


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server(tmp_path) as address:
        yield address


def uploaded(home: Path, endpoint: str) -> tuple[PartitionLog, int]:
    """A log of which an export lies in the bucket `lake`, the manifests last; and where the export ends."""
    log, _ = filled(home / "data", batches=200)
    done = export_segments("orders", paths=[home / "data"], to=home / "out")
    store = fs.S3FileSystem(
        endpoint_override=endpoint, scheme="http", region="here", allow_bucket_creation=True
    )
    store.create_dir("lake/logs")
    for path in sorted((home / "out").rglob("*"), key=lambda each: each.name.endswith(".manifest.json")):
        if path.is_file():
            with store.open_output_stream(f"lake/logs/{path.relative_to(home / 'out')}") as out:
                out.write(path.read_bytes())
    return log, done.partitions[0].end_offset


def address_in(endpoint: str, bucket: str = "lake") -> str:
    return f"s3://{bucket}/logs?scheme=http&endpoint_override={endpoint}&region=here"


def made_bucket(endpoint: str) -> fs.S3FileSystem:
    store = fs.S3FileSystem(
        endpoint_override=endpoint, scheme="http", region="here", allow_bucket_creation=True
    )
    store.create_dir("lake")
    return store


def objects(store: fs.S3FileSystem, ending: str) -> list[str]:
    found = store.get_file_info(fs.FileSelector("lake/logs", allow_not_found=True, recursive=True))
    return [each.path for each in found if each.path.endswith(ending)]


@pytest.mark.slow
def test_segments_go_straight_to_a_bucket_though_the_command_is_killed(endpoint: str, tmp_path: Path) -> None:
    log, _ = filled(tmp_path / "data", batches=400)
    store, end = made_bucket(endpoint), log.active_segment[0]
    asked = ["export", "segments", "orders", "--data-dir", str(tmp_path / "data"), "--to"]
    command = [sys.executable, "-m", "appliance", *asked, address_in(endpoint)]
    with subprocess.Popen(command, preexec_fn=end_with_the_test_runner) as killed:  # noqa: PLW1509
        until(lambda: len(objects(store, ".log")) > 2 or killed.poll() is not None, "some are there")
        killed.kill()
        killed.wait(30)
    appliance(*asked, address_in(endpoint)).succeeded()
    view = Directories([address_in(endpoint)]).partition("orders", 0)
    assert (view.log_start_offset, view.high_watermark) == (0, end)
    assert read(plan([view], [OffsetRange("orders", 0, 0, end)])) == read_all(log)[:end]
    refused = appliance(*asked, address_in(endpoint, "nowhere"))
    assert refused.code == 1
    assert "s3://nowhere/logs" in refused.errors
    assert "Traceback" not in refused.errors


@pytest.mark.slow
def test_who_may_not_write_a_bucket_is_told_so(tmp_path: Path) -> None:
    filled(tmp_path / "data")
    with s3_server(tmp_path, open_calls=0) as endpoint:
        address = address_in(endpoint).replace("//", "//reader:hidden@", 1)
        refused = appliance(
            "export", "segments", "orders", "--data-dir", str(tmp_path / "data"), "--to", address
        )
    assert refused.code == 1
    assert "s3://lake/logs" in refused.errors
    assert "hidden" not in refused.errors
    assert "Traceback" not in refused.errors


@pytest.mark.slow
def test_an_export_in_a_bucket_is_read_by_its_address(
    spark: SparkSession, endpoint: str, tmp_path: Path
) -> None:
    log, end = uploaded(tmp_path, endpoint)
    address = address_in(endpoint)
    view = Directories([address]).partition("orders", 0)
    tasks = plan([view], [OffsetRange("orders", 0, 0, end)], max_records=100)
    assert len(tasks) > 3
    assert read(tasks) == read_all(log)[:end]
    access = "{AWS_ACCESS_KEY_ID}:{AWS_SECRET_ACCESS_KEY}@".format(**CREDENTIALS)
    frame = (
        spark.read.format("appliance")
        .option("subscribe", "orders")
        .load(address.replace("//", f"//{access}", 1))  # Spark's workers have the environment of its start
    )
    rows = frame.where("offset >= 100").select("offset", "value").collect()
    expected = [(each.offset, each.value) for each in read_all(log)[100:end]]
    assert sorted((row[0], bytes(row[1])) for row in rows) == expected
