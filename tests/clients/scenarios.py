"""What every client is asked to do. The table at the end is the contract: a client runs every row of it, or
names the row in its `left_out` with a reason, which tests/clients/README.md shows.

A scenario asks the library under judgement for one thing and checks every byte of what comes of it. The stage
is set by a witness (confluent-kafka), so that a library without admin calls is judged on what it has.
"""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

import pytest

from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.client import (
    CODECS,
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    INVALID_TOPIC,
    MESSAGE_TOO_LARGE,
    OFFSET_OUT_OF_RANGE,
    REQUEST_TIMED_OUT,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_OR_PARTITION,
    Client,
    Position,
    Received,
    Record,
)
from tests.clients.play import Play, Stage, refused_with, within
from tests.clients.records import (
    CLOCK_SLACK_MS,
    DAY_MS,
    Window,
    assert_offsets,
    assert_same,
    mixed_records,
    round_trip,
)
from tests.support.raw_fetch import fetched_batches

LARGE_BYTES: Final = 900 * 1024
RECORDS_MANY: Final = 100_000
SURELY_SHRINK: Final = 50  # records in one batch


@dataclass(frozen=True, slots=True)
class Scenario:
    """A row of the table."""

    name: str
    run: Callable[[Play], None]

    def play(self, kind: type[Client], stage: Stage) -> None:
        """Runs it with a fresh client of that kind."""
        client = kind(stage.address)
        try:
            self.run(Play(client, stage, self.name))
        finally:
            client.close()


def cells(kind: type[Client]) -> list[object]:
    """The rows that a client runs, for `pytest.mark.parametrize`."""
    unknown = set(kind.left_out) - {scenario.name for scenario in SCENARIOS}
    assert not unknown, f"{kind.name} leaves out scenarios that do not exist: {unknown}"
    return [
        pytest.param(scenario, id=scenario.name)
        for scenario in SCENARIOS
        if scenario.name not in kind.left_out
    ]


# --- produce and consume ---


def codec_round_trip(codec: str) -> Callable[[Play], None]:
    """Mixed records and a compressible large one, through one codec, which is the one on the broker too: a
    client that misreads ApiVersions sends uncompressed without a word."""

    def run(play: Play) -> None:
        play.create()
        records = [*mixed_records(1_500, seed=zlib.crc32(codec.encode()), run=500)]
        records.append(Record(b"large", b"compressible " * 60_000, timestamp_ms=records[-1].timestamp_ms))
        round_trip(play, records, codec=codec)
        batches = fetched_batches(play.stage.address, play.topic, 0)
        assert sum(batch.records for batch in batches) == len(records)
        # The large record shrinks in every codec; a few records by themselves may not, and are sent as they are.
        assert batches[-1].codec == codec
        assert all(batch.codec == codec for batch in batches if batch.records >= SURELY_SHRINK)
        assert {batch.codec for batch in batches} <= {codec, "none"}

    return run


def null_and_empty(play: Play) -> None:
    play.create()
    shapes = (None, b"", b"x")
    pairs = [(key, value) for key in shapes for value in shapes if key or value]
    round_trip(play, [Record(key, value) for key, value in [(b"", b""), *pairs]])


def null_beside_empty(play: Play) -> None:
    play.create()
    round_trip(play, [Record(None, b""), Record(b"", None)])


def nothing_at_all(play: Play) -> None:
    play.create()
    round_trip(play, [Record(None, None), Record(b"", b""), Record(None, None)])


def headers_kept(play: Play) -> None:
    play.create()
    round_trip(
        play,
        [
            Record(b"k", b"no headers"),
            Record(b"k", b"one", headers=(("name", b"value"),)),
            Record(b"k", b"empty value", headers=(("empty", b""), ("full", b"\xff\xfe bytes"))),
            Record(b"k", b"twice", headers=(("same", b"1"), ("same", b"2"), ("other", b"3"), ("same", b"1"))),
            Record(b"k", b"many", headers=tuple((f"h{n}", b"%d" % n) for n in range(100))),
        ],
    )


def null_header(play: Play) -> None:
    play.create()
    round_trip(play, [Record(b"k", b"v", headers=(("null", None), ("empty", b""), ("null", None)))])


def null_header_read(play: Play) -> None:
    play.create()
    sent = [Record(b"k", b"v", headers=(("null", None), ("empty", b""), ("null", None)))]
    window = Window()
    play.witness.produce(play.topic, sent)
    received = play.client.consume(play.topic, 0, start=0, count=1)
    assert_same(play.client, sent, received, window=window.close())


def large_records(play: Play) -> None:
    play.create()
    noise = random.Random(9).randbytes(LARGE_BYTES)
    round_trip(
        play, [Record(b"", b""), Record(b"k" * 30_000, noise), Record(None, b"z"), Record(noise, None)]
    )


def hundred_thousand(play: Play) -> None:
    play.create()
    round_trip(play, mixed_records(RECORDS_MANY, seed=5, run=10_000))


def acks_zero(play: Play) -> None:
    play.create()
    round_trip(play, mixed_records(200, seed=6, run=200), acks="0")


def acks_one(play: Play) -> None:
    play.create()
    round_trip(play, mixed_records(200, seed=7, run=200), acks="1")


def acked_positions(play: Play) -> None:
    play.create(partitions=3)
    records = mixed_records(300, seed=8, partitions=(0, 1, 2))
    told = play.client.produce(play.topic, records)
    again = play.client.produce(play.topic, records)
    expected = [Position(number % 3, number // 3) for number in range(300)]
    assert told == expected
    assert again == [Position(position.partition, position.offset + 100) for position in expected]


def idempotent(play: Play) -> None:
    play.create(partitions=3)
    records = mixed_records(6_000, seed=10, partitions=(0, 1, 2), run=500)
    window = Window()
    play.client.produce(play.topic, records, idempotent=True)
    sent = window.close()
    for partition in range(3):
        batches = fetched_batches(play.stage.address, play.topic, partition)
        assert all(batch.producer_id >= 0 for batch in batches), "sent without a producer id"
        received = play.client.consume(play.topic, partition, start=0, count=2_000)
        assert_offsets(received)
        expected = [record for record in records if record.partition == partition]
        assert_same(play.client, expected, received, window=sent)
        assert play.witness.offset_range(play.topic, partition) == (0, 2_000)


def many_partitions(play: Play) -> None:
    partitions = 24
    play.create(partitions=partitions)
    records = [Record(b"user-%d" % (n % 400), b"%d" % n, partition=None) for n in range(4_000)]
    play.client.produce(play.topic, records, idempotent=True)  # order over retries is idempotence's promise
    homes: dict[bytes | None, set[int]] = defaultdict(set)
    values: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    used = 0
    for partition in range(partitions):
        _, end = play.witness.offset_range(play.topic, partition)
        used += end > 0
        if not end:
            continue
        received = play.client.consume(play.topic, partition, start=0, count=end)
        assert_offsets(received)
        for record in received:
            homes[record.key].add(record.partition)
            values[record.key].append(record.value)
    assert used > partitions // 2
    assert all(len(home) == 1 for home in homes.values()), "a key lives in one partition"
    for number in range(400):
        assert values[b"user-%d" % number] == [b"%d" % n for n in range(number, 4_000, 400)]


def auto_created_topic(play: Play) -> None:
    round_trip(play, [Record(b"k", b"first"), Record(b"k", b"second")])
    assert play.witness.topics()[play.topic] == 1


def waits_for_data(play: Play) -> None:
    """A consumer at the end of a partition is answered when a record arrives, not when its wait is over."""
    play.create()
    play.witness.produce(play.topic, [Record(value=b"before")])
    arrived: SimpleQueue[tuple[float, Received]] = SimpleQueue()
    reading = threading.Event()

    def follow() -> None:
        reading.set()
        (record,) = play.client.consume(play.topic, 0, start=1, count=1, max_wait_ms=60_000, timeout_s=120)
        arrived.put((time.monotonic(), record))

    reader = threading.Thread(target=follow)
    reader.start()
    reading.wait()
    reader.join(timeout=2.5)  # nothing tells when its fetch is parked in the broker: give it time to be
    assert arrived.empty()
    sent = time.monotonic()
    play.witness.produce(play.topic, [Record(value=b"the one")])
    when, record = arrived.get(timeout=150)
    reader.join()
    assert record.value == b"the one"
    # As the client tells it, who may only now be there to ask, and has to leave as well.
    assert when - sent < 40, "the fetch sat out its wait"


# --- offsets ---


def seek_by_offset(play: Play) -> None:
    play.create()
    records = mixed_records(3_000, seed=11, run=3_000)
    window = Window()
    play.witness.produce(play.topic, records, codec="lz4")
    sent = window.close()
    for start in (0, 1, 777, 1_500, 2_998, 2_999):
        received = play.client.consume(play.topic, 0, start=start, count=min(200, 3_000 - start))
        assert_offsets(received, start)
        expected = records[start : start + 200]
        for there, here in zip(expected, received, strict=True):
            assert (here.key, here.value) == (there.key, there.value)
    assert sent[0] <= sent[1]


def seek_by_time(play: Play) -> None:
    play.create(settings={"index.interval.bytes": "1024"})
    first_ms = int(time.time() * 1000) - DAY_MS
    for run in range(4):
        play.witness.produce(
            play.topic,
            [
                Record(value=b"%d" % n, timestamp_ms=first_ms + n * 10)
                for n in range(run * 500, run * 500 + 500)
            ],
        )
    find = play.client.offset_for_time
    assert find(play.topic, 0, first_ms - 1) == 0
    assert find(play.topic, 0, first_ms) == 0
    assert find(play.topic, 0, first_ms + 1) == 1
    assert find(play.topic, 0, first_ms + 12_340) == 1_234
    assert find(play.topic, 0, first_ms + 12_341) == 1_235
    assert find(play.topic, 0, first_ms + 19_990) == 1_999
    assert find(play.topic, 0, first_ms + 19_991) is None
    start = find(play.topic, 0, first_ms + 7_005)
    assert start == 701
    (record,) = play.client.consume(play.topic, 0, start=start, count=1)
    assert record.value == b"701"


def offset_range(play: Play) -> None:
    play.create(partitions=2)
    assert play.client.offset_range(play.topic, 0) == (0, 0)
    play.witness.produce(play.topic, mixed_records(123, seed=12, partitions=(1,)))
    assert play.client.offset_range(play.topic, 0) == (0, 0)
    assert play.client.offset_range(play.topic, 1) == (0, 123)


def offset_of_max_timestamp(play: Play) -> None:
    play.create()
    first_ms = int(time.time() * 1000) - DAY_MS
    for shift in (5, 9, 2):
        play.witness.produce(play.topic, [Record(value=b"x", timestamp_ms=first_ms + shift)])
    assert play.client.offset_of_max_timestamp(play.topic, 0) == 1


def log_append_time(play: Play) -> None:
    play.create(settings={"message.timestamp.type": "LogAppendTime"})
    window = Window()
    play.client.produce(play.topic, [Record(value=b"old", timestamp_ms=1_000_000), Record(value=b"now")])
    first, last = window.close()
    for record in play.client.consume(play.topic, 0, start=0, count=2):
        assert first - CLOCK_SLACK_MS <= record.timestamp_ms <= last + CLOCK_SLACK_MS


# --- topics ---


def create_and_delete_topic(play: Play) -> None:
    client, topic = play.client, play.topic
    client.create_topic(topic, 5, settings={"retention.ms": "86400000"})
    assert within(10, lambda: play.witness.topics().get(topic) == 5)
    with refused_with(TOPIC_ALREADY_EXISTS):
        client.create_topic(topic, 1)
    with refused_with(INVALID_TOPIC):
        client.create_topic("not/a topic", 1)
    with refused_with(INVALID_PARTITIONS):
        client.create_topic(topic + "-none", 0)
    with refused_with(INVALID_CONFIG):
        client.create_topic(topic + "-wrong", 1, settings={"retention.ms": "soon"})
    client.delete_topic(topic)
    assert within(10, lambda: topic not in play.witness.topics())
    with refused_with(UNKNOWN_TOPIC_OR_PARTITION):
        client.delete_topic(topic)


def recreate_topic(play: Play) -> None:
    """A name that was deleted comes back empty, and the old records never show."""
    client, topic = play.client, play.topic
    client.create_topic(topic, 2)
    assert within(10, lambda: play.witness.topics().get(topic) == 2)
    client.produce(topic, [Record(value=b"old %d" % n) for n in range(50)])
    client.delete_topic(topic)
    assert within(10, lambda: topic not in play.witness.topics())
    client.create_topic(topic, 1)
    assert within(10, lambda: play.witness.topics().get(topic) == 1)
    fresh = type(client)(play.stage.address)
    try:
        fresh.produce(topic, [Record(value=b"new")])
        (record,) = fresh.consume(topic, 0, start=0, count=1)
    finally:
        fresh.close()
    assert (record.offset, record.value) == (0, b"new")
    assert play.witness.offset_range(topic, 0) == (0, 1)


def create_partitions(play: Play) -> None:
    client, topic = play.client, play.create(partitions=2)
    client.produce(topic, [Record(value=b"before", partition=1)])
    client.create_partitions(topic, 6)
    assert within(10, lambda: play.witness.topics()[topic] == 6)
    with refused_with(INVALID_PARTITIONS):
        client.create_partitions(topic, 3)
    fresh = type(client)(play.stage.address)
    try:
        fresh.produce(topic, [Record(value=b"after", partition=5)])
        assert [record.value for record in fresh.consume(topic, 5, start=0, count=1)] == [b"after"]
        assert [record.value for record in fresh.consume(topic, 1, start=0, count=1)] == [b"before"]
    finally:
        fresh.close()


def topic_settings(play: Play) -> None:
    play.create(settings={"retention.ms": "123456789", "cleanup.policy": "compact,delete"})
    told = play.client.topic_settings(play.topic)
    assert told["retention.ms"] == "123456789"
    assert told["cleanup.policy"] == "compact,delete"
    assert told["max.message.bytes"] == "1048588"
    assert told["compression.type"] == "producer"
    assert told["min.insync.replicas"] == "1"


def settings_of_no_topic(play: Play) -> None:
    with refused_with(UNKNOWN_TOPIC_OR_PARTITION):
        play.client.topic_settings(play.topic)


def cluster(play: Play) -> None:
    told = play.client.cluster()
    assert play.stage.address in told.nodes.values()
    assert told.controller in told.nodes
    assert told == play.witness.cluster()
    assert len(told.cluster_id) == 22, "a base64 UUID"


def topics_listed(play: Play) -> None:
    topic = play.create(partitions=7)
    assert within(10, lambda: play.client.topics().get(topic) == 7)


# --- refusals ---


def too_large(play: Play) -> None:
    play.create()
    with refused_with(MESSAGE_TOO_LARGE):
        play.client.produce(play.topic, [Record(value=random.Random(13).randbytes(2_000_000))])
    assert play.witness.offset_range(play.topic, 0) == (0, 0)
    round_trip(play, [Record(value=b"the connection lives on")])


def too_large_for_its_topic(play: Play) -> None:
    play.create(settings={"max.message.bytes": "10000"})
    with refused_with(MESSAGE_TOO_LARGE):
        play.client.produce(play.topic, [Record(value=random.Random(14).randbytes(10_000))])
    round_trip(play, [Record(value=b"x" * 9_000)])


def out_of_range(play: Play) -> None:
    play.create()
    play.witness.produce(play.topic, mixed_records(10, seed=15))
    with refused_with(OFFSET_OUT_OF_RANGE):
        play.client.consume(play.topic, 0, start=11, count=1, timeout_s=60)


def out_of_range_reset(play: Play) -> None:
    play.create()
    play.witness.produce(play.topic, mixed_records(10, seed=16))
    received = play.client.consume(play.topic, 0, start=1_000_000, count=10, reset="earliest", timeout_s=30)
    assert_offsets(received)


def unknown_topic(play: Play) -> None:
    """Where the broker creates no topics, a producer learns that there is none."""
    address = play.stage.strict_address()
    client = type(play.client)(address)
    witness = ConfluentClient(address)
    try:
        with refused_with(UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT):
            client.produce(play.topic, [Record(value=b"nowhere")])
        assert play.topic not in witness.topics()
    finally:
        client.close()


SCENARIOS: Final[tuple[Scenario, ...]] = (
    *(Scenario(f"codec-{codec}", codec_round_trip(codec)) for codec in CODECS),
    Scenario("null-and-empty", null_and_empty),
    Scenario("null-beside-empty", null_beside_empty),
    Scenario("nothing-at-all", nothing_at_all),
    Scenario("headers", headers_kept),
    Scenario("null-header", null_header),
    Scenario("null-header-read", null_header_read),
    Scenario("large-records", large_records),
    Scenario("hundred-thousand", hundred_thousand),
    Scenario("acks-0", acks_zero),
    Scenario("acks-1", acks_one),
    Scenario("acked-positions", acked_positions),
    Scenario("idempotent", idempotent),
    Scenario("many-partitions", many_partitions),
    Scenario("auto-created-topic", auto_created_topic),
    Scenario("waits-for-data", waits_for_data),
    Scenario("seek-by-offset", seek_by_offset),
    Scenario("seek-by-time", seek_by_time),
    Scenario("offset-range", offset_range),
    Scenario("offset-of-max-timestamp", offset_of_max_timestamp),
    Scenario("log-append-time", log_append_time),
    Scenario("create-and-delete-topic", create_and_delete_topic),
    Scenario("recreate-topic", recreate_topic),
    Scenario("create-partitions", create_partitions),
    Scenario("topic-settings", topic_settings),
    Scenario("settings-of-no-topic", settings_of_no_topic),
    Scenario("cluster", cluster),
    Scenario("topics-listed", topics_listed),
    Scenario("too-large", too_large),
    Scenario("too-large-for-its-topic", too_large_for_its_topic),
    Scenario("out-of-range", out_of_range),
    Scenario("out-of-range-reset", out_of_range_reset),
    Scenario("unknown-topic", unknown_topic),
)
