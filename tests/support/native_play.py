"""What the native client does with any options: it writes values, and reads them back, by both of its faces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import appliance_client
from appliance_client import aio
from appliance_client.connection import Connection

PATIENCE_S = 60.0


def play(options: dict[str, Any], topic: str, values: Sequence[bytes], *, pause_s: float = 0) -> list[bytes]:
    """Write and read with the sync face. `pause_s`: between two halves, on the same connections."""
    half = len(values) // 2
    found: list[bytes] = []
    with appliance_client.Producer(**options, linger_ms=5) as producer:

        def write(some: Sequence[bytes]) -> None:
            for sent in [producer.send(topic, value, partition=0) for value in some]:
                sent.result(PATIENCE_S)

        # The topic exists before the consumer asks for its partitions.
        write(values[:half])
        with appliance_client.Consumer(
            topic, **options, group_id=topic, auto_offset_reset="earliest"
        ) as consumer:
            _read(consumer, found, half)
            time.sleep(pause_s)
            write(values[half:])
            _read(consumer, found, len(values))
    return found


def _read(consumer: appliance_client.Consumer, found: list[bytes], count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        for records in consumer.poll(500).values():
            found += [record.value for record in records]


def play_async(options: dict[str, Any], topic: str, values: Sequence[bytes]) -> list[bytes]:
    """Write and read with asyncio."""

    async def run() -> list[bytes]:
        found: list[bytes] = []
        async with aio.Producer(**options, linger_ms=5) as producer:
            for sent in [await producer.send(topic, value, partition=0) for value in values]:
                await sent
        async with aio.Consumer(topic, **options, group_id=topic, auto_offset_reset="earliest") as consumer:
            deadline = time.monotonic() + PATIENCE_S
            while len(found) < len(values) and time.monotonic() < deadline:
                for records in (await consumer.poll(500)).values():
                    found += [record.value for record in records]
        return found

    return asyncio.run(run())


@dataclass
class Counts:
    """How often the native client opened a connection, authenticated, and lost one."""

    opened: int = 0
    authenticated: int = 0
    lost: int = 0


@contextmanager
def counted() -> Iterator[Counts]:
    """Count over all native clients of this process."""
    counts = Counts()
    opened, authenticate, lost = Connection.opened, Connection._authenticate, Connection.lost

    def count_opened(self: Connection, **more: Any) -> None:
        counts.opened += 1
        opened(self, **more)

    def count_authenticated(self: Connection) -> None:
        counts.authenticated += 1
        authenticate(self)

    def count_lost(self: Connection, reason: str, *more: Any) -> None:
        counts.lost += self.state == Connection.READY and "client is closed" not in reason
        lost(self, reason, *more)

    Connection.opened = count_opened  # type: ignore[method-assign]
    Connection._authenticate = count_authenticated  # type: ignore[method-assign]
    Connection.lost = count_lost  # type: ignore[method-assign, assignment]
    try:
        yield counts
    finally:
        Connection.opened, Connection._authenticate, Connection.lost = opened, authenticate, lost  # type: ignore[method-assign]
