"""Alternating rounds: one broker at a time, a fresh data directory each, the same cases in the same order.

    round 1   appliance: start, cases, stop     mock: start, cases, stop
    round 2   appliance …                       mock …

Brokers alternate so that a machine that drifts drifts under all of them. A void case leaves a gap, no zero.
"""

import datetime
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.brokers import MAKERS
from benchmarks.brokers.broker import Broker
from benchmarks.cases.case import Bench, Case, Figures, Scale, run_case
from benchmarks.load import generators
from benchmarks.machine import GIB, WarmMemory, await_quiet, description
from benchmarks.places import DATA, ROOT
from benchmarks.results import Run, VoidCase
from benchmarks.void import Busy, Void

BUSY_TRIES = 3
HELD_BYTES = 4 * GIB
WARM_UP_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does."""

    brokers: tuple[str, ...]
    cases: tuple[Case, ...]
    rounds: int
    scale: Scale
    broker_cpus: tuple[int, ...] = ()


def run(plan: Plan, say: Callable[[str], None]) -> Run:
    """All rounds. Never raises for a void case; a broker that does not come up voids its whole round."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in plan.brokers}
    voids: list[VoidCase] = []
    versions: dict[str, str] = {}
    say("warming memory and byte code")
    memory = WarmMemory(HELD_BYTES, folder=DATA)
    for name in plan.brokers:
        try:
            with fresh(name, plan.broker_cpus) as broker:
                versions[name] = broker.version()
        except Void as why:
            voids.append(VoidCase(round=0, broker=name, case="*", why=str(why)))
            say(f"{name}: {why}")
    for number in range(1, plan.rounds + 1):
        for name in versions:
            figures: dict[str, float] = {}
            taken[name].append(figures)
            quiet = _is_quiet(plan.scale.busy_limit_share)
            try:
                with fresh(name, plan.broker_cpus) as broker:
                    bench = Bench(broker=broker, scale=plan.scale, memory=memory, quiet_start=quiet)
                    for case, got in _cases(plan, bench, say=say, where=f"round {number} {name}"):
                        if isinstance(got, Void):
                            voids.append(VoidCase(round=number, broker=name, case=case.name, why=str(got)))
                        else:
                            figures.update({f"{case.name}.{key}": value for key, value in got.items()})
            except Void as why:
                voids.append(VoidCase(round=number, broker=name, case="*", why=str(why)))
                say(f"round {number} {name}: {why}")
    return Run(
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        commit=_git("rev-parse", "--short", "HEAD"),
        dirty=bool(_git("status", "--porcelain", "--", "appliance")),
        machine=description(),
        versions=versions,
        rounds=plan.rounds,
        pinned=",".join(map(str, plan.broker_cpus)),
        taken=taken,
        voids=voids,
    )


class fresh:  # noqa: N801 (a context manager that reads as a word: `with fresh(...)`)
    """A started broker on an empty data directory, which is gone afterwards."""

    def __init__(self, name: str, cpus: Sequence[int] = ()) -> None:
        DATA.mkdir(parents=True, exist_ok=True)
        self._data_dir = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=DATA))
        self._broker = MAKERS[name](self._data_dir, cpus)

    def __enter__(self) -> Broker:
        try:
            self._broker.start()
        except BaseException:
            self._broker.stop()
            shutil.rmtree(self._data_dir, ignore_errors=True)
            raise
        return self._broker

    def __exit__(self, *_: object) -> None:
        self._broker.stop()
        shutil.rmtree(self._data_dir, ignore_errors=True)


def warm_up(broker: Broker, seconds: int = WARM_UP_SECONDS) -> None:
    """Load before the first figure, so that a just-in-time compiler has done its work."""
    topic = "warm-up"
    broker.create_topic(topic, 1)
    generators.stream_in(broker.address, topic, records=1_000_000, record_bytes=100)
    generators.stream_out(broker.address, topic, records=1_000_000, record_bytes=100)
    generators.one_record("produce", broker.address, topic=topic, seconds=seconds, connections=50)


def _cases(
    plan: Plan, bench: Bench, *, say: Callable[[str], None], where: str
) -> "list[tuple[Case, Figures | Void]]":
    done: list[tuple[Case, Figures | Void]] = []
    warm = not bench.broker.wants_warm_up
    for case in plan.cases:
        if bench.broker.name in case.not_for:
            continue
        if not warm and not case.cold:
            warm_up(bench.broker)
            warm = True
        began = time.monotonic()
        got = _tried(case, bench)
        done.append((case, got))
        told = f"void: {got}" if isinstance(got, Void) else "  ".join(_brief(got))
        say(f"{where} {case.name} ({time.monotonic() - began:.0f} s): {told}")
    return done


def _tried(case: Case, bench: Bench) -> "Figures | Void":
    for attempt in range(1, BUSY_TRIES + 1):
        try:
            return run_case(case, bench)
        except Busy as busy:
            if attempt == BUSY_TRIES:
                return busy
        except Void as why:
            return why
    raise AssertionError("unreachable")


def _is_quiet(limit_share: float) -> bool:
    try:
        await_quiet(limit_share)
    except Busy:
        return False
    return True


def _brief(figures: Figures) -> list[str]:
    return [
        f"{key} {value:,.4g}"
        for key, value in figures.items()
        if " " not in key and not key.endswith("share")
    ]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or ("" if words[0] == "status" else "unknown")
