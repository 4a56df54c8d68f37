"""Reading a partition's files on this host beside fetching it over TCP: `python -m benchmarks.micro.local_reading`.

    bytes/s    one partition out of the page cache, with every batch's checksum, records counted by the batch headers
               in one pass (`appliance.protocol.columns.batch_headers`); and the processor time of the broker meanwhile
    latency    from `send` to `poll`, of one record at a time, by a consumer of each address; with a rest between two
               records, and without one
    the cost   records/s of one producer that waits for each record, while nobody and while a reader waits for news
    watching   processor time of broker and readers while 0, 1 and 50 readers wait for an idle partition, and records/s
               of a producer at full speed with 0, 1 and 10 readers that count what they read

Medians of `--rounds` rounds, which alternate. The broker is the one of this source tree, as it is installed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from appliance.protocol.columns.batch_headers import walk_headers
from appliance_client import Admin, Consumer, Producer, TopicPartition
from appliance_client.local_reader import LocalReader
from tests.support.broker import Appliance

LOG_BYTES: Final = 768 << 20
BATCH_BYTES: Final = (16_384, 1_000_000)
RECORD_BYTES: Final = 1_000
LATENCIES: Final = 300
REST_S: Final = 0.05
IDLE_READERS: Final = 50
"""A user has 128 inotify instances by default (fs.inotify.max_user_instances)."""
IDLE_S: Final = 10.0
FULL_SPEED: Final = 100_000


def fill(address: str, topic: str, batch_bytes: int) -> int:
    """Write LOG_BYTES in batches of this size; the number of records."""
    with Admin(bootstrap_servers=address) as admin:
        admin.create_topic(topic, 1)
    records = LOG_BYTES // RECORD_BYTES
    with Producer(
        bootstrap_servers=address, batch_size=batch_bytes, linger_ms=50, max_request_size=1 << 20
    ) as producer:
        for _ in range(records):
            producer.send(topic, b"x" * RECORD_BYTES, partition=0)
        producer.flush()
    return records


def read_files(broker: Appliance, topic: str, records: int) -> tuple[float, float]:
    """GB/s, and seconds of the broker's processor time."""
    before_s = processor_s(broker)
    counted = size_bytes = 0
    with LocalReader(broker.data_dir, topic, 0, offset=0) as reader:
        began_s = time.perf_counter()
        while counted < records:
            content = reader.read()
            counted += int(walk_headers(content).batches["records"].sum())
            size_bytes += len(content)
        took_s = time.perf_counter() - began_s
    return size_bytes / took_s / 1e9, processor_s(broker) - before_s


def processor_s(broker: Appliance) -> float:
    times = [each.cpu_times() for each in broker.family()]
    return sum(each.user + each.system for each in times)


def latency_ms(address: str, producer: Producer, topic: str, rest_s: float) -> tuple[float, float]:
    """Median and 99th percentile, in milliseconds."""
    found = []
    with Consumer(bootstrap_servers=address, auto_offset_reset="latest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.position(TopicPartition(topic, 0))
        for _ in range(LATENCIES):
            time.sleep(rest_s)
            began_s = time.perf_counter()
            producer.send(topic, b"x" * 100, partition=0)
            while not consumer.poll(1_000):
                pass
            found.append(1_000 * (time.perf_counter() - began_s))
    found.sort()
    return statistics.median(found), found[len(found) * 99 // 100]


def one_at_a_time(producer: Producer, topic: str) -> float:
    """Records/s."""
    began_s = time.perf_counter()
    for _ in range(2_000):
        producer.send(topic, b"x" * 100, partition=0).get(30)
    return 2_000 / (time.perf_counter() - began_s)


def count_records(data_dir: Path, topic: str) -> None:
    """A reader, as a process of its own; ends when it is killed."""
    with LocalReader(data_dir, topic, 0) as reader:
        while True:
            if not len(walk_headers(reader.read()).batches):
                reader.wait(60)


@contextmanager
def readers(broker: Appliance, topic: str, count: int) -> Iterator[Callable[[], float]]:
    """So many of them; gives their processor time so far in seconds."""
    walk_headers(bytes(61))  # loads numba here, and not in each of them
    context = multiprocessing.get_context("fork")
    started = [
        context.Process(target=count_records, args=(broker.data_dir, topic), daemon=True)
        for _ in range(count)
    ]
    for each in started:
        each.start()
    time.sleep(1 + count / 20)

    def spent_s() -> float:
        times = [psutil.Process(each.pid).cpu_times() for each in started]
        return sum(each.user + each.system for each in times)

    try:
        yield spent_s
    finally:
        for each in started:
            each.kill()
            each.join()


def measure_watching(broker: Appliance, rounds: int) -> None:
    with Admin(bootstrap_servers=broker.address) as admin:
        admin.create_topic("watched", 1)
        admin.create_topic("full-speed", 1)
    for count in (0, 1, IDLE_READERS):
        with readers(broker, "watched", count) as spent_s:
            before = processor_s(broker), spent_s()
            time.sleep(IDLE_S)
            after = processor_s(broker), spent_s()
        broker_ms, readers_ms = (1e3 * (b - a) / IDLE_S for a, b in zip(before, after, strict=True))
        print(f"{count} idle readers: broker {broker_ms:.1f}, readers {readers_ms:.1f} ms/s", flush=True)
    speeds: dict[int, list[float]] = {0: [], 1: [], 10: []}
    with Producer(bootstrap_servers=broker.address, batch_size=131_072) as producer:
        for _ in range(rounds):
            for count, found in speeds.items():
                with readers(broker, "full-speed", count):
                    began_s = time.perf_counter()
                    for _ in range(FULL_SPEED):
                        producer.send("full-speed", b"x" * 1024, partition=0)
                    producer.flush()
                    found.append(FULL_SPEED / (time.perf_counter() - began_s))
    for count, found in speeds.items():
        print(f"{count} readers: {statistics.median(found):,.0f} records/s of 1 KiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--interval-ms", type=int, default=20, help="reader.state.interval.ms")
    parser.add_argument("--no-bytes", action="store_true", help="without bytes/s")
    parser.add_argument("--only-watching", action="store_true", help="only what watching costs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        broker = Appliance(Path(home) / "data", settings={"reader.state.interval.ms": given.interval_ms})
        broker.start()
        try:
            if not (given.no_bytes or given.only_watching):
                measure_bytes(broker, given.rounds)
            if not given.only_watching:
                measure_latency(broker, given.rounds)
            measure_watching(broker, given.rounds)
        finally:
            broker.stop()


def measure_bytes(broker: Appliance, rounds: int) -> None:
    for batch_bytes in BATCH_BYTES:
        topic = f"bytes-{batch_bytes}"
        records = fill(broker.address, topic, batch_bytes)
        read_files(broker, topic, records)
        found = [read_files(broker, topic, records) for _ in range(rounds)]
        speed = statistics.median(each[0] for each in found)
        spent_s = statistics.median(each[1] for each in found)
        print(
            f"batches of {batch_bytes:>9,} bytes: {speed:.2f} GB/s; broker {1e3 * spent_s:.0f} ms", flush=True
        )


def measure_latency(broker: Appliance, rounds: int) -> None:
    with Admin(bootstrap_servers=broker.address) as admin:
        admin.create_topic("latency", 1)
    addresses = {"files": f"shm://{broker.data_dir}", "TCP": broker.address}
    with Producer(bootstrap_servers=broker.address, linger_ms=0) as producer:
        for rest_s in (REST_S, 0.0):
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in addresses}
            for _ in range(rounds):
                for name, address in addresses.items():
                    times[name].append(latency_ms(address, producer, "latency", rest_s))
            for name, each in times.items():
                p50, p99 = (statistics.median(values) for values in zip(*each, strict=True))
                print(f"rest {1e3 * rest_s:.0f} ms, {name:5}: p50 {p50:.2f} ms, p99 {p99:.2f} ms", flush=True)
        cost(broker, producer, rounds)


def cost(broker: Appliance, producer: Producer, rounds: int) -> None:
    speeds: dict[str, list[float]] = {"nobody waits": [], "a reader waits": []}
    for _ in range(rounds):
        speeds["nobody waits"].append(one_at_a_time(producer, "latency"))
        with LocalReader(broker.data_dir, "latency", 0) as reader:
            reader.read()  # from here on the state file is watched
            speeds["a reader waits"].append(one_at_a_time(producer, "latency"))
    for name, each in speeds.items():
        print(f"{name}: {statistics.median(each):,.0f} records/s, one at a time", flush=True)


if __name__ == "__main__":
    main()
