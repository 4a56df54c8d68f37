"""An export of segments in an object store, behind a real S3 endpoint, read by the same source."""

from __future__ import annotations

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
from tests.log.batches import read_all
from tests.spark.logs import filled, read
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


@pytest.mark.slow
def test_an_export_in_a_bucket_is_read_by_its_address(
    spark: SparkSession, endpoint: str, tmp_path: Path
) -> None:
    log, end = uploaded(tmp_path, endpoint)
    address = f"s3://lake/logs?scheme=http&endpoint_override={endpoint}&region=here"
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
