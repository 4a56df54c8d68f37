"""Apache Kafka's own tools over our transactions: kafka-transactions, kafka-console-consumer, kafka-dump-log.

With APPLIANCE_JUDGE=kafka they are asked about Apache Kafka's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException, Producer

from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.play import within
from tests.clients.transactional.confluent import ConfluentTransactions
from tests.support.apache_kafka import tool
from tests.support.broker import Broker
from tests.support.judge import running_broker
from tests.support.raw_fetch import is_served

TOPIC: Final = "t"
COMMAND: Final = "org.apache.kafka.tools.TransactionsCommand"
EMPTY: Final = 0
ONGOING: Final = 1
ENDED: Final = {"done": (2, 4), "open": (3, 5)}
"""The states of a commit, and those of an abort, as numbers of the log."""
SETTINGS: Final = {"transaction.state.log.num.partitions": 4}


@dataclass(frozen=True, slots=True)
class Scene:
    """A broker with a committed transaction (`done`) and an open one (`open`) in both partitions of the topic."""

    broker: Broker
    data_dir: Path
    open: Producer

    def transactions(self, *arguments: str) -> list[dict[str, str]]:
        """The rows that kafka-transactions prints, by the names of the columns."""
        printed = tool(COMMAND, "--bootstrap-server", self.broker.address, *arguments)
        head, *rows = [line.split("\t") for line in printed.splitlines()]
        names = [name.strip() for name in head if name.strip()]
        return [dict(zip(names, map(str.strip, row), strict=False)) for row in rows]

    def console_consumer(self, isolation: str, count: int) -> list[str]:
        return tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", self.broker.address, "--topic", TOPIC, "--partition", "0"),
            *("--offset", "earliest", "--isolation-level", isolation),
            *("--max-messages", str(count), "--timeout-ms", "20000"),
        ).split()


def begun(address: str, transactional_id: str, value: bytes) -> Producer:
    producer = Producer({"bootstrap.servers": address, "transactional.id": transactional_id, "log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition in range(2):
        producer.produce(TOPIC, value, partition=partition)
    producer.flush(60)
    return producer


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with running_broker(tmp_path / "data", SETTINGS) as broker:
        admin = ConfluentClient(broker.address)
        admin.create_topic(TOPIC, 2)
        assert within(20, lambda: is_served(broker.address, TOPIC, 2))
        begun(broker.address, "done", b"committed").commit_transaction(60)
        yield Scene(broker, tmp_path / "data", begun(broker.address, "open", b"open"))


def test_kafka_transactions_lists_describes_and_terminates(scene: Scene) -> None:
    listed = {row["TransactionalId"]: row for row in scene.transactions("list")}
    assert {name: row["TransactionState"] for name, row in listed.items()} == {
        "done": "CompleteCommit",
        "open": "Ongoing",
    }
    (matched,) = scene.transactions("list", "--transactional-id-pattern", "o.*")
    assert matched == listed["open"]
    (described,) = scene.transactions("describe", "--transactional-id", "open")
    assert described["ProducerId"] == listed["open"]["ProducerId"]
    assert described["CoordinatorId"] == listed["open"]["Coordinator"]
    assert (described["TransactionState"], described["TransactionTimeoutMs"]) == ("Ongoing", "60000")
    assert int(described["CurrentTransactionStartTimeMs"]) > 0
    assert set(described["TopicPartitions"].split(",")) == {"t-0", "t-1"}
    (done,) = scene.transactions("describe", "--transactional-id", "done")
    assert (done["TransactionState"], done["TopicPartitions"]) == ("CompleteCommit", "")
    with pytest.raises(AssertionError, match="`none` failed because the ID could not be found"):
        scene.transactions("describe", "--transactional-id", "none")
    terminate = ("forceTerminateTransaction", "--transactionalId", "open")
    tool(COMMAND, "--bootstrap-server", scene.broker.address, *terminate)
    reader = ConfluentTransactions(scene.broker.address)
    reader.send(TOPIC, [b"last"])
    assert reader.read(TOPIC, until=b"last") == [b"committed", b"last"]
    with pytest.raises(KafkaException) as caught:
        scene.open.commit_transaction(60)
    assert caught.value.args[0].fatal()


def test_kafka_transactions_shows_open_ones_in_a_partition_and_aborts_one_by_its_offset(scene: Scene) -> None:
    place = ("--topic", TOPIC, "--partition", "0")
    producers = {
        row["CurrentTransactionStartOffset"]: row for row in scene.transactions("describe-producers", *place)
    }
    # The committed record and its marker come first.
    assert producers.keys() == {"None", "2"}
    assert producers["2"]["LatestCoordinatorEpoch"] == "-1"
    assert int(producers["None"]["LatestCoordinatorEpoch"]) >= 0
    assert {row["LastSequence"] for row in producers.values()} == {"0"}
    assert scene.transactions("find-hanging", "--topic", TOPIC, "--max-transaction-timeout", "0") == []
    tool(COMMAND, "--bootstrap-server", scene.broker.address, "abort", *place, "--start-offset", "2")
    reader = ConfluentTransactions(scene.broker.address)
    for partition in range(2):
        reader.send(TOPIC, [b"last"], partition)
    assert reader.read(TOPIC, until=b"last") == [b"committed", b"last"]
    assert reader.read(TOPIC, 1, until=b"last", timeout_s=1) == [b"committed"]


def test_kafka_console_consumer_reads_what_is_committed_and_waits_at_what_is_open(scene: Scene) -> None:
    ConfluentTransactions(scene.broker.address).send(TOPIC, [b"after"])
    assert scene.console_consumer("read_uncommitted", 3) == ["committed", "open", "after"]
    assert scene.console_consumer("read_committed", 1) == ["committed"]
    scene.open.abort_transaction(60)
    assert scene.console_consumer("read_committed", 2) == ["committed", "after"]


def test_kafka_dump_log_reads_the_transaction_log(scene: Scene) -> None:
    scene.open.abort_transaction(60)

    def states() -> set[str]:
        return {row["TransactionState"] for row in scene.transactions("list")}

    assert within(30, lambda: states() == {"CompleteCommit", "CompleteAbort"}), states()
    scene.broker.stop()  # cuts off what was allocated behind the last record
    segments = [str(path) for path in sorted(scene.data_dir.rglob("__transaction_state-*/*.log"))]
    assert segments
    read = ("--transaction-log-decoder", "--print-data-log", "--files", ",".join(segments))
    printed = tool("org.apache.kafka.tools.DumpLogSegments", *read)
    lines = re.findall(r"key: (\{.*?\}\}) payload: (\{.*\})", printed)
    values: dict[str, list[Any]] = {"done": [], "open": []}
    for key, value in lines:
        values[json.loads(key)["data"]["transactionalId"]].append(json.loads(value)["data"])
    for name, (prepare, complete) in ENDED.items():
        statuses = [value["transactionStatus"] for value in values[name]]
        assert statuses[0] == EMPTY
        assert statuses[-3:] == [ONGOING, prepare, complete]
        assert values[name][-1]["transactionPartitions"] in ([], None)
        (parts,) = values[name][-2]["transactionPartitions"]
        assert (parts["topic"], sorted(parts["partitionIds"])) == (TOPIC, [0, 1])
        for value in values[name]:
            assert value["transactionTimeoutMs"] == 60_000
            assert value["transactionLastUpdateTimestampMs"] > 0
