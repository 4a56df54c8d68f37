"""The command line against a whole broker. With APPLIANCE_JUDGE=kafka the judge is asked the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.cli.command import Outcome, appliance
from tests.support.broker import Broker
from tests.support.judge import running_broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("cli") / "data") as started:
        yield started


class Console:
    """The command with its bootstrap address in the environment, as a user would set it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def __call__(self, *arguments: object, given: bytes = b"") -> Outcome:
        return appliance(*arguments, given=given, more={"APPLIANCE_BOOTSTRAP": self.broker.address})

    def json(self, *arguments: object) -> Any:
        return json.loads(self(*arguments, "--json").succeeded().output)


@pytest.fixture
def run(broker: Broker) -> Console:
    return Console(broker)


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4().hex[:8]}"


def test_topic_is_created_listed_described_grown_and_deleted(run: Console, topic: str) -> None:
    assert run("topics", "create", topic, "-p", 3, "--config", "retention.ms=60000").succeeded().text == (
        f"created {topic}\n"
    )
    listed = {row["topic"]: row for row in run.json("topics", "list")}
    assert listed[topic] == {"topic": topic, "partitions": 3, "replication_factor": 1, "internal": False}

    (described,) = run.json("topics", "describe", topic)
    assert described["configs"] == {"retention.ms": "60000"}
    assert len(described["topic_id"]) == 22
    leader = described["partitions"][0]["leader"]
    assert described["partitions"] == [
        {
            "partition": number,
            "leader": leader,
            "replicas": [leader],
            "isr": [leader],
            "start_offset": 0,
            "end_offset": 0,
        }
        for number in range(3)
    ]

    run("topics", "add-partitions", topic, 5).succeeded()
    assert len(run.json("topics", "describe", topic)[0]["partitions"]) == 5
    assert run("topics", "delete", "--yes", topic).succeeded().text == f"deleted {topic}\n"
    assert topic not in {row["topic"] for row in run.json("topics", "list")}


def test_internal_topics_are_listed_when_they_are_asked_for(run: Console, topic: str) -> None:
    run("topics", "create", topic, "-p", 2).succeeded()
    asker = Consumer({"bootstrap.servers": run.broker.address, "group.id": topic})
    asker.committed(
        [TopicPartition(topic, 0)], timeout=60
    )  # the first question for a group's offsets makes the topic
    asker.close()
    internal = "__consumer_offsets"
    assert internal not in {row["topic"] for row in run.json("topics", "list")}
    assert {row["topic"]: row["internal"] for row in run.json("topics", "list", "--all")} == {
        row["topic"]: False for row in run.json("topics", "list")
    } | {internal: True}
    table = run("topics", "list", "--all").succeeded().text.splitlines()
    assert table[0].split() == ["TOPIC", "PARTITIONS", "REPLICAS"]
    assert [topic, "2", "1"] in [line.split() for line in table]


def test_partitions_and_replicas_default_to_the_brokers(run: Console, topic: str) -> None:
    run("topics", "create", topic).succeeded()
    (described,) = run.json("topics", "describe", topic)
    assert [len(each["replicas"]) for each in described["partitions"]] == [1]


def test_each_refusal_is_one_line_with_kafkas_name(run: Console, topic: str) -> None:
    run("topics", "create", topic, "-p", 2).succeeded()
    for arguments, named in (
        (("create", topic), "TOPIC_ALREADY_EXISTS"),
        (("create", "a b"), "TOPIC_EXCEPTION"),
        (("create", f"{topic}-x", "--config", "retention.msec=1"), "INVALID_CONFIG"),
        (("create", f"{topic}-y", "--config", "retention.ms=soon"), "INVALID_CONFIG"),
        (("create", f"{topic}-z", "-r", 4), "INVALID_REPLICATION_FACTOR"),
        (("add-partitions", topic, 2), "INVALID_PARTITIONS"),
        (("add-partitions", "none", 2), "UNKNOWN_TOPIC_OR_PART"),
        (("delete", "--yes", "none"), "UNKNOWN_TOPIC_OR_PART"),
        (("describe", "none"), "UNKNOWN_TOPIC_OR_PART"),
    ):
        told = run("topics", *arguments)
        assert (told.code, told.output) == (1, b""), arguments
        assert told.errors.startswith("appliance: "), arguments
        assert told.errors.count("\n") == 1, told.errors
        assert named in told.errors, told.errors


def test_one_refusal_does_not_keep_others_from_being_done(run: Console, topic: str) -> None:
    told = run("topics", "delete", "--yes", "none", topic)
    assert told.code == 1
    run("topics", "create", topic).succeeded()
    told = run("topics", "delete", "--yes", "none", topic)
    assert (told.code, told.text) == (1, f"deleted {topic}\n")
    assert run("topics", "create", topic, "--if-not-exists").succeeded()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_hundred_thousand_lines_come_back_byte_by_byte(run: Console, topic: str, codec: str) -> None:
    lines = b"".join(b"%d of many lines\n" % number for number in range(100_000))
    run("produce", topic, "-z", codec, given=lines).succeeded()
    assert run("consume", topic).succeeded().output == lines


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_acks_of_every_kind(run: Console, topic: str, acks: str) -> None:
    run("topics", "create", topic).succeeded()
    run("produce", topic, "--acks", acks, given=b"a\nb\n").succeeded()
    assert run("consume", topic).succeeded().text == "a\nb\n"


def test_keys_headers_nulls_and_offsets_survive(run: Console, topic: str) -> None:
    run("topics", "create", topic, "-p", 4).succeeded()
    given = b"k1=v1\nk2=NIL\nk3=\n"
    run("produce", topic, "-K", "=", "--null-marker", "NIL", "--header", "h=1", given=given).succeeded()
    told = [json.loads(line) for line in run("consume", topic, "--json").succeeded().output.splitlines()]
    assert {each["key"]: each["value"] for each in told} == {"k1": "v1", "k2": None, "k3": ""}
    assert {json.dumps(each["headers"]) for each in told} == {'[["h", "1"]]'}


def test_reading_begins_where_it_is_told_to(run: Console, topic: str) -> None:
    run("topics", "create", topic).succeeded()
    run("produce", topic, given=b"".join(b"%d\n" % number for number in range(1000))).succeeded()
    told = run("consume", topic, "--json").succeeded().output.splitlines()
    middle_ms = json.loads(told[500])["timestamp_ms"]
    first = next(each["offset"] for each in map(json.loads, told) if each["timestamp_ms"] >= middle_ms)
    assert run("consume", topic, "--from", f"@{middle_ms}", "-n", 1).succeeded().text == f"{first}\n"
    assert run("consume", topic, "--from", f"@{middle_ms + 3_600_000}").succeeded().text == ""
    assert run("consume", topic, "--from", 998).succeeded().text == "998\n999\n"
    assert run("consume", topic, "--from", -1).succeeded().text == "999\n"
    assert run("consume", topic, "--from", "end").succeeded().text == ""
    told_past = run("consume", topic, "--from", 1001)
    assert (told_past.code, "past its end, 1000" in told_past.errors) == (1, True)


def test_large_record_is_taken_and_a_larger_one_refused_by_name(run: Console, topic: str) -> None:
    run("topics", "create", topic).succeeded()
    run("produce", topic, "--whole", given=bytes(900_000)).succeeded()
    told = run("produce", topic, "--whole", given=bytes(1_100_000))
    assert told.code == 1
    assert "1 of 1 records were not acknowledged" in told.errors
    assert "MESSAGE_TOO_LARGE" in told.errors
    assert run("consume", topic).succeeded().output == bytes(900_000) + b"\n"


def test_unknown_topic_and_partition_are_refused(run: Console, topic: str) -> None:
    told = run("consume", topic)
    assert (told.code, "UNKNOWN_TOPIC_OR_PART" in told.errors) == (1, True)
    run("topics", "create", topic, "-p", 2).succeeded()
    told = run("consume", topic, "-p", 2)
    assert (told.code, "no partition 2; it has 2" in told.errors) == (1, True)
