"""Records of every shape, and whether what came back is what was sent, byte for byte."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from tests.clients.client import Client, Header, Received, Record
from tests.clients.play import Play

DAY_MS: Final = 24 * 3600 * 1000
CLOCK_SLACK_MS: Final = 50


def mixed_records(
    count: int, seed: int, *, partitions: Sequence[int | None] = (0,), run: int = 1
) -> list[Record]:
    """Reproducible records of every shape: null and empty keys and values, text and bytes, with and without
    headers, timestamps that rise. Shape and partition stay the same for `run` records: a command line client
    needs a call for each run."""
    chance = random.Random(seed)
    shape = 0
    first_ms = int(time.time() * 1000) - DAY_MS
    records = []
    for number in range(count):
        if number % run == 0:
            shape = chance.randrange(8)
        key = (None, b"", b"key-%d" % (number % 97))[min(shape, 2)]
        length = 0 if shape == 3 else chance.randrange(1, 120)
        text = b"%08d:" % number + (b"log line " * 14)[:length]
        value = None if shape == 4 else b"" if shape == 3 else text + chance.randbytes(length // 8)
        headers: tuple[Header, ...] = ()
        if (number // run) % 5 == 1:
            headers = (("trace", b"%d" % (number // run)), ("kind", b"mixed"))
        records.append(
            Record(key, value, headers, first_ms + number * 3, partitions[number // run % len(partitions)])
        )
    return records


def assert_same(
    client: Client, sent: Sequence[Record], received: Sequence[Received], *, window: tuple[int, int]
) -> None:
    """Every byte of every record, in order; `window` is when they were sent, for records without a timestamp.

    What the client cannot carry is not compared.
    """
    assert len(received) == len(sent)
    for number, (there, here) in enumerate(zip(sent, received, strict=True)):
        place = f"record {number} (offset {here.offset})"
        assert here.key == there.key, place
        assert here.value == there.value, place
        if client.groups_headers:
            assert grouped(here.headers) == grouped(there.headers), place
        else:
            assert here.headers == there.headers, place
        if there.timestamp_ms is not None and client.sets_timestamps:
            assert here.timestamp_ms == there.timestamp_ms, place
        else:
            assert window[0] - CLOCK_SLACK_MS <= here.timestamp_ms <= window[1] + CLOCK_SLACK_MS, place


def assert_offsets(received: Sequence[Received], first: int = 0) -> None:
    """Offsets without a gap, from `first`."""
    assert [record.offset for record in received] == list(range(first, first + len(received)))


def grouped(headers: Sequence[Header]) -> dict[str, list[bytes | None]]:
    """Headers as name → values in order."""
    groups: dict[str, list[bytes | None]] = defaultdict(list)
    for name, value in headers:
        groups[name].append(value)
    return dict(groups)


class Window:
    """The time in which something was sent, in milliseconds."""

    def __init__(self) -> None:
        self._first = int(time.time() * 1000)

    def close(self) -> tuple[int, int]:
        """First and last millisecond."""
        return self._first, int(time.time() * 1000)


def round_trip(play: Play, records: Sequence[Record], *, codec: str = "none", acks: str = "all") -> None:
    """The client produces to partition 0 of the scenario's topic and reads all of it back."""
    window = Window()
    play.client.produce(play.topic, records, codec=codec, acks=acks)
    sent = window.close()
    received = play.client.consume(play.topic, 0, start=0, count=len(records))
    assert_offsets(received)
    assert_same(play.client, records, received, window=sent)
