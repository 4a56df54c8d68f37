"""confluent-kafka behind the common vocabulary; also the witness that sets the stage for the others."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.clients.client import (
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_OR_PARTITION,
    Client,
    Cluster,
    Position,
    Received,
    Record,
    RefusedError,
)
from tests.support.judge import REPLICAS

EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
MAX_TIMESTAMP: Final[OffsetSpec] = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]

LARGEST_MESSAGE_BYTES: Final = 20_000_000

# librdkafka reports some answers of a broker under codes of its own.
LOCAL_CODES: Final = {
    KafkaError._UNKNOWN_TOPIC: UNKNOWN_TOPIC_OR_PARTITION,
    KafkaError._UNKNOWN_PARTITION: UNKNOWN_TOPIC_OR_PARTITION,
}


class ConfluentClient(Client):
    """librdkafka through its Python binding."""

    name: ClassVar[str] = "confluent-kafka"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._common: dict[str, Any] = {
            "bootstrap.servers": address,
            "broker.address.family": "v4",
            "log_level": 0,
        }
        self._admin = AdminClient(self._common)

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[Position]:
        producer = Producer(
            {
                **self._common,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "message.max.bytes": LARGEST_MESSAGE_BYTES,
                "linger.ms": 5,
                "queue.buffering.max.messages": 200_000,
                "message.timeout.ms": 60_000,
                "topic.metadata.propagation.max.ms": 3_000,
            }
        )
        told: list[tuple[KafkaError | None, int, int] | None] = [None] * len(records)
        for number, record in enumerate(records):

            def delivered(error: KafkaError | None, message: Message, number: int = number) -> None:
                told[number] = (error, message.partition() or 0, message.offset() or 0)

            optional: dict[str, Any] = {}
            if record.partition is not None:
                optional["partition"] = record.partition
            if record.timestamp_ms is not None:
                optional["timestamp"] = record.timestamp_ms
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                on_delivery=delivered,
                **optional,
            )
            producer.poll(0)
        assert producer.flush(90) == 0, "records left in the queue"
        positions = []
        for each in told:
            assert each is not None, "a record without a delivery report"
            error, partition, offset = each
            if error is not None:
                raise refused(error)
            positions.append(Position(partition, offset))
        return positions

    def consume(
        self,
        topic: str,
        partition: int,
        *,
        start: int,
        count: int,
        reset: str = "none",
        max_wait_ms: int = 500,
        timeout_s: float = 60.0,
    ) -> list[Received]:
        consumer = Consumer(
            {
                **self._common,
                "group.id": "not-used",
                "enable.auto.commit": False,
                "auto.offset.reset": "error" if reset == "none" else reset,
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": max_wait_ms,
                "socket.timeout.ms": max_wait_ms + 60_000,
                "check.crcs": True,
                "fetch.message.max.bytes": 1 << 20,
            }
        )
        consumer.assign([TopicPartition(topic, partition, start)])
        received: list[Received] = []
        deadline = time.monotonic() + timeout_s
        try:
            while len(received) < count:
                messages = consumer.consume(count - len(received), timeout=0.05 if received else 0.2)
                received.extend(_received(message) for message in messages)
                if not messages and time.monotonic() > deadline:
                    raise TimeoutError(f"{len(received)} of {count} records of {topic}-{partition}")
        finally:
            consumer.close()
        return received

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        consumer = Consumer({**self._common, "group.id": "not-used", "enable.auto.commit": False})
        try:
            (found,) = consumer.offsets_for_times(
                [TopicPartition(topic, partition, timestamp_ms)], timeout=30
            )
        except KafkaException as exception:
            raise refused(exception.args[0]) from None
        finally:
            consumer.close()
        return found.offset if found.offset >= 0 else None

    def offset_range(self, topic: str, partition: int) -> tuple[int, int]:
        return self._offset_at(topic, partition, EARLIEST), self._offset_at(topic, partition, LATEST)

    def offset_of_max_timestamp(self, topic: str, partition: int) -> int:
        return self._offset_at(topic, partition, MAX_TIMESTAMP)

    def _offset_at(self, topic: str, partition: int, spec: OffsetSpec) -> int:
        asked = TopicPartition(topic, partition)
        found: int = _result(self._admin.list_offsets({asked: spec}, request_timeout=30)[asked]).offset
        return found

    def create_topic(self, topic: str, partitions: int, *, settings: Mapping[str, str] | None = None) -> None:
        wanted = NewTopic(
            topic, num_partitions=partitions, replication_factor=REPLICAS, config=dict(settings or {})
        )
        _result(self._admin.create_topics([wanted], operation_timeout=30)[topic])

    def delete_topic(self, topic: str) -> None:
        _result(self._admin.delete_topics([topic], operation_timeout=30)[topic])

    def create_partitions(self, topic: str, total: int) -> None:
        _result(self._admin.create_partitions([NewPartitions(topic, total)], operation_timeout=30)[topic])

    def topic_settings(self, topic: str) -> dict[str, str | None]:
        asked = ConfigResource(ResourceType.TOPIC, topic)
        return {
            name: entry.value for name, entry in _result(self._admin.describe_configs([asked])[asked]).items()
        }

    def cluster(self) -> Cluster:
        told = _result(self._admin.describe_cluster(request_timeout=30))
        return Cluster(
            cluster_id=told.cluster_id,
            nodes={node.id: f"{node.host}:{node.port}" for node in told.nodes},
            controller=told.controller.id,
        )

    def topics(self) -> dict[str, int]:
        told = self._admin.list_topics(timeout=30).topics
        return {name: len(topic.partitions) for name, topic in told.items()}


def refused(error: KafkaError) -> RefusedError:
    """librdkafka's error in Kafka's numbers."""
    code = error.code()
    if code == KafkaError._AUTO_OFFSET_RESET and "out of range" in error.str().lower():
        code = OFFSET_OUT_OF_RANGE
    return RefusedError(LOCAL_CODES.get(code, code), error.str())


def _received(message: Message) -> Received:
    error = message.error()
    if error is not None:
        raise refused(error)
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    headers: Any = message.headers() or ()
    return Received(
        partition=partition,
        offset=offset,
        timestamp_ms=message.timestamp()[1],
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=tuple((name, value) for name, value in headers),
    )


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _result(future: Future[Any]) -> Any:
    try:
        return future.result(60)
    except KafkaException as exception:
        raise refused(exception.args[0]) from None
