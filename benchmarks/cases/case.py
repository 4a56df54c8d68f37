"""One case: what it does to a running broker, and what it brings home."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from benchmarks import proc
from benchmarks.awake import awake_cores
from benchmarks.brokers.broker import Broker
from benchmarks.machine import GIB, Activity, Patience, WarmMemory
from benchmarks.void import Busy, Void

Figures = dict[str, float]
"""Short name → number. Those that `figures.py` lists make rows of the page; the rest stays in the JSON file."""


STOLEN_LIMIT = 0.3
"""Cores that the host below a virtual machine takes away above which a figure is void."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything."""

    stream_bytes: int = GIB // 2
    """Payload of a throughput case of 1 KiB records; small ones send half of it."""
    backlog_bytes: int = GIB
    """Payload of a backlog that is read back, and of a log that is recovered."""
    seconds: float = 2.0
    idle_seconds: float = 5.0
    idle_connections: int = 5000
    many: int = 1000
    """Partitions or topics, where the case is about many."""
    most: int = 10_000
    """The last point of a case about growth."""
    held_bytes: int = 4 * GIB
    """Touched memory that the harness holds, to be lent before each case."""
    warm_up_seconds: float = 60.0
    """For brokers that compile themselves while they run."""
    busy_limit_share: float = 0.25
    """Cores used by others above which a figure is void."""


QUICK = Scale(
    stream_bytes=GIB // 4,
    backlog_bytes=GIB // 4,
    seconds=1.0,
    idle_seconds=2.0,
    idle_connections=200,
    many=100,
    most=1000,
    warm_up_seconds=20.0,
)


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
    topics: list[str] = field(default_factory=list)
    """Those of the running case."""
    made: int = 0

    def topic(self, partitions: int = 1) -> str:
        """A fresh topic, gone after the case."""
        self.made += 1
        name = f"bench-{os.getpid()}-{self.made}"
        self.broker.create_topic(name, partitions)
        self.topics.append(name)
        return name

    def delete_topics(self) -> None:
        """All that the case made, so that its bytes are in nobody's way."""
        for topic in self.topics:
            self.broker.delete_topic(topic)
        self.topics.clear()

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
    """Brokers for which it has no meaning, or no goal beside it."""
    settings: frozenset[str] = frozenset({""})
    """Names of the settings under which it runs by default."""
    rounds: int = 99
    """Rounds it takes part in at most: what is long or hardly varies needs fewer."""
    by_name: bool = False
    """Only when it is named, or with all: too long for the default run."""
    lends_bytes: int = GIB // 8
    """Memory it will make one replica touch."""
    awake: bool = False
    """Keep the cores from halting meanwhile."""
    own: bool = False
    """Takes a broker of its own on an empty data directory, and may kill and start it again."""


def run_case(case: Case, bench: Bench, patience: Patience) -> Figures:
    """Run it once on a quiet machine. Raises Void when its figures must not count."""
    bench.memory.lend(case.lends_bytes * bench.broker.setting.slots)
    try:
        patience.await_quiet(bench.scale.busy_limit_share)
        activity, ours = Activity.now(), own_seconds()
        with (
            awake_cores() if case.awake else nullcontext(),  # all cores, the broker's too
            _generators_on(bench.broker.setting.generator_cpus),
            bench.measure() as broker,
        ):
            figures = case.run(bench)
        whole = _whole(broker.used, proc.pss_bytes(bench.broker.pids()))
        ours_seconds = own_seconds() - ours + broker.used.cpu_seconds
        now = Activity.now()
    finally:
        bench.memory.take_back()
    bench.delete_topics()
    limit_share = bench.scale.busy_limit_share
    return {**figures, **whole, **shares(activity, now, ours_seconds=ours_seconds, limit_share=limit_share)}


def _whole(used: proc.Used, pss_bytes: int) -> Figures:
    """What the broker took for all of a case, from the topic's creation to the last look at it."""
    return {
        "whole_cpu_s": used.cpu_seconds,
        "whole_switches": used.context_switches,
        "whole_written_mb": used.written_bytes / 1e6,
        "whole_pss_mb": pss_bytes / 1e6,
    }


def run_own_case(
    case: Case,
    start: Callable[[], AbstractContextManager[Bench]],
    *,
    memory: WarmMemory,
    limit_share: float,
    patience: Patience,
) -> Figures:
    """Run a case that has a broker of its own, from its start to its end. Raises Void when its figures must not count.

    All that the broker used is counted once it has ended: by then each of its processes, the killed ones too, has been
    waited for by its parent or by the harness (`proc.adopting_orphans`).
    """
    memory.lend(case.lends_bytes)
    try:
        patience.await_quiet(limit_share)
        activity, ours = Activity.now(), own_seconds()
        with start() as bench:
            figures = case.run(bench)
        now, ours_seconds = Activity.now(), own_seconds() - ours
    finally:
        memory.take_back()
    return {**figures, **shares(activity, now, ours_seconds=ours_seconds, limit_share=limit_share)}


def shares(before: Activity, after: Activity, *, ours_seconds: float, limit_share: float) -> Figures:
    """What others, and the host below a virtual machine, had of it meanwhile. Raises Busy when it was too much."""
    share = after.others_share(before, ours_seconds=ours_seconds)
    if share > limit_share:
        raise Busy(f"the machine was busy: {share:.2f} cores used by others during the case")
    stolen = (after.stolen_seconds - before.stolen_seconds) / (after.at - before.at)
    if stolen > max(limit_share, STOLEN_LIMIT):
        raise Busy(f"the machine was busy: {stolen:.2f} cores taken away by its host during the case")
    return {"others_share": share, "stolen_share": stolen}


@contextmanager
def _generators_on(cpus: tuple[int, ...]) -> Iterator[None]:
    """Everything started from here inherits these cores; none: as before."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def own_seconds() -> float:
    """Processor time of the harness and of every generator that has ended."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total
