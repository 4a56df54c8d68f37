"""Libraries of other languages: a driver process each (driver_process.py).

Bytes travel as base64, a record as [key, value, headers, timestamp, partition], a received one as [offset,
timestamp, key, value, headers].
"""

from __future__ import annotations

from abc import abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from tests.clients.adapters.driver_process import DriverProcess
from tests.clients.client import Client, Cluster, Position, Received, Record
from tests.support.judge import REPLICAS


class JsonLinesClient(Client):
    """A client in another process. Closing it leaves the process, without a connection, to the next client."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._driver = DriverProcess(self.name, self.command)
        self._ask = self._driver.ask
        self._ask("connect", address=address)

    @staticmethod
    @abstractmethod
    def command() -> Sequence[str]:
        """The command line of the driver."""

    def close(self) -> None:
        if self._driver.runs:
            self._ask("close")
            self._driver.release()

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[Position]:
        told = self._ask(
            "produce",
            topic=topic,
            records=[_packed(record) for record in records],
            codec=codec,
            acks=acks,
            idempotent=idempotent,
        )
        return [Position(partition, offset) for partition, offset in told]

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
        told = self._ask(
            "consume",
            topic=topic,
            partition=partition,
            start=start,
            count=count,
            reset=reset,
            maxWaitMs=max_wait_ms,
            timeoutMs=int(timeout_s * 1000),
        )
        return [
            Received(
                partition=partition,
                offset=offset,
                timestamp_ms=timestamp,
                key=_unpacked(key),
                value=_unpacked(value),
                headers=tuple((name, _unpacked(header)) for name, header in headers),
            )
            for offset, timestamp, key, value, headers in told
        ]

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        found: int | None = self._ask(
            "offsetForTime", topic=topic, partition=partition, timestamp=timestamp_ms
        )
        return found

    def offset_range(self, topic: str, partition: int) -> tuple[int, int]:
        first, end = self._ask("offsetRange", topic=topic, partition=partition)
        return first, end

    def create_topic(self, topic: str, partitions: int, *, settings: Mapping[str, str] | None = None) -> None:
        settings = dict(settings or {})
        self._ask("createTopic", topic=topic, partitions=partitions, replicas=REPLICAS, settings=settings)

    def delete_topic(self, topic: str) -> None:
        self._ask("deleteTopic", topic=topic)

    def create_partitions(self, topic: str, total: int) -> None:
        self._ask("createPartitions", topic=topic, total=total)

    def topic_settings(self, topic: str) -> dict[str, str | None]:
        return dict(self._ask("topicSettings", topic=topic))

    def cluster(self) -> Cluster:
        told = self._ask("cluster")
        nodes = {int(number): str(place) for number, place in told["nodes"]}
        return Cluster(cluster_id=told["clusterId"], nodes=nodes, controller=told["controller"])

    def topics(self) -> dict[str, int]:
        return dict(self._ask("topics"))


def _packed(record: Record) -> list[Any]:
    return [
        _text(record.key),
        _text(record.value),
        [[name, _text(value)] for name, value in record.headers],
        record.timestamp_ms,
        record.partition,
    ]


def _text(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _unpacked(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
