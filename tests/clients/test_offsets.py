"""Offsets that one client commits, every other reads, and no kill of the coordinator or of a worker takes them back."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.structs import OffsetAndMetadata as AioOffsetAndMetadata
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.broker import Appliance
from tests.support.judge import REPLICAS, SLOTS
from tests.system.raw import wait_until

TOPIC: Final = "shared"
GROUP: Final = "of-all-clients"
RECORDS: Final = 40
RETRIABLE: Final = frozenset(
    {
        confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
        confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        confluent_kafka.KafkaError.NOT_COORDINATOR,
    }
)
KAFKAJS: Final = Path(__file__).with_name("kafkajs") / "offsets.js"


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    broker = Appliance(
        tmp_path_factory.mktemp("offsets-of-clients"),
        slots=SLOTS,
        settings={"group.initial.rebalance.delay.ms": 0},
    )
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(TOPIC, 1, REPLICAS)])[TOPIC].result(30)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%d" % number)
    assert producer.flush(30) == 0
    yield broker
    broker.stop()


class Confluent:
    def __init__(self, address: str) -> None:
        self._consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": GROUP})

    def commit(self, offset: int) -> None:
        position = confluent_kafka.TopicPartition(TOPIC, 0, offset)
        (done,) = self._consumer.commit(offsets=[position], asynchronous=False)
        assert done.error is None

    def committed(self) -> int:
        try:
            (found,) = self._consumer.committed([confluent_kafka.TopicPartition(TOPIC, 0)], timeout=20)
        except confluent_kafka.KafkaException as fault:
            # It looks for the coordinator again by itself, and leaves it to its user to ask again.
            if fault.args[0].code() not in RETRIABLE:
                raise
            return -1
        assert found.error is None
        offset: int = found.offset
        return offset

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    def __init__(self, address: str) -> None:
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=address, group_id=GROUP, enable_auto_commit=False
        )
        self._partition = kafka.TopicPartition(TOPIC, 0)
        self._consumer.assign([self._partition])

    def commit(self, offset: int) -> None:
        self._consumer.commit({self._partition: kafka.structs.OffsetAndMetadata(offset, "from python", -1)})

    def committed(self) -> int:
        offset: int = self._consumer.committed(self._partition)
        return offset

    def close(self) -> None:
        self._consumer.close()


class Aiokafka:
    def __init__(self, address: str) -> None:
        self._address = address
        self._partition = aiokafka.TopicPartition(TOPIC, 0)

    def commit(self, offset: int) -> None:
        asyncio.run(self._run(offset))

    def committed(self) -> int:
        return asyncio.run(self._run(None))

    async def _run(self, offset: int | None) -> int:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self._address, group_id=GROUP, enable_auto_commit=False
        )
        await consumer.start()
        try:
            consumer.assign([self._partition])
            if offset is not None:
                await consumer.commit({self._partition: AioOffsetAndMetadata(offset, "from asyncio")})
            found: int = await consumer.committed(self._partition)
            return found
        finally:
            await consumer.stop()

    def close(self) -> None:
        pass


class Kafkajs:
    def __init__(self, address: str) -> None:
        self._address = address

    def commit(self, offset: int) -> None:
        self._run(str(offset))

    def committed(self) -> int:
        return self._run()

    def _run(self, *offset: str) -> int:
        done = subprocess.run(
            ["node", str(KAFKAJS), self._address, GROUP, TOPIC, *offset],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def close(self) -> None:
        pass


CLIENTS: Final[tuple[Callable[[str], Confluent | KafkaPython | Aiokafka | Kafkajs], ...]] = (
    Confluent,
    KafkaPython,
    Aiokafka,
    Kafkajs,
)


def reads(client: Confluent | KafkaPython | Aiokafka | Kafkajs, offset: int) -> Callable[[], bool]:
    """Whether the client is told that offset."""
    return lambda: client.committed() == offset


def kcat_consumes(address: str, count: int) -> list[str]:
    """What a group of kcat gets of `count` records from the committed offset on; it commits as it leaves."""
    done = subprocess.run(
        ["kcat", "-b", address, "-G", GROUP, "-c", str(count), "-X", "auto.offset.reset=earliest", TOPIC],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_offset_of_each_client_is_read_by_every_other_and_outlives_coordinator_and_worker(
    appliance: Appliance,
) -> None:
    clients = [new(appliance.address) for new in CLIENTS]
    try:
        for number, writer in enumerate(clients, 1):
            writer.commit(number)
            appliance.kill_role("coordinator" if number % 2 else "ioproc")
            for reader in clients:
                wait_until(reads(reader, number), f"offset {number}", timeout_s=30)
    finally:
        for client in clients:
            client.close()


def test_kcat_goes_on_where_another_client_has_committed_and_commits_for_the_next(
    appliance: Appliance,
) -> None:
    client = KafkaPython(appliance.address)
    try:
        client.commit(10)
        assert kcat_consumes(appliance.address, 5) == [str(number) for number in range(10, 15)]
        assert client.committed() == 15
        appliance.kill_role("coordinator")
        assert kcat_consumes(appliance.address, 3) == ["15", "16", "17"]
    finally:
        client.close()
