"""appliance_client behind the common vocabulary, over TCP, ZeroMQ and shared memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from appliance_client import MAX_TIMESTAMP, Admin, ClientError, Consumer, Producer, TopicPartition
from tests.clients.client import Client, Cluster, Position, Received, Record, RefusedError
from tests.support.judge import REPLICAS


class NativeClient(Client):
    """The native client of this repository."""

    name: ClassVar[str] = "native"

    @property
    def bootstrap(self) -> str:
        """What the client is given."""
        return self.address

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[Position]:
        with raising(
            Producer,
            bootstrap_servers=self.bootstrap,
            compression_type=codec,
            acks=acks,
            enable_idempotence=idempotent,
            max_request_size=20_000_000,
            batch_size=131_072,
            max_block_ms=5_000,
        ) as producer:
            futures = [
                raising(
                    producer.send,
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=record.headers,
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            told = [raising(future.get, 60) for future in futures]
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
        received: list[Received] = []
        deadline = time.monotonic() + timeout_s
        home = TopicPartition(topic, partition)
        with self._consumer(auto_offset_reset=reset, fetch_max_wait_ms=max_wait_ms) as consumer:
            consumer.assign([home])
            consumer.seek(home, start)
            while len(received) < count:
                polled = raising(consumer.poll, 200, count - len(received))
                received.extend(_received(each) for each in polled.get(home, ()))
                if not polled and time.monotonic() > deadline:
                    raise TimeoutError(f"{len(received)} of {count} records of {topic}-{partition}")
        return received

    def _consumer(self, **options: Any) -> Consumer:
        return Consumer(bootstrap_servers=self.bootstrap, **options)

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        home = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            found = raising(consumer.offsets_for_times, {home: timestamp_ms})[home]
        return None if found is None else int(found.offset)

    def offset_range(self, topic: str, partition: int) -> tuple[int, int]:
        home = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            first = raising(consumer.beginning_offsets, [home])[home]
            return first, raising(consumer.end_offsets, [home])[home]

    def offset_of_max_timestamp(self, topic: str, partition: int) -> int:
        home = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            found = raising(consumer.offsets_for_times, {home: MAX_TIMESTAMP})[home]
        return int(found.offset)

    def create_topic(self, topic: str, partitions: int, *, settings: Mapping[str, str] | None = None) -> None:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            raising(admin.create_topic, topic, partitions, REPLICAS, settings)

    def delete_topic(self, topic: str) -> None:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            raising(admin.delete_topic, topic)

    def create_partitions(self, topic: str, total: int) -> None:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            raising(admin.create_partitions, topic, total)

    def topic_settings(self, topic: str) -> dict[str, str | None]:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            told: dict[str, str | None] = raising(admin.topic_configs, topic)
        return told

    def cluster(self) -> Cluster:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            told = raising(admin.cluster)
        nodes = {node_id: f"{host}:{port}" for node_id, (host, port) in told.brokers.items()}
        return Cluster(told.cluster_id, nodes, told.controller_id)

    def topics(self) -> dict[str, int]:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            told: dict[str, int] = raising(admin.topics)
        return told


_PLACES: Final[dict[str, Mapping[str, str]]] = {}
"""From a broker's TCP address to its addresses by transport; whoever starts the broker tells."""


def tell(places: Mapping[str, str]) -> None:
    """The addresses of a broker, by transport."""
    _PLACES[places["tcp"]] = places


def place_of(address: str, transport: str) -> str:
    """The address on that transport of the broker that scenarios know by its TCP address."""
    return _PLACES[address][transport]


class NativeZeroMqClient(NativeClient):
    """The same over ZeroMQ."""

    name: ClassVar[str] = "native-zeromq"

    @property
    def bootstrap(self) -> str:
        return place_of(self.address, "zmq+ipc")


class NativeShmClient(NativeClient):
    """The same over shared memory; a consumer reads the files itself."""

    name: ClassVar[str] = "native-shm"

    @property
    def bootstrap(self) -> str:
        return place_of(self.address, "shm")


def raising(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls the library; its errors become refusals in Kafka's numbers."""
    try:
        return call(*arguments, **options)
    except ClientError as error:
        raise RefusedError(error.code, repr(error)) from None


def _received(each: Any) -> Received:
    return Received(
        partition=each.partition,
        offset=each.offset,
        timestamp_ms=each.timestamp,
        key=each.key,
        value=each.value,
        headers=each.headers,
    )
