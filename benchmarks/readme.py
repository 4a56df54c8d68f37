"""One table and one plot of a kept run, between two marks in the README."""

from benchmarks.page import number
from benchmarks.places import ROOT
from benchmarks.results import OURS, Row, Run, rows

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
KEYS = (
    "start.first_ack_ms",
    "start_1000.first_ack_ms",
    "recovery_1g.first_ack_ms",
    "idle.pss_mb",
    "idle.cpu_percent",
    "latency.p50_us",
    "latency.p99_us",
    "requests_64.requests_s",
    "requests_500.requests_s",
    "rate_10k.end_p99_us",
    "throughput_1k.in_mb_s",
    "throughput_1k.out_mb_s",
    "throughput_100.in_mb_s",
    "throughput_100.out_mb_s",
    "throughput_1k.in_cpu_s_per_gb",
    "throughput_1k.out_cpu_s_per_gb",
    "pinned/throughput_1k.in_mb_s",
    "pinned/requests_64.requests_s",
    "fsync/throughput_1k.in_mb_s",
)


def insert(run: Run) -> None:
    """Replace what stands between the marks."""
    path = ROOT / "README.md"
    text = path.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{block(run)}\n{END}{after}")


def block(run: Run) -> str:
    """Table and plot, as Markdown."""
    made = {row.figure.key: row for row in rows(run)}
    cores = run.machine["cores"]
    lines = [
        f"| {cores} shared cores, one slot, {run.date} | appliance | Kafka | ratio | goal |",
        "|---|--:|--:|--:|---|",
        *(_line(made[key]) for key in KEYS if key in made and OURS in made[key].values),
    ]
    plot = f"![ours beside theirs](benchmarks/results/{run.name}.svg)"
    page = f"Every row, against Kafka and the mock: [the latest results](benchmarks/results/{run.name}.md)."
    return "\n".join([page, "", *lines, "", plot])


def _line(row: Row) -> str:
    ours, theirs = row.values[OURS], row.values.get("kafka")
    unit = f" {row.figure.unit}"
    verdicts = []
    for goal in row.figure.goals:
        if goal.beside == "mock":
            continue
        reached = goal.reached(row.figure.better, value=ours.median, ratios=row.ratios)
        word = {True: "reached", False: "**missed**", None: "no ratio"}[reached]
        verdicts.append(f"{goal.text(row.figure.better)}: {word}")
    cells = [
        row.figure.title,
        number(ours.median) + unit,
        number(theirs.median) + unit if theirs else "missing",
        f"{row.ratios['kafka']:.2f}" if "kafka" in row.ratios else "missing",
        ", ".join(verdicts),
    ]
    return f"| {' | '.join(cells)} |"
