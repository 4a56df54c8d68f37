"""A run as a page of Markdown."""

import statistics
from collections.abc import Sequence

from benchmarks import awake
from benchmarks.brokers.setting import SETTINGS
from benchmarks.cases import CASES
from benchmarks.figures import Better, Figure, Goal
from benchmarks.goals import (
    ELSEWHERE,
    TARGETS,
    Remark,
    Target,
    Verdict,
    behind,
    missed_elsewhere,
    reached,
    remarks,
    remarks_on_cases,
    unshown,
    verdicts,
)
from benchmarks.guard import every_row, falls, outcome, told
from benchmarks.plots import has_bars
from benchmarks.results import OURS, RIVALS, Row, Run, Spread, rows
from benchmarks.scaling_page import tables
from benchmarks.spark.verdicts import newest_page, read_run
from benchmarks.spark.verdicts import verdicts as spark_verdicts
from benchmarks.workloads import WORKLOADS

SPARK, SPARKS_RIVAL = "spark", "spark-sql-kafka"


def page(run: Run, *kept: Run) -> str:
    """The whole page: machine, goals, all figures, what was void, what fell since the runs `kept`, oldest first."""
    made = rows(run)
    parts = [
        f"# Figures of {run.date}, commit {run.commit}" + (" with uncommitted changes" if run.dirty else ""),
        _outcome(run, kept),
        _missing(run),
        _plot(run),
        _goals(run),
        _elsewhere(run),
        _behind(run),
        _workloads(run),
        _how(run),
        _table(run, made),
        _growth(run),
        _used(run),
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


def _outcome(run: Run, kept: Sequence[Run]) -> str:
    """All of it in two lines, with links to where more is said."""
    rivals = ", ".join(f"{name} {version}" for name, version in run.versions.items() if name != OURS)
    beside = f" beside {rivals}" if rivals else ""
    told = [
        f"The appliance{beside}, on {run.machine['cores']} cores of {run.machine['processor']} ([how](#how))."
    ]
    found, absent_ones = verdicts(run), len(unshown(run))
    if found or absent_ones:
        beside_others = [verdict.reached for verdict in found if verdict.bound.beside is not None]
        absolute = [verdict.reached for verdict in found if verdict.bound.beside is None]
        without = f", {beside_others.count(None)} without a ratio" if None in beside_others else ""
        without += f"; {absent_ones} of their rows without a figure" if absent_ones else ""
        told.append(
            f"Goals relative to another broker: {len(beside_others)} bounds, {beside_others.count(True)} "
            f"[reached](#goals), {beside_others.count(False)} missed. Absolute goals: {len(absolute)} bounds, "
            f"{absolute.count(True)} reached, {absolute.count(False)} missed{without}. "
            "The goals for Spark are on a page of their own and are not counted here."
        )
        missed, carried = missed_elsewhere(run)
        if carried:
            told.append(
                f"Other rows have {carried} bounds; {len(missed)} are [missed](#missed-in-other-rows)."
                if missed
                else f"Other rows have {carried} bounds, and all are reached."
            )
    voids = sum(1 for void in run.voids if void.round)
    told.append(
        f"[Void](#void): {voids} {'case' if voids == 1 else 'cases'}." if voids else "No case was void."
    )
    if worse := falls(run, *kept):
        told.append(outcome(worse, kept))
    return " ".join(told)


def _plot(run: Run) -> str:
    return f"![ours beside theirs]({run.name}.svg)" if has_bars(run) else ""


def arrow(row: Row) -> str:
    """Which way is better."""
    return "↑" if row.figure.better is Better.MORE else "↓"


def _how(run: Run) -> str:
    """What was measured on what, a line each."""
    machine = run.machine
    virtual = ", virtual" if machine["virtual"] == "yes" else ""
    minutes = f", {run.minutes:.0f} minutes" if run.minutes else ""
    pinned = f"; brokers pinned to core {run.pinned}" if run.pinned else ""
    rounds = "1 round" if run.rounds == 1 else f"up to {run.rounds} alternating rounds"
    told = [
        (
            "machine",
            f"{machine['cores']} cores of {machine['processor']}, {machine['memory_gib']} GiB{virtual}",
        ),
        ("software", f"Linux {machine['kernel']}, Python {machine['python']}"),
        *((name, version) for name, version in run.versions.items()),
        (
            "run",
            f"{rounds}{minutes}; the load generators ran on the same cores, in the same way for all brokers{pinned}",
        ),
        *((("idle cores, where they are kept awake", _awake(run)),) if run.wakes_us else ()),
        *((("command", f"`{run.command}`"),) if run.command else ()),
        *(
            (f"rows *{SETTINGS[name].label}:*", SETTINGS[name].title)
            for name in run.settings
            if name in SETTINGS and name and not run.kind
        ),
    ]
    lines = ["## How", "", "| | |", "|---|---|", *(f"| {what} | {how} |" for what, how in told), ""]
    if "mock" in run.versions:
        lines.append(
            "The **mock** is librdkafka's broker in memory, in C. It checks no CRC and writes no file, so its figures "
            "are an upper bound and not those of a usable broker."
        )
    lines.append(
        "[benchmarks/README.md](../README.md) describes how each row is measured and what makes it void. "
        "[The budget](../README.md#where-the-time-of-one-request-goes) shows the time of one request by step."
    )
    return "\n".join(lines)


def _awake(run: Run) -> str:
    """How cores were kept awake for a lone record, and what else there was."""
    decision = "[why](../../docs/decisions/0073-cores-are-kept-awake-in-the-way-that-wakes-them-soonest.md)"
    return f"{run.awake_by} ({decision}); {awake.described(run.wakes_us)}"


def _missing(run: Run) -> str:
    """Rivals that could not be had: their ratios are missing, not good."""
    lines = []
    for void in run.voids:
        if void.round == 0:
            ratios = " This page has no ratios to it." if void.broker in RIVALS else ""
            lines.append(f"**{void.broker} is missing.**{ratios} {_one_line(void.why)}")
    return "\n\n".join(lines)


def _goals(run: Run) -> str:
    found, without = verdicts(run), unshown(run)
    if not found and not without:
        return ""
    lines = ["## Goals", "", "| goal | row | appliance | bound | |", "|---|---|---|---|---|"]
    missed = {verdict.target.name: verdict.target for verdict in found if verdict.reached is False}
    for target in TARGETS:
        of_target = [verdict for verdict in found if verdict.target is target]
        cells_of = [_verdict(verdict) for verdict in of_target]
        cells_of += [_unshown(run, figure) for each, figure in without if each is target]
        for index, cells in enumerate(cells_of):
            lines.append(f"| {f'{target.what}: {target.goal}' if index == 0 else ''} | {cells} |")
        if target.name == SPARK and (told := _spark()):
            lines += [
                f"| {f'{target.what}: {target.goal}' if index == 0 else ''} | {cells} |"
                for index, (cells, _) in enumerate(told)
            ]
            missed |= {target.name: target} if not all(is_reached for _, is_reached in told) else {}
        elif not cells_of:
            lines.append(f"| {target.what}: {target.goal} | | | | {target.page or 'not in this run'} |")
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
    return f"{figure.title} | {_shown(verdict.row, bound)} | {bound.text(figure.better)} | {words}"


def _shown(row: Row, bound: Goal) -> str:
    """What the bound is about: the figure, or its ratio."""
    if bound.beside is None:
        return f"{number(row.values[OURS].median)} {row.figure.unit}"
    return f"{number(row.ratios[bound.beside])}× {bound.beside}" if bound.beside in row.ratios else ""


def _unshown(run: Run, figure: Figure) -> str:
    told = " and ".join(bound.text(figure.better) for bound in figure.goals)
    return (
        f"{figure.title} | | {told} | {'**void**' if run.has_void(OURS, figure.case) else 'not in this run'}"
    )


def _elsewhere(run: Run) -> str:
    """Bounds that are missed in rows that no goal names: other settings, other shapes of the same load."""
    missed, carried = missed_elsewhere(run)
    if not missed:
        return ""
    lines = [
        "### Missed in other rows",
        "",
        f"Rows of other settings and variants have the bounds of the goals, too. Of {carried} bounds, "
        f"{len(missed)} are missed:",
        "",
        *(
            f"- {row.figure.title}: {_shown(row, bound)} ({bound.text(row.figure.better)})"
            for row, bound in missed
        ),
    ]
    if said := remarks().get(ELSEWHERE):
        lines += ["", f"{_whole_line(said.why)} Next: {_whole_line(said.next)}"]
    return "\n".join(lines)


def _behind(run: Run) -> str:
    """Rows without a bound in which Kafka is ahead."""
    found = behind(run, "kafka")
    if not found:
        return ""
    by_case: dict[str, list[str]] = {}
    for row in found:
        told = f"{row.figure.title} ({row.figure.unit}): {number(row.ratios['kafka'])}× kafka"
        by_case.setdefault(row.figure.case.rpartition("/")[2], []).append(told)
    lines = ["### Behind Kafka, without a bound", "", "| rows | why | next |", "|---|---|---|"]
    for case, titles in by_case.items():
        lines.append(f"| {'<br>'.join(titles)} | {_said(remarks_on_cases().get(case))} |")
    return "\n".join(lines)


def _missed(targets: list[Target]) -> list[str]:
    """Reason and next step of each goal that was missed: by hand, from `goals.toml`."""
    if not targets:
        return []
    lines = ["", "### Missed: why, and what comes next", "", "| goal | why | next |", "|---|---|---|"]
    for target in targets:
        lines.append(f"| {target.what} | {_said(remarks().get(target.name))} |")
    return lines


def _said(remark: Remark | None) -> str:
    """Two cells: why, and what comes next."""
    if remark is None:
        return "**not said yet** (`benchmarks/goals.toml`) | "
    return f"{_whole_line(remark.why)} | {_whole_line(remark.next)}"


def _workloads(run: Run) -> str:
    """W1 to W12, and where their rows are; of a run of some cases only, those that took part."""
    took_part = {key.partition(".")[0] for rounds in run.taken.values() for taken in rounds for key in taken}
    took_part |= {void.case for void in run.voids}
    chosen = [workload for workload in WORKLOADS if took_part & set(workload.cases)]
    if not chosen:
        return ""
    lines = ["## Workloads", "", "| | workload | cases |", "|---|---|---|"]
    for workload in chosen:
        cases = [f"`{case}`" + ("" if case in took_part else " (not in this run)") for case in workload.cases]
        lines.append(f"| {workload.name} | {workload.what} | {', '.join(cases)} |")
    return "\n".join(lines)


def _table(run: Run, made: list[Row]) -> str:
    if not made:
        return ""
    brokers = [name for name in run.taken if any(run.taken[name])]
    rivals = [rival for rival in RIVALS if rival in run.taken]
    head = ["what", "unit", "rounds", *brokers, *(f"÷ {rival}" for rival in rivals)]
    lines = [
        "## All figures",
        "",
        "A cell shows the median of all *rounds*, and below it the lowest and the highest value. Long cases have one "
        "round and no spread; variants have a few. A ratio is our figure divided by the other broker's: the median of "
        "the ratios of all rounds. ↑: more is better, ↓: less is better.",
        "",
        f"| {' | '.join(head)} | goal |",
        "|---" * 2 + "|--:" * (len(head) - 2) + "|---|",
    ]
    for row in made:
        cells = [
            row.figure.title,
            f"{row.figure.unit} {arrow(row)}",
            str(max(each.rounds for each in row.values.values())),
        ]
        cells += [_cell(row.values.get(name)) or absent(run, row, name) for name in brokers]
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


def absent(run: Run, row: Row, broker: str) -> str:
    """What stands in the place of a figure that was void in each round."""
    return "void" if broker not in row.values and run.has_void(broker, row.figure.case) else ""


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
        "The law is `a + b·m^p`, where m is the difference to the first column. *Constant* changes by less than a "
        "quarter over the whole range. *No trend* changes by more, and ends where it started or goes back as far as it "
        "came. *Nearly constant* has p below 0.4 and rises by less than a half. *Linear* has p between 0.8 and 1.2; "
        "its last column is b. A shape describes one run; it is *decreases* also where less is better. "
        "`benchmarks/shapes.py` names the shapes; [docs/scaling.md](../../docs/scaling.md) says what they mean for a "
        "bigger machine."
    )
    return f"## Growth\n\n{words}\n\n{told}"


WHOLE = (
    ("whole_cpu_s", "processor, s"),
    ("whole_switches", "context switches"),
    ("whole_written_mb", "written, MB"),
    ("whole_pss_mb", "memory (PSS) at its end, MB"),
)


def _used(run: Run) -> str:
    """What the broker took for each case, whatever else the case measures; medians of its rounds."""
    cases = dict.fromkeys(
        key.removesuffix(f".{WHOLE[0][0]}")
        for rounds in run.taken.values()
        for taken in rounds
        for key in taken
        if key.endswith(f".{WHOLE[0][0]}")
    )
    if not cases:
        return ""
    head = ["case", *(f"{title}: {name}" for _, title in WHOLE for name in run.taken)]
    lines = [f"| {' | '.join(head)} |", f"|---|{'--:|' * (len(head) - 1)}"]
    for case in cases:
        cells = []
        for key, _ in WHOLE:
            for rounds in run.taken.values():
                got = [taken[f"{case}.{key}"] for taken in rounds if f"{case}.{key}" in taken]
                cells.append(number(statistics.median(got)) if got else "")
        lines.append(f"| {case} | {' | '.join(cells)} |")
    words = (
        "Measured from the creation of the case's topic to the end of the case, with warm-up and reading back. "
        "Cases that start a broker of their own are not listed."
    )
    return "\n".join(["## What each case took of the broker", "", words, "", *lines])


def _no_ratio(run: Run, rival: str) -> str:
    return "" if any(run.taken[rival]) else "missing"


def _void(run: Run) -> str:
    voids = [void for void in run.voids if void.round]
    if not voids:
        return ""
    lines = ["## Void", "", "| round | broker | case | why |", "|---|---|---|---|"]
    lines += [f"| {void.round} | {void.broker} | {void.case} | {_one_line(void.why)} |" for void in voids]
    return "\n".join(lines)


def _guard(run: Run, kept: Sequence[Run]) -> str:
    if not kept:
        return ""
    last = kept[-1]
    text = told(every_row(run), *map(every_row, kept), since=last.name)
    if last.awake_by == run.awake_by:
        return text
    return (
        f"{text}\n\nCases with cores kept awake are not compared with {last.name}, which used {last.awake_by}; "
        f"this run used {run.awake_by}."
    )


def _cases(made: list[Row]) -> str:
    names = dict.fromkeys(row.figure.case.rpartition("/")[2] for row in made)
    lines = ["## Cases", "", *(f"- `{name}`: {CASES[name].what}" for name in names if name in CASES)]
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return _whole_line(text)[:300]


def _whole_line(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
