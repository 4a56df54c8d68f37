"""Quotas seen from clients: what they get, over two network processes, and what they are told."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    QuotaAlteration,
    QuotaEntity,
    QuotaOperation,
)
from appliance.protocol.apis.create_partitions import CreatePartitionsRequest, PartitionsTopic
from appliance.protocol.apis.create_topics import CreatableTopic, CreateTopicsRequest
from appliance.protocol.apis.delete_topics import DeleteTopicsRequest
from appliance.protocol.apis.list_groups import ListGroupsRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.support.apache_kafka import tool
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.raw import ask, create_topic, produce_body

WINDOW_S: Final = 11
SPAN_S: Final = 20.5
"""Nearly two windows: a client may use up a window's worth at the beginning of each."""
RATE: Final = 2_000_000
MESSAGE: Final = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    running = Appliance(tmp_path_factory.mktemp("quotas") / "data", settings={"network.processes": 2})
    running.start()
    try:
        yield running
    finally:
        running.stop()


def set_quotas(broker: Appliance, entity: dict[str, str | None], **quotas: float | None) -> None:
    """None removes one."""
    parts = tuple(QuotaEntity(kind.replace("_", "-"), name) for kind, name in entity.items())
    operations = tuple(
        QuotaOperation(key, 0.0 if value is None else value, value is None) for key, value in quotas.items()
    )
    with WireSocket(broker.port, timeout_s=30) as admin:
        request = AlterClientQuotasRequest((QuotaAlteration(parts, operations),))
        (done,) = ask(admin, ApiKey.ALTER_CLIENT_QUOTAS, request).entries
        assert done.error_code == 0, done


@pytest.fixture
def quota(broker: Appliance) -> Iterator[Callable[..., None]]:
    """Sets quotas of an entity; they are gone at the end."""
    with ExitStack() as undone:

        def set_them(entity: dict[str, str | None], **quotas: float) -> None:
            set_quotas(broker, entity, **quotas)
            undone.callback(set_quotas, broker, entity, **dict.fromkeys(quotas))

        yield set_them


@dataclass
class Rates:
    """Bytes a second over all of the time, by client."""

    by_client: dict[str, float]
    throttled: set[str]

    @property
    def total(self) -> float:
        return sum(self.by_client.values())


def run_together(clients: dict[str, Callable[[threading.Event], int]], seconds: float) -> dict[str, float]:
    """What each moved in a second."""
    stop = threading.Event()
    moved: dict[str, int] = {}

    def run(name: str) -> None:
        moved[name] = clients[name](stop)

    threads = [threading.Thread(target=run, args=(name,)) for name in clients]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    elapsed = time.monotonic() - began
    for thread in threads:
        thread.join(60)
    return {name: size / elapsed for name, size in moved.items()}


def producing(broker: Appliance, client_id: str, topic: str) -> Callable[[threading.Event], int]:
    """Sends as much as it may; what was acknowledged while it ran counts."""

    def run(stop: threading.Event) -> int:
        acknowledged = 0

        def delivered(error: Any, message: Any) -> None:
            nonlocal acknowledged
            assert error is None, error
            if not stop.is_set():
                acknowledged += len(message.value())

        producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "client.id": client_id,
                "queue.buffering.max.messages": 200,
                "batch.num.messages": 10,
                "linger.ms": 1,
                "message.timeout.ms": 120_000,
            }
        )
        while not stop.is_set():
            try:
                producer.produce(topic, MESSAGE, on_delivery=delivered)
            except BufferError:
                producer.poll(0.01)
            producer.poll(0)
        producer.purge()
        producer.poll(0)
        return acknowledged

    return run


def consuming(broker: Appliance, client_id: str, topic: str) -> Callable[[threading.Event], int]:
    """Reads as much as it gets, over and over."""

    def run(stop: threading.Event) -> int:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.address,
                "client.id": client_id,
                "group.id": f"group-{client_id}",
                "enable.auto.commit": False,
                "queued.max.messages.kbytes": 1024,
                "fetch.message.max.bytes": 200_000,
                "fetch.max.bytes": 400_000,
                "message.max.bytes": 400_000,
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        read, left = 0, None
        while not stop.is_set():
            message = consumer.poll(0.1)
            if message is None or message.error():
                continue
            read += len(message.value())
            left = message.offset()
            if left == FILLED - 1:
                consumer.seek(TopicPartition(topic, 0, 0))
        consumer.close()
        return read

    return run


FILLED: Final = 6_000


@pytest.fixture(scope="module")
def filled(broker: Appliance) -> str:
    assert create_topic(broker.port, "filled") == 0
    producer = Producer({"bootstrap.servers": broker.address, "client.id": "filler"})
    for _ in range(FILLED):
        producer.produce("filled", MESSAGE)
        producer.poll(0)
    assert producer.flush(60) == 0
    return "filled"


@pytest.mark.slow
def test_producers_of_one_client_id_share_its_rate_and_others_are_not_hurt(
    broker: Appliance, quota: Callable[..., None]
) -> None:
    assert create_topic(broker.port, "written") == 0
    quota({"client_id": "limited"}, producer_byte_rate=RATE)
    clients = {f"limited-{number}": producing(broker, "limited", "written") for number in range(4)}
    clients["free"] = producing(broker, "free", "written")
    rates = run_together(clients, SPAN_S)
    free = rates.pop("free")
    print(f"wanted {RATE}, got {sum(rates.values()):.0f} ({rates}); free {free:.0f}")
    assert sum(rates.values()) == pytest.approx(RATE, rel=0.1)
    assert free > 2 * RATE


@pytest.mark.slow
def test_consumers_of_one_client_id_share_its_rate_and_others_are_not_hurt(
    broker: Appliance, quota: Callable[..., None], filled: str
) -> None:
    quota({"client_id": "reader"}, consumer_byte_rate=RATE)
    clients = {f"reader-{number}": consuming(broker, "reader", filled) for number in range(4)}
    clients["free"] = consuming(broker, "free-reader", filled)
    rates = run_together(clients, SPAN_S)
    free = rates.pop("free")
    print(f"wanted {RATE}, got {sum(rates.values()):.0f} ({rates}); free {free:.0f}")
    assert sum(rates.values()) == pytest.approx(RATE, rel=0.1)
    assert free > 2 * RATE
