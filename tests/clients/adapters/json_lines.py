"""Libraries of other languages: a driver process that takes one JSON object a line and answers one line.

Bytes travel as base64, a record as [key, value, headers, timestamp, partition], a received one as [offset,
timestamp, key, value, headers]. An answer is `{"ok": …}` or `{"error": {"code": …, "message": …}}`; code -2 says
that the driver's own time was over.
"""

from __future__ import annotations

import json
import subprocess
from abc import abstractmethod
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.clients.client import Client, Cluster, Position, Received, Record, RefusedError
from tests.support.judge import REPLICAS

DRIVER_TIMED_OUT: Final = -2


Driver = subprocess.Popen[str]

_idle: defaultdict[str, list[Driver]] = defaultdict(list)


def end_idle_drivers() -> None:
    """Ends the processes that wait for a next client; a driver ends when its standard input is closed."""
    while _idle:
        _, drivers = _idle.popitem()
        for driver in drivers:
            driver.communicate(timeout=20)


class JsonLinesClient(Client):
    """A client in another process. Closing it leaves the process, without a connection, to the next client."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        idle = _idle[self.name]
        self._driver = idle.pop() if idle else self._start()
        self._ask("connect", address=address)

    @classmethod
    def _start(cls) -> Driver:
        pipe = subprocess.PIPE
        return subprocess.Popen(cls.command(), stdin=pipe, stdout=pipe, text=True)

    @staticmethod
    @abstractmethod
    def command() -> Sequence[str]:
        """The command line of the driver."""

    def close(self) -> None:
        if self._driver.poll() is None:
            self._ask("close")
            _idle[self.name].append(self._driver)

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

    def _ask(self, operation: str, **request: Any) -> Any:
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        self._driver.stdin.write(json.dumps({"op": operation, **request}) + "\n")
        self._driver.stdin.flush()
        line = self._driver.stdout.readline()
        if not line:
            code = self._driver.wait(timeout=20)
            raise AssertionError(f"the driver ended with {code} during {operation}; its words are on stderr")
        answer = json.loads(line)
        if "error" not in answer:
            return answer["ok"]
        error = answer["error"]
        if error["code"] == DRIVER_TIMED_OUT:
            raise TimeoutError(error["message"])
        raise RefusedError(error["code"], error["message"])


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
