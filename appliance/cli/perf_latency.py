"""`appliance perf latency`: how long a record takes to its acknowledgement, and to a consumer that waits for it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from appliance.cli.client import asked, consumer, producer, refusal
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.cli.latencies import Latencies
from appliance.cli.options import client_options
from appliance.cli.output import json_option, print_json, print_table

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer

MARK_BYTES: Final = 16
WARM_UP: Final = 20
POLL_S: Final = 0.001
LOST_S: Final = 30.0
FIGURES: Final = ("mean", "p50", "p95", "p99", "p99.9", "max")


@click.command(name="latency")
@click.argument("topic")
@click.option("--records", "-n", type=click.IntRange(min=1, max=10_000_000), default=1_000, show_default=True)
@click.option(
    "--size",
    type=click.IntRange(min=MARK_BYTES, max=10 << 20),
    default=100,
    show_default=True,
    help="Size of each record.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0.1),
    default=200.0,
    show_default=True,
    help="Records per second. With a rate that the broker cannot keep up with, the figures show a queue.",
)
@click.option("--acks", type=click.Choice(("all", "1")), default="all", show_default=True)
@json_option
@client_options
def perf_latency(
    *, topic: str, records: int, size: int, rate: float, acks: str, as_json: bool, bootstrap: str
) -> None:
    """Send records to TOPIC one at a time, and read them.

    ACKNOWLEDGED is the time from the client's call to the acknowledgement, CONSUMED the time until a consumer in the
    same process has the record. The first records do not count, because they wait for connections.
    """
    told = latency_figures(bootstrap, topic, records=records, size=size, rate=rate, acks=acks)
    if as_json:
        print_json(told)
        return
    print_table(
        ("MS", *(name.upper() for name in FIGURES)),
        [
            (title, *(figures[name] for name in FIGURES))
            for title, figures in (
                ("acknowledged", told["acknowledged_ms"]),
                ("consumed", told["consumed_ms"]),
            )
        ],
        right=tuple(name.upper() for name in FIGURES),
    )


def latency_figures(
    bootstrap: str, topic: str, *, records: int, size: int, rate: float, acks: str
) -> dict[str, Any]:
    """Measure; the keys are stable.

    Raises:
        BrokerError: a record is refused, or does not arrive.
    """
    sending = producer(bootstrap, {"acks": acks, "linger.ms": 0, "allow.auto.create.topics": True})
    asked(lambda: sending.list_topics(topic, timeout=REQUEST_TIMEOUT_S))
    reading = consumer(bootstrap, {"fetch.wait.max.ms": 500, "fetch.min.bytes": 1})
    try:
        _assign_ends(reading, topic)
        acknowledged, consumed = _measure(
            sending, reading, topic, list(_marks(records + WARM_UP, size)), pause_s=1 / rate
        )
    finally:
        reading.close()
    return {
        "topic": topic,
        "records": records,
        "size_bytes": size,
        "acks": acks,
        "acknowledged_ms": acknowledged.as_json(),
        "consumed_ms": consumed.as_json(),
    }


def _marks(count: int, size: int) -> Iterator[bytes]:
    """Yield values of which each begins with other bytes, so that each is known again."""
    run = os.urandom(MARK_BYTES - 8)
    rest = os.urandom(size - MARK_BYTES)
    for number in range(count):
        yield run + number.to_bytes(8, "big") + rest


def _assign_ends(client: Consumer, topic: str) -> None:
    """Assign every partition from its end on."""
    from confluent_kafka import TopicPartition

    deadline_s = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        described = asked(lambda: client.list_topics(topic, timeout=REQUEST_TIMEOUT_S)).topics[topic]
        is_led = described.partitions and all(each.leader >= 0 for each in described.partitions.values())
        if described.error is None and is_led:
            break
        if time.monotonic() > deadline_s:
            reason = "no leader" if described.error is None else refusal(described.error)
            raise BrokerError(f"{topic}: {reason}")
        time.sleep(0.05)
    places = []
    for partition in described.partitions:
        place = TopicPartition(topic, partition)
        _, high = asked(lambda tp=place: client.get_watermark_offsets(tp, timeout=REQUEST_TIMEOUT_S))  # type: ignore[misc]
        places.append(TopicPartition(topic, partition, high))
    client.assign(places)


class _Flights:
    """The records on their way: when each was sent."""

    def __init__(self) -> None:
        self.sent_s: dict[bytes, float] = {}
        self.acknowledged = Latencies()
        self.consumed = Latencies()
        self.unacknowledged = 0
        self.reason: str | None = None

    def sends(self, mark: bytes) -> None:
        self.sent_s[mark] = time.monotonic()
        self.unacknowledged += 1

    def on_delivery(self, error: KafkaError | None, message: Message, *, counts: bool) -> None:
        self.unacknowledged -= 1
        if error is not None:
            self.reason = self.reason or refusal(error)
        elif counts and (latency_s := message.latency()) is not None:
            self.acknowledged.add(latency_s)

    def takes(self, message: Message, *, warm_up: frozenset[bytes]) -> None:
        now_s = time.monotonic()
        error = message.error()
        if error is not None:
            raise BrokerError(refusal(error))
        value: Any = message.value()
        mark = bytes(value or b"")[:MARK_BYTES]
        sent_s = self.sent_s.pop(mark, None)
        if sent_s is not None and mark not in warm_up:
            self.consumed.add(now_s - sent_s)


def _measure(
    sending: Producer, reading: Consumer, topic: str, values: list[bytes], *, pause_s: float
) -> tuple[Latencies, Latencies]:
    """Send the values in even steps, and read until the last one is there.

    Raises:
        BrokerError: a record is refused, or does not arrive.
    """
    flights = _Flights()
    warm_up = frozenset(value[:MARK_BYTES] for value in values[:WARM_UP])
    next_s = time.monotonic()
    for number, value in enumerate(values):
        while (left_s := next_s - time.monotonic()) > 0:
            _turn(sending, reading, flights, warm_up, wait_s=min(POLL_S, left_s))
        counts = number >= WARM_UP
        flights.sends(value[:MARK_BYTES])
        sending.produce(
            topic,
            value,
            on_delivery=lambda error, message, counts=counts: flights.on_delivery(  # type: ignore[misc]
                error, message, counts=counts
            ),
        )
        if not counts:  # a connection is made for each partition: one record after the other
            _await(sending, reading, flights, warm_up)
            next_s = time.monotonic()
        next_s += pause_s
    _await(sending, reading, flights, warm_up)
    return flights.acknowledged, flights.consumed


def _await(sending: Producer, reading: Consumer, flights: _Flights, warm_up: frozenset[bytes]) -> None:
    """Wait until nothing is on its way."""
    deadline_s = time.monotonic() + LOST_S
    while flights.sent_s or flights.unacknowledged:
        _turn(sending, reading, flights, warm_up, wait_s=POLL_S)
        if flights.reason is not None:
            raise BrokerError(f"a record was not acknowledged: {flights.reason}")
        if time.monotonic() > deadline_s:
            raise BrokerError(f"{len(flights.sent_s)} records did not arrive within {LOST_S:.0f} s")


def _turn(
    sending: Producer, reading: Consumer, flights: _Flights, warm_up: frozenset[bytes], *, wait_s: float
) -> None:
    sending.poll(0)
    message = asked(lambda: reading.poll(wait_s))
    while message is not None:
        flights.takes(message, warm_up=warm_up)
        message = asked(lambda: reading.poll(0))
