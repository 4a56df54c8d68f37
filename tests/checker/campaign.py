"""One run: load, faults one after the other, then silence, and everything is read and compared."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.checker import transaction_anomalies, transaction_history
from tests.checker.anomalies import TOLD_OF_A_KIND, Anomaly, find
from tests.checker.backlog_readers import BacklogReaders, kinds_on
from tests.checker.delayed_workload import LEVELS, DelayedWorkload, came, lateness
from tests.checker.delayed_workload import TOPIC as DELAYED
from tests.checker.delayed_workload import find as find_delayed
from tests.checker.faults import Fault, faults_for, set_clock
from tests.checker.history import History
from tests.checker.native_clients import LIBRDKAFKA, Lanes, Turns
from tests.checker.patience import await_patiently
from tests.checker.retried_workload import CONFIGS as RETRY_CONFIGS
from tests.checker.retried_workload import TOPIC as RETRIED
from tests.checker.retried_workload import RetriedWorkload
from tests.checker.retried_workload import find as find_retried
from tests.checker.transaction_workload import TOPICS, TransactionWorkload
from tests.checker.twice import told_twice
from tests.checker.workload import Workload
from tests.support.broker import Appliance
from tests.support.stepped_clock import SteppedClock

TOPIC: Final = "checked"
TRIMMED: Final = "trimmed"
COMPACTED: Final = "compacted"
FIRST_COMMIT_S: Final = 120.0
SETTLE_S: Final = 60.0
TRANSACTIONS_PAUSE_S: Final = 0.1
LONG_RUN_S: Final = 60.0
LONG_TIMEOUT_MS: Final = 30_000
SHORT_RUNS_TIMEOUT_MS: Final = 10_000
"""`transaction.timeout.ms` at most: a run ends when the last transaction that was left open has timed out."""
SEGMENT_BYTES: Final = 1 << 20  # as small as Kafka lets it be
KEYS: Final = 300
COORDINATED_PARTITIONS: Final = 8
"""Of each of Kafka's own topics: enough for two coordinator processes, and few for a start to recover."""
BURSTS_BEFORE: Final = 4
"""Which make a backlog of more than a segment before the first fault."""
CLIENTS_NICER: Final = 10
"""So much is added to the nice value of all threads of clients."""
_SMALL_SEGMENTS: Final = {"segment.index.bytes": "400"}  # of 50 entries: a full one closes its segment
_BESIDE_RECORDS_PER_S: Final = 0.3
"""Of what the topic whose log is kept whole gets, for each of the others."""


class _Load(Protocol):
    def start(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run does. `seed` decides which faults come when; the processes decide the rest."""

    slots: int = 1
    workers: int = 1
    """I/O workers of each slot at the first start; where there are several, faults change that."""
    duration_s: float = 20.0
    seed: int = 0
    partitions: int = 6
    producers: int = 2
    readers: int = 2
    records_per_s: float = 1000.0
    pause_max_s: float = 2.0
    kinds: tuple[str, ...] = ()
    """Names of `faults`; none for all of them."""
    durability: str = "page-cache"
    transactions: bool = False
    """Transactional producers, copiers and their readers work beside the rest."""
    coordinators: int = 1
    delayed: bool = False
    """Delayed records beside the rest; without transactions beside them, faults set the clock, too."""
    exact: bool = False
    """The delayed records have exact delays."""
    retried: bool = False
    """Records that consumers hand back beside the rest; as with `delayed`, faults set the clock."""
    client: str = LIBRDKAFKA
    """One of `native_clients.CLIENTS`: what most producers and readers are."""
    build: Path | None = None
    """A directory with another build of the appliance; none for this tree."""

    @property
    def sets_clock(self) -> bool:
        """Whether faults set the clock. A transaction would meet its timeout."""
        return (self.delayed or self.retried) and not self.transactions


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it. `recoveries_ms` are the times from a fault's end to new acknowledgements everywhere.

    `commits` are those of transactions that were acknowledged.
    """

    acknowledged: int
    faults: tuple[str, ...]
    recoveries_ms: tuple[int, ...]
    anomalies: tuple[Anomaly, ...]
    commits: int = 0

    def check(self) -> None:
        """Raises AssertionError with the anomalies, and the faults that led there."""
        if self.anomalies:
            raise AssertionError("\n".join([*map(str, self.anomalies[:60]), "after:", *self.faults]))


def run(plan: Plan, directory: Path, say: Callable[[str], None] = lambda _: None) -> Outcome:
    """A new appliance in `directory`, whose data, and all that it says, stays there."""
    chance = random.Random(plan.seed)
    # A socket's path may have 107 bytes, and `directory` may be longer.
    sockets = Path(tempfile.mkdtemp(prefix="checker-z-"))
    clock = SteppedClock(directory / "clock") if plan.sets_clock else None
    broker = Appliance(
        directory / "data",
        slots=plan.slots,
        settings={
            "replica.lag.time.max.ms": 3000,
            "log.segment.bytes": SEGMENT_BYTES,
            "io.workers": plan.workers,
            "durability": plan.durability,
            "log.cleaner.backoff.ms": 500,
            "log.retention.check.interval.ms": 1000,
            "coordinator.processes": plan.coordinators,
            "group.initial.rebalance.delay.ms": 0,
            "offsets.topic.num.partitions": COORDINATED_PARTITIONS,
            "transaction.state.log.num.partitions": COORDINATED_PARTITIONS,
            **_served_on(plan.client, sockets),
            **({"delivery.delay.levels": list(LEVELS)} if plan.delayed else {}),
            **({"services.processes": 2} if plan.delayed or plan.retried else {}),
        },
        wrapper=() if clock is None else clock.wrapper(),
        output_to=directory / "appliance.log",
        build=plan.build,
        shares_session=True,
    )
    broker.start(60)
    lanes = Lanes.of(
        plan.client,
        {
            "tcp": _addresses(broker, plan),
            "zeromq": f"zmq+ipc://{sockets}/z",
            "shm": f"shm://{broker.data_dir.resolve()}",
        },
    )
    try:
        loads = _loads(broker, plan, Turns(lanes))
        readers = BacklogReaders(
            [broker.port + slot for slot in range(plan.slots)],
            {load.topic: load.history for load in loads},
            trimmed=(TRIMMED,),
            seed=plan.seed,
            kinds=kinds_on(lanes.native),
            say=say,
        )
        for _ in range(BURSTS_BEFORE):
            loads[0].burst()
        work = _transactions(broker, plan, lanes) if plan.transactions else None
        delayed = _delayed(broker, plan) if plan.delayed else None
        retried = _retried(broker, plan) if plan.retried else None
        _start_behind([each for each in (*loads, readers, work, delayed, retried) if each is not None])
        faults, recoveries_ms, anomalies = _disturb(
            plan, broker, loads[0], readers, work, clock=clock, chance=chance, say=say
        )
        say("settling")
        if delayed is not None:
            anomalies += _judged_delayed(delayed, broker, clock, say)
        if retried is not None:
            anomalies += _judged_retried(retried, broker, clock, say)
        if work is not None:
            anomalies += _told(work.idle(FIRST_COMMIT_S))
            work.stop_producing()
        for load in loads:
            load.stop_producing()
        ends = {load.topic: load.read_everything() for load in loads}
        for load in loads:
            load.stop_reading(ends[load.topic])
        readers.finish(ends)
        say(readers.told())
        anomalies += _told(readers.failures)
        for load in loads:
            anomalies += _told(load.failures)
            anomalies += [Anomaly(each.kind, f"{load.topic}: {each.text}") for each in find(load.history)]
            anomalies += compare_replicas(broker, load.topic)
            for sentence in islice(told_twice(load.history, broker.data_dir, load.topic), TOLD_OF_A_KIND):
                say(f"twice: {sentence}")
            say(f"what the producers said: {', '.join(map(str, load.write_client_logs(directory)))}")
        if work is not None:
            anomalies += _judged(work, broker)
            say(work.told())
            say(f"what transactions did: {work.write_history(directory)}")
    finally:
        broker.stop()
        shutil.rmtree(sockets, ignore_errors=True)
    acknowledged = sum(load.history.acknowledged_count() for load in loads)
    commits = 0 if work is None else work.history.count(transaction_history.Outcome.COMMITTED)
    return Outcome(acknowledged, tuple(faults), tuple(recoveries_ms), tuple(anomalies), commits)


def _served_on(client: str, sockets: Path) -> dict[str, object]:
    """The settings that the lanes of native clients need."""
    if client == LIBRDKAFKA:
        return {}
    return {"listeners.zeromq": [f"ipc://{sockets}/z"], "shared.memory.lanes.max": 200}


def _delayed(broker: Appliance, plan: Plan) -> DelayedWorkload:
    mode = "exact" if plan.exact else "levels"
    _create_topic(broker, DELAYED, plan, {"delivery.delay.enable": "true", "delivery.delay.mode": mode})
    return DelayedWorkload(
        _addresses(broker, plan), partitions=plan.partitions, seed=plan.seed, is_exact=plan.exact
    )


def _judged_delayed(
    delayed: DelayedWorkload, broker: Appliance, clock: SteppedClock | None, say: Callable[[str], None]
) -> list[Anomaly]:
    if clock is not None:
        clock.set_ahead(0)
    found = delayed.finish()
    say(lateness(delayed.history, came(delayed.history, found, is_clock_kept=clock is None)))
    set_forward_ms = None if clock is None else clock.set_forward_ms
    wrong = find_delayed(delayed.history, found, set_forward_ms=set_forward_ms)
    return [
        *_told(delayed.failures),
        *(Anomaly(each.kind, f"delayed: {each.text}") for each in wrong),
        *compare_replicas(broker, DELAYED),
    ]


def _retried(broker: Appliance, plan: Plan) -> RetriedWorkload:
    for name in (RETRIED, *RETRY_CONFIGS):
        _create_topic(broker, name, plan, RETRY_CONFIGS.get(name, {}))
    return RetriedWorkload(_addresses(broker, plan), partitions=plan.partitions, seed=plan.seed)


def _judged_retried(
    retried: RetriedWorkload, broker: Appliance, clock: SteppedClock | None, say: Callable[[str], None]
) -> list[Anomaly]:
    if clock is not None:
        clock.set_ahead(0)
    found = retried.finish()
    say(retried.told())
    wrong = find_retried(retried.history, found, is_clock_kept=clock is None)
    return [
        *_told(retried.failures),
        *(Anomaly(each.kind, f"retried: {each.text}") for each in wrong),
        *(anomaly for name in (RETRIED, *RETRY_CONFIGS) for anomaly in compare_replicas(broker, name)),
    ]


def _transactions(broker: Appliance, plan: Plan, lanes: Lanes) -> TransactionWorkload:
    for name in TOPICS:
        _create_topic(broker, name, plan, {})
    ports = range(broker.port, broker.port + plan.slots)
    return TransactionWorkload(
        ports,
        partitions=plan.partitions,
        seed=plan.seed,
        pause_s=TRANSACTIONS_PAUSE_S,
        timeout_max_ms=LONG_TIMEOUT_MS if plan.duration_s >= LONG_RUN_S else SHORT_RUNS_TIMEOUT_MS,
        lanes=lanes,
    )


def _judged(work: TransactionWorkload, broker: Appliance) -> list[Anomaly]:
    wrong = _told(work.failures + work.read_everything() + work.reader_failures)
    return [
        *wrong,
        *(anomaly for name in TOPICS for anomaly in compare_replicas(broker, name)),
        *(
            Anomaly(each.kind, f"transactions: {each.text}")
            for each in transaction_anomalies.find(work.history)
        ),
    ]


def _addresses(broker: Appliance, plan: Plan) -> str:
    return ",".join(f"127.0.0.1:{broker.port + slot}" for slot in range(plan.slots))


def _loads(broker: Appliance, plan: Plan, turns: Turns) -> list[Workload]:
    """Of the topic whose log is kept whole, and of one whose log is shortened, and one that is compacted."""
    addresses = _addresses(broker, plan)
    trimming = {"retention.bytes": str(4 * SEGMENT_BYTES), "file.delete.delay.ms": "1000"}
    compacting = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.1",
        "file.delete.delay.ms": "1000",
    }
    _create_topic(broker, TOPIC, plan, {})
    _create_topic(broker, TRIMMED, plan, {**trimming, **_SMALL_SEGMENTS})
    _create_topic(broker, COMPACTED, plan, {**compacting, **_SMALL_SEGMENTS})
    whole = History.empty(partitions=plan.partitions, producers=plan.producers, readers=plan.readers)
    trimmed = History.empty(partitions=plan.partitions, producers=1, readers=0)
    compacted = History.empty(partitions=plan.partitions, producers=1, readers=0, keys=KEYS)
    beside_per_s = plan.records_per_s * _BESIDE_RECORDS_PER_S
    return [
        Workload(addresses, TOPIC, whole, records_per_s=plan.records_per_s, turns=turns),
        Workload(addresses, TRIMMED, trimmed, records_per_s=beside_per_s, is_trimmed=True, turns=turns),
        Workload(addresses, COMPACTED, compacted, records_per_s=beside_per_s, turns=turns),
    ]


def _start_behind(loads: Sequence[_Load]) -> None:
    """Start the clients so that all their threads run behind the brokers of this host.

    While connections are being opened, threads of librdkafka poll without sleeping (README). Before, a start of the
    appliance beside dozens of them took more than a minute on two cores. A thread inherits the nice value of the thread
    that starts it. Brokers are started by the main thread.
    """

    def start() -> None:
        thread = threading.get_native_id()
        os.setpriority(
            os.PRIO_PROCESS, thread, min(os.getpriority(os.PRIO_PROCESS, thread) + CLIENTS_NICER, 19)
        )
        for each in loads:
            each.start()

    with ThreadPoolExecutor(1) as one:
        one.submit(start).result()


def _disturb(
    plan: Plan,
    broker: Appliance,
    load: Workload,
    readers: BacklogReaders,
    work: TransactionWorkload | None,
    *,
    clock: SteppedClock | None,
    chance: random.Random,
    say: Callable[[str], None],
) -> tuple[list[str], list[int], list[Anomaly]]:
    """Until the time is up: a fault, new acknowledgements from every partition, a breath."""
    all_kinds = faults_for(
        plan.slots,
        workers=plan.workers,
        burst=load.burst,
        topic=TOPIC,
        trimmed=TRIMMED,
        compacted=COMPACTED,
        moments=None if work is None else work.moments,
    )
    if clock is not None:
        all_kinds += [set_clock(clock)] * 4
    kinds: list[Fault] = [fault for fault in all_kinds if fault.__name__ in plan.kinds or not plan.kinds]
    end = time.monotonic() + plan.duration_s
    done: list[str] = []
    recoveries_ms: list[int] = []
    stuck: list[Anomaly] = []
    bag: list[Fault] = []
    await_patiently(partial(load.await_progress, [0] * plan.partitions))

    def has_failed() -> bool:
        return bool(stuck or load.failures or readers.failures or (work is not None and work.failures))

    while time.monotonic() < end and not has_failed():
        if not bag:
            # Every kind comes before one comes again.
            bag = chance.sample(kinds, len(kinds))
        what = bag.pop()(broker, chance, plan.pause_max_s)
        began = time.monotonic()
        since = load.acknowledged()
        late = await_patiently(partial(load.await_progress, since))
        recoveries_ms.append(round((time.monotonic() - began) * 1000))
        done.append(what)
        say(f"{what}; acknowledged everywhere again after {recoveries_ms[-1]} ms")
        if late:
            stuck.append(Anomaly("stuck", f"partitions {late} acknowledge nothing after: {what}"))
        if work is not None and not late:
            idle = await_patiently(partial(work.await_progress, work.commits()))
            say(f"committed by all writers after {round((time.monotonic() - began) * 1000)} ms")
            if idle and not work.failures:
                doing = "; ".join(work.doing(idle))
                stuck.append(Anomaly("stuck", f"{idle} commit nothing after: {what}: {doing}"))
        time.sleep(chance.uniform(0.0, 1.0))
    return done, recoveries_ms, stuck


def _create_topic(broker: Appliance, name: str, plan: Plan, configs: Mapping[str, str]) -> None:
    in_sync = {"min.insync.replicas": str(min(2, plan.slots))}
    if plan.sets_clock:
        in_sync["message.timestamp.after.max.ms"] = str(1 << 62)  # clients do not see the broker's clock
    topic = NewTopic(name, plan.partitions, min(3, plan.slots), config={**in_sync, **configs})
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    (answer,) = admin.create_topics([topic]).values()
    refusal = answer.exception(timeout=60)
    assert refusal is None or refusal.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS, refusal


def _told(failures: list[str]) -> list[Anomaly]:
    return [Anomaly(*failure.split(": ", 1)) for failure in failures]


def compare_replicas(broker: Appliance, topic: str) -> list[Anomaly]:
    """Until all replicas of the topic are alike to their ends, or SETTLE_S is over."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        verified = subprocess.run(
            [
                *(sys.executable, "-m", "appliance", "log", "verify", topic, "--complete", "--json"),
                *("--data-dir", str(broker.data_dir)),
            ],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if verified.returncode == 0:
            return []
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    partitions: list[dict[str, Any]] = json.loads(verified.stdout or '{"partitions": []}')["partitions"]
    wrong = [
        Anomaly("diverged", f"partition {each['partition']}: {each['difference'] or each['replicas']}")
        for each in partitions
        if each["verdict"] != "alike"
    ]
    return wrong or [Anomaly("diverged", verified.stderr)]
