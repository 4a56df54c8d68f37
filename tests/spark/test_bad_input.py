"""What cannot be read, in a real Spark session: an error that says what and where, or, on request, all the rest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest

from appliance.log.file_names import LOG, segment_file_name
from tests.log.batches import batch_of
from tests.spark import logs
from tests.spark.logs import filled, make_log, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS: Final = 180
QUERY_TIMEOUT_S: Final = 600


def frame(spark: SparkSession, home: Path, **options: str) -> DataFrame:
    given = {"path": str(home), "subscribe": "orders", **options}
    return spark.read.format("appliance").options(**given).load()


def offsets(found: DataFrame) -> list[int]:
    return sorted(row[0] for row in found.select("offset").collect())


def refused(ask: Callable[[], object]) -> str:
    """What Spark says when it is asked."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 (Spark has several kinds)
        ask()
    return str(raised.value)


def streamed(spark: SparkSession, home: Path, at: Path, **options: str) -> Any:
    """A query that copies what is there to Parquet, from where its checkpoint left off; ended."""
    given = {"path": str(home), "subscribe": "orders", "startingOffsets": "earliest", **options}
    query = (
        spark.readStream.format("appliance")
        .options(**given)
        .load()
        .writeStream.format("parquet")
        .option("path", str(at / "out"))
        .option("checkpointLocation", str(at / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    return query


def test_a_directory_that_is_none_of_ours_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "photographs").mkdir()
    for name in ("photographs", "nowhere"):
        assert str(tmp_path / name) in refused(frame(spark, tmp_path / name).count)


def test_a_topic_that_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    filled(tmp_path)
    assert f"parcels: not in {tmp_path}" in refused(frame(spark, tmp_path, subscribe="parcels").count)


def test_offsets_out_of_range_are_told_with_what_is_there(spark: SparkSession, tmp_path: Path) -> None:
    log, state_file = filled(tmp_path)
    log.advance_start(50)
    publish(log, state_file)
    beyond = {
        "startingOffsets": json.dumps({"orders": {"0": 20}}),
        "endingOffsets": json.dumps({"orders": {"0": 500}}),
    }
    told = refused(frame(spark, tmp_path, **beyond).count)
    assert "orders-0: offsets 20 to 499 were asked for, and there are only 50 to 179" in told
    assert offsets(frame(spark, tmp_path, failOnDataLoss="false", **beyond)) == list(range(50, RECORDS))


def test_a_corrupt_batch_is_told_with_its_place_or_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    path = log.directory / segment_file_name(log.segments_since(0)[2].base_offset, LOG)
    content = bytearray(path.read_bytes())
    position = int.from_bytes(content[8:12], "big") + 12
    base_offset = int.from_bytes(content[position : position + 8], "big")
    content[position + 70] ^= 0xFF
    path.write_bytes(content)
    told = refused(frame(spark, tmp_path).count)
    assert f"{path} at position {position}: the batch of offset {base_offset} fails its checksum" in told
    lost = set(range(base_offset, base_offset + 3))
    left = offsets(frame(spark, tmp_path, onCorruptBatch="skip"))
    assert left == [each for each in range(RECORDS) if each not in lost]


def test_who_can_write_no_lease_reads_all(spark: SparkSession, tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "orders-0" / ".readers").write_bytes(
        b""
    )  # where a directory is wanted: stops the superuser too
    assert offsets(frame(spark, tmp_path)) == list(range(RECORDS))


def test_a_topic_that_was_deleted_or_made_anew_under_a_batch_query_is_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    planned = frame(spark, tmp_path)
    assert planned.count() == RECORDS
    shutil.rmtree(tmp_path / "orders-0")
    assert "orders-0: its directory is gone" in refused(planned.count)
    monkeypatch.setattr(logs, "TOPIC_ID", UUID(int=8))
    filled(tmp_path, batches=100)
    assert "topic orders was deleted and created again: it has another id" in refused(planned.count)
    assert frame(spark, tmp_path).count() == 300


def test_a_topic_that_was_made_anew_under_a_stream_is_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, at = tmp_path / "data", tmp_path / "query"
    filled(home)
    assert streamed(spark, home, at).exception() is None
    shutil.rmtree(home)
    monkeypatch.setattr(logs, "TOPIC_ID", UUID(int=8))
    filled(home, batches=100)
    told = refused(lambda: streamed(spark, home, at))
    assert (
        "topic orders was deleted and created again; failOnDataLoss=false would continue with the records that exist"
        in told
    )
    assert streamed(spark, home, at, failOnDataLoss="false").exception() is None
    found = offsets(spark.read.parquet(str(at / "out")))
    assert found == sorted([*range(RECORDS), *range(300)])


def test_a_topic_that_is_gone_under_a_stream_is_told(spark: SparkSession, tmp_path: Path) -> None:
    home, at = tmp_path / "data", tmp_path / "query"
    filled(home)
    other, state_file = make_log(home, "parcels-0")
    other.append(batch_of(), leader_epoch=0)
    publish(other, state_file)
    assert streamed(spark, home, at).exception() is None
    shutil.rmtree(home / "orders-0")
    told = refused(lambda: streamed(spark, home, at))
    assert (
        "partition orders-0 is gone; failOnDataLoss=false would continue with the records that exist" in told
    )
