"""Tables of Spark SQL over the source, and what its errors look like."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from appliance.log.reader_leases import GRACE_MS
from tests.cli.command import appliance, environment
from tests.log.batches import batch_of
from tests.spark.logs import filled, publish
from tests.spark.test_leases import eventually, files, left_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 180


@pytest.fixture(autouse=True)
def no_tables_left(spark: SparkSession) -> Iterator[None]:
    yield
    for table in spark.catalog.listTables():
        spark.sql(
            f"DROP TABLE IF EXISTS {table.name}" if not table.isTemporary else f"DROP VIEW {table.name}"
        )


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t USING appliance OPTIONS (subscribe 'orders', path '{home}')",
        "CREATE TABLE t USING appliance OPTIONS (subscribe 'orders') LOCATION '{home}'",
        "CREATE TABLE t USING appliance OPTIONS (subscribe 'orders', paths '{home}') TBLPROPERTIES (team 'data')",
    ],
)
def test_a_table_is_created_read_and_dropped(spark: SparkSession, tmp_path: Path, text: str) -> None:
    home = tmp_path / "data dir"
    log, state_file = filled(home)
    spark.sql(text.format(home=home))
    assert spark.sql("SELECT count(*), max(offset) FROM t WHERE offset >= 50").collect()[0] == (130, 179)
    log.append(batch_of([b"new"]), leader_epoch=0)
    publish(log, state_file)
    assert spark.sql("SELECT count(*) FROM t").collect()[0][0] == RECORDS + 1
    before = sorted(path for path in home.rglob("*") if ".readers" not in path.parts)
    spark.sql("DROP TABLE t PURGE")
    assert sorted(path for path in home.rglob("*") if ".readers" not in path.parts) == before


def test_options_of_a_table_hold_for_its_queries_and_a_query_may_say_more(
    spark: SparkSession, tmp_path: Path
) -> None:
    filled(tmp_path)
    spark.sql(
        f"CREATE TABLE t USING appliance OPTIONS (subscribe 'orders', paths '{tmp_path}', columns 'value,offset')"
    )
    assert spark.sql("SELECT * FROM t LIMIT 1").columns == ["value", "offset"]
    bounded = spark.sql("""SELECT max(offset) FROM t WITH (endingOffsets '{"orders": {"0": 50}}')""")
    assert bounded.collect()[0][0] == 49
    stream = spark.readStream.option("startingOffsets", "earliest").table("t")
    query = stream.writeStream.format("memory").queryName("rows").trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert spark.sql("SELECT count(*) FROM rows").collect()[0][0] == RECORDS


def test_what_cannot_be_a_table_is_said_when_it_is_created_or_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    filled(tmp_path)
    line = first_line(
        lambda: spark.sql(f"CREATE TABLE t USING appliance OPTIONS (subscibe 'orders', path '{tmp_path}')")
    )
    assert "option subscibe: is not known; did you mean subscribe?" in line
    line = first_line(lambda: spark.sql(f"CREATE TABLE t USING appliance OPTIONS (path '{tmp_path}')"))
    assert "option subscribe: is missing" in line
    spark.sql(
        f"CREATE TABLE t (value binary) USING appliance OPTIONS (subscribe 'orders', path '{tmp_path}')"
    )
    assert "created with a list of columns" in first_line(spark.table("t").count)


def first_line(action: Callable[[], Any]) -> str:
    with pytest.raises(Exception, match=r"(?s).") as raised:
        action()
    assert "Traceback" not in str(raised.value)
    return str(raised.value).splitlines()[0]


def test_the_first_line_of_an_error_says_what_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    asked = spark.read.format("appliance")
    line = first_line(lambda: asked.option("subscribe", "orders").option("startingOfsets", "1").load("x"))
    assert "option startingofsets: is not known; did you mean startingOffsets?" in line
    frame = spark.read.format("appliance").option("subscribe", "orderz").load(str(tmp_path))
    assert f"orderz: not in {tmp_path}; did you mean orders?" in first_line(frame.count)
    frame = spark.read.format("appliance").option("subscribe", "orders").load(str(tmp_path / "nope"))
    assert f"{tmp_path}/nope: No such file or directory" in first_line(frame.count)
    frame = spark.read.format("appliance").option("subscribe", "orders").load(str(tmp_path))
    segment = sorted(log.directory.glob("*.log"))[0]
    content = bytearray(segment.read_bytes())
    content[80] ^= 1
    segment.write_bytes(content)
    with pytest.raises(Exception, match=segment.name) as raised:
        frame.count()
    assert "Traceback" not in str(raised.value)


def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    filled(tmp_path / "data")
    told = appliance("export", "segments", "orderz", "--to", tmp_path / "to", "--data-dir", tmp_path / "data")
    assert told.errors.splitlines() == [
        f"appliance: topic 'orderz' is in none of {tmp_path}/data; did you mean orders?"
    ]
    told = appliance("export", "parquet", "orders", "--to", tmp_path / "to", "--data-dir", tmp_path / "nope")
    assert told.errors.splitlines() == [f"appliance: {tmp_path}/nope: No such file or directory"]


def test_what_was_pushed_down_is_shown_by_explain_formatted(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path)
    frame = spark.read.format("appliance").option("subscribe", "orders").load(str(tmp_path))
    frame.where("partition = 0 AND offset >= 40").explain("formatted")
    assert "GreaterThanOrEqual(offset,40)" in capsys.readouterr().out


def test_a_session_of_somebody_elses_runs_the_python_of_its_program(tmp_path: Path) -> None:
    """As in a virtual environment that was not activated: python3 on the path is one without PySpark."""
    filled(tmp_path / "data")
    (tmp_path / "bin").mkdir()
    python3 = tmp_path / "bin" / "python3"
    python3.write_text("#!/bin/sh\necho 'the wrong Python' >&2\nexit 1\n")
    python3.chmod(0o755)
    program = f"""
from pyspark.sql import SparkSession
from spark_connector.java import use_java
from spark_connector.session import register
use_java()
spark = register(SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate())
print(spark.read.format("appliance").option("subscribe", "orders").load({str(tmp_path / "data")!r}).count())
"""
    env = {**environment(), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    env.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout.split() == [str(RECORDS)], done.stderr


def test_a_query_lets_go_of_its_leases_and_a_stream_that_is_stopped_of_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    home = tmp_path / "data"
    filled(home)
    frame = (
        spark.read.format("appliance")
        .option("subscribe", "orders")
        .option("splitBytes", "1m")
        .load(str(home))
    )
    assert frame.count() == RECORDS
    assert len(files(home)) == 1
    assert left_ms(*files(home)) <= GRACE_MS
    files(home)[0].unlink()
    query = (
        spark.readStream.format("appliance")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load(str(home))
        .writeStream.format("memory")
        .queryName("rows")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    eventually(lambda: spark.sql("SELECT count(*) FROM rows").collect()[0][0] == RECORDS, "no rows")
    assert len(files(home)) == 1
    # The sink has the rows before the stream has committed them. Who stops in between keeps the lease, for a restart.
    query.processAllAvailable()
    query.stop()
    eventually(lambda: not files(home), "the stream does not release its lease")
