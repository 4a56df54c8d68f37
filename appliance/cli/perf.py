"""`appliance perf`: produce, consume and latency: what a broker takes and gives, as seen from this machine.

A quick look, by one librdkafka client in one process. Figures that are held against others are made by `benchmarks/`.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.client import asked, consumer, producer, refusal
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.cli.latencies import Latencies
from appliance.cli.options import client_options
from appliance.cli.output import json_option, print_json
from appliance.cli.perf_latency import perf_latency

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
POLL_EVERY: Final = 64
BATCH: Final = 10_000
SILENCE_S: Final = 10.0


@click.group(cls=AliasedGroup, short_help="Measure throughput and latency of a broker.")
def perf() -> None:
    """Measure throughput and latency of producing and consuming."""


perf.add_command(perf_latency)


class _Sent:
    """What became of the records; librdkafka calls it once a record."""

    def __init__(self) -> None:
        self.latencies = Latencies()
        self.failed = 0
        self.reason: str | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
            self.reason = self.reason or refusal(error)
        elif (latency_s := message.latency()) is not None:
            self.latencies.add(latency_s)


@perf.command(name="produce")
@click.argument("topic")
@click.option("--records", "-n", type=click.IntRange(min=1), default=100_000, show_default=True)
@click.option(
    "--size",
    type=click.IntRange(min=0, max=10 << 20),
    default=1024,
    show_default=True,
    help="Size of each record.",
)
@click.option(
    "--rate", type=click.FloatRange(min=0.1), help="Maximum records per second.  [default: no limit]"
)
@click.option("--compression", "-z", type=click.Choice(CODECS), default="none", show_default=True)
@click.option("--acks", type=click.Choice(("all", "1", "0")), default="all", show_default=True)
@json_option
@client_options
def perf_produce(
    *,
    topic: str,
    records: int,
    size: int,
    rate: float | None,
    compression: str,
    acks: str,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Send random records to TOPIC. LATENCY is the time from the client's call to the acknowledgement."""
    client = producer(
        bootstrap,
        {
            "acks": acks,
            "compression.type": compression,
            "linger.ms": 5,
            "queue.buffering.max.messages": 100_000,
            "allow.auto.create.topics": True,
        },
    )
    value = os.urandom(size)
    sent = _Sent()
    began_s = time.monotonic()
    for number in range(records):
        if rate is not None:
            while (wait_s := began_s + number / rate - time.monotonic()) > 0:
                client.poll(wait_s)
        while True:
            try:
                client.produce(topic, value, on_delivery=sent)
                break
            except BufferError:
                client.poll(0.1)
        if number % POLL_EVERY == 0:
            client.poll(0)
        if sent.failed:
            break
    client.flush(REQUEST_TIMEOUT_S)
    took_s = time.monotonic() - began_s
    if sent.failed or len(client):
        raise BrokerError(
            f"{topic}: {sent.failed + len(client)} records were not acknowledged: {sent.reason}"
        )
    _tell(
        "produced",
        topic,
        records=records,
        size_bytes=records * size,
        took_s=took_s,
        latencies=sent.latencies,
        as_json=as_json,
    )


@perf.command(name="consume")
@click.argument("topic")
@click.option(
    "--records",
    "-n",
    type=click.IntRange(min=1),
    help="Number of records.  [default: all records that exist now]",
)
@json_option
@client_options
def perf_consume(*, topic: str, records: int | None, as_json: bool, bootstrap: str) -> None:
    """Read TOPIC from the beginning. The time starts with the first record."""
    client = consumer(bootstrap, {"fetch.wait.max.ms": 100, "queued.min.messages": 1_000_000})
    try:
        ends = _assign(client, topic)
        wanted = sum(ends.values()) if records is None else min(records, sum(ends.values()))
        count = size_bytes = 0
        began_s = heard_s = time.monotonic()
        while count < wanted:
            batch = asked(lambda: client.consume(min(BATCH, wanted - count), timeout=0.1))  # noqa: B023
            now_s = time.monotonic()
            if not batch and now_s - heard_s > SILENCE_S:
                break
            if batch and not count:
                began_s = now_s
            for message in batch:
                error = message.error()
                if error is not None:
                    raise BrokerError(f"{topic}: {refusal(error)}")
                count += 1
                size_bytes += len(message)
            heard_s = now_s if batch else heard_s
        took_s = heard_s - began_s
    finally:
        client.close()
    _tell(
        "consumed",
        topic,
        records=count,
        size_bytes=size_bytes,
        took_s=took_s,
        latencies=None,
        as_json=as_json,
    )


def _assign(client: Consumer, topic: str) -> dict[int, int]:
    """Assigns every partition from its start; how many records lie in each, unless compaction took some."""
    from confluent_kafka import TopicPartition

    described = asked(lambda: client.list_topics(topic, timeout=REQUEST_TIMEOUT_S)).topics[topic]
    if described.error is not None:
        raise BrokerError(f"{topic}: {refusal(described.error)}")
    found, places = {}, []
    for partition in sorted(described.partitions):
        place = TopicPartition(topic, partition)
        low, high = asked(lambda tp=place: client.get_watermark_offsets(tp, timeout=REQUEST_TIMEOUT_S))  # type: ignore[misc]
        found[partition] = high - low
        places.append(TopicPartition(topic, partition, low))
    client.assign(places)
    return found


def _tell(
    what: str,
    topic: str,
    *,
    records: int,
    size_bytes: int,
    took_s: float,
    latencies: Latencies | None,
    as_json: bool,
) -> None:
    took_s = max(took_s, 1e-6)
    facts: dict[str, Any] = {
        "topic": topic,
        "records": records,
        "bytes": size_bytes,
        "seconds": round(took_s, 3),
        "records_per_second": round(records / took_s, 1),
        "megabytes_per_second": round(size_bytes / took_s / 1e6, 3),
    }
    if latencies is not None:
        facts["latency_ms"] = latencies.as_json()
    if as_json:
        print_json(facts)
        return
    click.echo(
        f"{records} records {what} in {took_s:.2f} s: {facts['records_per_second']:,.0f} records/s,"
        f" {facts['megabytes_per_second']:,.1f} MB/s"
    )
    if latencies is not None:
        shown = ", ".join(f"{name} {value}" for name, value in facts["latency_ms"].items())
        click.echo(f"latency in ms: {shown}")
