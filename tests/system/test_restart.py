"""What a stop and a start keep: offsets, topics, configurations, who produced what, when."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from appliance.cluster import TopicPartition
from appliance.log.checkpoint import read_offsets
from appliance.log.file_names import RECOVERY_POINTS
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.delete_topics import DeleteTopicsRequest
from appliance.protocol.apis.describe_configs import DescribeConfigsRequest, DescribedResource
from appliance.protocol.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, decode_records, encode_batch
from tests.support.broker import Appliance
from tests.support.raw_fetch import fetch
from tests.support.wire import ConnectionEnded, WireSocket
from tests.system.raw import (
    Produced,
    ask,
    create_topic,
    new_producer_id,
    produce,
    produce_frame,
    read_produced,
    wait_until,
)

TOPIC = "t"
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
TOPIC_RESOURCE = 2
FIRST_MS = 1_700_000_000_000
SEGMENT_BYTES = 1 << 20  # the least that a topic may have


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path / "data", settings={"log.message.timestamp.before.max.ms": 1 << 62})
    appliance.start()
    try:
        yield appliance
    finally:
        appliance.stop()


def restart(broker: Appliance, how: str) -> None:
    if how == "stop":
        broker.stop()
    else:
        broker.kill()
    broker.start()


def test_a_first_start_and_a_second_say_nothing_that_wants_attention(broker: Appliance) -> None:
    first = broker.output()
    restart(broker, "stop")
    said = [*first.splitlines(), *broker.output().splitlines()]
    assert any("ready" in line for line in said)
    assert [line for line in said if " WARNING " in line or " ERROR " in line or " CRITICAL " in line] == []


both_ways = pytest.mark.parametrize("how", ["stop", "kill"])


def list_offsets(broker: Appliance, timestamp_ms: int) -> tuple[int, int]:
    """(offset, timestamp) as the broker finds it."""
    request = ListOffsetsRequest(-1, (ListOffsetsTopic(TOPIC, (ListOffsetsPartition(0, timestamp_ms),)),))
    with WireSocket(broker.port) as connection:
        response = ask(connection, ApiKey.LIST_OFFSETS, request)
    found = response.topics[0].partitions[0]
    assert found.error_code == 0
    return found.offset, found.timestamp_ms


def described(broker: Appliance) -> Any:
    """Topics with their ids, partitions and leader epochs as clients are told."""
    with WireSocket(broker.port) as connection:
        topics = ask(connection, ApiKey.METADATA, MetadataRequest(None)).topics
    return sorted(
        (topic.name, topic.topic_id, tuple(sorted(p.partition_index for p in topic.partitions)))
        for topic in topics
    )


@both_ways
def test_topics_their_ids_and_configurations_survive(broker: Appliance, how: str) -> None:
    for name, partitions in (("one", 1), ("many", 12), ("with-configs", 2)):
        assert (
            create_topic(broker.port, name, partitions=partitions, configs={"retention.ms": "12345678"}) == 0
        )
    before = described(broker)
    restart(broker, how)
    assert described(broker) == before
    with WireSocket(broker.port) as connection:
        request = DescribeConfigsRequest(
            (DescribedResource(TOPIC_RESOURCE, "with-configs", ("retention.ms",)),)
        )
        configs = ask(connection, ApiKey.DESCRIBE_CONFIGS, request).results[0].configs
    assert [(config.name, config.value) for config in configs] == [("retention.ms", "12345678")]
    assert create_topic(broker.port, "one") == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_rolled_segment_is_on_the_disk_before_the_next_checkpoint(broker: Appliance) -> None:
    assert create_topic(broker.port, TOPIC, configs={"segment.bytes": str(SEGMENT_BYTES)}) == 0
    batch = encode_batch([Record(bytes(100_000), timestamp_ms=FIRST_MS)])
    with WireSocket(broker.port) as connection:
        for _ in range(25):
            assert produce(connection, TOPIC, batch).error == 0
    points = broker.data_dir / "slot-0" / RECOVERY_POINTS
    # The second of three segments ends at 20; checkpoints come a minute after the first record.
    wait_until(
        lambda: read_offsets(points) == {TopicPartition(TOPIC, 0): 20}, "both are said to be on the disk"
    )
    broker.kill()
    broker.start()
    with WireSocket(broker.port) as connection:
        assert produce(connection, TOPIC, batch).base_offset == 25


@both_ways
def test_records_offsets_and_time_index_survive(broker: Appliance, how: str) -> None:
    configs = {"segment.bytes": str(SEGMENT_BYTES), "index.interval.bytes": "1024", "retention.ms": "-1"}
    assert create_topic(broker.port, TOPIC, configs=configs) == 0
    count = 600
    with WireSocket(broker.port) as connection:
        for number in range(count):
            record = Record(b"%d " % number + bytes(8000), timestamp_ms=FIRST_MS + 1000 * number)
            assert produce(connection, TOPIC, encode_batch([record])).base_offset == number
    asked = [
        EARLIEST,
        LATEST,
        MAX_TIMESTAMP,
        0,
        *(FIRST_MS + 1000 * number - 1 for number in range(0, count + 2, 7)),
    ]
    before = {timestamp_ms: list_offsets(broker, timestamp_ms) for timestamp_ms in asked}
    assert before[LATEST][0] == count
    assert before[MAX_TIMESTAMP] == (count - 1, FIRST_MS + 1000 * (count - 1))
    assert before[FIRST_MS + 7000 - 1] == (7, FIRST_MS + 7000)
    assert len(list((broker.data_dir / "slot-0" / f"{TOPIC}-0").glob("*.log"))) > 3
    restart(broker, how)
    assert {timestamp_ms: list_offsets(broker, timestamp_ms) for timestamp_ms in asked} == before
    with WireSocket(broker.port) as connection:
        for number in range(0, count, 37):
            record = next(iter(decode_records(fetch(connection, TOPIC, 0, offset=number, max_bytes=1))))
            assert record.offset == number
            assert (record.value or b"").split(b" ")[0] == b"%d" % number
        assert produce(connection, TOPIC, encode_batch([Record(b"next")])).base_offset == count


class Idempotent:
    """A producer that remembers its id over restarts of the broker, as a client does."""

    def __init__(self, broker: Appliance) -> None:
        self._broker = broker
        self._now_ms = time.time_ns() // 1_000_000  # a batch that is sent again has the same timestamps
        self.identity, self.epoch = new_producer_id(broker.port)

    def send(self, sequence: int, *, count: int = 2) -> Produced:
        raw = encode_batch(
            [Record(b"%d" % (sequence + each), timestamp_ms=self._now_ms) for each in range(count)],
            producer_id=self.identity,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )
        with WireSocket(self._broker.port) as connection:
            return produce(connection, TOPIC, raw)


@both_ways
def test_batch_sent_again_after_a_restart_is_recognised(broker: Appliance, how: str) -> None:
    assert create_topic(broker.port, TOPIC) == 0
    producers = [Idempotent(broker) for _ in range(3)]
    for sequence in (0, 2, 4):
        for producer in producers:
            assert producer.send(sequence).error == 0
    last = [producer.send(6) for producer in producers]
    restart(broker, how)
    # The answer to the last batch was lost on its way: the client sends it again.
    assert [producer.send(6) for producer in producers] == last
    assert producers[0].send(10).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    taken = [producer.send(8) for producer in producers]
    assert [answer.base_offset for answer in taken] == [24, 26, 28]


@both_ways
def test_producer_ids_are_never_given_twice(broker: Appliance, how: str) -> None:
    given = [new_producer_id(broker.port)[0] for _ in range(5)]
    for _ in range(2):
        restart(broker, how)
        given += [new_producer_id(broker.port)[0] for _ in range(5)]
    assert len(set(given)) == len(given)


def test_deleted_topic_stays_deleted_and_its_successor_begins_empty(broker: Appliance) -> None:
    assert create_topic(broker.port, TOPIC) == 0
    with WireSocket(broker.port) as connection:
        assert produce(connection, TOPIC, encode_batch([Record(b"old")])).error == 0
        request = DeleteTopicsRequest((TopicSelector(TOPIC),), 30_000)
        assert ask(connection, ApiKey.DELETE_TOPICS, request).responses[0].error_code == 0
    restart(broker, "kill")
    assert described(broker) == []
    wait_until(lambda: create_topic(broker.port, TOPIC) == 0, "a successor")
    with WireSocket(broker.port) as connection:
        assert fetch(connection, TOPIC, 0, offset=0) == b""
        assert produce(connection, TOPIC, encode_batch([Record(b"new")])).base_offset == 0


def test_answer_of_a_request_under_way_leaves_before_a_clean_stop(broker: Appliance) -> None:
    assert create_topic(broker.port, TOPIC) == 0
    with WireSocket(broker.port, timeout_s=20) as connection:
        batch = encode_batch([Record(bytes(500_000))])
        # Many large batches at once: some are surely under way when the stop comes.
        connection.send(b"".join(produce_frame(TOPIC, batch, correlation_id=n) for n in range(20)))
        broker.stop()
        answered = []
        try:
            while True:
                answered.append(read_produced(connection.read_frame()))
        except ConnectionEnded:
            pass
    assert [answer.error for answer in answered] == [0] * len(answered)
    broker.start()
    # What was answered is there; what was not may be.
    assert list_offsets(broker, LATEST)[0] >= len(answered)


@pytest.mark.parametrize("slots", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_nobody_is_told_of_a_cluster_without_brokers_or_topics_while_it_starts(
    tmp_path: Path, slots: int
) -> None:
    # Found by the checker: librdkafka drops every broker it knows at such an answer, and never asks again.
    broker = Appliance(tmp_path / "data", slots=slots)
    broker.start()
    told: list[tuple[int, set[str]]] = []
    is_over = threading.Event()

    def ask_all_the_time() -> None:
        while not is_over.is_set():
            with suppress(OSError, ConnectionEnded), WireSocket(broker.port, timeout_s=20) as connection:
                answer = ask(connection, ApiKey.METADATA, MetadataRequest(None), version=12)
                told.append((len(answer.brokers), {topic.name for topic in answer.topics}))

    asking = threading.Thread(target=ask_all_the_time, daemon=True)
    try:
        assert create_topic(broker.port, TOPIC, partitions=50) == 0
        asking.start()
        for how in ("kill", "stop"):
            restart(broker, how)
            before = len(told)
            wait_until(lambda before=before: len(told) > before, "an answer", timeout_s=30)  # type: ignore[misc]
    finally:
        is_over.set()
        broker.stop()
    assert {brokers for brokers, _ in told} == {slots}
    assert all(TOPIC in topics for _, topics in told)
