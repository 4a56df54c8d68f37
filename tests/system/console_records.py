"""Records that the broker itself does something with, for the console to show: delayed, dead, audited, traced."""

from __future__ import annotations

import json
import time
from typing import Any, Final

from confluent_kafka import Consumer

from tests.cli.command import appliance
from tests.system.console_scene import PATIENCE_S, Console
from tests.system.raw import wait_until

ORDERS: Final = "orders"
LATER: Final = "later"
GROUP: Final = "billing"
TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
FAR_MS: Final = 86_400_000
WATCHED: Final = {
    "audit.enable": "true",
    "audit.headers": "true",
    "audit.bucket.ms": "60000",
    "trace.enable": "true",
}
"""Settings of ORDERS."""


def fill(console: Console, text: str) -> None:
    """Create ORDERS and LATER on three slots, and all records of this file; `text` is in each value."""
    console.create(ORDERS, 1, 3, configs=WATCHED)
    console.create(LATER, 2, 3, configs={"delivery.delay.enable": "true"})
    audited(console, text)
    delayed(console, text)
    dead(console, text)


def audited(console: Console, text: str) -> None:
    """Records of one client, with one that is missing and one that is doubled, consumed by a group; one is traced."""
    headers: list[list[tuple[str, bytes]]] = [
        [("audit.id", b"till:%d" % number)] for number in (0, 1, 2, 4, 4, 5)
    ]
    headers[0].append(("traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode()))
    console.produce(ORDERS, [{"value": text, "headers": each} for each in headers])
    consumer = Consumer(
        {
            "bootstrap.servers": console.broker.address,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([ORDERS])
    read = 0
    until_s = time.monotonic() + PATIENCE_S
    while read < len(headers):
        assert time.monotonic() < until_s
        read += len([each for each in consumer.consume(10, 0.2) if each.error() is None])
    consumer.commit(asynchronous=False)
    consumer.poll(0.3)
    consumer.close()


def delayed(console: Console, text: str) -> None:
    """Records that are due tomorrow, two of them under one id."""
    due = str(int(time.time() * 1000) + FAR_MS).encode()
    console.produce(
        LATER,
        [
            {
                "key": f"k{number}",
                "value": text,
                "partition": number % 2,
                "headers": [("delivery.at", due), ("delivery.id", f"id-{min(number, 3)}".encode())],
            }
            for number in range(5)
        ],
    )


def dead(console: Console, text: str) -> None:
    """Three dead letters of a group."""
    found = appliance("retries", "enable", GROUP, ORDERS, "-b", console.broker.address, "--json")
    retry = json.loads(found.succeeded().text)["retry_topic"]
    console.produce(
        retry,
        [
            {
                "key": f"dead-{number}",
                "value": f"cannot be processed {text}",
                "headers": [
                    ("retry.topic", ORDERS.encode()),
                    ("retry.partition", b"0"),
                    ("retry.offset", b"%d" % number),
                    ("retry.exception", b"ValueError" if number else b"KeyError"),
                    ("retry.reason", text.encode()),
                    ("retry.dead", b"true"),
                ],
            }
            for number in range(3)
        ],
    )
    wait_until(lambda: len(dead_letters(console)) == 3, "the records are dead letters")


def dead_letters(console: Console) -> list[dict[str, Any]]:
    shown = appliance("dead-letters", "list", GROUP, ORDERS, "-b", console.broker.address, "--json")
    found: list[dict[str, Any]] = json.loads(shown.succeeded().text)
    return found
