"""Delayed records: how late they come, how many a second go in and out, and what those cost that wait.

Beside Kafka runs a delay service as a user writes it (`load/naive_delay.py`), with a topic that it reads.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from appliance.config.sections.services import ServicesSettings
from appliance.delivery.levels import Levels
from benchmarks import proc
from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.load import generators
from benchmarks.load.delayed import PARTITIONS
from benchmarks.void import Void

NOT_FOR_MOCK = frozenset({"mock"})
SETTING = frozenset({"delayed"})
SEND_S = 5_000
"""Records sent in a second, on a slow machine: the first one must not be due before the last is sent."""
LEAD_MIN_S = 3.0
BURST = 50_000
"""Records for each second of the scale."""
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Delays:
    """Where delayed records go in and come out, and whose process delivers them."""

    inbox: str
    outbox: str
    pid: int


@contextmanager
def _delays(bench: Bench, mode: str) -> Iterator[Delays]:
    address = bench.broker.address
    if bench.broker.name == "kafka":
        inbox, outbox = bench.topic(PARTITIONS), bench.topic(PARTITIONS)
        program = Path(generators.__file__).with_name("naive_delay.py")
        words = [sys.executable, str(program), address, inbox, outbox, str(PARTITIONS)]
        with subprocess.Popen(words) as service:
            try:
                yield Delays(inbox, outbox, service.pid)
            finally:
                service.kill()
        return
    bench.made += 1
    topic = f"bench-delayed-{os.getpid()}-{bench.made}"
    first = f"{topic}-first"
    configs = {"delivery.delay.enable": "true", "delivery.delay.mode": mode}
    admin = AdminClient({"bootstrap.servers": address})
    for name in (topic, first):
        admin.create_topics([NewTopic(name, PARTITIONS, 1, config=configs)])[name].result(PATIENCE_S)
        bench.topics.append(name)
    # The first delayed record of a data directory has the internal topics created.
    generators.delayed("send", address, first, first, records=1, lead=2.0)
    services = [pid for pid in bench.broker.pids() if proc.title_of(pid).startswith("services")]
    if not services:
        raise Void("no services process runs: use the setting delayed")
    _await_levels(admin)
    yield Delays(topic, topic, services[0])


def _await_levels(admin: AdminClient) -> None:
    """Wait until the internal topics are there, and each partition has a leader."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        topics = admin.list_topics(timeout=10).topics
        found = [topics[each] for each in topics if each.startswith("__delayed_")]
        if "__delayed_state" in topics and all(
            one.leader >= 0 for each in found for one in each.partitions.values()
        ):
            time.sleep(1.0)
            return
        time.sleep(0.2)
    raise Void("the topics for delayed records are not there")


def _late(rate: int) -> Callable[[Bench], Figures]:
    def run(bench: Bench) -> Figures:
        records = max(int(rate * bench.scale.seconds), 10)
        lead = LEAD_MIN_S + records / SEND_S
        with _delays(bench, "exact") as delays:
            told = generators.delayed(
                "late",
                bench.broker.address,
                delays.inbox,
                delays.outbox,
                records=records,
                rate=rate,
                lead=lead,
            )
        if told["lead_left_s"] < 0:
            raise Void("the first record was due before the last one was sent")
        if told["earliest_ms"] < -1:
            raise Void(f"a record came {-told['earliest_ms']:.0f} ms early")
        return told

    return run


def _level_s(lead: float) -> float:
    """Return for how many seconds a record waits on its level."""
    services = ServicesSettings()
    levels = Levels(services.delay_levels, services.delay_exact_levels)
    return levels.delays_ms[levels.of(int(lead * 1000))] / 1000


def _burst(mode: str) -> Callable[[Bench], Figures]:
    """In: acknowledged records. Out: a backlog of due records, after the process that delivers was stopped."""

    def run(bench: Bench) -> Figures:
        records, address = int(BURST * bench.scale.seconds), bench.broker.address
        with _delays(bench, mode) as delays:
            lead = LEAD_MIN_S + records / SEND_S
            began = time.monotonic()
            told = generators.delayed(
                "send", address, delays.inbox, delays.outbox, records=records, lead=lead
            )
            os.kill(delays.pid, signal.SIGSTOP)
            try:
                # A record of a level waits for the time of the level: without it, the figure would be that of `in`.
                waits = lead if mode == "exact" or bench.broker.name == "kafka" else _level_s(lead)
                sent_s = records / told["in_records_s"]
                time.sleep(max(waits + sent_s - (time.monotonic() - began), 0) + 1.0)
            finally:
                os.kill(delays.pid, signal.SIGCONT)
            with bench.measure() as broker:
                told |= generators.delayed("read", address, delays.inbox, delays.outbox, records=records)
        told["cpu_us_per_record"] = broker.used.cpu_seconds / records * 1e6
        return told

    return run


def _waiting(bench: Bench) -> Figures:
    """Records that are due in nearly two hours: memory, processor time, and a start beside them."""
    records, address = bench.scale.most * 1000, bench.broker.address
    with _delays(bench, "exact") as delays:
        before = proc.pss_bytes([delays.pid])
        told = generators.delayed("send", address, delays.inbox, delays.outbox, records=records, lead=7_000)
        time.sleep(3.0)
        grown = proc.pss_bytes([delays.pid]) - before
        at = proc.sample([delays.pid])
        time.sleep(bench.scale.idle_seconds)
        idle = proc.used(at, proc.sample([delays.pid]))
        os.kill(delays.pid, signal.SIGKILL)
        killed_s = time.monotonic()
        generators.delayed("send", address, delays.inbox, delays.outbox, records=1, lead=0.01)
        generators.delayed("read", address, delays.inbox, delays.outbox, records=1)
        return {
            "in_records_s": told["in_records_s"],
            "grown_mb": grown / 1e6,
            "idle_cpu_ms_s": idle.cpu_seconds / bench.scale.idle_seconds * 1e3,
            "first_after_kill_s": time.monotonic() - killed_s,
        }


CASES = (
    *(
        Case(
            f"delayed_late_{name}",
            f"delayed records, {rate:,} due a second, exact: from due to read",
            _late(rate),
            NOT_FOR_MOCK,
            settings=SETTING,
            rounds=2,
            by_name=True,
        )
        for name, rate in (("1", 1), ("10k", 10_000), ("100k", 100_000))
    ),
    *(
        Case(
            f"delayed_{mode}",
            f"delayed records of 100 B, {mode}: in, and a backlog of due ones out",
            _burst(mode),
            NOT_FOR_MOCK,
            settings=SETTING,
            rounds=2,
            by_name=True,
        )
        for mode in ("levels", "exact")
    ),
    Case(
        "delayed_waiting",
        "10 million delayed records that wait: memory, processor time, a kill of the process that delivers",
        _waiting,
        frozenset({"mock", "kafka"}),
        settings=SETTING,
        rounds=1,
        by_name=True,
        own=True,
    ),
)
