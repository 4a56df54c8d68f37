"""`appliance perf latency`: how long a record takes to its acknowledgement, and to a consumer that waits for it.

Memory does not grow with the number of records: latencies are counted in a histogram (`latencies.py`), values are made
when they are sent, and the records on their way are limited in number and in bytes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
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
TURN_EVERY: Final = 16
LOST_S: Final = 30.0
IN_FLIGHT_MAX: Final = 10_000
IN_FLIGHT_BYTES_MAX: Final = 32 << 20
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
    help="Records per second. With a rate that the broker cannot keep up with, the figures show a queue of at most"
    f" {IN_FLIGHT_MAX} records or {IN_FLIGHT_BYTES_MAX >> 20} MiB, and fewer records are sent per second.",
)
@click.option("--acks", type=click.Choice(("all", "1")), default="all", show_default=True)
@json_option
@client_options
def perf_latency(
    *, topic: str, records: int, size: int, rate: float, acks: str, as_json: bool, bootstrap: str
) -> None:
    """Send records to TOPIC one at a time, and read them.

    ACKNOWLEDGED is the time from the client's call to the acknowledgement, CONSUMED the time until a consumer in the
    same process has the record. Each figure is within 0.5 % of the true one. The first records do not count, because
    they wait for connections.
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
    if told["records_per_second"] < 0.95 * rate:
        click.echo(
            f"sent {told['records_per_second']:,.1f} records/s, less than --rate {rate:,.1f}: the figures show a queue",
            err=True,
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
        flights = Flights(in_flight_max(size))
        took_s = _measure(sending, reading, flights, topic, _marks(records + WARM_UP, size), pause_s=1 / rate)
    finally:
        reading.close()
    return {
        "topic": topic,
        "records": records,
        "size_bytes": size,
        "acks": acks,
        "records_per_second": round(records / max(took_s, 1e-6), 1),
        "acknowledged_ms": flights.acknowledged.as_json(),
        "consumed_ms": flights.consumed.as_json(),
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


def in_flight_max(size: int) -> int:
    """Return how many records of `size` bytes may be on their way at once."""
    return max(1, min(IN_FLIGHT_MAX, IN_FLIGHT_BYTES_MAX // size))


class Flights:
    """The records on their way: when each was sent. At most `limit` are."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.sent_s: dict[bytes, float] = {}
        self.acknowledged = Latencies()
        self.consumed = Latencies()
        self.unacknowledged = 0
        self.reason: str | None = None
        self.moved_s = time.monotonic()
        self._warm_up: set[bytes] = set()

    def is_full(self) -> bool:
        """Whether the next record must wait."""
        return max(len(self.sent_s), self.unacknowledged) >= self.limit

    def is_landed(self) -> bool:
        """Whether nothing is on its way."""
        return not self.sent_s and not self.unacknowledged

    def sends(self, mark: bytes, *, counts: bool) -> None:
        now_s = time.monotonic()
        if self.is_landed():
            self.moved_s = now_s
        self.sent_s[mark] = now_s
        self.unacknowledged += 1
        if not counts:
            self._warm_up.add(mark)

    def on_delivery(self, error: KafkaError | None, message: Message, *, counts: bool) -> None:
        self.unacknowledged -= 1
        self.moved_s = time.monotonic()
        if error is not None:
            self.reason = self.reason or refusal(error)
        elif counts and (latency_s := message.latency()) is not None:
            self.acknowledged.add(latency_s)

    def takes(self, message: Message) -> None:
        now_s = time.monotonic()
        error = message.error()
        if error is not None:
            raise BrokerError(refusal(error))
        value: Any = message.value()
        mark = bytes(value or b"")[:MARK_BYTES]
        sent_s = self.sent_s.pop(mark, None)
        if sent_s is None:
            return  # somebody else writes into the topic
        self.moved_s = now_s
        if mark in self._warm_up:
            self._warm_up.remove(mark)
        else:
            self.consumed.add(now_s - sent_s)

    def check(self) -> None:
        """Raises:
        BrokerError: a record was refused, or none of those on their way has arrived for long.
        """
        if self.reason is not None:
            raise BrokerError(f"a record was not acknowledged: {self.reason}")
        if not self.is_landed() and time.monotonic() - self.moved_s > LOST_S:
            left = len(self.sent_s)
            raise BrokerError(f"{left} record{'' if left == 1 else 's'} did not arrive within {LOST_S:.0f} s")


def _measure(
    sending: Producer,
    reading: Consumer,
    flights: Flights,
    topic: str,
    values: Iterator[bytes],
    *,
    pause_s: float,
) -> float:
    """Send the values in even steps, and read until the last one is there. Return the seconds of sending.

    Raises:
        BrokerError: a record is refused, or does not arrive.
    """
    next_s = began_s = time.monotonic()
    for number, value in enumerate(values):
        while flights.is_full() or (left_s := next_s - time.monotonic()) > 0:
            _turn(sending, reading, flights, wait_s=POLL_S if flights.is_full() else min(POLL_S, left_s))
        counts = number >= WARM_UP
        _send(sending, reading, flights, topic, value, counts=counts)
        if not counts:  # a connection is made for each partition: one record after the other
            _await(sending, reading, flights)
            next_s = began_s = time.monotonic()
        next_s += pause_s
        if number % TURN_EVERY == 0:
            _turn(sending, reading, flights, wait_s=0)
    took_s = time.monotonic() - began_s
    _await(sending, reading, flights)
    return took_s


def _send(
    sending: Producer, reading: Consumer, flights: Flights, topic: str, value: bytes, *, counts: bool
) -> None:
    mark = value[:MARK_BYTES]
    flights.sends(mark, counts=counts)
    while True:
        try:
            sending.produce(topic, value, on_delivery=partial(flights.on_delivery, counts=counts))
        except BufferError:
            _turn(sending, reading, flights, wait_s=POLL_S)
        else:
            return


def _await(sending: Producer, reading: Consumer, flights: Flights) -> None:
    """Wait until nothing is on its way."""
    while not flights.is_landed():
        _turn(sending, reading, flights, wait_s=POLL_S)


def _turn(sending: Producer, reading: Consumer, flights: Flights, *, wait_s: float) -> None:
    sending.poll(0)
    message = asked(lambda: reading.poll(wait_s))
    while message is not None:
        flights.takes(message)
        message = asked(lambda: reading.poll(0))
    flights.check()
