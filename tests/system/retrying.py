"""What tests of retries need: a broker, retries of a group, and records that are handed back by a plain client."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from appliance.cli.program import main
from tests.support.broker import Appliance

PATIENCE_S: Final = 60.0
PARTITIONS: Final = 2
FIRST_LEVEL_S: Final = 0.2
ENABLE: Final = ("--levels", "200ms,500ms", "--max", "2")
DEATH_S: Final = 0.2 + 0.5
"""A record that always fails is dead after that, and not before."""

Headers = Sequence[tuple[str, bytes]]


def started(data_dir: Path) -> Appliance:
    broker = Appliance(data_dir, settings={"services.processes": 1, "group.initial.rebalance.delay.ms": 0})
    broker.start()
    return broker


def command(broker: Appliance, *arguments: str, code: int = 0) -> str:
    """Run `appliance` in this process, and return what it printed, standard output first."""
    output, errors = StringIO(), StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        found = main([*arguments, "--bootstrap", broker.address])
    printed = output.getvalue() + errors.getvalue()
    assert found == code, f"{found}: {printed}"
    return printed


def listed(broker: Appliance, *arguments: str) -> Any:
    """Run a command with `--json`, and return what it printed to standard output."""
    return json.loads(command(broker, *arguments, "--json").splitlines()[0])


def create(broker: Appliance, topic: str, group: str = "g", *, options: Sequence[str] = ENABLE) -> str:
    """Create a topic with retries; return the name of the retry topic."""
    client = AdminClient({"bootstrap.servers": broker.address})
    client.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].exception(PATIENCE_S)  # it may be there
    found = listed(broker, "retries", "enable", group, topic, *options)
    assert not found["fault"]
    return str(found["retry_topic"])


def producer(broker: Appliance, **options: Any) -> Producer:
    return Producer({"bootstrap.servers": broker.address, "message.max.bytes": 8 << 20, **options})


def sent(client: Producer, topic: str, value: bytes | None, headers: Headers = (), **options: Any) -> Any:
    """Produce one record; return the error, or the message as it was acknowledged."""
    found: list[Any] = []
    client.produce(
        topic,
        value,
        headers=list(headers),
        on_delivery=lambda error, message: found.append(error or message),
        **options,
    )
    client.flush(PATIENCE_S)
    return found[0]


def first_place(topic: str, partition: int, offset: int) -> list[tuple[str, bytes]]:
    return [
        ("retry.topic", topic.encode()),
        ("retry.partition", b"%d" % partition),
        ("retry.offset", b"%d" % offset),
    ]


def handed_back(client: Producer, retry: str, message: Any, *more: tuple[str, bytes]) -> None:
    """Hand a record back as docs/retries.md says."""
    headers = list(message.headers() or [])
    if not any(name == "retry.topic" for name, _ in headers):
        headers += first_place(message.topic(), message.partition(), message.offset())
    error = sent(client, retry, message.value(), [*headers, *more], key=message.key())
    assert not isinstance(error, KafkaError), error


def read(broker: Appliance, topic: str, wanted: int, *, more_s: float = 0.0) -> list[Any]:
    """Return `wanted` records of all partitions from the start, and what comes in `more_s` after them."""
    client = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 8 << 20,
        }
    )
    client.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[Message] = []
    until = time.monotonic() + PATIENCE_S
    while len(found) < wanted and time.monotonic() < until:
        found += [each for each in client.consume(100, 0.1) if each.error() is None]
    assert len(found) >= wanted, f"{len(found)} of {wanted} came to {topic}"
    until = time.monotonic() + more_s
    while time.monotonic() < until:
        found += [each for each in client.consume(100, 0.1) if each.error() is None]
    client.close()
    return found


def headers_of(message: Any) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in message.headers() or ()}
