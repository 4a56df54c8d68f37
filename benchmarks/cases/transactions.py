"""Transactions: commits a second and how long one takes, reading what was committed, and what many ids cost."""

import os
import signal
import time
from collections.abc import Callable

from benchmarks import proc
from benchmarks.brokers.kafka import libs
from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.load import generators
from benchmarks.load.transactions import RECORD_BYTES
from benchmarks.void import Void

NOT_FOR_MOCK = frozenset({"mock"})
MANY_PRODUCERS = 50
READ_PRODUCERS = 2
"""Of two partitions, one each."""
COPIED = 20_000
ROUNDS = 2
"""In each of them another broker comes first. What the usual run has time for has one."""
MEMORY_IDS, OPEN_IDS = 100, 10
"""Thousands where the scale is whole."""


def _commits(records: int, producers: int = 1, version: int = 1) -> Callable[[Bench], Figures]:
    def run(bench: Bench) -> Figures:
        partitions = min(producers, 16)
        topic = bench.topic(partitions)
        with bench.measure() as broker:
            told = generators.transactions(
                "commit",
                bench.broker.address,
                topic,
                records=records,
                producers=producers,
                partitions=partitions,
                version=version,
                seconds=bench.scale.seconds,
            )
        # A marker stands behind the records of each transaction.
        bench.check_records(topic, int(told["transactions_of_all"]) * (records + 1), partitions=partitions)
        return {
            **{name: told[name] for name in COMMIT_FIGURES},
            "cpu_us_per_commit": broker.used.cpu_seconds / told["transactions_of_all"] * 1e6,
        }

    return run


COMMIT_FIGURES = (
    "commits_s",
    "records_s",
    "commit_p50_us",
    "commit_p99_us",
    "transaction_p50_us",
    "transaction_p99_us",
    "retries",
    "generator_share",
)


def _client(bench: Bench) -> Figures:
    """Through librdkafka: its own thread, its own retries."""
    topic = bench.topic()
    told = generators.transactions("client", bench.broker.address, topic, seconds=bench.scale.seconds)
    bench.check_records(topic, int(told["transactions_of_all"]) * 2)
    return {name: told[name] for name in COMMIT_FIGURES if name in told}


def _java(bench: Bench) -> Figures:
    """Through Kafka's own client."""
    topic = bench.topic()
    told = generators.java_transactions(bench.broker.address, topic, libs(), seconds=bench.scale.seconds)
    bench.check_records(topic, int(told["transactions_of_all"]) * 2)
    return {name: told[name] for name in COMMIT_FIGURES if name in told}


def _read(bench: Bench) -> Figures:
    topic = bench.topic(READ_PRODUCERS)
    told = generators.transactions(
        "commit",
        bench.broker.address,
        topic,
        records=100,
        producers=READ_PRODUCERS,
        partitions=READ_PRODUCERS,
        seconds=bench.scale.seconds * 2,
    )
    records = int(told["transactions_of_all"]) * 100
    with bench.measure() as broker:
        out = generators.stream_out(
            bench.broker.address,
            topic,
            records=records,
            record_bytes=RECORD_BYTES,
            partitions=READ_PRODUCERS,
            settings=("isolation.level=read_committed",),
        )
    return {
        "records_s": out.records_s,
        "cpu_s_per_million": broker.used.cpu_seconds / records * 1e6,
        "generator_share": out.generator_share,
    }


def _copy(bench: Bench) -> Figures:
    source, target = bench.topic(), bench.topic()
    told = generators.transactions(
        "copy", bench.broker.address, target, source=source, ids=COPIED, seconds=bench.scale.seconds
    )
    return {"records_s": told["records_s"], "generator_share": told["generator_share"]}


def _ids(bench: Bench) -> Figures:
    """Memory of transactional ids that have done nothing yet."""
    address, count = bench.broker.address, MEMORY_IDS * bench.scale.many
    topic = bench.topic()
    generators.transactions("ids", address, f"{topic}-warm", ids=1000)
    time.sleep(1.0)
    before = proc.pss_bytes(bench.broker.pids())
    told = generators.transactions("ids", address, topic, ids=count)
    grown = proc.pss_bytes(bench.broker.pids()) - before
    return {"ids_s": told["ids_s"], "bytes_per_id": grown / count}


def _killed(bench: Bench) -> Figures:
    """A killed coordinator, or with Kafka a killed broker, until the first of many open transactions is committed."""
    broker, count = bench.broker, OPEN_IDS * bench.scale.many
    broker.create_topic("open", 1)
    told = generators.transactions("open", broker.address, "open", ids=count)
    coordinators = [pid for pid in broker.pids() if "coordinator" in proc.title_of(pid)]
    killed_at_ns = time.monotonic_ns()
    if coordinators:
        for pid in coordinators:
            os.kill(pid, signal.SIGKILL)
    else:
        broker.kill()
        broker.start()
    answered = generators.transactions(
        "first",
        broker.address,
        "open",
        producer_id=int(told["producer_id"]),
        epoch=int(told["epoch"]),
    )
    milliseconds = (answered["answered_ns"] - killed_at_ns) / 1e6
    if milliseconds < 0:
        raise Void("a commit was answered before the kill")
    return {"first_commit_ms": milliseconds}


def _case(name: str, what: str, run: Callable[[Bench], Figures], *, own: bool = False) -> Case:
    rounds = 1 if own or name in USUAL else ROUNDS
    return Case(name, what, run, not_for=NOT_FOR_MOCK, rounds=rounds, own=own, by_name=name not in USUAL)


USUAL = frozenset({"transactions_100"})
"""What a run without names has time for; `make bench ALSO=` adds the others."""
CASES = (
    _case(
        "transactions_1",
        "transactions of one 100 B record, one producer, protocol version 1, bare socket",
        _commits(1),
    ),
    _case("transactions_1_v2", "the same with version 2", _commits(1, version=2)),
    _case("transactions_100", "transactions of 100 records, one producer, version 1", _commits(100)),
    _case("transactions_100_v2", "the same with version 2", _commits(100, version=2)),
    _case("transactions_10000", "transactions of 10,000 records, one producer, version 1", _commits(10_000)),
    _case(
        "transactions_50",
        "transactions of one record, 50 producers over 16 partitions, version 1",
        _commits(1, MANY_PRODUCERS),
    ),
    _case("transactions_50_v2", "the same with version 2", _commits(1, MANY_PRODUCERS, 2)),
    _case("transactions_client", "transactions of one record through librdkafka, linger 0", _client),
    _case(
        "transactions_java",
        "transactions of one record through Kafka's own Java client, version 2, linger 0",
        _java,
    ),
    _case(
        "transactions_read",
        "what transactions of 100 records have written, read by one read_committed consumer (librdkafka)",
        _read,
    ),
    _case(
        "transactions_copy",
        f"consume, transform, produce: {COPIED:,} records in transactions of 100, offsets too (confluent-kafka)",
        _copy,
    ),
    _case("transactions_ids", "memory of 100,000 transactional ids", _ids, own=True),
    _case(
        "transactions_killed",
        "SIGKILL to the coordinator with 10,000 open transactions, until the first is committed",
        _killed,
        own=True,
    ),
)
