"""A figure counts only when nothing was lost, nobody died and nobody else used the machine. No broker takes part."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from benchmarks import proc, rounds
from benchmarks.brokers.appliance import Appliance
from benchmarks.brokers.broker import Broker, SpawnedBroker
from benchmarks.brokers.kafka import Kafka
from benchmarks.brokers.setting import AS_SHIPPED, SLOTS, Setting
from benchmarks.cases import CASES
from benchmarks.cases import case as cases
from benchmarks.cases.case import QUICK, Bench, Case, Figures
from benchmarks.load import generators
from benchmarks.load.generators import Requests
from benchmarks.machine import Activity, Patience, WarmMemory
from benchmarks.plan import Plan
from benchmarks.results import Run, rows
from benchmarks.void import Busy, Void
from tests.benchmarks.stand_ins import StandIn

BURNT_S = 0.3


class Holder(StandIn):
    """Says that its log holds what it is told to say."""

    held = 0

    def end_offset(self, topic: str, partitions: int) -> int:
        return self.held


def bench_of(broker: Broker, folder: Path) -> Bench:
    return Bench(broker=broker, scale=QUICK, memory=WarmMemory(0, folder=folder))


@pytest.mark.parametrize("held", [99, 101])
def test_a_record_too_few_or_too_many_in_the_log_voids_the_case(tmp_path: Path, held: int) -> None:
    broker = Holder(tmp_path)
    broker.held = held
    with pytest.raises(Void, match=f"100 records were acknowledged, the log holds {held}"):
        bench_of(broker, tmp_path).check_records("t", 100)


def test_a_process_that_ended_voids_the_case_whatever_was_asked_of_it(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for ask in (proc.sample, proc.pss_bytes):
        with pytest.raises(Void, match="has ended"):
            ask([ended.pid])


def test_a_process_that_came_voids_the_case(tmp_path: Path) -> None:
    broker, came = StandIn(tmp_path), list[int]()
    broker.pids = lambda: came  # type: ignore[method-assign]
    with pytest.raises(Void, match="processes changed"), bench_of(broker, tmp_path).measure():
        came = [os.getpid()]


def activity(at: float, busy_seconds: float) -> Activity:
    return Activity(at=at, busy_seconds=busy_seconds, kernel_seconds=0.0, stolen_seconds=0.0)


def test_what_others_use_above_the_limit_voids_the_case(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a broker of its own, too. Ten seconds in which somebody else had three of them."""
    case = Case("t", "t", lambda _: {"n": 1.0}, own=True)

    def run(limit_share: float) -> Figures:
        looks = iter([activity(0.0, 0.0), activity(10.0, 3.0)])
        monkeypatch.setattr(Activity, "now", lambda: next(looks))
        monkeypatch.setattr(Patience, "await_quiet", lambda *_: None)
        bench = bench_of(StandIn(tmp_path), tmp_path)
        return cases.run_own_case(
            case,
            lambda: nullcontext(bench),
            memory=bench.memory,
            limit_share=limit_share,
            patience=Patience(),
        )

    assert run(0.4)["others_share"] == pytest.approx(0.3, abs=0.01)
    with pytest.raises(Busy, match=r"0\.30 cores used by others"):
        run(0.25)


def test_the_broker_s_cores_are_kept_awake_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where generators have cores of their own."""
    every = os.sched_getaffinity(0)
    seen: list[set[int]] = []

    @contextmanager
    def awake() -> Iterator[None]:
        seen.append(os.sched_getaffinity(0))
        yield

    looks = iter([activity(0.0, 0.0), activity(10.0, 0.0)])
    monkeypatch.setattr(Activity, "now", lambda: next(looks))
    monkeypatch.setattr(Patience, "await_quiet", lambda *_: None)
    monkeypatch.setattr(cases, "awake_cores", awake)
    broker = StandIn(tmp_path)
    broker.setting = replace(AS_SHIPPED, generator_cpus=(min(every),))
    at_work: list[set[int]] = []

    def run(_: Bench) -> Figures:
        at_work.append(os.sched_getaffinity(0))
        return {"n": 1.0}

    cases.run_case(Case("t", "t", run, awake=True), bench_of(broker, tmp_path), Patience())
    assert (seen, at_work) == ([every], [{min(every)}])


def test_fetches_that_bring_no_record_void_the_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A broker that answers at once, and nothing, would be the fastest."""

    def generator(records_read: int) -> Callable[..., Requests]:
        told = Requests(1000, 1.0, 1e3, 1.0, 1.0, 1.0, 1.0, 0.1, 0, 1000, records_read=records_read)
        return lambda *_, **__: told

    broker = StandIn(tmp_path)
    monkeypatch.setattr(broker, "create_topic", lambda *_: None)
    fetches = CASES["fetches_64"]
    monkeypatch.setattr(generators, "one_record", generator(1000 - 64))
    assert fetches.run(bench_of(broker, tmp_path))["requests_s"] == 1e3
    monkeypatch.setattr(generators, "one_record", generator(500))
    with pytest.raises(Void, match="500 records came in 1000 answers"):
        fetches.run(bench_of(broker, tmp_path))


@pytest.mark.parametrize(("setting", "replicas"), [(AS_SHIPPED, 1), (SLOTS, 3)])
def test_memory_is_lent_for_each_replica(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: Setting, replicas: int
) -> None:
    """What the copies of a log touch is to be as warm as what one log touches."""
    lent: list[int] = []
    looks = iter([activity(0.0, 0.0), activity(10.0, 0.0)])
    monkeypatch.setattr(Activity, "now", lambda: next(looks))
    monkeypatch.setattr(Patience, "await_quiet", lambda *_: None)
    broker = StandIn(tmp_path)
    broker.setting = setting
    bench = bench_of(broker, tmp_path)
    monkeypatch.setattr(WarmMemory, "lend", lambda _, length_bytes: lent.append(length_bytes))
    cases.run_case(Case("t", "t", lambda _: {"n": 1.0}, lends_bytes=1000), bench, Patience())
    assert lent == [replicas * 1000]


def test_what_the_host_takes_away_above_its_limit_voids_the_case() -> None:
    def over_ten_seconds(stolen_seconds: float, limit_share: float) -> Figures:
        after = replace(activity(10.0, 0.0), stolen_seconds=stolen_seconds)
        return cases.shares(activity(0.0, 0.0), after, ours_seconds=0.0, limit_share=limit_share)

    assert over_ten_seconds(2.9, 0.25)["stolen_share"] == pytest.approx(0.29)
    with pytest.raises(Busy, match=r"0\.31 cores taken away by its host"):
        over_ten_seconds(3.1, 0.25)
    assert over_ten_seconds(9.0, float("inf"))["stolen_share"] == pytest.approx(0.9)


def test_a_machine_that_stays_busy_is_waited_for_once_and_not_before_each_case() -> None:
    nobody_is_below = -1.0
    patience = Patience(case_seconds=0.0, run_seconds=0.1)
    for _ in range(2):
        with pytest.raises(Busy):
            patience.await_quiet(nobody_is_below)
    assert patience.left_seconds == 0.0
    patience.await_quiet(float("inf"))


class Burner(SpawnedBroker):
    """A parent that only starts a child; the child burns processor time. Killed, they are counted all the same."""

    name = "burner"

    def command(self) -> list[str]:
        child = f"""
            import time
            while time.process_time() < {BURNT_S}: pass
            print("ready", flush=True)
            time.sleep(60)
        """
        parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {textwrap.dedent(child)!r}])"
        return [sys.executable, "-c", parent]

    def version(self) -> str:
        return "1"


def test_the_processor_time_of_a_broker_that_was_killed_is_no_one_elses(tmp_path: Path) -> None:
    broker = Burner(tmp_path)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with proc.adopting_orphans():
        broker.start()
        broker.kill()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime > BURNT_S


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Callable[[Bench], Figures]], Run]:
    """Three rounds of one case beside a stand-in."""

    def make(data_dir: Path, setting: Setting) -> Broker:
        return Holder(data_dir, setting)

    monkeypatch.setattr(rounds, "MAKERS", {"appliance": make})
    monkeypatch.setattr(rounds, "DATA", tmp_path)

    def run_of(what: Callable[[Bench], Figures]) -> Run:
        case = Case("latency", "t", what, own=True)
        scale = replace(QUICK, held_bytes=0, busy_limit_share=float("inf"))
        plan = Plan(("appliance",), (case,), rounds=3, scale=scale, settings=(AS_SHIPPED,))
        return rounds.run(plan, lambda _line: None)

    return run_of


@pytest.mark.parametrize(
    ("fault", "attempts"),
    [
        (Void("error code 7"), 1),
        (Busy("the machine was busy"), rounds.BUSY_TRIES),
        (ConnectionResetError("hung up"), 1),
        (subprocess.TimeoutExpired("java", 120), 1),
        (KafkaException(KafkaError(KafkaError._TRANSPORT)), 1),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_void_round_is_left_out_and_the_others_count(
    run: Callable[[Callable[[Bench], Figures]], Run], fault: Exception, attempts: int
) -> None:
    """Only a busy machine is tried again."""
    asked = 0

    def what(_: Bench) -> Figures:
        nonlocal asked
        asked += 1
        if 1 < asked <= 1 + attempts:
            raise fault
        return {"p50_us": 100.0 * asked}

    done = run(what)
    assert [(void.round, void.case) for void in done.voids] == [(2, "latency")]
    (row,) = rows(done)
    spread = row.values["appliance"]
    assert (spread.rounds, spread.lowest, spread.highest) == (2, 100.0, 100.0 * asked)
    assert asked == attempts + 2


def test_a_rival_without_its_java_cannot_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kafka_2.13-0.jar").write_bytes(b"no jar")
    monkeypatch.setenv("KAFKA_LIBS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Void, match=r"Apache Kafka cannot be started: .*java"):
        Kafka(tmp_path).start()


def test_a_rival_that_cannot_be_fetched_is_missing_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "scripts" / "install-kafka.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho 'no way to the registry' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr("benchmarks.brokers.kafka.ROOT", tmp_path)
    monkeypatch.delenv("KAFKA_LIBS", raising=False)
    with pytest.raises(Void, match="could not be installed: no way to the registry"):
        Kafka(tmp_path)


def test_a_slot_that_is_not_there_is_not_killed_to_no_effect(tmp_path: Path) -> None:
    """As of a broker that was started without slots: its failover would take no time at all."""

    class WithoutSlots(Appliance):
        def pids(self) -> list[int]:
            return [os.getpid()]

    with pytest.raises(Void, match="no slot 1"):
        WithoutSlots(tmp_path).slot_pids(1)
