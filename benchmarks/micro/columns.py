"""Records/s and MB/s of Arrow tables in and out, beside single records and confluent-kafka, in one run.

python -m benchmarks.micro.columns [--at HOST:PORT] [--rounds N] [--megabytes N]

Starts an appliance of this tree unless `--at` names a broker. One topic of one partition for each way. Same batches for
all: 1,000,000 bytes (confluent-kafka's default), linger 5 ms, acks=all with idempotence, no compression. A way counts
until the last acknowledgement, or until the last record is in the hands of the program. Ways take turns; the medians
are printed as a table for docs/columns.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition

from appliance_client import Admin, Consumer, Producer, TopicPartition
from appliance_client.arrow import read_arrow_batches

BATCH_BYTES: Final = 1_000_000
COMMON: Final[dict[str, Any]] = {
    "batch_size": BATCH_BYTES,
    "linger_ms": 5,
    "buffer_memory": 256 << 20,
    "max_request_size": 4 << 20,
}
FETCH: Final[dict[str, Any]] = {"max_partition_fetch_bytes": 4 << 20, "fetch_max_bytes": 64 << 20}


def table_of(size_bytes: int, count: int) -> pa.Table:
    """So many random values."""
    raw = np.random.default_rng(1).bytes(size_bytes * count)
    offsets = pa.py_buffer(np.arange(0, size_bytes * (count + 1), size_bytes, dtype=np.int32))
    return pa.table({"value": pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(raw)])})


def arrow_in(address: str, topic: str, table: pa.Table, _values: list[bytes]) -> None:
    with Producer(bootstrap_servers=address, **COMMON) as producer:
        producer.send_arrow(topic, table).get(300)


def record_in(address: str, topic: str, _table: pa.Table, values: list[bytes]) -> None:
    with Producer(bootstrap_servers=address, **COMMON) as producer:
        for value in values:
            producer.send(topic, value)
        producer.flush()


def confluent_in(address: str, topic: str, _table: pa.Table, values: list[bytes]) -> None:
    producer = ConfluentProducer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "batch.size": BATCH_BYTES,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 256 << 10,
        }
    )
    for value in values:
        while True:
            try:
                producer.produce(topic, value)
            except BufferError:
                producer.poll(0.01)
            else:
                break
    producer.flush()


def arrow_out(address: str, topic: str, count: int) -> None:
    options = {"bootstrap_servers": address, **FETCH}
    found = sum(
        each.num_rows
        for each in read_arrow_batches(topic, columns=("offset", "timestamp", "key", "value"), **options)
    )
    assert found == count, (found, count)


def record_out(address: str, topic: str, count: int) -> None:
    found = 0
    place = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=address, max_poll_records=10_000, **FETCH) as consumer:
        consumer.assign([place])
        consumer.seek(place, 0)
        while found < count:
            found += sum(map(len, consumer.poll(1000).values()))


def confluent_out(address: str, topic: str, count: int) -> None:
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.message.max.bytes": 4 << 20,
            "queued.max.messages.kbytes": 128 << 10,
        }
    )
    consumer.assign([ConfluentPartition(topic, 0, 0)])
    found = 0
    while found < count:
        found += len(consumer.consume(10_000, 1.0))
    consumer.close()


IN: Final[dict[str, Callable[..., None]]] = {
    "native, Arrow": arrow_in,
    "native, records": record_in,
    "confluent-kafka": confluent_in,
}
OUT: Final[dict[str, Callable[..., None]]] = {
    "native, Arrow": arrow_out,
    "native, records": record_out,
    "confluent-kafka": confluent_out,
}


def measure(address: str, size_bytes: int, count: int, rounds: int) -> None:
    """Print the table's lines of one size."""
    table = table_of(size_bytes, count)
    values: list[bytes] = table["value"].to_pylist()
    taken: dict[tuple[str, str], list[float]] = {}
    with Admin(bootstrap_servers=address) as admin:
        for number in range(rounds + 1):
            for name, way_in in IN.items():
                topic = f"columns-{os.getpid()}-{size_bytes}-{number}-{name.replace(', ', '-')}"
                admin.create_topic(topic, 1)
                for what, way in (("in", way_in), ("out", OUT[name])):
                    time.sleep(0.3)
                    began_s = time.perf_counter()
                    way(address, topic, *((table, values) if what == "in" else (count,)))
                    if number:  # the first round loads kernels and pages
                        taken.setdefault((what, name), []).append(time.perf_counter() - began_s)
                admin.delete_topic(topic)
    for what in ("in", "out"):
        base_s = statistics.median(taken[what, "confluent-kafka"])
        for name in IN:
            took_s = statistics.median(taken[what, name])
            rate, rate_mb = count / took_s, count * size_bytes / took_s / 1e6
            spread = f"{count / max(taken[what, name]):,.0f} to {count / min(taken[what, name]):,.0f}"
            print(
                f"| {size_bytes} B {what} | {name} | {rate:,.0f} | {rate_mb:,.0f} | {base_s / took_s:.1f} | {spread} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--at")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=200)
    chosen = parser.parse_args()
    print(f"load before: {os.getloadavg()}")
    print("| | way | records/s | MB/s | of confluent-kafka | records/s of rounds |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        broker = None
        address = chosen.at
        if address is None:
            from tests.support.broker import Appliance

            broker = Appliance(Path(place) / "data")
            broker.start()
            address = broker.address
        try:
            for size_bytes in (100, 1024):
                measure(address, size_bytes, chosen.megabytes * 1_000_000 // size_bytes, chosen.rounds)
        finally:
            if broker is not None:
                broker.stop()
    print(f"load after: {os.getloadavg()}, {os.cpu_count()} processors, {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
