"""Who reads a backlog is led through it by its network process: the owner is asked at the beginning and at the end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.support.broker import Appliance
from tests.support.raw_fetch import fetch, parse_batches
from tests.support.wire import WireSocket
from tests.system.raw import create_topic, generations, suspend

TOPIC: Final = "backlog"
RECORDS: Final = 8_000
RECORD_BYTES: Final = 1_000
ANSWER_BYTES: Final = 100_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path_factory.mktemp("backlog") / "data")
    appliance.start()
    try:
        assert create_topic(appliance.port, TOPIC) == 0
        producer = Producer({"bootstrap.servers": appliance.address, "batch.size": 16_384})
        for number in range(RECORDS):
            producer.produce(TOPIC, number.to_bytes(4, "big") + bytes(RECORD_BYTES - 4))
        assert producer.flush(30) == 0
        yield appliance
    finally:
        appliance.stop()


@pytest.fixture
def still_owner(broker: Appliance) -> Iterator[signal.Signals]:
    """Stopped by the test, goes on when it has ended: long before it would be given up."""
    yield signal.SIGCONT
    os.kill(owner(broker), signal.SIGCONT)


def owner(broker: Appliance) -> int:
    return generations(broker)["ioproc 0.0"][0]


def numbers(consumer: Consumer, count: int) -> list[int]:
    """What the next records say, up to `count` of them."""
    messages = consumer.consume(count, 10)
    assert messages, "nothing came"
    return [int.from_bytes((message.value() or b"")[:4], "big") for message in messages]


@pytest.mark.usefixtures("still_owner")
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_consumer_reads_on_while_the_owner_stands_still(broker: Appliance, isolation: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "g",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "fetch.message.max.bytes": ANSWER_BYTES,
            "queued.min.messages": 1,
            "fetch.queue.backoff.ms": 1,
        }
    )
    try:
        consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
        seen = numbers(consumer, 1)
        suspend(owner(broker))
        almost_all = RECORDS - 2 * ANSWER_BYTES // RECORD_BYTES
        while len(seen) < almost_all:
            seen += numbers(consumer, 50)
        assert seen == list(range(len(seen)))
    finally:
        consumer.close()


def test_answers_end_where_a_batch_ends(broker: Appliance) -> None:
    """A client throws half a batch away, and is sent it again."""
    offset = answers = 0
    with WireSocket(broker.port) as connection:
        while offset < RECORDS:
            records = fetch(connection, TOPIC, 0, offset=offset, max_bytes=ANSWER_BYTES)
            whole = list(parse_batches(records))
            assert whole[0].base_offset == offset
            offset = whole[-1].last_offset + 1
            assert sum(batch.length_bytes for batch in whole) == len(records) <= ANSWER_BYTES
            answers += 1
    assert answers < 2 * RECORDS * RECORD_BYTES // ANSWER_BYTES


def test_who_asks_for_as_much_at_least_as_at_most_is_not_kept_waiting(broker: Appliance) -> None:
    """Whole batches are a little less than that, but not because there is no more."""
    offset = 0
    with WireSocket(broker.port) as connection:
        while offset < RECORDS - 2 * ANSWER_BYTES // RECORD_BYTES:
            records = fetch(
                connection,
                TOPIC,
                0,
                offset=offset,
                max_bytes=ANSWER_BYTES,
                min_bytes=ANSWER_BYTES,
                max_wait_ms=120_000,  # longer than we do
            )
            offset = list(parse_batches(records))[-1].last_offset + 1


def test_a_seek_back_and_forth_finds_its_records(broker: Appliance) -> None:
    with WireSocket(broker.port) as connection:
        for offset in (0, 5_003, 17, 7_999, 4_000, 4_001, 0):
            whole = list(parse_batches(fetch(connection, TOPIC, 0, offset=offset, max_bytes=ANSWER_BYTES)))
            assert whole[0].base_offset <= offset <= whole[0].last_offset
            following = whole[-1].last_offset + 1
            if following < RECORDS:
                on = list(parse_batches(fetch(connection, TOPIC, 0, offset=following, max_bytes=50_000)))
                assert on[0].base_offset == following
