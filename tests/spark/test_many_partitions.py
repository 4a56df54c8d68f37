"""Ten thousand partitions: planned with one listing each, counted by Spark, and followed by a stream at little cost."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from spark_connector.batch_query import plan_batch
from spark_connector.options import read_options
from spark_connector.stream_query import StreamQuery
from tests.log.batches import NOW_MS, batch_of
from tests.spark.logs import make_log, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANY: Final = 10_000
RECORDS: Final = 3
LONG_AGO_S: Final = NOW_MS // 1000
PROCESSOR_S_MAX: Final = 3.0
"""Of one look at all of them; it takes a tenth of it."""


def fill(home: Path, partitions: int) -> None:
    """Logs of one batch each, whose directories have not changed for long."""
    log, state_file = make_log(home / "template", "many-0")
    log.append(batch_of([b"value"] * RECORDS), leader_epoch=0)
    publish(log, state_file)
    state_file.release()
    log.close(clean=True)
    (log.directory / ".readers").mkdir()
    for number in range(partitions):
        directory = home / "data" / f"many-{number}"
        shutil.copytree(log.directory, directory)
        os.utime(directory, (LONG_AGO_S, LONG_AGO_S))
    (home / "data" / "meta.properties").write_text("version=1\n")


def grow(home: Path, number: int, *, rolls: bool = False) -> None:
    """One record more; in a segment of its own, where it `rolls`."""
    log, state_file = make_log(home / "data", f"many-{number}")
    if rolls:
        log.roll()
    log.append(batch_of([b"new"]), leader_epoch=0)
    publish(log, state_file)
    state_file.release()
    log.close(clean=True)


def options_of(home: Path, **more: str) -> dict[str, str]:
    return {"path": str(home / "data"), "subscribe": "many", **more}


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each directory was listed, by its name."""
    counts: Counter[str] = Counter()
    lists = os.listdir

    def counted(path: str) -> list[str]:
        counts[Path(path).name] += Path(path).name.startswith("many-")
        return lists(path)

    monkeypatch.setattr(os, "listdir", counted)
    return counts


def test_a_plan_lists_each_directory_once(tmp_path: Path, listed: Counter[str]) -> None:
    fill(tmp_path, 20)
    planned = plan_batch(read_options(options_of(tmp_path), streaming=False))
    assert sum(task.end - task.start for task in planned.tasks) == 20 * RECORDS
    assert listed == {f"many-{number}": 1 for number in range(20)}


def test_a_stream_lists_a_directory_again_only_when_its_names_have_changed(
    tmp_path: Path, listed: Counter[str]
) -> None:
    fill(tmp_path, 20)
    query = StreamQuery(read_options(options_of(tmp_path, startingOffsets="earliest"), streaming=True))
    begin = query.initial()
    end = query.next(begin)
    assert len(query.tasks(begin, end)) == 20
    assert set(listed.values()) == {1}
    grow(tmp_path, 7)
    further = query.next(end)
    (task,) = query.tasks(end, further)
    assert (task.name, task.start, task.end) == ("many-7", RECORDS, RECORDS + 1)
    grow(tmp_path, 7, rolls=True)
    (task,) = query.tasks(further, query.next(further))
    assert [stretch.base_offset for stretch in task.stretches] == [RECORDS + 1]
    assert {name for name, count in listed.items() if count > 1} == {"many-7"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_partitions_are_counted_by_spark_and_followed_by_a_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill(tmp_path, MANY)
    asked = spark.read.format("appliance").options(**options_of(tmp_path))
    assert asked.load().count() == MANY * RECORDS
    query = StreamQuery(read_options(options_of(tmp_path), streaming=True))
    at = query.next(query.initial())
    grow(tmp_path, 77)
    began_s = time.process_time()
    further = query.next(at)
    assert len(query.tasks(at, further)) == 1
    assert time.process_time() - began_s < PROCESSOR_S_MAX
