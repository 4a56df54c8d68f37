"""Who is not measured uses nothing of the machine meanwhile, and is there again when it is asked. Real processes."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import proc, rounds
from benchmarks.brokers import broker as brokers
from benchmarks.brokers.broker import Broker, SpawnedBroker
from benchmarks.brokers.kafka import Kafka
from benchmarks.brokers.setting import AS_SHIPPED, SLOTS, Setting
from benchmarks.cases.case import QUICK, Bench, Case, Figures
from benchmarks.plan import Plan
from benchmarks.void import Void

HALTED, SLEEPING, RUNNING = "T", "S", "R"


class Restless(SpawnedBroker):
    """A parent and its child; the child never sleeps for long."""

    name = "restless"
    can_be_halted = True

    def command(self) -> list[str]:
        child = "import time; print('ready', flush=True)\nwhile True: time.sleep(0.01)"
        parent = f"""
            import signal, subprocess, sys
            child = subprocess.Popen([sys.executable, "-c", {child!r}])
            signal.signal(signal.SIGTERM, lambda *_: child.kill())
            child.wait()
        """
        return [sys.executable, "-c", textwrap.dedent(parent)]

    def version(self) -> str:
        return "1"

    def states(self) -> set[str]:
        return {
            (proc.PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] for pid in self.pids()
        }


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "CATCH_UP_SECONDS", 0.0)


@pytest.fixture
def restless(tmp_path: Path) -> Iterator[Restless]:
    broker = Restless(tmp_path)
    with proc.adopting_orphans(), broker:
        yield broker


def test_all_processes_of_a_resting_broker_are_halted_and_go_on(restless: Restless) -> None:
    restless.rest()
    restless.rest()
    assert restless.states() == {HALTED}
    assert restless.is_alive()
    restless.wake()
    assert restless.states() <= {SLEEPING, RUNNING}


@pytest.mark.parametrize("end", [SpawnedBroker.stop, SpawnedBroker.kill])
def test_a_resting_broker_can_be_ended(restless: Restless, end: Callable[[SpawnedBroker], None]) -> None:
    restless.rest()
    pids = restless.pids()
    end(restless)
    restless.wake()
    assert not any((proc.PROC / str(pid)).exists() for pid in pids)
    restless.start()
    assert restless.states() <= {SLEEPING, RUNNING}


def test_one_that_cannot_be_halted_is_left_alone(restless: Restless) -> None:
    restless.can_be_halted = False
    restless.rest()
    assert HALTED not in restless.states()


@pytest.mark.parametrize(("setting", "expected"), [(AS_SHIPPED, True), (SLOTS, False)])
def test_several_kafka_brokers_would_fence_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: Setting, expected: bool
) -> None:
    monkeypatch.setattr("benchmarks.brokers.kafka.libs", lambda: tmp_path)
    assert Kafka(tmp_path, setting).can_be_halted is expected


@pytest.mark.parametrize("own", [False, True])
def test_the_others_rest_while_one_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: bool
) -> None:
    standing: dict[str, Restless] = {}
    seen: list[dict[str, bool]] = []

    def maker(name: str) -> Callable[[Path, Setting], Broker]:
        def make(data_dir: Path, setting: Setting) -> Broker:
            made = Restless(data_dir, setting)
            standing.setdefault(name, made) if len(begun) >= len(names) else begun.append(name)
            return made

        return make

    def look(bench: Bench) -> Figures:
        seen.append(
            {
                name: HALTED in each.states()
                for name, each in standing.items()
                if each.is_alive() and each is not bench.broker
            }
        )
        assert isinstance(bench.broker, Restless)
        assert HALTED not in bench.broker.states()
        return {"p50_us": 1.0}

    begun: list[str] = []
    names = ("appliance", "kafka")
    monkeypatch.setattr(rounds, "MAKERS", {name: maker(name) for name in names})
    monkeypatch.setattr(rounds, "DATA", tmp_path)
    cases = (Case("latency", "t", look), Case("start", "t", look, own=own))
    scale = replace(QUICK, held_bytes=0, busy_limit_share=float("inf"))
    run = rounds.run(Plan(names, cases, rounds=2, scale=scale, settings=(AS_SHIPPED,)), lambda _line: None)
    assert not run.voids
    beside = [each for each in seen if each]
    assert beside
    assert all(all(halted.values()) for halted in beside)


def test_a_broker_whose_warm_up_failed_is_not_measured_half_warm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is started and warmed up anew for the next case."""
    tried: list[Broker] = []

    def warm_up(broker: Broker, _seconds: float) -> None:
        tried.append(broker)
        if len(tried) == 1:
            raise Void("not today")

    def make(data_dir: Path, setting: Setting) -> Broker:
        made = Restless(data_dir, setting)
        made.wants_warm_up = True
        return made

    monkeypatch.setattr(rounds, "MAKERS", {"appliance": make})
    monkeypatch.setattr(rounds, "DATA", tmp_path)
    monkeypatch.setattr(rounds, "warm_up", warm_up)
    measured: list[Broker] = []

    def case(bench: Bench) -> Figures:
        measured.append(bench.broker)
        return {"p50_us": 1.0}

    cases = (Case("latency", "t", case), Case("requests_64", "t", case))
    scale = replace(QUICK, held_bytes=0, busy_limit_share=float("inf"))
    run = rounds.run(
        Plan(("appliance",), cases, rounds=1, scale=scale, settings=(AS_SHIPPED,)), lambda _line: None
    )
    assert [(void.case, void.why) for void in run.voids] == [("latency", "not today")]
    assert measured == tried[1:]
    assert len(tried) == 2
    assert isinstance(tried[0], Restless)
    assert not tried[0].is_alive()


def test_a_broker_that_has_ended_between_two_cases_costs_it_the_next_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[Restless] = []

    def make(data_dir: Path, setting: Setting) -> Broker:
        started.append(Restless(data_dir, setting))
        return started[-1]

    def say(line: str) -> None:
        process = started[-1].process if started else None
        if "latency" in line and process is not None:
            process.terminate()
            process.wait()

    monkeypatch.setattr(rounds, "MAKERS", {"appliance": make})
    monkeypatch.setattr(rounds, "DATA", tmp_path)
    cases = (
        Case("latency", "t", lambda _: {"p50_us": 1.0}),
        Case("requests_64", "t", lambda _: {"p50_us": 1.0}),
        Case("requests_500", "t", lambda _: {"p50_us": 1.0}),
    )
    scale = replace(QUICK, held_bytes=0, busy_limit_share=float("inf"))
    plan = Plan(("appliance",), cases, rounds=1, scale=scale, settings=(AS_SHIPPED,))
    run = rounds.run(plan, say)
    assert [(void.case, void.why) for void in run.voids] == [
        ("requests_64", "it had ended since the case before")
    ]
    assert "requests_500.p50_us" in run.taken["appliance"][0]
