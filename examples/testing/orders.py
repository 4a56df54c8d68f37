"""What the tests beside this file test: a program that takes payments from one topic and writes receipts to another."""

from __future__ import annotations

import json

from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer


def place_order(bootstrap_servers: str, customer: str, cents: int) -> int:
    """Send an order, with kafka-python. Return its offset."""
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers.split(","), acks="all")
    try:
        order = json.dumps({"customer": customer, "cents": cents}).encode()
        return int(producer.send("orders", order, key=customer.encode()).get(timeout=30).offset)
    finally:
        producer.close()


def orders(bootstrap_servers: str, count: int) -> list[dict[str, object]]:
    """Read the first orders, with kafka-python."""
    consumer = KafkaConsumer(
        "orders",
        bootstrap_servers=bootstrap_servers.split(","),
        group_id="orders",
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
    )
    try:
        return [json.loads(record.value) for _, record in zip(range(count), consumer, strict=False)]
    finally:
        consumer.close()


def bill(bootstrap_servers: str, count: int) -> None:
    """Turn each order into a receipt, exactly once, with confluent-kafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": "billing"})
    consumer.subscribe(["orders"])
    producer.init_transactions(30)
    billed = 0
    while billed < count:
        message = consumer.poll(1)
        if message is None:
            continue
        assert message.error() is None, message.error()
        producer.begin_transaction()
        producer.produce("receipts", key=message.key(), value=message.value())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
        )
        producer.commit_transaction(30)
        billed += 1
    consumer.close()
