"""Producers with acks=all beside faults, and the check afterwards: each acknowledged record once, in order, everywhere.

Every record of a partition carries the next number. Readers look for what may go wrong (lost, duplicated, reordered);
`replicas_differ` compares what the slots have on their disks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from appliance.log.file_names import LOG
from tests.support.broker import Appliance

DELIVERY_TIMEOUT_MS: Final = 60_000
IN_FLIGHT_MAX: Final = 200


def bootstrap(broker: Appliance) -> str:
    return ",".join(f"127.0.0.1:{broker.port + slot}" for slot in range(broker.slots))


def create(broker: Appliance, topic: str, partitions: int, *, replicas: int, **configs: str) -> None:
    """Creates a topic and returns when it is there; `configs` with `_` for `.`."""
    named = {name.replace("_", "."): value for name, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap(broker)})
    new = NewTopic(topic, partitions, replicas, config=named)
    for future in admin.create_topics([new], operation_timeout=20).values():
        future.result(30)


def leaders(broker: Appliance, topic: str) -> dict[int, int]:
    """Partition → leader, as Metadata says now."""
    admin = AdminClient({"bootstrap.servers": bootstrap(broker)})
    found = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return {number: each.leader for number, each in found.items()}


def in_sync(broker: Appliance, topic: str) -> dict[int, set[int]]:
    """Partition → ISR, as Metadata says now."""
    admin = AdminClient({"bootstrap.servers": bootstrap(broker)})
    found = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return {number: set(each.isrs) for number, each in found.items()}


class AckedLoad:
    """An idempotent producer on a thread, from entering to leaving; what was acknowledged, and what was not."""

    def __init__(self, broker: Appliance, topic: str, partitions: int, *, pace_s: float = 0.0005) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap(broker),
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                "retry.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._topic = topic
        self._partitions = partitions
        self._pace_s = pace_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._in_flight = 0
        self.acked: dict[int, list[int]] = {number: [] for number in range(partitions)}
        self.failed: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(DELIVERY_TIMEOUT_MS / 1000 + 20)
        assert not self._thread.is_alive() or kind is not None

    def give_up(self) -> None:
        """Nobody will answer any more: what is not acknowledged by now is not waited for."""
        self._stop.set()
        while self._thread.is_alive():
            self._producer.purge()
            self._thread.join(0.1)

    @property
    def count(self) -> int:
        return sum(map(len, self.acked.values()))

    def until(self, more: int, timeout_s: float = 60) -> None:
        """Returns when so many more records are acknowledged."""
        wanted = self.count + more
        deadline = time.monotonic() + timeout_s
        while self.count < wanted:
            assert time.monotonic() < deadline, (
                f"only {self.count} of {wanted} acknowledged: {self.failed[:3]}"
            )
            time.sleep(0.01)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            if self._in_flight >= IN_FLIGHT_MAX:
                self._producer.poll(0.01)
                continue
            for partition in range(self._partitions):
                self._in_flight += 1
                self._producer.produce(
                    self._topic, b"%d" % number, partition=partition, on_delivery=self._delivered
                )
            number += 1
            self._producer.poll(self._pace_s)
        self._producer.flush(DELIVERY_TIMEOUT_MS / 1000 + 10)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self._in_flight -= 1
        value, partition = message.value(), message.partition()
        assert isinstance(value, bytes)
        assert partition is not None
        if error is None:
            self.acked[partition].append(int(value))
        else:
            self.failed.append(f"{partition}: {int(value)}: {error}")

    def check(self, broker: Appliance) -> None:
        """Reads every partition from its begin; lost, duplicated or reordered records fail."""
        found = read_all(broker, self._topic, self._partitions)
        for partition, numbers in found.items():
            assert numbers == sorted(set(numbers)), f"{partition}: twice, or out of order"
            lost = set(self.acked[partition]) - set(numbers)
            assert not lost, f"{partition}: acknowledged and lost: {sorted(lost)[:10]} of {len(lost)}"


def read_all(broker: Appliance, topic: str, partitions: int) -> dict[int, list[int]]:
    """The numbers of every partition, as a consumer reads them up to the high watermark."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap(broker), "group.id": "check", "enable.partition.eof": True}
    )
    found: dict[int, list[int]] = {number: [] for number in range(partitions)}
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    ended: set[int] = set()
    deadline = time.monotonic() + 120
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"read {[len(each) for each in found.values()]}, {ended} ended"
        for message in consumer.consume(1000, timeout=1.0):
            fault, partition = message.error(), message.partition()
            assert partition is not None
            if fault is None:
                value = message.value()
                assert isinstance(value, bytes)
                found[partition].append(int(value))
            elif fault.code() == KafkaError._PARTITION_EOF:
                ended.add(partition)
            elif not fault.retriable() and fault.code() > 0:
                raise KafkaException(fault)
    consumer.close()
    return found


def log_bytes(directory: Path) -> bytes:
    """All batches of a partition on one disk, without the room taken ahead."""
    files = sorted(path for path in directory.iterdir() if path.name.endswith(LOG))
    return b"".join(path.read_bytes().rstrip(b"\0") for path in files)


def replicas_differ(broker: Appliance, topic: str, partitions: int) -> list[str]:
    """Partitions that are not the same on every slot."""
    told = []
    for partition in range(partitions):
        held: Mapping[int, bytes] = {
            slot: log_bytes(broker.data_dir / f"slot-{slot}" / f"{topic}-{partition}")
            for slot in range(broker.slots)
        }
        if len(set(held.values())) != 1:
            told.append(f"{topic}-{partition}: {[len(each) for each in held.values()]}")
    return told


def settled(broker: Appliance, topic: str, partitions: int, timeout_s: float = 60) -> None:
    """Returns when every slot has the same of every partition and is in sync."""
    deadline = time.monotonic() + timeout_s
    while True:
        apart = replicas_differ(broker, topic, partitions)
        isr = in_sync(broker, topic)
        if not apart and all(len(each) == broker.slots for each in isr.values()):
            return
        assert time.monotonic() < deadline, f"not the same: {apart}; in sync {isr}"
        time.sleep(0.1)
