"""`export parquet`: each record in one file once, whatever dies between any two steps."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from appliance.errors import OperatorFault
from appliance.log.config import LogSettings
from spark_connector import arrow_columns
from spark_connector.directory import Isolation
from spark_connector.errors import DataLost
from spark_connector.export import range_files
from spark_connector.export.job import ExportFailed, Progress, export_parquet
from spark_connector.export.ledger import Ledger, OtherExport, Range, Subject
from spark_connector.export.range_files import RangeTask, export_range
from tests.cli.command import appliance, environment
from tests.log.batches import NOW_MS, batch_of, read_all
from tests.spark.logs import TOPIC_ID, filled, make_log, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000
SUBJECT = Subject("orders", str(TOPIC_ID), "read_committed", True)


def task_of(home: Path, to: Path, end: int, *, start: int = 0, again: bool = False) -> RangeTask:
    """Offsets of `orders-0`, as a plan of the export would have them."""
    run = Ledger(to).plan([Range(0, start, end)], {0: end}) if Ledger(to).run() is None else Ledger(to).run()
    assert run is not None
    return RangeTask(
        paths=(str(home),),
        target=str(to),
        marks=str(Ledger(to).marks(run)),
        subject=SUBJECT,
        range=run.ranges[0],
        lease=None,
        codec="zstd",
        again=again,
        skip_lost=False,
    )


def exported(to: Path) -> list[dict[str, Any]]:
    """All rows, in the order of partition and offset."""
    table = ds.dataset(to, format="parquet", partitioning="hive").to_table()
    return sorted(table.to_pylist(), key=lambda row: (row["partition"], row["offset"]))


def offsets(to: Path) -> list[int]:
    return [row["offset"] for row in exported(to)]


@pytest.fixture
def to(tmp_path: Path) -> Iterator[Path]:
    """An export that has begun, and holds nothing yet."""
    directory = tmp_path / "export"
    with Ledger(directory).held():
        Ledger(directory).undertake(SUBJECT)
        yield directory


def test_a_range_becomes_rows_with_everything_that_the_records_have(tmp_path: Path, to: Path) -> None:
    log, _ = filled(tmp_path / "data", batches=3)
    done = export_range(task_of(tmp_path / "data", to, log.log_end_offset))
    rows = exported(to)
    expected = read_all(log)
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (each.offset, each.key, each.value) for each in expected
    ]
    assert [row["timestamp"] for row in rows] == [
        datetime.fromtimestamp(each.timestamp_ms / 1000, UTC) for each in expected
    ]
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in rows} == {("orders", 0, 0)}
    assert (done.rows, done.files, done.lost) == (9, 1, 0)


def test_records_lie_by_the_day_of_their_timestamps(
    tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_files, "OPEN_FILES_MAX", 2)
    monkeypatch.setattr(arrow_columns, "BATCH_ROWS", 1)
    log, state_file = make_log(tmp_path / "data", settings=LogSettings(segment_bytes=1 << 20))
    for number in range(12):  # days come and go, so that one is closed while another is written
        log.append(batch_of([b"v"], timestamp_ms=NOW_MS - (number % 4) * DAY_MS), leader_epoch=0)
    publish(log, state_file)
    done = export_range(task_of(tmp_path / "data", to, log.log_end_offset))
    assert offsets(to) == list(range(12))
    assert {str(row["date"]) for row in exported(to)} == {
        datetime.fromtimestamp((NOW_MS - day * DAY_MS) / 1000, UTC).date().isoformat() for day in range(4)
    }
    for row in exported(to):
        assert str(row["date"]) == row["timestamp"].date().isoformat()
    assert done.files == 12


class Died(BaseException):
    """The process ends here, as far as the code can tell."""


def test_whoever_dies_between_two_steps_leaves_what_the_next_attempt_completes(
    tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, state_file = make_log(tmp_path / "data")
    for number in range(6):
        log.append(batch_of([b"v"], timestamp_ms=NOW_MS - (number % 3) * DAY_MS), leader_epoch=0)
    publish(log, state_file)
    task = task_of(tmp_path / "data", to, log.log_end_offset)
    real, step, steps = os.replace, 0, 0

    def replaced(old: Any, new: Any) -> None:
        nonlocal step
        if step == steps:
            raise Died
        step += 1
        real(old, new)

    monkeypatch.setattr(os, "replace", replaced)
    ledger = Ledger(to)
    while True:  # each attempt dies one step later than the one before, until one does not die
        step = 0
        run = ledger.run()
        assert run is not None
        try:
            export_range(replace(task, again=True))
        except Died:
            assert ledger.done(run) == {}
            steps += 1
            continue
        break
    assert steps == 4  # three days, and the mark
    assert offsets(to) == list(range(6))
    assert list(ledger.done(run)) == [task.range]
    assert [path for path in (to / "_appliance" / "work").iterdir() if not path.name.startswith(".")] == []


def test_what_compaction_took_between_two_attempts_is_not_left_from_the_first(
    tmp_path: Path, to: Path
) -> None:
    log, state_file = make_log(tmp_path / "data")
    log.append(batch_of([b"v"]), leader_epoch=0)
    publish(log, state_file)
    task = task_of(tmp_path / "data", to, log.log_end_offset)
    export_range(task)
    stale = to / "date=1999-12-31" / f"{task.range.stem('orders')}0.parquet"
    stale.parent.mkdir()
    stale.write_bytes(next(to.glob("date=2*/*.parquet")).read_bytes())
    export_range(replace(task, again=True))
    assert offsets(to) == [0]


def test_a_directory_takes_only_the_export_it_was_begun_with(tmp_path: Path, to: Path) -> None:
    ledger = Ledger(to)
    for other in (
        replace(SUBJECT, topic="others"),
        replace(SUBJECT, topic_id="another"),
        replace(SUBJECT, headers=False),
    ):
        with pytest.raises(OtherExport):
            ledger.undertake(other)
    with pytest.raises(OperatorFault, match="under way"), Ledger(to).held():
        pass
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear reader")
    with pytest.raises(OtherExport, match="not empty"), Ledger(tmp_path / "full").held():
        pass


def test_a_topic_is_exported_once_and_then_only_what_came_since(tmp_path: Path) -> None:
    export_three_times(None, tmp_path)


def test_spark_exports_the_same_and_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    export_three_times(spark, tmp_path)
    read = spark.read.parquet(str(tmp_path / "export"))
    assert read.count() == 181
    assert "date" in read.columns


def export_three_times(spark: SparkSession | None, directory: Path) -> None:
    home, to = directory / "data", directory / "export"
    log, state_file = filled(home)
    first = export_parquet(spark, "orders", paths=[str(home)], to=to)
    assert first.rows == log.log_end_offset
    assert offsets(to) == list(range(log.log_end_offset))
    assert [path.name for path in to.glob("date=*/*")] == ["orders-0-0-179-0.parquet"]
    assert export_parquet(spark, "orders", paths=[str(home)], to=to).rows == 0
    log.append(batch_of([b"late"]), leader_epoch=0)
    publish(log, state_file)
    assert export_parquet(spark, "orders", paths=[str(home)], to=to).rows == 1
    assert offsets(to) == list(range(log.log_end_offset))


def test_the_command_needs_no_spark_and_keeps_the_names_and_columns(tmp_path: Path) -> None:
    home, to = tmp_path / "data", tmp_path / "export"
    log, _ = filled(home)
    (tmp_path / "stub" / "pyspark").mkdir(parents=True)
    (tmp_path / "stub" / "pyspark" / "__init__.py").write_text("raise SystemExit('pyspark was imported')")
    command = [sys.executable, "-m", "appliance", "export", "parquet", "orders", "--json"]
    told = subprocess.run(
        [*command, "--to", str(to), "--data-dir", str(home)],
        env={**environment(), "PYTHONPATH": str(tmp_path / "stub"), "JAVA_HOME": "", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (told.returncode, told.stderr) == (0, "")
    assert json.loads(told.stdout)["rows"] == log.log_end_offset
    assert [path.name for path in to.glob("date=*/*")] == ["orders-0-0-179-0.parquet"]
    assert list(exported(to)[0]) == [*range_files.COLUMNS, "headers", "date"]
    assert list(home.glob("*/.readers/*.lease")) == []


def test_an_interrupted_export_stops_and_the_next_one_completes_it(tmp_path: Path) -> None:
    home, to = tmp_path / "data", tmp_path / "export"
    log, state_file = make_log(home, settings=LogSettings(segment_bytes=1 << 20))
    for _ in range(200):
        log.append(batch_of([random.randbytes(1000) for _ in range(100)]), leader_epoch=0)
    publish(log, state_file)

    class Interrupted(BaseException):
        pass

    def interrupt(_: Progress) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        export_parquet(None, "orders", paths=[str(home)], to=to, split_bytes=1 << 20, tell=interrupt)
    run = Ledger(to).run()
    assert run is not None
    assert len(Ledger(to).done(run)) < len(run.ranges)
    export_parquet(None, "orders", paths=[str(home)], to=to)
    assert offsets(to) == list(range(log.log_end_offset))


def test_records_deleted_before_they_were_exported_are_an_error_or_counted(tmp_path: Path) -> None:
    home, to = tmp_path / "data", tmp_path / "export"
    log, state_file = filled(home, batches=20)
    export_parquet(None, "orders", paths=[str(home)], to=to)
    before = log.log_end_offset
    for _ in range(20):
        log.append(batch_of([b"x"] * 3), leader_epoch=0)
    log.advance_start(before + 6)
    publish(log, state_file)
    with pytest.raises(DataLost, match=str(before)):
        export_parquet(None, "orders", paths=[str(home)], to=to)
    result = export_parquet(None, "orders", paths=[str(home)], to=to, skip_lost=True)
    assert result.lost == 6
    assert result.rows == log.log_end_offset - before - 6


def test_a_range_that_cannot_be_read_fails_by_name_and_the_others_are_kept(tmp_path: Path) -> None:
    home, to = tmp_path / "data", tmp_path / "export"
    filled(home)
    broken, state_file = make_log(home, "orders-1")
    broken.append(batch_of([b"x" * 100]), leader_epoch=0)
    publish(broken, state_file)
    segment = next((home / "orders-1").glob("*.log"))
    content = bytearray(segment.read_bytes())
    content[80] ^= 1
    segment.write_bytes(content)
    with pytest.raises(ExportFailed, match=segment.name):
        export_parquet(None, "orders", paths=[str(home)], to=to)
    assert {row["partition"] for row in exported(to)} == {0}
    content[80] ^= 1
    segment.write_bytes(content)
    export_parquet(None, "orders", paths=[str(home)], to=to)
    assert Counter(row["partition"] for row in exported(to)) == {0: 180, 1: 1}


def test_a_topic_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    make_log(tmp_path / "data")
    told = appliance("export", "parquet", "nope", "--to", tmp_path / "to", "--data-dir", tmp_path / "data")
    assert told.code == 1
    assert told.errors.startswith("appliance: topic 'nope' is in none of ")
    assert not (tmp_path / "to").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("master", [(), ("--master", "local[2]")], ids=["threads", "spark"])
def test_an_export_killed_at_random_and_begun_again_has_each_record_once(
    tmp_path: Path, master: tuple[str, ...]
) -> None:
    home, to = tmp_path / "data", tmp_path / "export"
    log, state_file = make_log(home, settings=LogSettings(segment_bytes=8 << 20))
    for number in range(400):
        values = [random.randbytes(1000) for _ in range(100)]
        log.append(batch_of(values, timestamp_ms=NOW_MS - (number % 3) * DAY_MS), leader_epoch=0)
    publish(log, state_file)
    command = [sys.executable, "-m", "appliance", "export", "parquet", "orders", "--to", str(to)]
    command += ["--data-dir", str(home), "--task-mib", "1", "--json", *master]
    kills = 0
    while True:
        with subprocess.Popen(
            command,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as job:
            # Killed at about the n-th range; the last attempt is let through.
            deadline = time.monotonic() + 240
            while kills < 4 and job.poll() is None and time.monotonic() < deadline:
                if len(list(to.glob("_appliance/done-*/*"))) >= 3 * kills + random.random():
                    os.killpg(job.pid, signal.SIGKILL)
                    break
                time.sleep(0.01)
            told, errors = job.communicate(timeout=600)
        kills += 1
        if job.returncode == 0:
            break
        assert job.returncode == -signal.SIGKILL
    assert json.loads(told)["rows"] > 0
    assert errors == "", "what Spark says when it starts is nobody's concern"
    assert len(list(to.glob("date=*"))) == 3
    assert offsets(to) == list(range(log.log_end_offset))


def test_files_are_read_back_with_the_codec_that_was_asked_for(tmp_path: Path, to: Path) -> None:
    log, _ = filled(tmp_path / "data", batches=3)
    export_range(replace(task_of(tmp_path / "data", to, log.log_end_offset), codec="gzip"))
    file = pq.ParquetFile(next(to.glob("date=*/*.parquet")))
    assert file.metadata.row_group(0).column(1).compression == "GZIP"


def test_read_uncommitted_is_an_export_of_its_own(tmp_path: Path) -> None:
    home, to = tmp_path / "data", tmp_path / "export"
    filled(home, batches=3)
    export_parquet(None, "orders", paths=[str(home)], to=to)
    with pytest.raises(OtherExport, match="isolation"):
        export_parquet(None, "orders", paths=[str(home)], to=to, isolation=Isolation.READ_UNCOMMITTED)
