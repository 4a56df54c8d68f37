"""What the tests of listeners with TLS and SASL have in common."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from tests.support.broker import Appliance
from tests.support.judge import QUICK_GROUPS
from tests.support.pki import Authority
from tests.support.wire import PATIENCE_S

SILENT = 200
"""Connections that say nothing: more than one address may have before they are sessions."""


class SecuredScene:
    """An appliance with a certificate of an authority of its own.

    Args:
        listeners: the first one is in plain text, on `port`.
    """

    def __init__(self, directory: Path, port: int, listeners: list[str], **more: object) -> None:
        self.authority = Authority(directory / "pki")
        self.server = self.authority.server()
        self.port = port
        self.broker = Appliance(
            directory / "data",
            port=port,
            settings={
                **QUICK_GROUPS,
                "listeners": listeners,
                "ssl.certificate.file": str(self.server.certificate),
                "ssl.key.file": str(self.server.key),
                **more,
            },
        )

    def waits_for(self, line: str) -> None:
        """Wait until the broker has printed a line."""
        deadline = time.monotonic() + PATIENCE_S
        while line not in self.broker.output():
            assert time.monotonic() < deadline, f"{line!r} is not in\n{self.broker.output()}"
            time.sleep(0.02)


def produced(options: dict[str, Any], topic: str, values: list[bytes]) -> None:
    """Produce with acks=all; every record is acknowledged."""
    failures: list[object] = []
    producer = Producer({**options, "message.max.bytes": 2_000_000})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error))
        producer.poll(0)
    assert producer.flush(60) == 0
    assert failures == [None] * len(values)


def consumed(options: dict[str, str], topic: str, count: int) -> list[bytes]:
    """Consume as a member of a group."""
    consumer = Consumer({"group.id": f"g-{topic}", "auto.offset.reset": "earliest", **options})
    consumer.subscribe([topic])
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        for message in consumer.consume(500, 1):
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
    consumer.close()
    return values


def is_ended(sock: socket.socket) -> bool:
    """Wait until the broker has closed a connection."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True
