"""Apache Kafka's Java clients, and the command line tools that come with them."""

from __future__ import annotations

import re
import subprocess
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.clients.adapters.java import JavaClient
from tests.clients.play import Stage, within
from tests.clients.scenarios import Scenario, cells
from tests.support.apache_kafka import compiled, java, tool
from tests.support.raw_fetch import is_served

COMMIT_THEN_ASK: Final = Path(__file__).with_name("java") / "CommitThenAsk.java"
COMMITS: Final = 200


@pytest.mark.parametrize("scenario", cells(JavaClient))
def test_java(scenario: Scenario, stage: Stage) -> None:
    scenario.play(JavaClient, stage)


def test_kafkas_tools_produce_measure_and_consume(stage: Stage) -> None:
    topic = "java-tools"
    server = ("--bootstrap-server", stage.address)
    tool("org.apache.kafka.tools.TopicCommand", *server, "--create", "--topic", topic, "--partitions", "2")
    told = tool(
        "org.apache.kafka.tools.VerifiableProducer",
        *(*server, "--topic", topic, "--max-messages", "3000", "--acks", "-1"),
    )
    assert '"sent":3000' in told
    assert '"acked":3000' in told
    described = tool("org.apache.kafka.tools.TopicCommand", *server, "--describe", "--topic", topic)
    assert "PartitionCount: 2" in described
    assert described.count("Leader: ") == 2
    ends = tool("org.apache.kafka.tools.GetOffsetShell", *server, "--topic", topic).split()
    lengths = {int(line.split(":")[1]): int(line.split(":")[2]) for line in ends}
    assert sum(lengths.values()) == 3000
    values: set[int] = set()
    for partition, length in lengths.items():
        read = tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *(*server, "--topic", topic, "--partition", str(partition), "--offset", "earliest"),
            *("--max-messages", str(length), "--timeout-ms", "20000"),
        )
        values.update(int(line) for line in read.split())
    assert values == set(range(3000))


def test_kafkas_command_describes_topics_page_by_page(stage: Stage) -> None:
    """DescribeTopicPartitions (KIP-966): pages of three that end within a topic, at its end, and go on in the next."""
    partitions = {"java-paged-a": 5, "java-paged-b": 4, "java-paged-c": 1}
    for topic, count in partitions.items():
        stage.witness.create_topic(topic, count)
        assert within(20, partial(is_served, stage.address, topic, count))
    told = tool(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", stage.address, "--describe", "--topic", "java-paged-.*"),
        *("--partition-size-limit-per-response", "3"),
    )
    rows = re.findall(r"Topic: (\S+)\s+Partition: (\d+)\s+Leader: (\d+)", told)
    assert [(topic, int(number)) for topic, number, _ in rows] == [
        (topic, number) for topic, count in partitions.items() for number in range(count)
    ]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_what_was_committed_without_waiting_is_what_the_next_question_finds(
    stage: Stage, protocol: str
) -> None:
    topic = f"java-commit-then-ask-{protocol}"
    stage.witness.create_topic(topic, 1)
    command = [
        *java("-Xmx256m", "-XX:TieredStopAtLevel=1", classes=compiled(COMMIT_THEN_ASK)),
        "CommitThenAsk",
    ]
    arguments = [stage.address, topic, protocol, str(COMMITS)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) == 0
