"""`appliance consume`: prints the records of a topic and ends at its end, or follows it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import click

from appliance.cli.client import REQUEST_TIMEOUT_S, BrokerError, asked, consumer, refusal
from appliance.cli.options import client_options
from appliance.cli.positions import FORMS, Span, parse_place, spans
from appliance.cli.record_format import COLUMNS, Formatter, json_line, text_formatter

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

BATCH: Final = 1000
POLL_S: Final = 0.5
STALL_S: Final = 30.0
END_OF_PARTITION: Final = -191  # KafkaError._PARTITION_EOF


@click.command(short_help="Print the records of a topic.")
@click.argument("topic")
@click.option("--from", "place", metavar="WHERE", default="beginning", show_default=True, help=f"{FORMS}.")
@click.option("--count", "-n", type=click.IntRange(min=1), help="Stop after so many records.")
@click.option(
    "--partition", "-p", "only", type=click.IntRange(min=0), multiple=True, help="Repeatable; else all."
)
@click.option("--follow", "-f", is_flag=True, help="Go on when the end is reached.")
@click.option(
    "--print",
    "columns",
    metavar="COLUMN,...",
    default="value",
    show_default=True,
    help=f"What to print, between tabs: {', '.join(COLUMNS)}.",
)
@click.option("--null-marker", metavar="TEXT", default="", help="Printed for a null key or value.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line, with everything in it.")
@client_options
def consume(
    *,
    topic: str,
    place: str,
    count: int | None,
    only: tuple[int, ...],
    follow: bool,
    columns: str,
    null_marker: str,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Print the records of TOPIC.

    Partitions are assigned by hand: no group is joined and nothing is committed. Order holds in a partition.
    """
    start = parse_place(place)
    chosen = tuple(column.strip() for column in columns.split(","))
    if unknown := [column for column in chosen if column not in COLUMNS]:
        raise click.UsageError(f"--print: no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    formatter = json_line if as_json else text_formatter(chosen, null_marker=null_marker)

    client = consumer(
        bootstrap,
        {
            "enable.partition.eof": True,
            "check.crcs": True,
            # The end of a compacted or transactional partition shows only in an empty answer.
            "fetch.wait.max.ms": 500 if follow else 50,
        },
    )
    try:
        wanted = spans(client, topic, _partitions(client, topic, only), place=start, warn=_warn)
        reading = wanted if follow else [span for span in wanted if span.start < span.end]
        if reading:
            _assign(client, topic, reading)
            Reader(client, formatter, {} if follow else {span.partition: span.end for span in reading}).run(
                count
            )
    finally:
        client.close()


class Reader:
    """Prints until `count`, or until each partition reached its end in `ends`; without ends it follows."""

    __slots__ = ("_client", "_ends", "_follows", "_formatter", "_write")

    def __init__(self, client: Consumer, formatter: Formatter, ends: dict[int, int]) -> None:
        self._client = client
        self._formatter = formatter
        self._ends = ends
        self._follows = not ends
        self._write = sys.stdout.buffer.write

    def run(self, count: int | None) -> None:
        """Raises BrokerError where the broker refuses, or is silent for long while records are due."""
        left = count
        heard_s = time.monotonic()
        while (self._follows or self._ends) and left != 0:
            # One by poll, the rest at once: consume() alone holds the first back until the batch is full.
            first = asked(lambda: self._client.poll(POLL_S))
            if first is None:
                if not self._follows and time.monotonic() - heard_s > STALL_S:
                    raise BrokerError(f"nothing came for {STALL_S:.0f} s; still due: {self._due()}")
                continue
            heard_s = time.monotonic()
            batch = [first]
            wanted = BATCH if left is None else min(BATCH, left - 1)
            if wanted:
                batch += asked(lambda n=wanted: self._client.consume(n, timeout=0))  # type: ignore[misc]
            printed = sum(map(self._take, batch))
            sys.stdout.buffer.flush()
            if left is not None:
                left -= printed

    def _take(self, message: Message) -> bool:
        """Prints a record and says True; notes the end of a partition, or raises what a broker refused."""
        partition: int = message.partition()  # type: ignore[assignment]
        error = message.error()
        if error is not None:
            self._hear(error, message.topic(), partition)
            return False
        if not self._follows:
            end = self._ends.get(partition)
            offset: int = message.offset()  # type: ignore[assignment]
            if end is None or offset >= end:
                self._ends.pop(partition, None)
                return False
            if offset + 1 == end:
                del self._ends[partition]
        self._write(self._formatter(message))
        return True

    def _hear(self, error: KafkaError, topic: str | None, partition: int) -> None:
        if error.code() == END_OF_PARTITION:
            self._ends.pop(partition, None)
        elif topic is not None or error.fatal():
            raise BrokerError(f"{topic}-{partition}: {refusal(error)}")
        # Anything else is about a connection or the unused group; librdkafka tries again by itself.

    def _due(self) -> str:
        return ", ".join(f"partition {partition} to {end}" for partition, end in sorted(self._ends.items()))


def _partitions(client: Consumer, topic: str, only: tuple[int, ...]) -> list[int]:
    described = asked(lambda: client.list_topics(topic, timeout=REQUEST_TIMEOUT_S)).topics.get(topic)
    if described is None or described.error is not None:
        reason = "no such topic" if described is None else refusal(described.error)
        raise BrokerError(f"{topic}: {reason}")
    there = sorted(described.partitions)
    if missing := sorted(set(only) - set(there)):
        raise BrokerError(f"{topic}: no partition {missing[0]}; there are {len(there)}, counted from 0")
    return sorted(set(only)) or there


def _assign(client: Consumer, topic: str, reading: list[Span]) -> None:
    from confluent_kafka import TopicPartition

    client.assign([TopicPartition(topic, span.partition, span.start) for span in reading])


def _warn(text: str) -> None:
    click.echo(f"appliance: {text}", err=True)
