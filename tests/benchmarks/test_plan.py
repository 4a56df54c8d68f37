"""The plan of a run: its order, its time, and that every workload has its place."""

from __future__ import annotations

import argparse

from benchmarks.__main__ import _add_plan, _is_whole
from benchmarks.brokers.setting import SETTINGS
from benchmarks.cases import CASES
from benchmarks.cases.case import Scale
from benchmarks.figures import FIGURES
from benchmarks.plan import ABOUT, Plan, minutes, timetable
from benchmarks.workloads import WORKLOADS

USUAL = Plan(
    brokers=("appliance", "mock", "kafka"),
    cases=tuple(case for case in CASES.values() if not case.by_name),
    rounds=5,
    scale=Scale(),
    settings=tuple(SETTINGS.values()),
)


def test_the_usual_run_takes_about_twenty_minutes() -> None:
    assert 15 <= minutes(USUAL) <= 25, timetable(USUAL)


def test_every_usual_case_has_a_known_time_and_a_row() -> None:
    cases = {figure.case.rpartition("/")[2] for figure in FIGURES}
    for case in USUAL.cases:
        assert case.name in ABOUT
        assert case.name in cases
    assert {name for name in CASES if name.startswith("scale_")} <= set(ABOUT)


def test_each_workload_has_a_case_in_the_usual_run_but_tls_which_needs_certificates() -> None:
    usual = {case.name for case in USUAL.cases}
    assert {workload.name for workload in WORKLOADS} == {f"W{number}" for number in range(1, 13)}
    for workload in WORKLOADS:
        assert set(workload.cases) <= set(CASES)
        assert set(workload.cases) & usual or workload.name == "W12", workload.name


def test_each_broker_comes_first_in_some_round() -> None:
    names = list(USUAL.brokers)
    firsts = {next(USUAL.turns(SETTINGS[""], names, number))[1] for number in (1, 2, 3)}
    shared = {
        next(name for case, name in USUAL.turns(SETTINGS[""], names, number) if case.name == "throughput_1k")
        for number in (1, 2, 3)
    }
    assert shared == set(names)
    assert firsts == set(names)


def test_not_always_the_same_broker_comes_first_where_there_is_one_round() -> None:
    names = ["appliance", "kafka"]
    firsts: dict[str, str] = {}
    for case, name in USUAL.turns(SETTINGS[""], names, 1):
        firsts.setdefault(case.name, name)
    once = [firsts[case.name] for case in USUAL.cases_under(SETTINGS[""]) if case.rounds == 1]
    assert {"appliance", "kafka"} == set(once)
    assert once.count("kafka") >= len(once) // 3


def test_what_few_rounds_show_is_rehearsed_with_a_broker_that_compiles_itself() -> None:
    rehearsed = list(USUAL.rehearsal(SETTINGS[""], ["appliance", "mock", "kafka"]))
    assert {name for _, name in rehearsed} == {"kafka"}
    named = [case.name for case, _ in rehearsed]
    assert len(named) == len(set(named))
    assert {"throughput_lz4", "throughput_idempotent", "commits_1", "requests_500", "rate_10k"} <= set(named)
    assert not {"latency", "throughput_1k", "backlog_5g", "start", "recovery_10g"} & set(named)
    of_slots = {case.name for case, _ in USUAL.rehearsal(SETTINGS["slots"], ["appliance", "kafka"])}
    assert of_slots == {"latency_client_all", "throughput_1k"}
    assert not list(USUAL.rehearsal(SETTINGS[""], ["appliance", "mock"]))


def test_only_what_has_all_cases_brokers_and_rounds_is_kept() -> None:
    def is_whole(*words: str) -> bool:
        parser = argparse.ArgumentParser()
        _add_plan(parser)
        return _is_whole(parser.parse_args(words))

    assert is_whole()
    assert is_whole("--also", "failover_1000")
    assert is_whole("--brokers", "appliance,pure,mock,kafka")
    assert is_whole("--scaling", "--rounds", "1", "--brokers", "appliance,kafka")
    for words in (
        ("latency",),
        ("--quick",),
        ("--rounds", "1"),
        ("--brokers", "appliance"),
        ("--settings", "pinned"),
    ):
        assert not is_whole(*words), words


def test_a_bound_in_memory_takes_three_rounds_and_none_where_it_has_no_part() -> None:
    names = list(USUAL.brokers)

    def turns_of_the_mock(setting: str) -> list[int]:
        return [
            number
            for number in range(1, USUAL.rounds + 1)
            for case, name in USUAL.turns(SETTINGS[setting], names, number)
            if (case.name, name) == ("throughput_1k", "mock")
        ]

    assert turns_of_the_mock("") == [1, 2, 3]
    assert turns_of_the_mock("fsync") == turns_of_the_mock("slots") == []


def test_growth_with_all_that_can_grow_has_a_case() -> None:
    grown = {name.removeprefix("scale_") for name in CASES if name.startswith("scale_")}
    assert grown == {"partitions", "topics", "connections", "log", "slots", "workers"}
