"""One case: what it does to a running broker, and what it brings home."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from benchmarks import proc
from benchmarks.brokers.broker import Broker
from benchmarks.load import build
from benchmarks.machine import GIB, Activity, AwakeCores, WarmMemory, await_quiet
from benchmarks.void import Busy, Void

Figures = dict[str, float]
"""Short name → number. Those that `figures.py` lists make rows of the page; the rest stays in the JSON file."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything."""

    stream_bytes: int = GIB
    """Payload of a throughput case of 1 KiB records; small ones send half of it."""
    seconds: float = 3.0
    idle_seconds: float = 10.0
    idle_connections: int = 1000
    busy_limit_share: float = 0.25
    """Cores used by others above which a figure is void."""


QUICK = Scale(stream_bytes=GIB // 4, seconds=1.0, idle_seconds=2.0, idle_connections=200)


@dataclass(slots=True)
class Measured:
    """What the broker used while the body of `Bench.measure()` ran; filled when it ends."""

    used: proc.Used = field(default_factory=lambda: proc.Used(0.0, {}, 0, 0))


@dataclass(slots=True)
class Bench:
    """A running broker, and how much to ask of it."""

    broker: Broker
    scale: Scale
    memory: WarmMemory
    quiet_start: bool = True
    """Whether the machine was quiet when the broker was started."""
    topics: int = 0

    def topic(self, partitions: int = 1) -> str:
        """A fresh topic."""
        self.topics += 1
        name = f"bench-{os.getpid()}-{self.topics}"
        self.broker.create_topic(name, partitions)
        return name

    @contextmanager
    def measure(self) -> Iterator[Measured]:
        """What the broker's processes use during the body. Raises Void when one of them comes or goes."""
        measured = Measured()
        before = proc.sample(self.broker.pids())
        yield measured
        measured.used = proc.used(before, proc.sample(self.broker.pids()))

    def check_records(self, topic: str, expected: int, *, partitions: int = 1) -> None:
        """Every acknowledged record is in the log, and nothing else. Raises Void."""
        held = self.broker.end_offset(topic, partitions)
        if held != expected:
            raise Void(f"{expected} records were acknowledged, the log holds {held}")


@dataclass(frozen=True, slots=True)
class Case:
    """A name for the command line, one sentence for the page, and what to do."""

    name: str
    what: str
    run: Callable[[Bench], Figures]
    not_for: frozenset[str] = frozenset()
    """Brokers for which it has no meaning."""
    lends_bytes: int = GIB // 2
    """Memory it will make the broker touch."""
    awake: bool = False
    """Keep the cores from halting meanwhile."""
    told: bool = False
    """Tells what was measured while the broker started, so the quiet of this moment says nothing."""
    cold: bool = False
    """Measures the broker as it came up: before any warm-up."""


def run_case(case: Case, bench: Bench) -> Figures:
    """Run it once on a quiet machine. Raises Void when its figures must not count."""
    if case.told:
        return case.run(bench)
    bench.memory.lend(case.lends_bytes)
    try:
        await_quiet(bench.scale.busy_limit_share)
        activity, ours = Activity.now(), _own_seconds()
        with bench.measure() as broker, AwakeCores(build.spinner()) if case.awake else nullcontext():
            figures = case.run(bench)
        ours_seconds = _own_seconds() - ours + broker.used.cpu_seconds
        now = Activity.now()
    finally:
        bench.memory.take_back()
    share = now.others_share(activity, ours_seconds=ours_seconds)
    if share > bench.scale.busy_limit_share:
        raise Busy(f"the machine was busy: {share:.2f} cores used by others during the case")
    stolen = (now.stolen_seconds - activity.stolen_seconds) / (now.at - activity.at)
    return {**figures, "others_share": share, "stolen_share": stolen}


def _own_seconds() -> float:
    """Processor time of the harness and of every generator that has ended."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total
