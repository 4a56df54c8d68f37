"""Shared by the system tests of delayed delivery."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from appliance.cli.status import processes_of
from tests.support.broker import Appliance

LEVELS: Final = ["500ms", "1s", "2s"]
PATIENCE_S: Final = 60.0
PARTITIONS: Final = 2


def started(data_dir: Path, *, slots: int = 1) -> Appliance:
    broker = Appliance(
        data_dir, slots=slots, settings={"services.processes": 1, "delivery.delay.levels": LEVELS}
    )
    broker.start()
    return broker


def create(broker: Appliance, topic: str, *, replicas: int = 1, **configs: str) -> None:
    configs = {
        "delivery.delay.enable": "true",
        **{name.replace("_", "."): each for name, each in configs.items()},
    }
    client = AdminClient({"bootstrap.servers": broker.address})
    client.create_topics([NewTopic(topic, PARTITIONS, replicas, config=configs)])[topic].result(PATIENCE_S)


def consumed(broker: Appliance, topic: str, wanted: int, *, more_s: float = 0.0) -> list[Any]:
    """Return `wanted` records in the order in which they came, and what comes in `more_s` after them."""
    client = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    client.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[Any] = []
    until = time.monotonic() + PATIENCE_S
    while len(found) < wanted and time.monotonic() < until:
        found += [each for each in client.consume(100, 0.1) if each.error() is None]
    assert len(found) >= wanted, f"{len(found)} of {wanted} came: {sorted(each.value() for each in found)}"
    until = time.monotonic() + more_s
    while time.monotonic() < until:
        found += [each for each in client.consume(100, 0.1) if each.error() is None]
    client.close()
    return found


def records_in(broker: Appliance, topic: str) -> int:
    """Return how many records the topic has had."""
    client = Consumer({"bootstrap.servers": broker.address, "group.id": "none"})
    partitions = client.list_topics(topic, PATIENCE_S).topics[topic].partitions
    ends = [client.get_watermark_offsets(TopicPartition(topic, each), PATIENCE_S)[1] for each in partitions]
    client.close()
    return sum(ends)


def refusal_of(
    broker: Appliance, topic: str, headers: Sequence[tuple[str, bytes]], **options: Any
) -> KafkaError:
    """Return the error of producing a record with these headers."""
    errors: list[KafkaError | None] = []
    client = Producer({"bootstrap.servers": broker.address, **options})
    client.produce(topic, b"bad", headers=list(headers), on_delivery=lambda error, _: errors.append(error))
    client.flush(PATIENCE_S)
    (error,) = errors
    assert error is not None, "it was taken"
    return error


def counter(broker: Appliance, name: str) -> int:
    rows = processes_of(broker.data_dir.resolve()) or []
    return sum(row.get("counters", {}).get(name, 0) for row in rows)


class Load(threading.Thread):
    """A producer that sends delayed and plain records until it is stopped; what was acknowledged is in `acked`."""

    def __init__(self, broker: Appliance, topic: str) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.acked: dict[bytes, float] = {}
        self.failed: list[str] = []
        self._ended = threading.Event()
        self._client = Producer(
            {
                "bootstrap.servers": broker.address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": int(PATIENCE_S * 1000),
                "retry.backoff.ms": 50,
            }
        )

    def run(self) -> None:
        number = 0
        while not self._ended.is_set():
            delay_ms = (0, 400, 900, 1900)[number % 4]
            value = b"%d %d" % (number, delay_ms)
            self._client.produce(
                self.topic,
                value,
                partition=number % PARTITIONS,
                headers=[("delivery.delay", b"%d" % delay_ms)] if delay_ms else [],
                on_delivery=self._note(time.time() + delay_ms / 1000),
            )
            self._client.poll(0.002)
            number += 1
        self._client.flush(PATIENCE_S)

    def _note(self, due: float) -> Any:
        def note(error: KafkaError | None, message: Any) -> None:
            if error is None:
                self.acked[message.value()] = due
            else:
                self.failed.append(str(error))

        return note

    def end(self) -> None:
        self._ended.set()
        self.join(PATIENCE_S * 2)
        assert not self.is_alive()
        assert not self.failed, self.failed[:3]


def check(broker: Appliance, load: Load, *, is_clock_kept: bool = True) -> None:
    """Each acknowledged record is there once, and none came early by a clock that was kept."""
    found = consumed(broker, load.topic, len(load.acked), more_s=2.0)
    times = Counter(each.value() for each in found)
    assert {value: count for value, count in times.items() if count > 1} == {}
    assert times.keys() == load.acked.keys()
    assert any(b" 1900" in value for value in times)
    if is_clock_kept:
        early = [each.value() for each in found if each.timestamp()[1] < load.acked[each.value()] * 1000 - 1]
        assert early == []
