"""How cost grows with what exists: partitions, topics, connections, bytes of log, slots, I/O workers.

A figure is named METRIC@N, N being how many there were. `benchmarks/shapes.py` names the shape of the growth.
Each case has a broker of its own that grows from point to point. What is asked of it then goes to one fresh topic of
one partition, so that only what stands beside it differs.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from appliance.cluster import TopicPartition
from appliance.log.checkpoint import read_offsets
from appliance.log.file_names import RECOVERY_POINTS
from benchmarks import proc
from benchmarks.awake import awake_cores
from benchmarks.brokers.appliance import Appliance
from benchmarks.brokers.broker import create_on_first, create_topics
from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.load import generators
from benchmarks.machine import GIB

NOT_FOR_MOCK = frozenset({"mock"})
MIB = 1 << 20
TOPICS_AT_ONCE = 500
SLOTS, SLOTS_OF_JVMS = (1, 2, 3, 6, 12), (1, 2, 3)
WORKERS = (1, 2, 4, 8)


def _points(bench: Bench, points: Sequence[int]) -> list[int]:
    """All of them, or in a short look those that are short."""
    return [n for n in points if n <= bench.scale.most]


def _standing(bench: Bench, topic: str) -> Figures:
    """What the broker costs as it stands, idle and asked."""
    time.sleep(1.0)
    with bench.measure() as idle:
        time.sleep(1.0)
    figures = {
        "pss_mb": proc.pss_bytes(bench.broker.pids()) / 1e6,
        "idle_cpu_percent": idle.used.cpu_seconds * 100,
    }
    if bench.broker.wants_warm_up:
        return figures  # a cold JVM's answers would say nothing about what grows
    with awake_cores():
        one = generators.one_record("latency", bench.broker.address, topic=topic, seconds=1)
    many = generators.one_record("produce", bench.broker.address, topic=topic, seconds=1, connections=64)
    return {**figures, "p50_us": one.p50_us, "requests_s": many.requests_s}


def _restart(bench: Bench, topic: str) -> Figures:
    """A clean stop, and a start until a record in `topic` is acknowledged."""
    broker = bench.broker
    began = time.monotonic()
    broker.stop()
    stopped = time.monotonic()
    broker.knocks_at = topic
    broker.start()
    assert broker.first_ack_seconds is not None
    return {"stop_ms": (stopped - began) * 1e3, "start_ms": broker.first_ack_seconds * 1e3}


def _grow(bench: Bench, points: Sequence[int], grow: Callable[[int, int], None], *, restart: bool) -> Figures:
    """`grow(have, want)` makes more of it; then the cost is taken."""
    figures: Figures = {}
    bench.broker.create_topic("asked", 1)
    have = 0
    for want in _points(bench, points):
        began = time.monotonic()
        grow(have, want)
        got = {"create_ms_each": (time.monotonic() - began) / (want - have) * 1e3}
        have = want
        got |= _standing(bench, "asked")
        if restart:
            got |= _restart(bench, "asked")
        figures.update({f"{name}@{want}": value for name, value in got.items()})
    return figures


def _partitions(bench: Bench) -> Figures:
    if isinstance(bench.broker, Appliance):
        bench.broker.stop()
        bench.broker.options["max.partitions"] = "20000"
        bench.broker.options["max.request.partition.size.limit"] = "10000"
        bench.broker.start()
    return _grow(
        bench,
        (1, 10, 100, 1000, 10_000),
        lambda have, want: bench.broker.create_topic(f"partitions-{want}", want - have),
        restart=True,
    )


def _topics(bench: Bench) -> Figures:
    def grow(have: int, want: int) -> None:
        names = [f"topic-{number}" for number in range(have, want)]
        for at in range(0, len(names), TOPICS_AT_ONCE):
            create_topics(bench.broker.address, names[at : at + TOPICS_AT_ONCE], 1)

    return _grow(bench, (1, 10, 100, 1000, 3000), grow, restart=True)


def _connections(bench: Bench) -> Figures:
    figures: Figures = {}
    bench.broker.create_topic("asked", 1)
    for want in _points(bench, (1, 10, 100, 1000, 5000)):
        with _held(bench, want):
            got = _standing(bench, "asked")
        figures.update({f"{name}@{want}": value for name, value in got.items()})
    return figures


@contextmanager
def _held(bench: Bench, connections: int) -> Iterator[None]:
    held = generators.IdleConnections(bench.broker.address, connections)
    try:
        yield
    finally:
        held.close()


def _log(bench: Bench) -> Figures:
    """One partition that grows: memory, then a start after SIGKILL with what came since the last point not flushed,
    then a clean stop and a start after it.

    The kill comes first: a clean stop flushes, and a start after it has nothing to read again. How much lay past the
    recovery point is told beside the time, for segments that were rolled may have been flushed meanwhile. Raises Void
    when a record is missing afterwards.
    """
    broker, figures, have, knocks = bench.broker, Figures(), 0, 0
    broker.create_topic("log", 1)
    broker.knocks_at = "log"
    for want in (64, 256, 1024, 4096):
        if want * MIB > bench.scale.backlog_bytes * 4:
            break
        generators.stream_in(broker.address, "log", records=(want - have) * 1024, record_bytes=1024)
        have = want
        got = {"pss_mb": proc.pss_bytes(broker.pids()) / 1e6}
        broker.kill()
        # Records of 1 KiB.
        got["unflushed_mib"] = (want * 1024 + knocks - _recovery_point(broker.data_dir, "log")) / 1024
        broker.start()
        assert broker.first_ack_seconds is not None
        got["recovery_ms"] = broker.first_ack_seconds * 1e3
        bench.check_records("log", want * 1024 + knocks + 1)
        got |= _restart(bench, "log")
        knocks += 2
        figures.update({f"{name}@{want}": value for name, value in got.items()})
    return figures


def _recovery_point(data_dir: Path, topic: str) -> int:
    """Offset below which partition 0 of a topic is on the disk, as a broker that is gone has written it down, Kafka or
    ours; 0 where it has not."""
    partition = TopicPartition(topic, 0)
    return max((read_offsets(file).get(partition, 0) for file in data_dir.rglob(RECOVERY_POINTS)), default=0)


def _slots(bench: Bench) -> Figures:
    """Slots, each with a worker and a replica process; beside Kafka's brokers, each a JVM, as far as three go."""
    broker = bench.broker

    def have(slots: int) -> None:
        broker.setting = replace(broker.setting, slots=slots)

    return _afresh(bench, SLOTS if isinstance(broker, Appliance) else SLOTS_OF_JVMS, have)


def _workers(bench: Bench) -> Figures:
    """I/O workers of one slot."""
    broker = bench.broker
    assert isinstance(broker, Appliance), "Kafka has threads of one process instead"

    def have(workers: int) -> None:
        broker.options["io.workers"] = str(workers)

    return _afresh(bench, WORKERS, have)


def _afresh(bench: Bench, counts: Sequence[int], have: Callable[[int], None]) -> Figures:
    """A broker on an empty data directory for each point.

    What is streamed, and the requests over many partitions, go to 16 of them without further replicas, so that they
    show what more workers can take, not what copies cost; one record at a time goes to one partition of the first slot.
    """
    broker, base, figures = bench.broker, bench.broker.data_dir, Figures()
    for want in counts:
        broker.stop()
        have(want)
        broker.data_dir = base / f"point-{want}"
        broker.data_dir.mkdir()
        broker.start()
        create_on_first(broker.address, "asked")
        got = {"ready_ms": broker.start_seconds * 1e3, **_standing(bench, "asked")}
        if not broker.wants_warm_up:
            got |= _spread(bench)
        figures.update({f"{name}@{want}": value for name, value in got.items()})
    return figures


def _spread(bench: Bench) -> Figures:
    """What goes to many partitions at once."""
    address, partitions, records = bench.broker.address, 16, 256 * 1024
    create_topics(address, ["spread"], partitions)
    sent = generators.stream_in(address, "spread", records=records, record_bytes=1024, partition=None)
    bench.check_records("spread", records, partitions=partitions)
    read = generators.stream_out(address, "spread", records=records, record_bytes=1024, partitions=partitions)
    figures = {"in_mb_s": sent.mb_s, "out_mb_s": read.mb_s}
    if bench.broker.setting.slots == 1:  # our generator asks the one broker that it knows
        asked = generators.one_record(
            "produce", address, topic="spread", seconds=1, connections=64, partitions=partitions
        )
        figures["requests_spread_s"] = asked.requests_s
    return figures


def _case(name: str, what: str, run: Callable[[Bench], Figures], not_for: frozenset[str], lends: int) -> Case:
    return Case(name, what, run, not_for=not_for, rounds=1, by_name=True, own=True, lends_bytes=lends)


CASES = (
    _case("scale_partitions", "partitions of a broker", _partitions, NOT_FOR_MOCK, GIB),
    _case("scale_topics", "topics of one partition", _topics, NOT_FOR_MOCK, GIB),
    _case("scale_connections", "open connections that say nothing", _connections, NOT_FOR_MOCK, GIB // 8),
    _case("scale_log", "MiB of log in one partition", _log, NOT_FOR_MOCK, 4 * GIB),
    _case("scale_slots", "slots", _slots, NOT_FOR_MOCK, GIB),
    _case("scale_workers", "I/O workers of one slot", _workers, frozenset({"mock", "kafka"}), GIB),
)
