"""The goals that were set, each with the rows that show it, and what is said by hand about those that were missed.

goal ─ rows (figures.py, with their bounds) ─ verdicts of one run
     └ why and next (goals.toml, written by hand: no regeneration loses it)
"""

import tomllib
from dataclasses import dataclass
from functools import cache

from benchmarks.figures import BY_KEY, Better, Figure, Goal
from benchmarks.places import ROOT
from benchmarks.results import OURS, Row, Run, rows

REMARKS = ROOT / "benchmarks" / "goals.toml"
ELSEWHERE = "elsewhere"
"""What is said of bounds that only rows beside the goals miss."""
BEHIND = "behind"
"""Under it, by case, what is said of rows without a bound."""
BEHIND_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Target:
    """A goal in words. Without keys it has no figure here, but a page of its own."""

    name: str
    what: str
    goal: str
    keys: tuple[str, ...] = ()
    page: str = ""
    """Where its figures are, if not in a run's: a link from the results."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bound of one row. `reached` is None when the broker beside it is missing."""

    target: Target
    row: Row
    bound: Goal
    reached: bool | None


@dataclass(frozen=True, slots=True)
class Remark:
    """Why a goal was missed, and what comes next."""

    why: str
    next: str


def _both(*cases: str, names: tuple[str, str]) -> tuple[str, ...]:
    return tuple(f"{case}.{name}" for case in cases for name in names)


STREAMS = ("throughput_1k", "throughput_100")
TARGETS: tuple[Target, ...] = (
    Target(
        "throughput",
        "produce and consume throughput, 1 KiB and 100 B records, default client batching",
        "ahead of Kafka; 0.9 of the in-memory C mock",
        _both(*STREAMS, names=("in_mb_s", "out_mb_s")),
    ),
    Target(
        "latency",
        "one record at a time, acks=1, p50 and p99",
        "≤ 0.2× Kafka; p50 ≤ 60 µs on one slot",
        ("latency.p50_us", "latency.p99_us"),
    ),
    Target(
        "latency_replicated",
        "one record at a time, acks=all, 3 slots against 3 brokers",
        "≤ 0.3× Kafka",
        ("slots/latency_client_all.p50_us", "slots/latency_client_all.p99_us"),
    ),
    Target(
        "throughput_replicated",
        "produce throughput, acks=all, 3 slots, against acks=1 on one slot",
        "≥ 0.5",
        ("slots/throughput_1k.in_of_one_slot",),
    ),
    Target(
        "requests",
        "one-record requests a second, 50 to 500 connections",
        "≥ 2× Kafka; 0.4 of the C mock",
        ("requests_50.requests_s", "requests_64.requests_s", "requests_500.requests_s"),
    ),
    Target(
        "processor",
        "CPU seconds per GB in, per GB out",
        "≤ 0.5× Kafka",
        _both(*STREAMS, names=("in_cpu_s_per_gb", "out_cpu_s_per_gb")),
    ),
    Target(
        "memory",
        "memory of the whole idle appliance (PSS); growth per partition, connection, group",
        "≤ 150 MB; ≤ 0.25× Kafka",
        (
            "idle.pss_mb",
            "start_1000.kb_per_partition",
            "idle_connections.kb_per_connection",
            "groups_10000.kb_per_group",
        ),
    ),
    Target(
        "start",
        "start to first acknowledged record, empty and with 1,000 partitions",
        "≤ 0.2× Kafka",
        ("start.first_ack_ms", "start_1000.first_ack_ms"),
    ),
    Target(
        "recovery",
        "recovery after `kill -9` of everything with 10 GB of log",
        "≤ 0.3× Kafka",
        ("recovery_1g.first_ack_ms", "recovery_10g.first_ack_ms"),
    ),
    Target(
        "failover",
        "failover of a slot that leads 1, 100 and 1,000 partitions, kill to an acknowledged record in each",
        "≤ 200 ms, 500 ms, 2 s; ≤ 0.1× Kafka",
        (
            "slots/failover_1.all_acked_ms",
            "slots/failover_100.all_acked_ms",
            "slots/failover_1000.all_acked_ms",
        ),
    ),
    Target(
        "catch_up",
        "a slot that was stopped catches up; operations through the purgatory",
        "to be shown",
        page="row of `make bench CASE=catch_up`; page of `make bench-log`",
    ),
    Target(
        "spark",
        "Spark select-all; a one-minute window out of a day",
        "≥ 2×; ≥ 10× spark-sql-kafka",
        page="[pages of their own](spark)",
    ),
    Target(
        "idle",
        "idle costs nothing, whatever exists",
        "no process polls",
        ("idle.cpu_percent", "start_1000.cpu_percent", "idle_connections.cpu_percent"),
    ),
)


def verdicts(run: Run) -> list[Verdict]:
    """In the order of the goals; only of rows that ours has a figure for."""
    made = {row.figure.key: row for row in rows(run)}
    found = []
    for target in TARGETS:
        for row in (made[key] for key in target.keys if key in made and OURS in made[key].values):
            for bound in row.figure.goals:
                if bound.beside is None or bound.beside in run.taken:
                    found.append(Verdict(target, row, bound, reached(row, bound)))
    return found


def reached(row: Row, bound: Goal) -> bool | None:
    """Whether ours reached it; None when the broker beside it is missing."""
    return bound.reached(row.figure.better, value=row.values[OURS].median, ratios=row.ratios)


def unshown(run: Run) -> list[tuple[Target, Figure]]:
    """Figures of goals that ours has none for, where the run shows something of the goal, or the case was void."""
    made = {row.figure.key for row in rows(run) if OURS in row.values}
    void = {each.case for each in run.voids if each.broker == OURS}
    return [
        (target, BY_KEY[key])
        for target in TARGETS
        for key in target.keys
        if key not in made and (made & set(target.keys) or BY_KEY[key].case in void)
    ]


def missed_elsewhere(run: Run) -> tuple[list[tuple[Row, Goal]], int]:
    """Bounds that other rows than those of the goals carry: those that were missed, and how many there are."""
    of_goals = {key for target in TARGETS for key in target.keys}
    carried = [
        (row, bound)
        for row in rows(run)
        if row.figure.key not in of_goals and OURS in row.values
        for bound in row.figure.goals
        if reached(row, bound) is not None
    ]
    return [(row, bound) for row, bound in carried if reached(row, bound) is False], len(carried)


def behind(run: Run, rival: str) -> list[Row]:
    """Rows that carry no bound beside that rival, and in which ours is behind it by more than a twentieth."""
    return [
        row
        for row in rows(run)
        if rival in row.ratios
        and not row.figure.is_of_the_machine
        and not any(bound.beside == rival for bound in row.figure.goals)
        and (
            row.ratios[rival] < 1 - BEHIND_SHARE
            if row.figure.better is Better.MORE
            else row.ratios[rival] > 1 + BEHIND_SHARE
        )
    ]


@cache
def remarks() -> dict[str, Remark]:
    """By name of the goal. Raises KeyError, TypeError when the file does not say both."""
    told = tomllib.loads(REMARKS.read_text())
    return {name: Remark(**said) for name, said in told.items() if name != BEHIND}


@cache
def remarks_on_cases() -> dict[str, Remark]:
    """Of cases with rows that are behind Kafka and carry no bound, by the case's name. Raises as `remarks`."""
    return {name: Remark(**said) for name, said in tomllib.loads(REMARKS.read_text())[BEHIND].items()}
