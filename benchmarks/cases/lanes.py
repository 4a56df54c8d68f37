"""Clients on this host: the ways into the appliance side by side, and beside Apache Kafka over TCP.

| way | what |
|---|---|
| `tcp` | Kafka's protocol over loopback; the only one of Kafka |
| `zeromq` | the same requests in ZeroMQ frames, by ipc |
| `lane` | a shared-memory lane; a consumer of one reads the files itself |

A figure of processor time is that of all processes of the broker while the way had its turns.
"""

from collections.abc import Callable

from benchmarks.brokers.builds import client_build
from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.load import generators
from benchmarks.load.python_clients import ARROW, CLIENTS, WARM_UP_RECORDS
from benchmarks.machine import GIB

NOT_FOR_MOCK = frozenset({"mock"})
SETTING = frozenset({"lanes"})
ROUNDS = 5
NATIVE = "native"
BATCH_BYTES = 1_000_000
"""librdkafka's default; the same for all clients."""
SLOW = {"kafka_python": 8, "aiokafka": 8}
FAST = {ARROW: 4}
"""So many times fewer or more records, or one of them takes as long as all others."""
READ_BATCHES = {"16k": 16_384, "1m": BATCH_BYTES}
READ_RECORD_BYTES = 1_000


def _latency(bench: Bench) -> Figures:
    topic, others = bench.topic(), bench.broker.lanes()
    floors = {"floors": "yes"} if others else {}
    told = generators.lanes(
        client_build(),
        "latency",
        topic,
        seconds=bench.scale.seconds,
        pids=bench.broker.pids(),
        tcp=bench.broker.address,
        **others,
        **floors,
    )
    bench.check_records(topic, int(told.pop("all")["acknowledged"]))
    figures = _flat(told)
    # A floor has no broker: what it idles meanwhile is not the floor's.
    figures = {name: value for name, value in figures.items() if not name.startswith(FLOORS_CPU)}
    fastest = "lane" if "lane" in told else "tcp"
    figures["fastest_p50_us"], figures["fastest_p99_us"] = (
        told[fastest][key] for key in ("p50_us", "p99_us")
    )
    return figures


FLOORS_CPU = ("echo_cpu", "ping_pong_cpu")


def _frames(bench: Bench) -> Figures:
    topic = bench.topic()
    told = generators.lanes(
        client_build(),
        "frames",
        topic,
        seconds=bench.scale.seconds,
        pids=bench.broker.pids(),
        tcp=bench.broker.address,
        **bench.broker.lanes(),
    )
    bench.check_records(topic, int(told.pop("all")["acknowledged"]))
    return _flat(told)


def _flat(told: dict[str, dict[str, float]]) -> Figures:
    return {f"{way}_{name}": value for way, figures in told.items() for name, value in figures.items()}


def _throughput(record_bytes: int, records: int) -> Callable[[Bench], Figures]:
    def run(bench: Bench) -> Figures:
        figures: Figures = {}
        build = client_build()
        for name, client, address in _clients(bench):
            some = records * FAST.get(client, 1) // SLOW.get(client, 1)
            some = some * bench.scale.stream_bytes // (GIB // 2) // WARM_UP_RECORDS * WARM_UP_RECORDS
            topic = bench.topic()
            for way in ("in", "out"):
                with bench.measure() as broker:
                    told = generators.python_client(
                        build,
                        client,
                        way,
                        address,
                        topic,
                        records=some,
                        record_bytes=record_bytes,
                        batch_bytes=BATCH_BYTES,
                    )
                bench.check_records(topic, some)
                speed = told["records"] / told["seconds"]
                figures[f"{name}_{way}_records_s"] = speed
                figures[f"{name}_{way}_mb_s"] = speed * record_bytes / 1e6
                figures[f"{name}_{way}_cpu_s_per_gb"] = broker.used.cpu_seconds / (some * record_bytes) * 1e9
                figures[f"{name}_{way}_client_cpu_us"] = told["cpu_seconds"] / told["records"] * 1e6
            bench.broker.delete_topic(topic)
            bench.topics.remove(topic)
        return figures

    return run


def _clients(bench: Bench) -> list[tuple[str, str, str]]:
    """Name in the figures, client, address."""
    ways = {"tcp": bench.broker.address}
    for way, at in bench.broker.lanes().items():
        ways[way] = f"zmq+{at}" if way == "zeromq" else f"shm://{at}"
    found = [(f"{client}_{way}", client, at) for way, at in ways.items() for client in (ARROW, NATIVE)]
    return found + [(client, client, bench.broker.address) for client in CLIENTS if client != NATIVE]


def _local_reading(bench: Bench) -> Figures:
    figures: Figures = {}
    directory = bench.broker.lanes()["lane"]
    records = bench.scale.stream_bytes // READ_RECORD_BYTES
    for name, batch_bytes in READ_BATCHES.items():
        topic = bench.topic()
        generators.python_client(
            client_build(),
            NATIVE,
            "in",
            bench.broker.address,
            topic,
            records=records,
            record_bytes=READ_RECORD_BYTES,
            batch_bytes=batch_bytes,
        )
        bench.check_records(topic, records)
        told = generators.lanes(
            client_build(),
            "local",
            topic,
            seconds=bench.scale.seconds,
            pids=bench.broker.pids(),
            lane=directory,
            records=records,
        )["local"]
        figures |= {f"{name}_{key}": value for key, value in told.items()}
    return figures


def _case(name: str, what: str, run: Callable[[Bench], Figures], **how: bool | int | frozenset[str]) -> Case:
    return Case(
        name,
        what,
        run,
        settings=SETTING,
        rounds=ROUNDS,
        by_name=True,
        **{"not_for": NOT_FOR_MOCK, **how},  # type: ignore[arg-type]
    )


CASES = (
    _case(
        "lane_latency",
        "one 100 B record at a time, acks=1, by TCP, ZeroMQ ipc and a shared-memory lane, beside a bare ZeroMQ echo "
        "and a bare eventfd ping-pong; one Python program, ways in turns",
        _latency,
        awake=True,
    ),
    _case(
        "lane_frames",
        "batches of 1 MB out of the page cache by Fetch, one and four in flight; the client copies no ZeroMQ frame",
        _frames,
    ),
    _case(
        "lane_throughput_1k",
        "1 KiB records from Python: native client on each way, per record and in Arrow; confluent-kafka, kafka-python, "
        "aiokafka; batches of 1,000,000 bytes",
        _throughput(1024, 240_000),
        lends_bytes=GIB // 2,
    ),
    _case(
        "lane_throughput_100",
        "the same with records of 100 B",
        _throughput(100, 800_000),
        lends_bytes=GIB // 2,
    ),
    _case(
        "local_reading",
        "a partition's files read out of the page cache by `shm://`: every batch's checksum, records counted by their "
        "batch headers",
        _local_reading,
        not_for=frozenset({"mock", "kafka"}),
        lends_bytes=GIB // 2,
    ),
)
