"""What a reader of committed records finds in a topic, waited for."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.spark.consumers import consumed_to_the_end


def committed_values(address: str, topic: str, partitions: int) -> list[list[str]]:
    """The values of each partition in order, from its start to where a reader of committed records is told to stop."""
    values: list[list[str]] = [[] for _ in range(partitions)]
    for each in consumed_to_the_end(address, topic, partitions, isolation="read_committed"):
        assert each.value is not None
        values[each.partition].append(each.value.decode())
    return values


def count(values: list[list[str]]) -> int:
    return sum(map(len, values))


def wait_for_values(
    address: str,
    topic: str,
    partitions: int,
    wanted: int,
    *,
    timeout_s: float,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[list[str]]:
    """What is there as soon as there are `wanted` values, or when the time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        meanwhile()
        values = committed_values(address, topic, partitions)
        if count(values) >= wanted or time.monotonic() > deadline:
            return values
        time.sleep(0.3)
