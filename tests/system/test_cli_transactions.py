"""`appliance transactions`, as a user runs it, beside Apache Kafka's kafka-transactions on the same broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from appliance.protocol.records import batch as b
from appliance.protocol.records.record import Record, encode_batch
from tests.cli.command import Outcome, appliance
from tests.support.apache_kafka import ApacheKafka, tool
from tests.support.broker import Appliance, Broker
from tests.support.judge import make_broker
from tests.support.wire import free_ports
from tests.system.raw import create_topic

COMMAND = "org.apache.kafka.tools.TransactionsCommand"
LOST_PRODUCER = 987_654
"""The producer of a transaction that no coordinator knows."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A broker with an open transaction, a committed one, and one that hangs."""

    broker: Broker
    port: int
    producers: tuple[Producer, ...]

    def run(self, *arguments: object) -> Outcome:
        return appliance("transactions", *arguments, "-b", self.broker.address)

    def told(self, *arguments: object) -> Any:
        return json.loads(self.run(*arguments, "--json").succeeded().output)

    def kafkas(self, *arguments: str) -> list[dict[str, str]]:
        """A dict for each row that Kafka's tool prints, by heading."""
        printed = tool(COMMAND, "--bootstrap-server", self.broker.address, *arguments)
        headings, *rows = [line.split() for line in printed.splitlines() if line.strip()]
        return [dict(zip(headings, row, strict=False)) for row in rows]


def hang_a_transaction(broker: Appliance | ApacheKafka, data_dir: Path) -> None:
    """Append a transactional batch to the log of a broker that was killed. Its producer is unknown to coordinators."""
    broker.kill()
    (log,) = data_dir.rglob("hung-0/*.log")
    batch = encode_batch(
        [Record(b"never committed", timestamp_ms=1_790_000_000_000)],
        base_offset=1,
        leader_epoch=0,
        attributes=b.TRANSACTIONAL,
        producer_id=LOST_PRODUCER,
        producer_epoch=3,
        base_sequence=0,
    )
    with log.open("r+b") as file:
        # Behind the first batch: 12 bytes and its length, which stands at byte 8.
        file.seek(12 + int.from_bytes(file.read(12)[8:]))
        file.write(batch)
    broker.start()


def transactional(broker: Broker, name: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "transactional.id": name,
            "transaction.timeout.ms": 600_000,  # the coordinator leaves it open for as long as a slow run takes
            "log_level": 0,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    return producer


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    data_dir = tmp_path_factory.mktemp("cli-transactions") / "data"
    broker = make_broker(data_dir)
    assert isinstance(broker, Appliance | ApacheKafka)
    broker.start()
    for topic, partitions in (("t", 2), ("hung", 1)):
        create_topic(broker.port, topic, partitions=partitions)
    plain = Producer({"bootstrap.servers": broker.address})
    plain.produce("hung", b"first")
    assert plain.flush(30) == 0
    hang_a_transaction(broker, data_dir)
    still_open = transactional(broker, "open")
    for partition in (0, 1):
        still_open.produce("t", b"x", partition=partition)
    assert still_open.flush(30) == 0
    done = transactional(broker, "done")
    done.produce("t", b"y", partition=0)
    done.commit_transaction(30)
    yield Seen(broker, broker.port, (still_open, done))
    broker.stop()


def test_ids_are_listed_as_kafka_lists_them_and_by_each_filter(seen: Seen) -> None:
    listed = seen.told("list")
    assert [
        {
            "TransactionalId": each["transactional_id"],
            "Coordinator": str(each["coordinator"]),
            "ProducerId": str(each["producer_id"]),
            "TransactionState": each["state"],
        }
        for each in listed
    ] == sorted(seen.kafkas("list"), key=lambda row: row["TransactionalId"])
    states = {each["transactional_id"]: each["state"] for each in listed}
    assert states == {"open": "Ongoing", "done": "CompleteCommit"}
    ids = {each["transactional_id"]: each["producer_id"] for each in listed}

    def names(*filters: object) -> list[str]:
        return [each["transactional_id"] for each in seen.told("list", *filters)]

    assert names("--state", "ongoing") == ["open"]
    assert names("--state", "Ongoing", "--state", "CompleteCommit") == ["done", "open"]
    assert names("--producer-id", ids["done"]) == ["done"]
    assert names("--producer-id", 2**60) == []
    assert names("--transactional-id-pattern", "o.*") == ["open"]
    assert names("--transactional-id-pattern", "o") == []
    assert "open" in names("--duration-filter", "1ms")
    assert names("--duration-filter", "1h") == []
    shown = seen.run("list").succeeded().text.splitlines()
    assert shown[0].split() == ["TRANSACTIONAL", "ID", "COORDINATOR", "PRODUCER", "ID", "STATE"]
    assert [line.split()[0] for line in shown[1:]] == ["done", "open"]


def test_an_open_transaction_is_described_as_kafka_describes_it(seen: Seen) -> None:
    (mine,) = seen.told("describe", "open")
    (kafkas,) = seen.kafkas("describe", "--transactional-id", "open")
    kafkas["TopicPartitions"] = ",".join(sorted(kafkas["TopicPartitions"].split(",")))
    assert {
        "CoordinatorId": str(mine["coordinator"]),
        "TransactionalId": mine["transactional_id"],
        "ProducerId": str(mine["producer_id"]),
        "ProducerEpoch": str(mine["producer_epoch"]),
        "TransactionState": mine["state"],
        "TransactionTimeoutMs": str(mine["timeout_ms"]),
        "CurrentTransactionStartTimeMs": str(mine["started_ms"]),
        "TopicPartitions": ",".join(f"{p['topic']}-{p['partition']}" for p in mine["partitions"]),
    } == {name: text for name, text in kafkas.items() if name != "TransactionDurationMs"}
    assert 0 <= mine["age_ms"] <= int(kafkas["TransactionDurationMs"])
    assert "open  Ongoing" in seen.run("describe", "open", "done").succeeded().text
    (done,) = seen.told("describe", "done")
    assert (done["partitions"], done["age_ms"]) == ([], None)


def test_the_producers_of_a_partition_are_those_that_kafka_shows(seen: Seen) -> None:
    mine = seen.told("producers", "t:0")
    kafkas = seen.kafkas("describe-producers", "--topic", "t", "--partition", "0")
    assert {
        (str(each["producer_id"]), str(each["producer_epoch"]), str(each["last_sequence"])) for each in mine
    } == {(row["ProducerId"], row["ProducerEpoch"], row["LastSequence"]) for row in kafkas}
    assert [each["start_offset"] for each in seen.told("producers", "t:0", "--open")] == [0]
    assert {row["CurrentTransactionStartOffset"] for row in kafkas} == {"0", "None"}


def test_a_hanging_transaction_is_found_as_kafka_finds_it_and_aborted_and_its_readers_go_on(
    seen: Seen,
) -> None:
    (mine,) = seen.told("find-hanging")
    (kafkas,) = seen.kafkas("find-hanging", "--broker-id", str(seen.told("list")[0]["coordinator"]))
    found = (
        mine["topic"],
        mine["partition"],
        mine["producer_id"],
        mine["producer_epoch"],
        mine["start_offset"],
    )
    assert found == ("hung", 0, LOST_PRODUCER, 3, 1)
    assert tuple(map(str, found)) == tuple(
        kafkas[name] for name in ("Topic", "Partition", "ProducerId", "ProducerEpoch", "StartOffset")
    )
    # With no patience at all, transactions that their coordinators know do not count as hanging.
    assert seen.told("find-hanging", "--max-transaction-timeout", "0") == [
        {**mine, "age_ms": pytest.approx(mine["age_ms"], abs=300_000)}
    ]
    assert seen.told("find-hanging", "t") == []

    reader = Consumer(
        {"bootstrap.servers": seen.broker.address, "group.id": "g", "isolation.level": "read_committed"}
    )
    last_stable = reader.get_watermark_offsets(TopicPartition("hung", 0), timeout=30)[1]
    assert last_stable == 1
    assert seen.run("abort", "hung:0", "--start-offset", 2).code == 1
    refused = seen.run("abort", "hung:0", "--producer-id", LOST_PRODUCER, "--producer-epoch", 2)
    assert refused.code == 1
    assert "INVALID_PRODUCER_EPOCH" in refused.errors
    (aborted,) = seen.told("abort", "hung:0", "--start-offset", 1)
    assert aborted == {
        "topic": "hung",
        "partition": 0,
        "producer_id": LOST_PRODUCER,
        "producer_epoch": 3,
        "result": "aborted",
        "error": None,
    }
    assert seen.told("find-hanging") == []
    assert reader.get_watermark_offsets(TopicPartition("hung", 0), timeout=30)[1] == 3
    reader.close()
    over = seen.run("abort", "hung:0", "--producer-id", LOST_PRODUCER, "--producer-epoch", 3, "--force")
    assert (over.code, over.output) == (1, b"")
    assert f"producer {LOST_PRODUCER} has no open transaction in hung-0" in over.errors


@pytest.mark.parametrize("by", ["start offset", "producer"])
def test_a_transaction_that_its_coordinator_may_still_commit_is_aborted_in_one_partition_only_by_force(
    seen: Seen, by: str
) -> None:
    topic = "spared-" + by.replace(" ", "-")
    create_topic(seen.port, topic, partitions=2)
    producer = transactional(seen.broker, f"spared by {by}")
    for partition in (0, 1):
        producer.produce(topic, b"x", partition=partition)
    assert producer.flush(30) == 0
    (told,) = seen.told("producers", f"{topic}:0")
    named = (
        ("--start-offset", told["start_offset"])
        if by == "start offset"
        else ("--producer-id", told["producer_id"], "--producer-epoch", told["producer_epoch"])
    )
    refused = seen.run("abort", f"{topic}:0", *named)
    assert (refused.code, refused.output) == (1, b"")
    assert f"spared by {by}" in refused.errors
    assert "terminate" in refused.errors
    assert [each["partition"] for each in seen.told("producers", topic, "--open")] == [0, 1]
    (aborted,) = seen.told("abort", f"{topic}:0", *named, "--force")
    assert aborted["result"] == "aborted"
    assert [each["partition"] for each in seen.told("producers", topic, "--open")] == [1]
    producer.abort_transaction(30)


def test_a_terminated_id_has_no_open_transaction_and_its_producer_is_fenced(seen: Seen) -> None:
    producer = transactional(seen.broker, "terminated")
    producer.produce("t", b"z", partition=1)
    assert producer.flush(30) == 0
    outcome = seen.run("terminate", "terminated", "nobody", "--json")
    assert outcome.code == 1
    done, refused = json.loads(outcome.output)
    assert (done["transactional_id"], done["result"], done["error"]) == ("terminated", "terminated", None)
    assert (refused["transactional_id"], refused["result"]) == ("nobody", "refused")
    assert "TRANSACTIONAL_ID_NOT_FOUND" in refused["error"]
    (described,) = seen.told("describe", "terminated")
    assert (described["state"], described["partitions"]) == ("Empty", [])
    assert described["producer_epoch"] == done["producer_epoch"]
    with pytest.raises(KafkaException, match=r"FENCED|fenced|INVALID_PRODUCER_EPOCH"):
        producer.commit_transaction(30)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("describe", "nobody"), 1, "TRANSACTIONAL_ID_NOT_FOUND"),
        (("describe", ""), 2, "must not be empty"),
        (("describe", "x" * 40_000), 2, "at most 32767 bytes"),
        (("describe",), 2, "Missing argument"),
        (("list", "--state", "sleepy"), 2, "sleepy"),
        (("list", "--producer-id", "-1"), 2, "--producer-id"),
        (("list", "--duration-filter", "soon"), 2, "no duration"),
        (("list", "--duration-filter", "999999999999999d"), 2, "no duration"),
        (("list", "--transactional-id-pattern", "("), 1, "INVALID_REGULAR_EXPRESSION"),
        (("producers", "nowhere"), 1, "no topic nowhere"),
        (("producers", "t:7"), 1, "no partition t-7"),
        (("find-hanging", "--broker-id", "77"), 1, "no broker 77"),
        (("find-hanging", "--max-transaction-timeout", "-1"), 2, "--max-transaction-timeout"),
        (("abort", "t"), 2, "TOPIC:PARTITION"),
        (("abort", "t:0"), 2, "--start-offset"),
        (("abort", "t:0", "--start-offset", "0", "--producer-id", "1"), 2, "either"),
        (("abort", "t:0", "--producer-id", "1"), 2, "belong together"),
        (("abort", "t:0", "--producer-id", "1", "--producer-epoch", "40000"), 2, "--producer-epoch"),
        (("abort", "t:0", "--start-offset", "99"), 1, "no open transaction begins at offset 99"),
        (
            ("abort", "t:0", "--producer-id", "5", "--producer-epoch", "0"),
            1,
            "producer 5 has no open transaction",
        ),
        (("terminate", "nobody"), 1, "TRANSACTIONAL_ID_NOT_FOUND"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    seen: Seen, arguments: tuple[str, ...], code: int, says: str
) -> None:
    outcome = seen.run(*arguments)
    assert (outcome.code, outcome.output) == (code, b"")
    assert says in outcome.errors
    assert "Traceback" not in outcome.errors


def test_a_broker_that_is_not_there_is_said(seen: Seen) -> None:
    outcome = appliance("transactions", "list", "-b", f"127.0.0.1:{free_ports()}")
    assert outcome.code == 1
    assert "no broker answers" in outcome.errors
