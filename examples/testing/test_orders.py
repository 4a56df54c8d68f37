"""Tests of a program that uses Kafka, against a real broker. Run: pytest examples/testing"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer
from orders import bill, orders, place_order


def test_an_order_arrives(kafka_broker):
    assert place_order(kafka_broker.bootstrap_servers, "ann", 300) == 0
    assert orders(kafka_broker.bootstrap_servers, 1) == [{"customer": "ann", "cents": 300}]


def test_each_test_has_its_own_broker(kafka_broker):
    assert kafka_broker.topics.names() == []


def test_an_order_survives_the_death_of_a_process(kafka_broker):
    place_order(kafka_broker.bootstrap_servers, "ann", 300)
    kafka_broker.kill("ioproc")
    assert place_order(kafka_broker.bootstrap_servers, "bob", 100) == 1
    assert [order["customer"] for order in orders(kafka_broker.bootstrap_servers, 2)] == ["ann", "bob"]


@pytest.mark.kafka_broker(slots=3, options={"min.insync.replicas": 2})
def test_orders_are_taken_while_a_broker_is_down(kafka_broker):
    kafka_broker.topics.create("orders", partitions=3)
    kafka_broker.stop_slot(0)
    place_order(kafka_broker.bootstrap_servers, "ann", 300)
    kafka_broker.start_slot(0)
    assert orders(kafka_broker.bootstrap_servers, 1) == [{"customer": "ann", "cents": 300}]


def test_each_order_gets_one_receipt(kafka_broker_session):
    kafka_broker_session.topics.create("orders", "receipts")
    for cents in range(3):
        place_order(kafka_broker_session.bootstrap_servers, "ann", cents)
    bill(kafka_broker_session.bootstrap_servers, 3)
    reader = Consumer(
        {
            "bootstrap.servers": kafka_broker_session.bootstrap_servers,
            "group.id": "auditor",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    reader.subscribe(["receipts"])
    receipts = []
    while len(receipts) < 3:
        receipts += [message for message in reader.consume(3, timeout=30) if message.error() is None]
    reader.close()
    assert [message.key() for message in receipts] == [b"ann"] * 3


def test_records_are_on_the_disk_in_kafkas_format(kafka_broker):
    place_order(kafka_broker.bootstrap_servers, "ann", 300)
    segment: Path = kafka_broker.data_dir / "slot-0" / "orders-0" / "00000000000000000000.log"
    assert b'"customer": "ann"' in segment.read_bytes()
