"""The page of the Spark cases: medians, and goals judged by the worst of the data sets."""

from __future__ import annotations

from benchmarks.goals import remarks
from benchmarks.guard import fallen
from benchmarks.spark.cases import QUERIES
from benchmarks.spark.data import DataSet, data_sets
from benchmarks.spark.run import page
from benchmarks.spark.verdicts import Seconds, SparkRun, newest_page, read_run, rows, verdicts

SETS = [DataSet("1k_none", 1 << 20, 1024, "none"), DataSet("1k_lz4", 1 << 20, 1024, "lz4")]  # a GiB each


def run(
    seconds: Seconds, slow: dict[str, dict[str, float]] | None = None, *, broker_cpu_s: float = 0.0
) -> SparkRun:
    return SparkRun({each.name: each.payload_bytes for each in SETS}, seconds, broker_cpu_s, slow or {})


def judged(run: SparkRun) -> dict[str, tuple[str, bool]]:
    return {each.what: (each.value, each.reached) for each in verdicts(run)}


def seconds(case: str, **by_reader: tuple[float, float]) -> Seconds:
    """Three rounds for each data set: the median, and one below and above it."""
    return {
        (case, each.name, reader): [median * 0.5, median, median * 3]
        for reader, medians in by_reader.items()
        for each, median in zip(SETS, medians, strict=True)
    }


def test_a_goal_is_judged_by_the_median_of_the_worst_data_set() -> None:
    measured = seconds("spark_select_all", appliance=(1.0, 2.0), kafka=(4.0, 3.0), ceiling=(0.9, 1.9))
    found = judged(run(measured))
    assert found["select-all beside the ceiling"] == ("0.90x", True)
    assert found["select-all beside spark-sql-kafka"] == ("1.50x", False)
    assert "a minute of a day beside spark-sql-kafka" not in found


def test_a_count_is_judged_by_the_time_for_a_gigabyte() -> None:
    measured = seconds("spark_count", told=(0.05, 0.09))
    assert judged(run(measured))["exact count by headers"] == ("90 ms/GB", True)


def test_the_page_shows_every_reader_that_was_asked_and_no_other() -> None:
    query = next(each for each in QUERIES if each.name == "spark_window")
    measured = seconds("spark_window", appliance=(0.1, 0.1), kafka=(2.0, 4.0))
    slow = {"appliance": {"p50": 120.0, "p99": 200.0, "records": 600}}
    text = page(SETS, [query], run(measured, slow), rounds=3)
    assert "| records | connector, s | spark-sql-kafka, s | M rows/s | MB/s |" in text
    assert "| 1k B, lz4 | 0.10 | 4.00 |" in text
    assert "| connector | 120 | 200 | 600 |" in text
    assert "| a minute of a day beside spark-sql-kafka | ≥ 10x | 20.00x | reached |" in text


def test_a_page_with_a_missed_goal_says_why_and_what_comes_next() -> None:
    query = next(each for each in QUERIES if each.name == "spark_window")
    missed = run(seconds("spark_window", appliance=(1.0, 1.0), kafka=(2.0, 4.0)))
    text = page(SETS, [query], missed, rounds=3)
    assert "| a minute of a day beside spark-sql-kafka | ≥ 10x | 2.00x | missed |" in text
    assert remarks()["spark"].why in text
    assert remarks()["spark"].next in text


def test_the_kept_figures_are_judged_as_their_page_says() -> None:
    kept = newest_page()
    assert kept is not None
    text = kept.read_text()
    for each in verdicts(read_run(kept)):
        assert (
            f"| {each.what} | {each.bound} | {each.value} | {'reached' if each.reached else 'missed'} |"
            in text
        )


def test_processor_time_of_the_broker_is_shared_out_over_the_scans() -> None:
    measured = seconds("spark_count", appliance=(1.0, 1.0), kafka=(1.0, 1.0))  # six scans of ours
    found = judged(run(measured, broker_cpu_s=0.06))
    assert found["the appliance's processor time a scan"] == ("10.0 ms", False)


def test_each_size_and_codec_has_as_many_rows_in_every_partition() -> None:
    assert [each.name for each in data_sets(1 << 20)] == ["100_none", "100_lz4", "1k_none", "1k_lz4"]
    assert all(each.rows % 4 == 0 and each.payload_bytes <= 1 << 20 for each in data_sets(1 << 20))


def test_times_are_guarded_beside_sparks_own_source() -> None:
    kept = rows(run(seconds("spark_window", appliance=(1.0, 1.0), kafka=(2.0, 4.0))))
    slower = rows(run(seconds("spark_window", appliance=(9.0, 1.0), kafka=(2.0, 4.0))))
    assert [fall.row.figure.title for fall in fallen(slower, kept)] == ["spark_window of 1k_none"]
    slow_machine = rows(run(seconds("spark_window", appliance=(9.0, 9.0), kafka=(18.0, 36.0))))
    assert fallen(slow_machine, kept) == []


def test_a_page_without_spark_sql_kafka_says_that_its_ratios_are_missing() -> None:
    query = next(each for each in QUERIES if each.name == "spark_window")
    alone = run(seconds("spark_window", appliance=(0.1, 0.1)))
    text = page(SETS, [query], alone, rounds=3, missing="no jars")
    assert "**kafka is missing.** This page has no ratios to it: no jars." in text
    assert "beside spark-sql-kafka" not in text
