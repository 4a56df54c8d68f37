"""Producers go on where the epochs of their producer id end, and begin their next transaction at once.

At epoch 32,766 the next transaction has another producer id. It is in the answer to EndTxn 5, while the markers of the
old one are on their way. Java's client meets it; bare requests meet it under version 1, with InitProducerId (KIP-360).
With APPLIANCE_JUDGE=kafka the test runs on Apache Kafka.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from appliance.clock import SystemClock
from appliance.cluster import TRANSACTION_STATE
from appliance.control.coordinator.transaction.transaction import LAST_CLIENT_EPOCH, Transaction
from appliance.control.coordinator.transaction.transaction_record import transaction_record
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.log.producer_state import AppendOrigin
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from appliance.protocol.apis.end_txn import EndTxnRequest
from appliance.protocol.apis.find_coordinator import FindCoordinatorRequest
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.keyed_batch import encode_keyed_batch
from tests.support.apache_kafka import compiled, java
from tests.support.broker import Broker
from tests.support.judge import running_broker
from tests.support.wire import WireSocket
from tests.system.raw import ask, create_topic

pytestmark = pytest.mark.slow

SOURCE: Final = Path(__file__).with_name("java") / "LastEpoch.java"
PRODUCERS: Final = 300
TRANSACTIONS: Final = 3
PARTITIONS: Final = 4
OLD_ID: Final = 1_000_000
"""Of the first id in the log: the appliance gives times, and Apache Kafka small numbers."""
TRANSACTIONAL: Final = 1
"""The kind of key of FindCoordinator, which makes the log of the transaction coordinator."""
COMES_AGAIN: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def seed(data_dir: Path, ids: dict[str, int]) -> None:
    """Write ids into the log of the coordinator, which does not run: transactional id → its epoch."""
    clock = SystemClock()
    now_ms = clock.now_ms()
    directory = next(data_dir.rglob(f"{TRANSACTION_STATE}-0"))
    log = PartitionLog.open(directory, settings=LogSettings(), clock=clock)
    records = [
        transaction_record(
            name,
            Transaction(OLD_ID + number, epoch, timeout_ms=60_000, updated_ms=now_ms, client_version=2),
            server_version=2,
        )
        for number, (name, epoch) in enumerate(ids.items())
    ]
    batch = encode_keyed_batch([(each.key, each.value) for each in records], timestamp_ms=now_ms)
    log.append(memoryview(batch), leader_epoch=log.latest_epoch, origin=AppendOrigin.COORDINATOR)
    log.close(clean=True)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Its ids java0… get the last epoch from InitProducerId; bare0… have it."""
    data_dir = tmp_path_factory.mktemp("epochs") / "data"
    with running_broker(data_dir, {"transaction.state.log.num.partitions": 1}) as broker:
        create_topic(port_of(broker), "out", partitions=PARTITIONS)
        with WireSocket(port_of(broker)) as connection:
            ask(
                connection,
                ApiKey.FIND_COORDINATOR,
                FindCoordinatorRequest("somebody", TRANSACTIONAL),
                version=2,
            )
            assert initialized(connection, "somebody")[0] == 0
        broker.stop()
        last = {f"java{number}": LAST_CLIENT_EPOCH - 1 for number in range(PRODUCERS)}
        last |= {f"bare{number}": LAST_CLIENT_EPOCH for number in range(PRODUCERS)}
        seed(data_dir, last)
        broker.start()
        yield broker


def port_of(broker: Broker) -> int:
    return int(broker.address.rpartition(":")[2])


def served(connection: WireSocket, api: ApiKey, version: int, request: Any) -> Any:
    """The answer, when it is none that says to come again."""
    deadline = time.monotonic() + 30
    while True:
        answer = ask(connection, api, request, version=version)
        if answer.error_code not in COMES_AGAIN or time.monotonic() > deadline:
            return answer
        time.sleep(0.02)


def initialized(
    connection: WireSocket, name: str, producer_id: int = -1, epoch: int = -1
) -> tuple[int, int, int]:
    request = InitProducerIdRequest(name, 60_000, producer_id, epoch)
    answer = served(connection, ApiKey.INIT_PRODUCER_ID, 4, request)
    return answer.error_code, answer.producer_id, answer.producer_epoch


@pytest.mark.timeout(600)
def test_java_producers_go_on_at_once_with_the_id_that_their_commit_or_abort_brought(
    broker: Broker,
) -> None:
    options = ("-Xmx256m", "-XX:TieredStopAtLevel=1")
    arguments = (broker.address, "out", "java", str(PRODUCERS))
    done = subprocess.run(
        [*java(*options, classes=compiled(SOURCE)), "LastEpoch", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=540,
    )
    failed = [line for line in done.stdout.splitlines() if line.startswith("failed")]
    assert failed == []
    assert done.stdout.count("done") == PRODUCERS
    wanted = {
        f"java{number} {transaction}"
        for number in range(PRODUCERS)
        for transaction in range(TRANSACTIONS)
        if transaction or number % 2 == 0
    }
    assert sorted(read(broker, len(wanted))) == sorted(wanted)


def read(broker: Broker, count: int) -> list[str]:
    """What a reader of committed records finds; more than `count` if there are more."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition("out", number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    found: list[str] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        messages = consumer.consume(1_000, timeout=1.0)
        found += [(message.value() or b"").decode() for message in messages]
        if not messages and len(found) >= count:
            break
    consumer.close()
    return found


@pytest.mark.timeout(300)
def test_producers_of_version_1_get_their_next_id_at_once_and_the_same_one_when_they_repeat(
    broker: Broker,
) -> None:
    """The second request is of a client that has not had the first answer (KIP-360)."""
    out = (AddPartitionsToTxnTopic("out", (0,)),)
    with WireSocket(port_of(broker)) as connection:
        assert initialized(connection, "somebody")[0] == 0, "the log is loaded"
        for number in range(PRODUCERS):
            name = f"bare{number}"
            old = (OLD_ID + PRODUCERS + number, LAST_CLIENT_EPOCH)
            added = ask(
                connection,
                ApiKey.ADD_PARTITIONS_TO_TXN,
                AddPartitionsToTxnRequest((), name, *old, out),
                version=3,
            )
            (result,) = added.results_by_topic[0].results_by_partition
            assert result.partition_error_code == 0, number
            ended = ask(connection, ApiKey.END_TXN, EndTxnRequest(name, *old, True), version=4)
            assert ended.error_code == 0, number
            error, producer_id, epoch = initialized(connection, name, *old)
            assert (error, epoch) == (0, 0), number
            assert producer_id not in range(OLD_ID, OLD_ID + 2 * PRODUCERS)
            assert initialized(connection, name, *old) == (0, producer_id, 0), number
