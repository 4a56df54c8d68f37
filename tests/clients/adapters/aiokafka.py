"""aiokafka behind the common vocabulary: every call runs its own event loop to the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code

from tests.clients.client import Client, Cluster, Position, Received, Record, RefusedError
from tests.support.judge import REPLICAS

T = TypeVar("T")


class AiokafkaClient(Client):
    """The asyncio client of PyPI."""

    name: ClassVar[str] = "aiokafka"
    left_out: ClassVar[Mapping[str, str]] = {
        "nothing-at-all": "refuses to send a record with neither key nor value",
        "offset-of-max-timestamp": "needs ListOffsets v7, it speaks v3",
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
        async def run() -> list[Position]:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.address,
                compression_type=None if codec == "none" else codec,
                acks="all" if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                max_request_size=20_000_000,
                max_batch_size=131_072,
                linger_ms=5,
                request_timeout_ms=5_000,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                told = await asyncio.gather(*futures)
            finally:
                await producer.stop()
            return [Position(each.partition, each.offset) for each in told if each is not None]

        return _run(run())

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
        async def run() -> list[Received]:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.address,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset=reset,
                fetch_max_wait_ms=max_wait_ms,
                request_timeout_ms=max_wait_ms + 60_000,
                check_crcs=True,
            )
            await consumer.start()
            received: list[Received] = []
            deadline = time.monotonic() + timeout_s
            home = TopicPartition(topic, partition)
            try:
                consumer.assign([home])
                consumer.seek(home, start)
                while len(received) < count:
                    polled = await consumer.getmany(timeout_ms=200, max_records=count - len(received))
                    received.extend(_received(each) for each in polled.get(home, ()))
                    if not polled and time.monotonic() > deadline:
                        raise TimeoutError(f"{len(received)} of {count} records of {topic}-{partition}")
            finally:
                await consumer.stop()
            return received

        return _run(run())

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        home = TopicPartition(topic, partition)

        async def ask(consumer: Any) -> int | None:
            found = (await consumer.offsets_for_times({home: timestamp_ms}))[home]
            return None if found is None else int(found.offset)

        return self._with_consumer(ask)

    def offset_range(self, topic: str, partition: int) -> tuple[int, int]:
        home = TopicPartition(topic, partition)

        async def ask(consumer: Any) -> tuple[int, int]:
            first = await consumer.beginning_offsets([home])
            end = await consumer.end_offsets([home])
            return first[home], end[home]

        return self._with_consumer(ask)

    def create_topic(self, topic: str, partitions: int, *, settings: Mapping[str, str] | None = None) -> None:
        async def ask(admin: Any) -> None:
            wanted = NewTopic(topic, partitions, REPLICAS, topic_configs=dict(settings or {}))
            answer = await admin.create_topics([wanted])
            _check(answer.topic_errors)

        self._with_admin(ask)

    def delete_topic(self, topic: str) -> None:
        async def ask(admin: Any) -> None:
            answer = await admin.delete_topics([topic])
            _check(answer.topic_error_codes)

        self._with_admin(ask)

    def create_partitions(self, topic: str, total: int) -> None:
        async def ask(admin: Any) -> None:
            await admin.create_partitions({topic: NewPartitions(total)})

        self._with_admin(ask)

    def topic_settings(self, topic: str) -> dict[str, str | None]:
        async def ask(admin: Any) -> dict[str, str | None]:
            (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            ((code, message, _, name, entries),) = answer.resources
            _check([(name, code, message)])
            return {entry[0]: entry[1] for entry in entries}

        return self._with_admin(ask)

    def cluster(self) -> Cluster:
        async def ask(admin: Any) -> Cluster:
            told = await admin.describe_cluster()
            return Cluster(
                cluster_id=told["cluster_id"],
                nodes={node["node_id"]: f"{node['host']}:{node['port']}" for node in told["brokers"]},
                controller=told["controller_id"],
            )

        return self._with_admin(ask)

    def topics(self) -> dict[str, int]:
        async def ask(admin: Any) -> dict[str, int]:
            told = await admin.describe_topics()
            return {topic["topic"]: len(topic["partitions"]) for topic in told}

        return self._with_admin(ask)

    def _with_consumer(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        async def run() -> T:
            consumer = AIOKafkaConsumer(bootstrap_servers=self.address, group_id=None)
            await consumer.start()
            try:
                return await ask(consumer)
            finally:
                await consumer.stop()

        return _run(run())

    def _with_admin(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        async def run() -> T:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
            await admin.start()
            try:
                return await ask(admin)
            finally:
                await admin.close()

        return _run(run())


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Runs to the end; the library's errors become refusals in Kafka's numbers."""

    async def translated(awaited: Awaitable[T]) -> T:
        try:
            return await awaited
        except KafkaError as error:
            raise RefusedError(getattr(error, "errno", None) or -1, repr(error)) from None

    return asyncio.run(translated(work))


def _check(told: Sequence[Sequence[Any]]) -> None:
    for name, code, *message in told:
        if code:
            raise RefusedError(code, f"{name}: {for_code(code).__name__} {message}")


def _received(each: Any) -> Received:
    return Received(
        partition=each.partition,
        offset=each.offset,
        timestamp_ms=each.timestamp,
        key=each.key,
        value=each.value,
        headers=tuple((name, value) for name, value in each.headers),
    )
