"""The loads of `appliance bench`: what one librdkafka client sends and reads in some seconds."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from appliance.cli.client import asked, consumer, producer, refusal
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.cli.latencies import Latencies

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

POLL_EVERY: Final = 64
BATCH: Final = 10_000
DRAIN_S: Final = 30.0
SILENCE_S: Final = 10.0


class Sent:
    """What became of the records; librdkafka calls it once a record."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.latencies = Latencies()
        self.reason: str | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.reason = self.reason or refusal(error)
            return
        self.acknowledged += 1
        if (latency_s := message.latency()) is not None:
            self.latencies.add(latency_s)


def produce(
    bootstrap: str, topic: str, *, seconds: float, size: int, bytes_max: int, options: dict[str, object]
) -> dict[str, Any]:
    """Send records of `size` bytes as fast as they are taken, for some seconds or up to `bytes_max`.

    Raises:
        BrokerError: a record is refused or not acknowledged.
    """
    client = producer(bootstrap, {"acks": "all", **options})
    asked(lambda: client.list_topics(topic, timeout=REQUEST_TIMEOUT_S))
    value, sent = os.urandom(size), Sent()
    records_max = max(1, bytes_max // max(1, size))
    began_s = time.monotonic()
    end_s, count = began_s + seconds, 0
    while count < records_max and sent.reason is None:
        if count % POLL_EVERY == 0:
            client.poll(0)
            if time.monotonic() >= end_s:
                break
        try:
            client.produce(topic, value, on_delivery=sent)
        except BufferError:
            client.poll(0.05)
            continue
        count += 1
    left = client.flush(DRAIN_S)
    took_s = time.monotonic() - began_s
    if sent.reason is not None or left:
        raise BrokerError(f"{count - sent.acknowledged} records were not acknowledged: {sent.reason}")
    return rates(sent.acknowledged, sent.acknowledged * size, took_s) | {
        "latency_ms": sent.latencies.as_json()
    }


def consume(bootstrap: str, topic: str, *, seconds: float) -> dict[str, Any]:
    """Read all partitions from their beginning, for some seconds or up to their ends.

    Raises:
        BrokerError: the broker refuses, or is silent although there are records.
    """
    from confluent_kafka import TopicPartition

    client = consumer(bootstrap, {"fetch.wait.max.ms": 100, "queued.min.messages": 1_000_000})
    try:
        partitions = (
            asked(lambda: client.list_topics(topic, timeout=REQUEST_TIMEOUT_S)).topics[topic].partitions
        )
        wanted, places = 0, []
        for partition in partitions:
            place = TopicPartition(topic, partition)
            low, high = asked(lambda tp=place: client.get_watermark_offsets(tp, timeout=REQUEST_TIMEOUT_S))  # type: ignore[misc]
            wanted += high - low
            places.append(TopicPartition(topic, partition, low))
        client.assign(places)
        count = size_bytes = 0
        began_s = heard_s = time.monotonic()
        while count < wanted and heard_s - began_s < seconds:
            batch = asked(lambda: client.consume(BATCH, timeout=0.1))
            now_s = time.monotonic()
            if not batch:
                if now_s - heard_s > SILENCE_S:
                    raise BrokerError(f"no record arrived for {SILENCE_S:.0f} s")
                continue
            if not count:
                began_s = now_s
            for message in batch:
                error = message.error()
                if error is not None:
                    raise BrokerError(refusal(error))
                count += 1
                size_bytes += len(message)
            heard_s = now_s
    finally:
        client.close()
    return rates(count, size_bytes, heard_s - began_s)


def rates(records: int, size_bytes: int, took_s: float) -> dict[str, Any]:
    """Return a result; the keys are stable."""
    took_s = max(took_s, 1e-6)
    return {
        "records": records,
        "bytes": size_bytes,
        "seconds": round(took_s, 3),
        "records_per_second": round(records / took_s, 1),
        "megabytes_per_second": round(size_bytes / took_s / 1e6, 3),
    }
