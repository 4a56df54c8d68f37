"""The goals of the Spark cases, judged by a run. Knows no Spark: the README is made where there is none."""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Better, Figure
from benchmarks.places import RESULTS
from benchmarks.results import OURS, Row, Spread

GIB = 1 << 30
PAGES = RESULTS / "spark"

Seconds = dict[tuple[str, str, str], list[float]]
"""(case, data set, reader) → wall seconds, one a round."""


@dataclass(frozen=True, slots=True)
class SparkRun:
    """What a run took. `slow`: of each reader the latencies (p50, p99, in ms) and how many they are of."""

    payload_bytes: Mapping[str, int]
    """Of each data set."""
    seconds: Seconds
    broker_cpu_s: float
    """Of the appliance, while its files were scanned."""
    slow: Mapping[str, Mapping[str, float]]

    def median(self, case: str, name: str, reader: str) -> float:
        """Seconds. Raises KeyError when there is none."""
        return statistics.median(self.seconds[case, name, reader])


@dataclass(frozen=True, slots=True)
class SparkVerdict:
    """A goal in words, its bound, the figure of the worst data set, and whether it was reached."""

    what: str
    bound: str
    value: str
    reached: bool


def verdicts(run: SparkRun) -> list[SparkVerdict]:
    """Of the goals that the run has figures for."""
    found = []
    for what, case, over, under, bound in (
        ("select-all beside the ceiling", "spark_select_all", "ceiling", "appliance", 0.85),
        ("select-all beside spark-sql-kafka", "spark_select_all", "kafka", "appliance", 2.0),
        ("a minute of a day beside spark-sql-kafka", "spark_window", "kafka", "appliance", 10.0),
    ):
        ratios = [
            run.median(case, name, over) / run.median(case, name, under)
            for name in run.payload_bytes
            if (case, name, over) in run.seconds and (case, name, under) in run.seconds
        ]
        if ratios:
            worst = min(ratios)
            found.append(SparkVerdict(what, f"≥ {bound:g}x", f"{worst:.2f}x", worst >= bound))
    counted = [
        run.median("spark_count", name, "told") * 1000 * GIB / size
        for name, size in run.payload_bytes.items()
        if ("spark_count", name, "told") in run.seconds
    ]
    if counted:
        worst = max(counted)
        found.append(
            SparkVerdict("exact count by headers", "≤ 100 ms/GB", f"{worst:.0f} ms/GB", worst <= 100)
        )
    if run.seconds:
        scans = sum(len(each) for key, each in run.seconds.items() if key[2] in ("appliance", "told"))
        each_ms = 1000 * run.broker_cpu_s / max(1, scans)
        found.append(
            SparkVerdict("the appliance's processor time a scan", "none", f"{each_ms:.1f} ms", each_ms < 5)
        )
    if "appliance" in run.slow:
        p50 = run.slow["appliance"]["p50"]
        found.append(SparkVerdict("produce to row, p50", "≤ 250 ms", f"{p50:.0f} ms", p50 <= 250))
    return found


def rows(run: SparkRun) -> list[Row]:
    """Times for the regression guard: each case of each data set, by the connector and beside Spark's own source."""
    made = []
    for case, name in dict.fromkeys((case, name) for case, name, _ in run.seconds):
        taken = {
            broker: run.seconds[case, name, reader]
            for broker, reader in ((OURS, "appliance"), ("kafka", "kafka"))
            if run.seconds.get((case, name, reader))
        }
        made.append(_row(f"{case} of {name}", "s", taken))
    for what in ("p50", "p99"):
        made.append(
            _row(f"spark_latency, {what}", "ms", {who: [each[what]] for who, each in run.slow.items()})
        )
    return made


def _row(name: str, unit: str, taken: Mapping[str, list[float]]) -> Row:
    values = {
        who: Spread(statistics.median(each), min(each), max(each), len(each)) for who, each in taken.items()
    }
    ratios = (
        {"kafka": values[OURS].median / values["kafka"].median} if values.keys() >= {OURS, "kafka"} else {}
    )
    return Row(Figure(f"spark.{name}", name, unit, Better.LESS), values, ratios)


def newest_page() -> Path | None:
    """The page of the newest kept run, its figures beside it as JSON."""
    kept = kept_pages()
    return kept[-1] if kept else None


def kept_pages(*, but: Path | None = None, machine: Mapping[str, object] | None = None) -> list[Path]:
    """The pages of all kept runs, oldest first; `but` that one, of a machine of this kind."""
    found = []
    for path in PAGES.glob("*.json"):
        kept = json.loads(path.read_text())
        alike = machine is None or all(
            kept.get("machine", {}).get(part) == machine.get(part) for part in ("processor", "cores")
        )
        if alike and path.with_suffix(".md") != but:
            found.append((kept.get("began", ""), path.name, path))
    return [path.with_suffix(".md") for _, _, path in sorted(found)]


def read_run(page: Path) -> SparkRun:
    """The figures beside a page.

    Raises:
        OSError, ValueError, KeyError: they are not there, or not such figures.
    """
    kept = json.loads(page.with_suffix(".json").read_text())
    seconds: Seconds = {}
    for key, taken in kept["seconds"].items():
        case, name, reader = key.split("|")
        seconds[case, name, reader] = taken
    payload_bytes = {name: rows * kept["value_bytes"][name] for name, rows in kept["rows"].items()}
    return SparkRun(payload_bytes, seconds, kept["broker_cpu_s"], kept["latency_ms"])
