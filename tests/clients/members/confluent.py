"""confluent-kafka as a member, of a classic group or of one of KIP-848."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException

from tests.clients.members.arguments import HEARTBEAT_MS, Leaving, arguments, processed


def main() -> None:
    given, leaving = arguments(), Leaving()
    classic: dict[str, Any] = {
        "session.timeout.ms": given.session_ms,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "partition.assignment.strategy": "range",
    }
    consumer = Consumer(
        {
            "bootstrap.servers": given.address,
            "broker.address.family": "v4",
            "log_level": 0,
            "group.id": given.group,
            "group.protocol": given.protocol,
            "client.id": given.client_id,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **(classic if given.protocol == "classic" else {}),
        }
    )
    consumer.subscribe([given.topic])
    while not leaving.asked:
        messages = [message for message in consumer.consume(50, 0.1) if message.error() is None]
        for message in messages:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            processed(partition, offset)
        if messages:
            with suppress(KafkaException):  # a rebalance came between: whoever has the partition now goes on
                consumer.commit(asynchronous=False)
    consumer.close()


main()
