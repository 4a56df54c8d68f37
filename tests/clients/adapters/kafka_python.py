"""kafka-python behind the common vocabulary."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import KafkaError, KafkaTimeoutError

from tests.clients.client import (
    OFFSET_OUT_OF_RANGE,
    REQUEST_TIMED_OUT,
    Client,
    Cluster,
    Position,
    Received,
    Record,
    RefusedError,
)
from tests.support.judge import REPLICAS


class KafkaPythonClient(Client):
    """The pure-Python client of PyPI."""

    name: ClassVar[str] = "kafka-python"
    left_out: ClassVar[Mapping[str, str]] = {
        "nothing-at-all": "refuses to send a record with neither key nor value",
        "null-header": "refuses to send a header without a value",
        "settings-of-no-topic": "does not report the error of a resource in DescribeConfigs",
    }

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[Position]:
        producer = KafkaProducer(
            bootstrap_servers=self.address,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            max_request_size=20_000_000,
            batch_size=131_072,
            linger_ms=5,
            max_block_ms=5_000,
        )
        try:
            futures = [
                _raising(
                    producer.send,
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            told = [_raising(future.get, timeout=60) for future in futures]
        finally:
            producer.close()
        return [Position(each.partition, each.offset) for each in told]

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
        consumer = KafkaConsumer(
            bootstrap_servers=self.address,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset=reset,
            fetch_max_wait_ms=max_wait_ms,
            request_timeout_ms=max_wait_ms + 60_000,
            check_crcs=True,
            max_poll_records=5_000,
        )
        received: list[Received] = []
        deadline = time.monotonic() + timeout_s
        home = TopicPartition(topic, partition)
        try:
            consumer.assign([home])
            consumer.seek(home, start)
            while len(received) < count:
                polled = _raising(consumer.poll, timeout_ms=200, max_records=count - len(received))
                received.extend(_received(each) for each in polled.get(home, ()))
                if not polled and time.monotonic() > deadline:
                    raise TimeoutError(f"{len(received)} of {count} records of {topic}-{partition}")
        finally:
            consumer.close()
        return received

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        home = TopicPartition(topic, partition)
        with _Consumer(self.address) as consumer:
            found = _raising(consumer.offsets_for_times, {home: timestamp_ms})[home]
        return None if found is None else int(found.offset)

    def offset_range(self, topic: str, partition: int) -> tuple[int, int]:
        home = TopicPartition(topic, partition)
        with _Consumer(self.address) as consumer:
            first = _raising(consumer.beginning_offsets, [home])[home]
            end = _raising(consumer.end_offsets, [home])[home]
        return int(first), int(end)

    def offset_of_max_timestamp(self, topic: str, partition: int) -> int:
        home = TopicPartition(topic, partition)
        with _Admin(self.address) as admin:
            found = _raising(admin.list_partition_offsets, {home: OffsetSpec.MAX_TIMESTAMP})[home]
        return int(found.offset)

    def create_topic(self, topic: str, partitions: int, *, settings: Mapping[str, str] | None = None) -> None:
        wanted = {
            "num_partitions": partitions,
            "replication_factor": REPLICAS,
            "configs": dict(settings or {}),
        }
        with _Admin(self.address) as admin:
            _raising(admin.create_topics, {topic: wanted})

    def delete_topic(self, topic: str) -> None:
        with _Admin(self.address) as admin:
            _raising(admin.delete_topics, [topic])

    def create_partitions(self, topic: str, total: int) -> None:
        with _Admin(self.address) as admin:
            _raising(admin.create_partitions, {topic: total})

    def topic_settings(self, topic: str) -> dict[str, str | None]:
        asked = ConfigResource(ConfigResourceType.TOPIC, topic)
        with _Admin(self.address) as admin:
            told = _raising(admin.describe_configs, [asked], config_filter="all")
        return {name: entry["value"] for name, entry in told["topic"][topic].items()}

    def cluster(self) -> Cluster:
        with _Admin(self.address) as admin:
            told = _raising(admin.describe_cluster)
        return Cluster(
            cluster_id=told["cluster_id"],
            nodes={node["broker_id"]: f"{node['host']}:{node['port']}" for node in told["brokers"]},
            controller=told["controller_id"],
        )

    def topics(self) -> dict[str, int]:
        with _Admin(self.address) as admin:
            told = _raising(admin.describe_topics)
        return {topic["name"]: len(topic["partitions"]) for topic in told}


class _Consumer:
    """A consumer without a topic, for offset look-ups."""

    def __init__(self, address: str) -> None:
        self._consumer = KafkaConsumer(bootstrap_servers=address, group_id=None, enable_auto_commit=False)

    def __enter__(self) -> Any:
        return self._consumer

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


class _Admin:
    def __init__(self, address: str) -> None:
        self._admin = KafkaAdminClient(bootstrap_servers=address)

    def __enter__(self) -> Any:
        return self._admin

    def __exit__(self, *_: object) -> None:
        self._admin.close()


def _raising(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls the library; its errors become refusals in Kafka's numbers."""
    try:
        return call(*arguments, **options)
    except KafkaTimeoutError as error:
        raise RefusedError(REQUEST_TIMED_OUT, repr(error)) from None
    except KafkaError as error:
        code = getattr(error, "errno", -1)
        if type(error).__name__ == "OffsetOutOfRangeError":
            code = OFFSET_OUT_OF_RANGE
        raise RefusedError(code, repr(error)) from None


def _received(each: Any) -> Received:
    return Received(
        partition=each.partition,
        offset=each.offset,
        timestamp_ms=each.timestamp,
        key=each.key,
        value=each.value,
        headers=tuple((name, value) for name, value in each.headers),
    )
