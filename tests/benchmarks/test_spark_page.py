"""The page of the Spark cases: medians, and goals judged by the worst of the data sets."""

from __future__ import annotations

from benchmarks.spark.cases import QUERIES
from benchmarks.spark.data import DataSet, data_sets
from benchmarks.spark.run import Seconds, goals, page

SETS = [DataSet("1k_none", 1 << 20, 1024, "none"), DataSet("1k_lz4", 1 << 20, 1024, "lz4")]  # a GiB each


def seconds(case: str, **by_reader: tuple[float, float]) -> Seconds:
    """Three rounds for each data set: the median, and one below and above it."""
    return {
        (case, each.name, reader): [median * 0.5, median, median * 3]
        for reader, medians in by_reader.items()
        for each, median in zip(SETS, medians, strict=True)
    }


def test_a_goal_is_judged_by_the_median_of_the_worst_data_set() -> None:
    measured = seconds("spark_select_all", appliance=(1.0, 2.0), kafka=(4.0, 3.0), ceiling=(0.9, 1.9))
    verdicts = {
        what: (value, reached) for what, _, value, reached in goals(SETS, measured, used_s=0, slow={})
    }
    assert verdicts["select-all beside the ceiling"] == ("0.90x", True)
    assert verdicts["select-all beside spark-sql-kafka"] == ("1.50x", False)
    assert "a minute of a day beside spark-sql-kafka" not in verdicts


def test_a_count_is_judged_by_the_time_for_a_gigabyte() -> None:
    measured = seconds("spark_count", told=(0.05, 0.09))
    verdicts = {
        what: (value, reached) for what, _, value, reached in goals(SETS, measured, used_s=0, slow={})
    }
    assert verdicts["exact count by headers"] == ("90 ms/GB", True)


def test_the_page_shows_every_reader_that_was_asked_and_no_other() -> None:
    query = next(each for each in QUERIES if each.name == "spark_window")
    measured = seconds("spark_window", appliance=(0.1, 0.1), kafka=(2.0, 4.0))
    slow = {"appliance": {"p50": 120.0, "p99": 200.0, "records": 600}}
    text = page(SETS, [query], measured, used_s=0.0, slow=slow, rounds=3)
    assert "| records | connector, s | spark-sql-kafka, s | M rows/s | MB/s |" in text
    assert "| 1k B, lz4 | 0.10 | 4.00 |" in text
    assert "| connector | 120 | 200 | 600 |" in text
    assert "| a minute of a day beside spark-sql-kafka | ≥ 10x | 20.00x | reached |" in text


def test_each_size_and_codec_has_as_many_rows_in_every_partition() -> None:
    assert [each.name for each in data_sets(1 << 20)] == ["100_none", "100_lz4", "1k_none", "1k_lz4"]
    assert all(each.rows % 4 == 0 and each.payload_bytes <= 1 << 20 for each in data_sets(1 << 20))
