"""Apache Kafka's own kafka-consumer-groups over our groups: it lists, describes, resets and deletes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.apache_kafka import tool
from tests.support.broker import Appliance
from tests.system.raw import create_topic, wait_until

COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


def rows(printed: str) -> list[list[str]]:
    """The words of each line with a table's row; headings and sentences are left out."""
    words = [line.split() for line in printed.splitlines()]
    return [line for line in words if line and line[0] in {"idle", "alive"}]


@pytest.mark.slow
def test_kafkas_group_tool_finds_what_it_finds_with_kafka(tmp_path: Path) -> None:
    broker = Appliance(tmp_path, settings={"group.initial.rebalance.delay.ms": 0})
    broker.start()
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "alive", "client.id": "reader"})

    def groups(*arguments: str) -> str:
        return tool(COMMAND, "--bootstrap-server", broker.address, *arguments)

    try:
        create_topic(broker.port, "t", partitions=2)
        producer = Producer({"bootstrap.servers": broker.address})
        for number in range(20):
            producer.produce("t", b"%d" % number, partition=number % 2)
        assert producer.flush(10) == 0
        simple = Consumer({"bootstrap.servers": broker.address, "group.id": "idle"})
        simple.commit(offsets=[TopicPartition("t", 0, 4), TopicPartition("t", 1, 10)], asynchronous=False)
        simple.close()
        consumer.subscribe(["t"])
        wait_until(
            lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2, "both", timeout_s=30
        )
        consumer.commit(offsets=[TopicPartition("t", 0, 3)], asynchronous=False)

        assert sorted(rows(groups("--list", "--state"))) == [["alive", "Stable"], ["idle", "Empty"]]
        described = sorted(row[:6] for row in rows(groups("--describe", "--group", "idle")))
        assert described == [["idle", "t", "0", "4", "10", "6"], ["idle", "t", "1", "10", "10", "0"]]
        first, second = sorted(rows(groups("--describe", "--group", "alive")))
        assert (first[1:6], second[1:6]) == (["t", "0", "3", "10", "7"], ["t", "1", "-", "10", "-"])
        assert first[6].startswith("reader-")
        assert first[7:] == ["/127.0.0.1", "reader"]
        (member,) = rows(groups("--describe", "--group", "alive", "--members"))
        assert member[-1] == "2"
        (state,) = rows(groups("--describe", "--group", "alive", "--state"))
        assert state[-3:] == ["range", "Stable", "1"]
        reset = ("--reset-offsets", "--group", "idle", "--topic", "t", "--to-earliest", "--execute")
        assert sorted(row[1:] for row in rows(groups(*reset))) == [["t", "0", "0"], ["t", "1", "0"]]
        assert "Successful" in groups("--delete-offsets", "--group", "idle", "--topic", "t:1")
        assert [row[1:4] for row in rows(groups("--describe", "--group", "idle"))] == [["t", "0", "0"]]
        assert "was successful" in groups("--delete", "--group", "idle")
        assert rows(groups("--list", "--state")) == [["alive", "Stable"]]
    finally:
        consumer.close()
        broker.stop()
