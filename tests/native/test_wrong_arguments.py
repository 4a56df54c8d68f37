"""What a client is asked for and cannot give is one of its own errors, and changes nothing."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import re
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.protocol.errors import ErrorCode
from appliance_client import Admin, Consumer, ConsumerRecord, Producer, TopicPartition, aio
from appliance_client.errors import (
    BufferFullError,
    ClientError,
    CommitFailedError,
    IllegalStateError,
    OptionError,
    ProducerFencedError,
    RecordDeserializationError,
    RecordTooLargeError,
    SerializationError,
    error_of,
)
from appliance_client.network import Leader, Topic
from appliance_client.options import INT64_MAX
from appliance_client.scheduling import Outcome
from appliance_client.wire import TopicKey

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "5"])
def test_a_poll_of_no_records_is_refused(most: Any) -> None:
    with Consumer(bootstrap_servers=NOWHERE) as consumer:
        for poll in (consumer.poll, consumer.poll_arrow):
            with pytest.raises(OptionError, match=r"max_records is .*: a whole number from 1 on, or None"):
                poll(0, max_records=most)

    async def play() -> None:
        async with aio.Consumer(bootstrap_servers=NOWHERE) as consumer:
            for poll in (consumer.poll, consumer.poll_arrow):
                with pytest.raises(
                    OptionError, match=r"max_records is .*: a whole number from 1 on, or None"
                ):
                    await poll(0, max_records=most)

    asyncio.run(play())


@pytest.mark.parametrize("pattern", ["(", "*", "a{2,1}", b"orders-.*", re.compile(b"orders-.*"), 5])
def test_a_pattern_that_is_no_regular_expression_is_refused_and_changes_no_subscription(pattern: Any) -> None:
    with Consumer("orders", bootstrap_servers=NOWHERE, group_id="g") as consumer:
        with pytest.raises(OptionError, match=r"pattern is .*regular expression"):
            consumer.subscribe(pattern=pattern)
        assert consumer.subscription() == {"orders"}

    async def play() -> None:
        async with aio.Consumer("orders", bootstrap_servers=NOWHERE, group_id="g") as consumer:
            with pytest.raises(OptionError, match=r"pattern is .*regular expression"):
                consumer.subscribe(pattern=pattern)
            assert consumer.subscription() == {"orders"}

    asyncio.run(play())


def test_a_pattern_may_be_compiled_already() -> None:
    with Consumer(bootstrap_servers=NOWHERE, group_id="g") as consumer:
        consumer.subscribe(pattern=re.compile("ORDERS-.*", re.I))
        assert consumer._consumer._pattern is not None
        assert consumer._consumer._pattern.match("orders-1")


@pytest.mark.parametrize("when", [-1, -2, 1.5, "now", None, 1 << 63])
def test_a_time_that_is_none_is_not_looked_up(when: Any) -> None:
    """-1 and -2 are the end and the beginning in Kafka's protocol."""
    place = TopicPartition("orders", 0)
    with Consumer(bootstrap_servers=NOWHERE) as consumer, pytest.raises(OptionError, match="no time"):
        consumer.offsets_for_times({place: when})

    async def play() -> None:
        async with aio.Consumer(bootstrap_servers=NOWHERE) as consumer:
            with pytest.raises(OptionError, match="no time"):
                await consumer.offsets_for_times({place: when})

    asyncio.run(play())


def test_a_consumer_that_cannot_subscribe_when_it_is_made_leaves_nothing_behind() -> None:
    before = threading.active_count()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nobody has it, so nobody can close it
        with pytest.raises(OptionError, match=r"subscribe needs a group\.id"):
            Consumer("orders", bootstrap_servers=NOWHERE)
        gc.collect()
        assert threading.active_count() == before

        async def play() -> None:
            with pytest.raises(OptionError, match=r"subscribe needs a group\.id"):
                aio.Consumer("orders", bootstrap_servers=NOWHERE)
            gc.collect()

        asyncio.run(play())


# ── producers ────────────────────────────────────────────────────────────────────────────────────────────


def know(producer: Producer, topic: str) -> None:
    """Have a topic of one partition known."""
    metadata = producer._core.metadata
    metadata.topics[topic] = Topic(TopicKey(topic, None), [Leader(1, 0)])
    metadata.updated().resolve(None)
    metadata._fresh = Outcome()


@pytest.fixture
def producer() -> Iterator[Producer]:
    """One that knows a topic of one partition, and reaches no broker."""
    made = Producer(bootstrap_servers=NOWHERE, buffer_memory=1_100_000, linger_ms=0)
    know(made, "topic")
    yield made
    made.close(0)


@pytest.mark.parametrize("headers", [[("h", b"x" * 1_100_000)], [("h" * 300_000, b"")]])
def test_headers_count_for_max_request_size(producer: Producer, headers: Any) -> None:
    with pytest.raises(RecordTooLargeError, match=r"larger than max\.request\.size"):
        producer.send("topic", b"x", headers=headers)


def test_a_time_that_does_not_fit_is_refused_also_on_the_short_way_and_spoils_no_batch(
    producer: Producer,
) -> None:
    sent = producer.send("topic", b"x", timestamp_ms=INT64_MAX)
    with pytest.raises(SerializationError, match="does not fit 64 bits"):
        producer.send("topic", b"x", timestamp_ms=INT64_MAX + 1)
    assert not sent.done()


def test_a_callback_that_finds_the_buffer_full_is_told_at_once(producer: Producer) -> None:
    """Nothing is sent and no room comes before it returns: max.block.ms would be a wait for nothing."""
    producer.send("topic", b"x" * 600_000)
    heard: list[BaseException] = []
    tried = threading.Event()

    def send() -> None:
        try:
            producer.send("topic", b"x" * 600_000)
        except ClientError as error:
            heard.append(error)
        tried.set()

    producer._io.submit(send)
    assert tried.wait(10)
    assert [type(each) for each in heard] == [BufferFullError]
    assert "a callback must not wait" in str(heard[0])


def test_max_block_ms_counts_once_for_metadata_and_for_room() -> None:
    producer = Producer(bootstrap_servers=NOWHERE, buffer_memory=1_100_000, max_block_ms=1_000)
    know(producer, "topic")
    producer.send("topic", b"x" * 1_000_000)
    late = threading.Timer(0.9, lambda: producer._io.submit(lambda: know(producer, "late")))
    late.start()
    begin = time.monotonic()
    with pytest.raises(BufferFullError):
        producer.send("late", b"x" * 1_000_000)
    assert 1.0 <= time.monotonic() - begin < 1.7
    producer.close(0)


# ── other processes ──────────────────────────────────────────────────────────────────────────────────────


def test_records_and_errors_go_to_other_processes(producer: Producer) -> None:
    record = ConsumerRecord("topic", 1, 2, 3, 0, b"key", b"value", (("h", None),), 4)
    record.source = producer  # what it is handed back by stays here
    place = TopicPartition("topic", 1)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copied = pickle.loads(pickle.dumps(record, protocol))
        assert repr(copied) == repr(record)
        with pytest.raises(IllegalStateError, match="handed back"):
            copied.retry()
        for error in (
            error_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic x"),
            error_of(ErrorCode.OFFSET_OUT_OF_RANGE),
            CommitFailedError(ErrorCode.ILLEGAL_GENERATION),
            ProducerFencedError("fenced", int(ErrorCode.PRODUCER_FENCED)),
            OptionError("option"),
            RecordDeserializationError(place, record, origin="value", error=ValueError("no")),
        ):
            again = pickle.loads(pickle.dumps(error, protocol))
            assert type(again) is type(error)
            assert str(again) == str(error)
            assert (again.code, again.retriable, again.partition) == (
                error.code,
                error.retriable,
                error.partition,
            )


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_client_is_not_copied_and_says_why(producer: Producer, copied: Any) -> None:
    with (
        Consumer(bootstrap_servers=NOWHERE) as consumer,
        Admin(bootstrap_servers=NOWHERE) as admin,
    ):
        for each in (producer, consumer, admin):
            with pytest.raises(TypeError, match="has connections of its own and cannot be pickled or copied"):
                copied(each)
