"""Brokers that hold much: a thousand partitions or topics, a log to recover. Each has a broker of its own."""

import time
from typing import Final

from benchmarks import proc
from benchmarks.brokers.broker import Broker, create_topics
from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.cases.one_record import fixed_rate_figures
from benchmarks.load import generators
from benchmarks.machine import GIB

NOT_FOR_MOCK = frozenset({"mock"})
FIRST_CLIENTS: Final = 8
"""So many that each of two processes answers one of them, but for one run in a hundred."""
TRICKLE_SECONDS = 3.0
"""Longer is dear: Apache Kafka needs ten times as long for it, beside one who reads a thousand partitions."""


def _settle(broker: Broker) -> None:
    """A first wave, so that what a process loads once, with its first request, is not counted as the price of a
    partition. Which process answers a client is chance."""
    for number in range(FIRST_CLIENTS):
        broker.create_topic(f"few-{number}", 1)
    time.sleep(1.0)


def _start_with_partitions(bench: Bench) -> Figures:
    """A topic of many partitions is made; then a clean stop, and a start until one of them takes a record."""
    broker, partitions = bench.broker, bench.scale.many
    _settle(broker)
    before = proc.pss_bytes(broker.pids())
    began = time.monotonic()
    broker.create_topic("many", partitions)
    create_seconds = time.monotonic() - began
    time.sleep(1.0)
    grown = proc.pss_bytes(broker.pids()) - before
    with bench.measure() as idle:
        time.sleep(bench.scale.seconds)
    broker.stop()
    broker.knocks_at = "many"
    broker.start()
    assert broker.first_ack_seconds is not None
    return {
        "first_ack_ms": broker.first_ack_seconds * 1e3,
        "create_ms_per_partition": create_seconds / partitions * 1e3,
        "kb_per_partition": grown / partitions / 1e3,
        "cpu_percent": idle.used.cpu_seconds / bench.scale.seconds * 100,
    }


def _recovery(bench: Bench, length_bytes: int) -> Figures:
    """SIGKILL to all of it with a log just written; then a start until that log takes the next record."""
    broker = bench.broker
    records = length_bytes // 1024
    broker.create_topic("log", 1)
    generators.stream_in(broker.address, "log", records=records, record_bytes=1024)
    broker.kill()
    broker.knocks_at = "log"
    broker.start()
    assert broker.first_ack_seconds is not None
    bench.check_records("log", records + 1)
    return {"first_ack_ms": broker.first_ack_seconds * 1e3, "ready_ms": broker.start_seconds * 1e3}


def _topics(bench: Bench) -> Figures:
    """Many topics of one partition, and a trickle: one record a second and topic."""
    broker, many = bench.broker, bench.scale.many
    names = [f"topic-{number}" for number in range(many)]
    _settle(broker)
    before = proc.pss_bytes(broker.pids())
    began = time.monotonic()
    create_topics(broker.address, names, 1)
    create_seconds = time.monotonic() - began
    grown = proc.pss_bytes(broker.pids()) - before
    if broker.wants_warm_up:
        warm = [f"warm-{number}" for number in range(min(100, many))]
        create_topics(broker.address, warm, 1)
        generators.fixed_rate(broker.address, warm, partitions=1, records_s=many, seconds=TRICKLE_SECONDS)
    with bench.measure() as trickle:
        told = generators.fixed_rate(
            broker.address, names, partitions=1, records_s=many, seconds=TRICKLE_SECONDS
        )
    return {
        "create_ms_per_topic": create_seconds / many * 1e3,
        "kb_per_topic": grown / many / 1e3,
        "first_round_seconds": told.first_round_seconds,
        "made_seconds": create_seconds + told.first_round_seconds,
        **fixed_rate_figures(told, trickle.used.cpu_seconds),
    }


CASES = (
    Case(
        "start_1000",
        "the same with a topic of 1,000 partitions, after a clean stop; what they cost in memory and when idle",
        _start_with_partitions,
        not_for=NOT_FOR_MOCK,
        rounds=1,
        own=True,
    ),
    Case(
        "recovery_1g",
        "the same with 1 GiB",
        lambda bench: _recovery(bench, bench.scale.backlog_bytes),
        not_for=NOT_FOR_MOCK,
        rounds=1,
        by_name=True,
        lends_bytes=2 * GIB,
        own=True,
    ),
    Case(
        "recovery_10g",
        "SIGKILL to every process with 10 GiB of log in one partition, then exec to the next acknowledged record in it",
        lambda bench: _recovery(bench, 10 * bench.scale.backlog_bytes),
        not_for=NOT_FOR_MOCK,
        rounds=1,
        lends_bytes=4 * GIB,
        own=True,
    ),
    Case(
        "topics_1000",
        "1,000 topics of one partition, 1 KiB a second to each, written and read by librdkafka, linger 5 ms",
        _topics,
        not_for=NOT_FOR_MOCK,
        rounds=1,
        own=True,
    ),
)
