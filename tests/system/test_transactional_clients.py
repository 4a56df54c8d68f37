"""Until transactions are served, a transactional client gets an error that ends it, instead of a silent wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import aiokafka
import aiokafka.errors
import kafka
import kafka.errors
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.support.broker import Appliance


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path_factory.mktemp("transactional") / "data")
    appliance.start()
    try:
        yield appliance
    finally:
        appliance.stop()


def test_librdkafka_fails_at_once_and_says_why(broker: Appliance) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "t"})
    with pytest.raises(KafkaException) as raised:
        producer.init_transactions(60)
    error: KafkaError = raised.value.args[0]
    assert error.fatal()
    assert "Transactions are not served yet" in error.str()


def test_aiokafka_fails_at_once(broker: Appliance) -> None:
    async def start() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.address, transactional_id="t")
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(aiokafka.errors.TransactionalIdAuthorizationFailed):
        asyncio.run(asyncio.wait_for(start(), 60))


def test_kafka_python_fails_at_once(broker: Appliance) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=broker.address, transactional_id="t", max_block_ms=60_000
    )
    with pytest.raises(kafka.errors.TransactionalIdAuthorizationFailedError):
        producer.init_transactions()
    producer.close(timeout=1)
