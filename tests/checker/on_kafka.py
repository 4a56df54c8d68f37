"""`python -m tests.checker.on_kafka`: the transactional workload on Apache Kafka, which has to come out clean.

Anomalies here would be the checker's own. With `--faults` the whole broker is killed and paused: that has shown a
weakness of Kafka's, too (README).
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.checker.anomalies import Anomaly
from tests.checker.transaction_anomalies import find
from tests.checker.transaction_workload import TOPICS, TransactionWorkload
from tests.support.apache_kafka import ApacheKafka

PARTITIONS = 4
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "transaction.state.log.num.partitions": 8,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checker.on_kafka", description=__doc__)
    parser.add_argument("--duration-s", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--faults", action="store_true")
    given = parser.parse_args()
    os.environ["_JAVA_OPTIONS"] = "-Xmx512m"  # above what the test support asks for
    directory = Path(tempfile.mkdtemp(prefix="checker-kafka-"))
    print(f"seed {given.seed}, data in {directory}", flush=True)
    broker = ApacheKafka(directory, settings=SETTINGS)
    broker.start()
    try:
        anomalies = check(broker, given.duration_s, given.seed, has_faults=given.faults)
    finally:
        broker.kill()
    for anomaly in anomalies:
        print(anomaly)
    return 1 if anomalies else 0


def check(broker: ApacheKafka, duration_s: float, seed: int, *, has_faults: bool) -> list[Anomaly]:
    admin = AdminClient({"bootstrap.servers": broker.address})
    for answer in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in TOPICS]).values():
        answer.result(60)
    work = TransactionWorkload([broker.port], partitions=PARTITIONS, seed=seed)
    work.start()
    chance = random.Random(seed)
    stuck = []
    end = time.monotonic() + duration_s
    while time.monotonic() < end:
        time.sleep(min(chance.uniform(2.0, 6.0), max(0.0, end - time.monotonic())))
        if has_faults:
            disturb(broker, chance, work)
        late = work.await_progress(work.commits(), 90)
        if late:
            stuck.append(Anomaly("stuck", f"{late} commit nothing"))
            break
    idle = work.idle(120)
    work.stop_producing()
    wrong = idle + work.failures + work.read_everything() + work.reader_failures
    print(work.told(), flush=True)
    return [*stuck, *(Anomaly(*each.split(": ", 1)) for each in wrong), *find(work.history)]


def disturb(broker: ApacheKafka, chance: random.Random, work: TransactionWorkload) -> None:
    work.moments.wait_for(chance.choice(work.moments.NAMES), 5)
    time.sleep(chance.uniform(0.0, 0.01))
    if chance.random() < 0.5:
        broker.kill()
        broker.start()
        return
    os.kill(broker.pid, signal.SIGSTOP)
    time.sleep(chance.uniform(0.1, 5.0))
    os.kill(broker.pid, signal.SIGCONT)


if __name__ == "__main__":
    raise SystemExit(main())
