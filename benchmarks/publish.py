"""What is generated from the kept runs, between two marks of each page: the README's few figures and plot, the table of
docs/performance.md, the tables of docs/scaling.md. Also the pages of the runs themselves.

What stands outside the marks, and `goals.toml`, is written by hand and stays.
"""

from collections import Counter
from pathlib import Path
from typing import Final

from benchmarks import host, scaling_page
from benchmarks.growth import METRICS
from benchmarks.guard import Fall, falls, outcome
from benchmarks.log_figures import kept_pages
from benchmarks.page import absent, arrow, bounds, number, page
from benchmarks.places import RESULTS, ROOT
from benchmarks.plots import draw
from benchmarks.results import OURS, Row, Run, kept_before, kept_runs, rows
from benchmarks.spark.verdicts import newest_page, read_run, verdicts

README, SCALING = ROOT / "README.md", ROOT / "docs" / "scaling.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
FEW_KEYS = (
    "start.first_ack_ms",
    "idle.pss_mb",
    "throughput_1k.in_mb_s",
    "requests_64.requests_s",
    "slots/latency_client_all.p50_us",
)
KEYS = (
    "start.first_ack_ms",
    "start_1000.first_ack_ms",
    "recovery_1g.first_ack_ms",
    "recovery_10g.first_ack_ms",
    "idle.pss_mb",
    "idle.cpu_percent",
    "start_1000.kb_per_partition",
    "idle_connections.kb_per_connection",
    "groups_10000.kb_per_group",
    "latency.p50_us",
    "latency.p99_us",
    "latency_asleep.p50_us",
    "latency_asleep.p99_us",
    "slots/latency_client_all.p50_us",
    "slots/latency_client_all.p99_us",
    "requests_50.requests_s",
    "requests_64.requests_s",
    "requests_500.requests_s",
    "rate_10k.end_p99_us",
    "throughput_1k.in_mb_s",
    "throughput_1k.out_mb_s",
    "throughput_100.in_mb_s",
    "throughput_100.out_mb_s",
    "throughput_1k.in_cpu_s_per_gb",
    "throughput_1k.out_cpu_s_per_gb",
    "throughput_100.in_cpu_s_per_gb",
    "throughput_100.out_cpu_s_per_gb",
    "slots/failover_1.all_acked_ms",
    "slots/failover_100.all_acked_ms",
    "slots/failover_1000.all_acked_ms",
    "slots/throughput_1k.in_mb_s",
    "slots/throughput_1k.in_of_one_slot",
    "pinned/requests_64.requests_s",
    "pinned/throughput_1k.in_mb_s",
    "fsync/requests_64.requests_s",
    "fsync/throughput_1k.in_mb_s",
)
PURE: Final = "pure"
WITH_PURE: Final = (
    "The column `appliance` shows the compiled build, which `make run` installs (decision 0080). "
    "The column `pure` shows the same source uncompiled, as it runs on a machine without a C compiler."
)
WITHOUT_PURE: Final = (
    "The figures are those of the compiled build, which `make run` installs. Without a C compiler the same source runs "
    "in pure Python and needs 1.6 to 2 times the processor time per request (decision 0013)."
)
"""Of the runs that were kept while `make run` started the pure build."""

NO_RUN = "No run is kept yet: `make bench-scaling` makes one."


def publish() -> list[Path]:
    """Write all of it again from the newest kept runs. Returns the paths."""
    usual, growth = newest(), newest("scaling")
    written = []
    for run in (usual, growth):
        if run is not None:
            stem = RESULTS / run.name
            stem.with_suffix(".md").write_text(page(run, *kept_before(run)))
            written += [stem.with_suffix(".md"), *scaling_page.draw(run, stem)]
            written += draw(run, stem)
    for path, text in texts(usual, growth).items():
        path.write_text(text)
        written.append(path)
    return written


def newest(kind: str = "") -> Run | None:
    """The newest kept run of a kind."""
    kept = kept_runs(kind)
    return kept[-1] if kept else None


def log_pages() -> list[str]:
    """The texts of all kept pages of the log by itself, oldest first."""
    return [page.read_text() for page in kept_pages()]


def texts(usual: Run | None, growth: Run | None) -> dict[Path, str]:
    """What the written pages are to hold, whole."""
    scaling = SCALING.read_text()
    if usual is not None:
        scaling = between(scaling, "host", host.arithmetic(usual, growth, *log_pages()))
    scaling = between(scaling, "growth", growing(growth) if growth else NO_RUN)
    readme, performance = README.read_text(), PERFORMANCE.read_text()
    if usual is not None:
        readme = between(readme, "figures", summary(usual))
        performance = between(performance, "figures", block(usual))
    return {SCALING: scaling, PERFORMANCE: performance, README: readme}


def growing(run: Run) -> str:
    """What docs/scaling.md shows of a run about growth: what it is, what fell, its tables."""
    where = f"../benchmarks/results/{run.name}"
    rounds = "one round" if run.rounds == 1 else f"{run.rounds} rounds"
    rivals = ", ".join(f"{name} {version}" for name, version in run.versions.items() if name != OURS)
    beside = f" The run also measured {rivals}." if rivals else ""
    told = f"Source: the [run of {run.date}]({where}.md) with {rounds} of the appliance {run.versions[OURS]}.{beside}"
    return "\n\n".join(filter(None, (told, _fell(run, where), scaling_page.tables(run, where))))


def _fell(run: Run, where: str) -> str:
    """What fell since the run before or slid over those before, and beside what that was seen."""
    kept = kept_before(run)
    found = falls(run, *kept)
    if not found:
        return ""
    alone = [fall for fall in found if fall.beside is None]
    by_ratio = [fall for fall in found if fall.beside is not None]
    parts = []
    if alone:
        parts.append(
            f"{_counted(alone)} no figure of another broker. On a slower machine such rows are worse, too. "
            f"Their titles are: {_by_metric(alone)}."
        )
    if by_ratio:
        parts.append(
            f"{_counted(by_ratio)} a ratio to another broker. Their titles are: {_by_metric(by_ratio)}."
        )
    return (
        "A row *fell* if its figure is worse than in an earlier run. The column *shape* of the tables compares no "
        "runs. Its *decreases* says that a figure gets smaller from left to right. "
        f"{outcome(found, kept, f'{where}.md')} {' '.join(parts)} The run does not show why the rows fell."
    )


def _counted(fell: list[Fall]) -> str:
    """How many rows, and what they have: `3 of them have`."""
    return f"{len(fell)} of them {'has' if len(fell) == 1 else 'have'}"


def _by_metric(fell: list[Fall]) -> str:
    """How many of each metric, most first."""
    metrics = (fall.row.figure.key.partition(".")[2].partition("@")[0] for fall in fell)
    counted = Counter(METRICS[metric].title for metric in metrics)
    return "; ".join(
        f"{title} ({count} row{'' if count == 1 else 's'})" for title, count in counted.most_common()
    )


def between(text: str, name: str, block: str) -> str:
    """`text` with what stands between the marks of `name` replaced. Raises ValueError when it has no such marks."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if begin not in text or end not in text:
        raise ValueError(f"no marks of {name}")
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{block}\n{end}{rest.partition(end)[2]}"


def summary(run: Run) -> str:
    """Return the few figures and the plot that the README shows, as Markdown.

    The build that `make run` installs comes first. The same source uncompiled has a column where the run measured it.
    """
    made = {row.figure.key: row for row in rows(run)}
    shown = [made[key] for key in FEW_KEYS if key in made and OURS in made[key].values]
    columns = {OURS: "appliance", PURE: "the same, not compiled", "kafka": "Apache Kafka"}
    if not any(PURE in row.values for row in shown):
        del columns[PURE]
    lines = []
    for row in shown:
        figures = (row.values.get(name) for name in columns)
        cells = (f"{number(each.median)} {row.figure.unit}" if each else "missing" for each in figures)
        lines.append(f"| {row.figure.title} {arrow(row)} | {' | '.join(cells)} |")
    return "\n".join(
        [
            f"| {run.machine['cores']} shared cores, {run.date} (↑ more is better, ↓ less) "
            f"| {' | '.join(columns.values())} |",
            "|---|" + "--:|" * len(columns),
            *lines,
            "",
            f"![the appliance beside Apache Kafka](benchmarks/results/{run.name}.svg)",
        ]
    )


def block(run: Run) -> str:
    """The table and the plot of docs/performance.md, as Markdown."""
    made = {row.figure.key: row for row in rows(run)}
    shown = [made[key] for key in KEYS if key in made and OURS in made[key].values]
    has_pure = any(PURE in row.values for row in shown)
    pure = (" pure |", "--:|") if has_pure else ("", "")
    lines = [
        f"| {run.machine['cores']} shared cores, {run.date} | appliance |{pure[0]} Kafka | ÷ Kafka | ÷ mock | goal |",
        f"|---|--:|{pure[1]}--:|--:|--:|---|",
        *(_line(run, row, has_pure=has_pure) for row in shown),
    ]
    return "\n".join(
        [
            "↑: more is better, ↓: less is better. The columns with ÷ show the appliance's figure divided by the "
            "figure of Kafka or of the mock. Each ratio is the median over all rounds. In a row with ↓, a ratio "
            "below 1 means that the appliance is better. "
            f"[The latest results](../benchmarks/results/{run.name}.md#goals) show all rows. They also give the reason "
            "for every missed goal, and our next step.",
            WITH_PURE if has_pure else WITHOUT_PURE,
            "",
            *lines,
            "",
            *_spark(),
            "",
            f"![the appliance beside Apache Kafka](../benchmarks/results/{run.name}.svg)",
        ]
    )


def _spark() -> list[str]:
    """The goals of the newest kept run of the Spark cases, each by its worst data set."""
    kept = newest_page()
    if kept is None:
        return []
    told = [
        f"- {each.what}: {each.value} (goal {each.bound}: {'reached' if each.reached else '**missed**'})"
        for each in verdicts(read_run(kept))
    ]
    return [
        f"The next list shows the goals of the Spark source ([all figures](../{kept.relative_to(ROOT)})). A figure such"
        " as 2x means that the appliance's source is twice as fast as the source after *beside*. The *ceiling* is a"
        " source that always returns the same prepared batch. *Select-all* reads all records and all columns."
        " *A minute of a day* is a query for one minute out of the records of a day. *Produce to row* is the time from"
        " the moment in which a producer sends a record to the moment in which Spark has the row.",
        "",
        *told,
    ]


def _line(run: Run, row: Row, *, has_pure: bool) -> str:
    ours, theirs = row.values[OURS], row.values.get("kafka")
    unit = f" {row.figure.unit}"
    cells = [
        f"{row.figure.title} {arrow(row)}",
        number(ours.median) + unit,
        *([number(row.values[PURE].median) + unit if PURE in row.values else ""] if has_pure else []),
        number(theirs.median) + unit if theirs else absent(run, row, "kafka") or "missing",
        f"{row.ratios['kafka']:.2f}" if "kafka" in row.ratios else "missing",
        f"{row.ratios['mock']:.2f}" if "mock" in row.ratios else "",
        bounds(row),
    ]
    return f"| {' | '.join(cells)} |"
