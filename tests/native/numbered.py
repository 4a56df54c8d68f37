"""A topic of four partitions filled with numbers, and what a consumer reads of it."""

from __future__ import annotations

import time
from typing import Any, Final

from appliance_client import Consumer, Producer

PATIENCE_S: Final = 60.0


def fill(address: str, topic: str, records: int) -> None:
    with Producer(bootstrap_servers=address) as producer:
        futures = [producer.send(topic, b"%d" % number, partition=number % 4) for number in range(records)]
        for future in futures:
            future.get(PATIENCE_S)


def read(consumer: Consumer, records: int) -> list[Any]:
    values: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(values) < records and time.monotonic() < deadline:
        for found in consumer.poll(200).values():
            values += [record.value for record in found]
    return values
