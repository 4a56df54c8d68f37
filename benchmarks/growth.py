"""What a run about growth took, as points and as rows: metric by metric over how many there were.

A figure of it is named CASE.METRIC@N (`cases/scaling.py`), so each point is a row like any other: `rows()` makes them,
and the regression guard compares them with those of the last kept run.
"""

import statistics
from dataclasses import dataclass

from benchmarks.cases import CASES
from benchmarks.figures import Better, Figure
from benchmarks.results import Row, Run, rows_of

Points = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Metric:
    """What is looked at while something grows."""

    title: str
    unit: str
    better: Better = Better.LESS


METRICS: dict[str, Metric] = {
    "pss_mb": Metric("memory (PSS)", "MB"),
    "idle_cpu_percent": Metric("processor when idle", "% of a core"),
    "p50_us": Metric("one record at a time, p50", "µs"),
    "requests_s": Metric("one-record requests, 64 connections", "requests/s", Better.MORE),
    "requests_spread_s": Metric("the same over 16 partitions", "requests/s", Better.MORE),
    "create_ms_each": Metric("creation of each", "ms"),
    "start_ms": Metric("start to first acknowledged record", "ms"),
    "ready_ms": Metric("start until it says that it is ready", "ms"),
    "stop_ms": Metric("clean stop", "ms"),
    "start_after_kill_ms": Metric("start after kill -9 of a log that was flushed", "ms"),
    "recovery_ms": Metric("start after kill -9, what came since the last point not flushed", "ms"),
    "unflushed_mib": Metric("past the recovery point when it was killed", "MiB"),
    "in_mb_s": Metric("in, 1 KiB, 16 partitions", "MB/s", Better.MORE),
    "out_mb_s": Metric("out, 1 KiB, 16 partitions", "MB/s", Better.MORE),
}
"""In the order of a page. Runs up to a58e818 killed after a clean stop and start, so that nothing was to be read again:
their `start_after_kill_ms` is no `recovery_ms`."""


def growths(run: Run) -> dict[str, dict[tuple[str, str], Points]]:
    """Case → (metric, broker) → (n, median) in rising order."""
    found: dict[str, dict[tuple[str, str], dict[int, list[float]]]] = {}
    for broker, rounds in run.taken.items():
        for figures in rounds:
            for key, value in figures.items():
                case, _, name = key.partition(".")
                metric, at, count = name.partition("@")
                if at:
                    points = found.setdefault(case, {}).setdefault((metric, broker), {})
                    points.setdefault(int(count), []).append(value)
    return {
        case: {
            place: sorted((n, statistics.median(values)) for n, values in points.items())
            for place, points in of_case.items()
        }
        for case, of_case in found.items()
    }


def rows(run: Run) -> list[Row]:
    """A row for each point of each metric."""
    figures = {
        f"{case}.{metric}@{n}": Figure(
            f"{case}.{metric}@{n}",
            f"{CASES[case].what}, {n:,}: {METRICS[metric].title}",
            METRICS[metric].unit,
            METRICS[metric].better,
        )
        for case, of_case in growths(run).items()
        for (metric, _), points in sorted(of_case.items(), key=lambda entry: order(*entry[0]))
        if metric in METRICS
        for n, _ in points
    }
    return rows_of(run, figures.values())


def order(metric: str, broker: str) -> tuple[int, str]:
    """Of a metric and a broker on a page."""
    return list(METRICS).index(metric) if metric in METRICS else len(METRICS), broker
