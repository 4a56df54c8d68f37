"""A refused batch says which of its records were at fault, to a raw connection and to a real client (KIP-467)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Message, Producer

from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.raw import create_topic, produce


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path_factory.mktemp("record-errors") / "data")
    appliance.start()
    try:
        yield appliance
    finally:
        appliance.stop()


def test_the_records_without_a_key_are_named_for_a_compacted_topic(broker: Appliance) -> None:
    assert create_topic(broker.port, "compacted", configs={"cleanup.policy": "compact"}) == ErrorCode.NONE
    now_ms = time.time_ns() // 1_000_000
    records = [Record(b"v", None if number % 10 == 3 else b"k", timestamp_ms=now_ms) for number in range(100)]
    with WireSocket(broker.port) as connection:
        refused = produce(connection, "compacted", bytes(encode_batch(records)))
        assert refused.error == ErrorCode.INVALID_RECORD
        assert list(refused.record_errors) == list(range(3, 100, 10))
        assert all(refused.record_errors.values())
        assert produce(connection, "compacted", bytes(encode_batch(records[:3]))).base_offset == 0


def test_the_records_with_a_timestamp_out_of_bounds_are_named(broker: Appliance) -> None:
    configs = {"message.timestamp.after.max.ms": "60000"}
    assert create_topic(broker.port, "timed", configs=configs) == ErrorCode.NONE
    now_ms = time.time_ns() // 1_000_000
    records = [Record(b"v", timestamp_ms=now_ms + 3_600_000 * (number in (1, 4))) for number in range(6)]
    with WireSocket(broker.port) as connection:
        refused = produce(connection, "timed", bytes(encode_batch(records)))
    assert refused.error == ErrorCode.INVALID_TIMESTAMP
    assert list(refused.record_errors) == [1, 4]


def test_librdkafka_fails_the_records_at_fault_apart_from_the_rest_of_their_batch(broker: Appliance) -> None:
    assert create_topic(broker.port, "client", configs={"cleanup.policy": "compact"}) == ErrorCode.NONE
    outcomes: Counter[tuple[bool, int]] = Counter()

    def delivered(error: KafkaError | None, message: Message) -> None:
        outcomes[message.key() is None, 0 if error is None else error.code()] += 1

    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 500, "batch.num.messages": 1000})
    for number in range(100):
        key = None if number % 10 == 3 else b"k"
        producer.produce("client", value=b"v", key=key, partition=0, on_delivery=delivered)
    assert producer.flush(30) == 0
    assert outcomes == {
        (True, ErrorCode.INVALID_RECORD): 10,
        (False, KafkaError._INVALID_DIFFERENT_RECORD): 90,
    }
