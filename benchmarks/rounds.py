"""Alternating rounds: in each, every case goes over all brokers in turn, before the next case begins.

    round 1   latency: appliance, mock, kafka    requests_64: mock, kafka, appliance    …
    round 2   latency: mock, kafka, appliance    …

So a machine that drifts drifts under all of them within seconds. A broker is started once for a setting and stays for
all rounds: a just-in-time compiler warms up once, with streams and then with each short case of the setting (a
rehearsal, which counts for nothing), and stays warm. The others rest while one is measured: a JVM that
nobody asks anything still takes a twentieth of a core, in slices of milliseconds (`idle: processor`). Cases about
starting take a broker of their own.
A void case leaves a gap, no zero.
"""

import datetime
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException

from benchmarks import awake, proc
from benchmarks.brokers import MAKERS
from benchmarks.brokers.broker import Broker
from benchmarks.brokers.setting import AS_SHIPPED, Setting
from benchmarks.cases.case import Bench, Case, Figures, Scale, run_case, run_own_case
from benchmarks.load import generators
from benchmarks.machine import Patience, WarmMemory, description
from benchmarks.places import DATA
from benchmarks.plan import Plan
from benchmarks.results import Run, VoidCase
from benchmarks.source import commit, is_dirty
from benchmarks.void import Busy, Void

BUSY_TRIES = 3
FAULTS = (Void, OSError, subprocess.SubprocessError, KafkaException)
"""What a rival that ends in the midst of a question may do to the harness: the case is void, the run goes on."""

Say = Callable[[str], None]


@dataclass(slots=True)
class Seat:
    """A broker's place in a pass: started when it is first asked for, and again after it was found dead."""

    name: str
    setting: Setting
    memory: WarmMemory
    patience: Patience
    scale: Scale
    say: Say
    bench: Bench | None = None
    _held: "fresh | None" = None

    def ready(self) -> Bench:
        """The running broker, warmed up. Raises Void, also when it has ended since it was asked last."""
        if self.bench is not None and not self.bench.broker.is_alive():
            self.leave()
            raise Void("it had ended since the case before")
        if self.bench is None:
            self._held = fresh(self.name, self.setting)
            try:
                broker = self._held.__enter__()
                if broker.wants_warm_up:
                    began = time.monotonic()
                    warm_up(broker, self.scale.warm_up_seconds * self.setting.warm_up_share)
                    self.say(f"{self.name}: warmed up for {time.monotonic() - began:.0f} s")
            except BaseException:
                self.leave()  # half-warm, it would be measured by the next case
                raise
            self.bench = Bench(broker=broker, scale=self.scale, memory=self.memory)
        self.bench.broker.wake()
        return self.bench

    def rest(self) -> None:
        """Another one is measured."""
        if self.bench is not None:
            self.bench.broker.rest()

    def leave(self) -> None:
        """Stop it."""
        held, self._held, self.bench = self._held, None, None
        if held is not None:
            held.__exit__(None, None, None)


def run(plan: Plan, say: Say) -> Run:
    """All rounds. Never raises for a void case; a broker that cannot be had leaves its column empty."""
    with proc.adopting_orphans():
        return _run(plan, say)


def _run(plan: Plan, say: Say) -> Run:
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in plan.brokers}
    voids: list[VoidCase] = []
    versions: dict[str, str] = {}
    began = datetime.datetime.now(datetime.UTC)
    say("warming memory and byte code, building what is missing")
    memory, patience = WarmMemory(plan.held_bytes, folder=DATA), Patience()
    with suppress(Busy):  # the trial's turns even it out
        patience.await_quiet(plan.scale.busy_limit_share)
    say(f"cores kept awake: {awake.choice()}")
    for name in plan.brokers:
        try:
            with fresh(name) as broker:
                versions[name] = broker.version()
            taken[name] = [{} for _ in range(plan.rounds)]
        except FAULTS as fault:
            why = _as_void(fault)
            voids.append(VoidCase(round=0, broker=name, case="*", why=str(why)))
            say(f"{name}: {why}")
    for setting in plan.settings:
        seats = {name: Seat(name, setting, memory, patience, plan.scale, say) for name in versions}
        try:
            _rehearse(plan, seats, setting, say)
            for number in range(1, plan.rounds + 1):
                for case, name in plan.turns(setting, list(versions), number):
                    for seat in seats.values():
                        if case.own or seat is not seats[name]:
                            seat.rest()
                    started = time.monotonic()
                    got = _one(case, seats[name])
                    took_s = time.monotonic() - started
                    where = f"round {number} {setting.key(case.name)} {name}"
                    if isinstance(got, Void):
                        voids.append(VoidCase(number, name, setting.key(case.name), str(got)))
                        say(f"{where}: void: {got}")
                        continue
                    taken[name][number - 1].update(
                        {f"{setting.key(case.name)}.{key}": value for key, value in got.items()}
                    )
                    taken[name][number - 1][f"{setting.key(case.name)}.took_s"] = took_s
                    say(f"{where}, {took_s:.0f} s: {'  '.join(_brief(got))}")
                for seat in seats.values():
                    if seat.bench is not None and not seat.bench.broker.keeps_topics:
                        seat.leave()
        finally:
            for seat in seats.values():
                seat.leave()
    return Run(
        date=began.strftime("%Y-%m-%d"),
        began=began.isoformat(timespec="seconds"),
        commit=commit(),
        dirty=is_dirty(),
        machine=description(),
        awake_by=awake.chosen(),
        wakes_us={str(way): us for way, us in awake.wakes_us().items()},
        versions=versions,
        rounds=plan.rounds,
        pinned="",
        taken=taken,
        voids=voids,
        settings=[setting.name for setting in plan.settings],
        minutes=(datetime.datetime.now(datetime.UTC) - began).total_seconds() / 60,
    )


def _rehearse(plan: Plan, seats: dict[str, Seat], setting: Setting, say: Say) -> None:
    """Cases that count for nothing."""
    for case, name in plan.rehearsal(setting, list(seats)):
        for seat in seats.values():
            if seat is not seats[name]:
                seat.rest()
        got = _one(case, seats[name])
        why = f": void: {got}" if isinstance(got, Void) else ""
        say(f"rehearsal {setting.key(case.name)} {name}{why}")


class fresh:  # noqa: N801 (a context manager that reads as a word: `with fresh(...)`)
    """A started broker on an empty data directory, which is gone afterwards. Raises Void."""

    def __init__(self, name: str, setting: Setting = AS_SHIPPED) -> None:
        DATA.mkdir(parents=True, exist_ok=True)
        self._data_dir = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=DATA))
        try:
            self._broker = MAKERS[name](self._data_dir, setting)
        except BaseException:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            raise

    def __enter__(self) -> Broker:
        try:
            self._broker.start()
        except BaseException:
            self.__exit__()
            raise
        return self._broker

    def __exit__(self, *_: object) -> None:
        self._broker.stop()
        shutil.rmtree(self._data_dir, ignore_errors=True)


def warm_up(broker: Broker, seconds: float) -> None:
    """About `seconds` of what the cases will ask, so that a just-in-time compiler has done its work."""
    address, until = broker.address, time.monotonic() + seconds
    number = 0
    while time.monotonic() < until:
        number += 1
        topic = f"warm-up-{number}"
        broker.create_topic(topic, 1)
        for step in _warm_up_steps(address, topic, one_broker=broker.setting.slots == 1):
            if time.monotonic() < until:
                step()
        broker.delete_topic(topic)


def _warm_up_steps(address: str, topic: str, *, one_broker: bool) -> Iterator[Callable[[], object]]:
    """In this order, for what is read was written before."""
    yield lambda: generators.stream_in(address, topic, records=1_000_000, record_bytes=100)
    yield lambda: generators.stream_out(address, topic, records=1_000_000, record_bytes=100)
    yield lambda: generators.stream_in(address, topic, records=200_000, record_bytes=1024)
    if one_broker:  # our generators ask the one broker that they know
        one_record = generators.one_record
        yield lambda: one_record("produce", address, topic=topic, seconds=5, connections=64)
        yield lambda: one_record("fetch", address, topic=topic, seconds=2, connections=64, max_bytes=150)
        yield lambda: one_record("latency", address, topic=topic, seconds=3)


def _one(case: Case, seat: Seat) -> "Figures | Void":
    """Tried again only when the machine was busy."""
    for attempt in range(1, BUSY_TRIES + 1):
        try:
            if not case.own:
                return run_case(case, seat.ready(), seat.patience)
            return run_own_case(
                case,
                lambda: _own(seat),
                memory=seat.memory,
                limit_share=seat.scale.busy_limit_share,
                patience=seat.patience,
            )
        except Busy as busy:
            if attempt == BUSY_TRIES:
                return busy
        except FAULTS as fault:
            return _as_void(fault)
    raise AssertionError("unreachable")


def _as_void(fault: Exception) -> Void:
    return fault if isinstance(fault, Void) else Void(f"{type(fault).__name__}: {fault}")


@contextmanager
def _own(seat: Seat) -> Iterator[Bench]:
    with fresh(seat.name, seat.setting) as broker:
        yield Bench(broker=broker, scale=seat.scale, memory=seat.memory)


def _brief(figures: Figures) -> list[str]:
    return [
        f"{key} {value:,.4g}"
        for key, value in figures.items()
        if " " not in key and not key.endswith("share")
    ]
