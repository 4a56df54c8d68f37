"""What a scrape costs at 10,000 partitions: processor time of the metrics process, bytes, and how long a page takes.

`python -m benchmarks.micro.scrape [TOPICS]` (1,000 topics with 10 partitions where none is given). It starts a broker,
creates the topics, commits offsets for GROUPS groups, and reads each page PAGES times, each time after the page before
is not fresh any more. Processor time is what the kernel counts for the whole process over all pages, less what it uses
in the same time without a scrape. Ends with 1 if a page of `/metrics` or `/metrics/kafka` takes more than BOUND_MS.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

import psutil
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.broker import Appliance
from tests.support.scrape import OPENMETRICS, get
from tests.support.wire import free_ports

PARTITIONS: Final = 10
GROUPS: Final = 10
COMMITTED: Final = 100
"""Partitions for which each group commits an offset."""
PAGES: Final = 40
FRESH_S: Final = 1.05
"""For longer than this no page is sent again."""
BOUND_MS: Final = 50.0
PATIENCE_S: Final = 300


def main(arguments: list[str]) -> int:
    """Measure, print a table, and return the exit code."""
    topics = int(arguments[0]) if arguments else 1000
    port = free_ports(1)
    with tempfile.TemporaryDirectory() as directory:
        broker = Appliance(
            Path(directory) / "data",
            settings={
                "metrics.listener": f"127.0.0.1:{port}",
                "metrics.topics.max": topics + 100,
                "max.partitions": topics * PARTITIONS + 1000,
            },
        )
        broker.start()
        try:
            names = [f"topic-{number:04}" for number in range(topics)]
            _create(broker, names)
            _commit(broker, names)
            return _measure(broker, port, partitions=topics * PARTITIONS)
        finally:
            broker.kill()


def _create(broker: Appliance, names: list[str]) -> None:
    client = AdminClient({"bootstrap.servers": broker.address})
    for first in range(0, len(names), 100):
        some = [NewTopic(name, PARTITIONS, 1) for name in names[first : first + 100]]
        for done in client.create_topics(
            some, operation_timeout=PATIENCE_S, request_timeout=PATIENCE_S
        ).values():
            done.result(PATIENCE_S)


def _commit(broker: Appliance, names: list[str]) -> None:
    for number in range(GROUPS):
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": f"group-{number}"})
        places = [TopicPartition(name, 0, 0) for name in names[:COMMITTED]]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()


class Page:
    """One page as a scraper asks for it: how long each read has taken, and the bytes of the last."""

    def __init__(self, port: int, path: str, accept: str = "") -> None:
        self.name = f"{path}, {'OpenMetrics' if accept else 'text'}"
        self.waits_ms: list[float] = []
        self.size_bytes = 0
        self._port, self._path = port, path
        self._headers = {"Accept": accept} if accept else {}

    def read(self) -> None:
        """Read it once."""
        began = time.monotonic()
        _, _, body = get(self._port, self._path, **self._headers)
        self.waits_ms.append((time.monotonic() - began) * 1000)
        self.size_bytes = len(body)


def _measure(broker: Appliance, port: int, *, partitions: int) -> int:
    (pid,) = broker.pids("metrics")
    process = psutil.Process(pid)
    get(port, "/metrics")  # from now on the process asks about groups
    time.sleep(5)
    idle_ms = _used_ms(process, lambda: None)
    worst = 0.0
    print(f"{partitions} partitions, {GROUPS} groups, pages read {PAGES} times each")
    print("| page | processor time, ms | longest and median time, ms | bytes |\n|---|---|---|---|")
    for page in (Page(port, "/metrics"), Page(port, "/metrics", OPENMETRICS), Page(port, "/metrics/kafka")):
        used_ms = _used_ms(process, page.read) - idle_ms
        worst = max(worst, used_ms)
        times = f"{max(page.waits_ms):.0f}, {median(page.waits_ms):.0f}"
        print(f"| {page.name} | {used_ms:.1f} | {times} | {page.size_bytes:,} |")
    return int(worst > BOUND_MS)


def _used_ms(process: psutil.Process, read: Callable[[], object]) -> float:
    """Return the processor time of one of PAGES turns, each as long as a page is fresh."""
    before = process.cpu_times()
    for _ in range(PAGES):
        read()
        time.sleep(FRESH_S)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) * 1000 / PAGES


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
