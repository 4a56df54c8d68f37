"""Records in and out through Python clients, one call a record, side by side: the native client and three others."""

from collections.abc import Callable

from benchmarks.brokers.builds import client_build
from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.load import generators
from benchmarks.load.python_clients import CLIENTS

SLOW = {"kafka_python": 8, "aiokafka": 8}
"""So many times fewer records, or one of them takes as long as all others."""


def _clients(record_bytes: int, records: int) -> Callable[[Bench], Figures]:
    def run(bench: Bench) -> Figures:
        figures: Figures = {}
        build = client_build()
        for client in CLIENTS:
            topic, some = bench.topic(), records // SLOW.get(client, 1)
            for way in ("in", "out"):
                told = generators.python_client(
                    build, client, way, bench.broker.address, topic, records=some, record_bytes=record_bytes
                )
                figures[f"{client}_{way}_records_s"] = told["records"] / told["seconds"]
                figures[f"{client}_{way}_cpu_us"] = told["cpu_seconds"] / told["records"] * 1e6
                bench.check_records(topic, some)
        for way in ("in", "out"):
            native, confluent = (figures[f"{each}_{way}_records_s"] for each in ("native", "confluent"))
            figures[f"{way}_ratio"] = native / confluent
        return figures

    return run


CASES = (
    Case(
        "python_100",
        "100 B records in and out, one call a record: native client, confluent-kafka, kafka-python, aiokafka",
        _clients(100, 800_000),
        rounds=3,
        by_name=True,
    ),
    Case(
        "python_1k",
        "the same with records of 1 KiB",
        _clients(1024, 240_000),
        rounds=3,
        by_name=True,
    ),
)
