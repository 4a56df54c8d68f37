"""A run as a page of Markdown."""

from benchmarks.brokers.setting import SETTINGS
from benchmarks.cases import CASES
from benchmarks.figures import PLACES
from benchmarks.goals import TARGETS, Target, Verdict, reached, remarks, verdicts
from benchmarks.guard import falls
from benchmarks.results import OURS, RIVALS, Row, Run, Spread, rows
from benchmarks.scaling_page import tables
from benchmarks.spark.verdicts import newest_page, read_run
from benchmarks.spark.verdicts import verdicts as spark_verdicts

SPARK, SPARKS_RIVAL = "spark", "spark-sql-kafka"


def page(run: Run, kept: Run | None) -> str:
    """The whole page: machine, goals, all figures, what was void, what fell since `kept`."""
    made = rows(run)
    parts = [
        f"# Figures of {run.date}, commit {run.commit}" + (" with uncommitted changes" if run.dirty else ""),
        _machine(run),
        _missing(run),
        _goals(run),
        _table(run, made),
        _growth(run),
        _places(),
        _void(run),
        _guard(run, kept),
        _cases(made),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def number(value: float) -> str:
    """Three figures that count; thousands with commas."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1e}"


def _machine(run: Run) -> str:
    machine = run.machine
    versions = "; ".join(f"{name} {version}" for name, version in run.versions.items())
    pinned = f" Brokers pinned to core {run.pinned}." if run.pinned else ""
    virtual = ", virtual" if machine["virtual"] == "yes" else ""
    minutes = f" in {run.minutes:.0f} minutes" if run.minutes else ""
    settings = "".join(
        f" Rows that begin with *{name}*: {SETTINGS[name].title}."
        for name in run.settings
        if name in SETTINGS and name
    )
    return (
        f"{machine['cores']} cores of {machine['processor']}, {machine['memory_gib']} GiB{virtual}, "
        f"Linux {machine['kernel']}, Python {machine['python']}. "
        f"{versions}. {run.rounds} alternating rounds{minutes}; the load generators ran on the same cores, "
        f"alike for all.{pinned}{settings}\n\n"
        "A cell is the median of the rounds, with the lowest and highest below it. A ratio is ours by theirs, the "
        "median of the rounds' own. The mock is librdkafka's broker in memory, in C: it checks no CRC, writes no "
        "file and keeps no promise, so its figures are an upper bound. How each row is made, and what makes it "
        "void: [benchmarks/README.md](../README.md)."
    )


def _missing(run: Run) -> str:
    """Rivals that could not be had: their ratios are missing, not good."""
    lines = []
    for void in run.voids:
        if void.round == 0:
            ratios = " Ratios to it are missing on this page." if void.broker in RIVALS else ""
            lines.append(f"**{void.broker} is missing.**{ratios} {_one_line(void.why)}")
    return "\n\n".join(lines)


def _goals(run: Run) -> str:
    found = verdicts(run)
    if not found:
        return ""
    lines = ["## Goals", "", "| goal | row | appliance | bound | |", "|---|---|---|---|---|"]
    missed = {verdict.target.name: verdict.target for verdict in found if verdict.reached is False}
    for target in TARGETS:
        of_target = [verdict for verdict in found if verdict.target is target]
        for index, verdict in enumerate(of_target):
            lines.append(f"| {f'{target.what}: {target.goal}' if index == 0 else ''} | {_verdict(verdict)} |")
        if target.name == SPARK and (told := _spark()):
            lines += [
                f"| {f'{target.what}: {target.goal}' if index == 0 else ''} | {cells} |"
                for index, (cells, _) in enumerate(told)
            ]
            missed |= {target.name: target} if not all(is_reached for _, is_reached in told) else {}
        elif target.waits_for or not of_target:
            first = "" if of_target else f"{target.what}: {target.goal}"
            why = f"waits for {target.waits_for}" if target.waits_for else target.page or "not in this run"
            lines.append(f"| {first} | | | | {why} |")
    return "\n".join([*lines, *_missed(list(missed.values()))])


def _spark() -> list[tuple[str, bool]]:
    """Its goals beside spark-sql-kafka as cells of the table, from its newest kept page; whether each was reached."""
    kept = newest_page()
    if kept is None:
        return []
    return [
        (
            f"[{each.what}](spark/{kept.name}) | {each.value} | {each.bound} | "
            f"{'reached' if each.reached else '**missed**'}",
            each.reached,
        )
        for each in spark_verdicts(read_run(kept))
        if SPARKS_RIVAL in each.what
    ]


def _verdict(verdict: Verdict) -> str:
    figure, bound = verdict.row.figure, verdict.bound
    words = {True: "reached", False: "**missed**", None: "ratio missing"}[verdict.reached]
    shown = ""
    if bound.beside is None:
        shown = f"{number(verdict.row.values[OURS].median)} {figure.unit}"
    elif bound.beside in verdict.row.ratios:
        shown = f"{number(verdict.row.ratios[bound.beside])}× {bound.beside}"
    return f"{figure.title} | {shown} | {bound.text(figure.better)} | {words}"


def _missed(targets: list[Target]) -> list[str]:
    """Reason and next step of each goal that was missed: by hand, from `goals.toml`."""
    if not targets:
        return []
    lines = ["", "### Missed: why, and what comes next", "", "| goal | why | next |", "|---|---|---|"]
    for target in targets:
        said = remarks().get(target.name)
        why, then = (said.why, said.next) if said else ("**not said yet** (`benchmarks/goals.toml`)", "")
        lines.append(f"| {target.what} | {_whole_line(why)} | {_whole_line(then)} |")
    return lines


def _table(run: Run, made: list[Row]) -> str:
    brokers = [name for name in run.taken if any(run.taken[name])]
    rivals = [rival for rival in RIVALS if rival in run.taken]
    head = ["what", "unit", *brokers, *(f"÷ {rival}" for rival in rivals)]
    lines = ["## All figures", "", f"| {' | '.join(head)} | goal |"]
    lines.append("|---" * 2 + "|--:" * (len(head) - 2) + "|---|")
    for row in made:
        cells = [row.figure.title, row.figure.unit]
        cells += [_cell(row.values.get(name)) for name in brokers]
        cells += [
            f"{row.ratios[rival]:.2f}" if rival in row.ratios else _no_ratio(run, rival) for rival in rivals
        ]
        lines.append(f"| {' | '.join(cells)} | {bounds(row)} |")
    return "\n".join(lines)


def bounds(row: Row) -> str:
    """What was set for the row, and which of it was missed or has no ratio."""
    if OURS not in row.values:
        return ""
    told = {True: "reached", False: "**missed**", None: "no ratio"}
    return "; ".join(
        f"{bound.text(row.figure.better)}: {told[reached(row, bound)]}" for bound in row.figure.goals
    )


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return ""
    if spread.rounds == 1:
        return number(spread.median)
    return f"{number(spread.median)}<br><sub>{number(spread.lowest)}…{number(spread.highest)}</sub>"


def _growth(run: Run) -> str:
    told = tables(run, run.name)
    if not told:
        return ""
    words = (
        "The law is `a + b·m^p`, m being how many more than in the first column: *constant* moves less than a "
        "quarter over the whole range, *linear* has p between 0.8 and 1.2, and its last column is b. Shapes are "
        "named by `benchmarks/shapes.py`; what they mean for a bigger machine: "
        "[docs/scaling.md](../../docs/scaling.md)."
    )
    return f"## Growth\n\n{words}\n\n{told}"


def _no_ratio(run: Run, rival: str) -> str:
    return "" if any(run.taken[rival]) else "missing"


def _places() -> str:
    """What has a place and no figure yet."""
    lines = ["## Not built yet", "", "| workload | waits for |", "|---|---|"]
    return "\n".join([*lines, *(f"| {place.what} | {place.waits_for} |" for place in PLACES)])


def _void(run: Run) -> str:
    voids = [void for void in run.voids if void.round]
    if not voids:
        return "No case was void."
    lines = ["## Void", "", "| round | broker | case | why |", "|---|---|---|---|"]
    lines += [f"| {void.round} | {void.broker} | {void.case} | {_one_line(void.why)} |" for void in voids]
    return "\n".join(lines)


def _guard(run: Run, kept: Run | None) -> str:
    if kept is None:
        return ""
    found = falls(run, kept)
    if not found:
        return f"Nothing fell by more than the noise since {kept.name}."
    return "\n".join([f"## Fell since {kept.name}", "", *(f"- {fall.text()}" for fall in found)])


def _cases(made: list[Row]) -> str:
    names = dict.fromkeys(row.figure.case.rpartition("/")[2] for row in made)
    lines = ["## Cases", "", *(f"- `{name}`: {CASES[name].what}" for name in names if name in CASES)]
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return _whole_line(text)[:300]


def _whole_line(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
