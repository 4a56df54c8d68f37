"""Apache Kafka's own consumer in a group of KIP-848, and what its group tool tells of it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.protocol.records.record import Record, encode_batch
from tests.support.apache_kafka import java, tool
from tests.support.broker import Appliance, end_with_the_test_runner
from tests.support.wire import WireSocket
from tests.system.raw import create_topic, produce, wait_until

GROUP = "java"


class ConsoleConsumer:
    """kafka-console-consumer as a member of the group; `lines` are the values it printed."""

    def __init__(self, address: str, *what: str) -> None:
        self.lines: list[str] = []
        settings = ("group.protocol=consumer", "auto.offset.reset=earliest")
        properties = [word for setting in settings for word in ("--command-property", setting)]
        self._process = subprocess.Popen(
            [
                *java(),
                "org.apache.kafka.tools.consumer.ConsoleConsumer",
                *("--bootstrap-server", address, "--group", GROUP, *properties, *what),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(line.strip() for line in self._process.stdout)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    interval = {"group.consumer.min.heartbeat.interval.ms": 300, "group.consumer.heartbeat.interval.ms": 300}
    broker = Appliance(tmp_path / "data", settings=interval)
    broker.start()
    yield broker
    broker.stop()


@pytest.mark.slow
def test_kafka_s_consumers_share_a_topic_and_its_tool_tells_how(appliance: Appliance) -> None:
    def told(*arguments: str) -> list[list[str]]:
        """The tool's rows, split at blanks, without headings."""
        name = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        printed = tool(name, "--bootstrap-server", appliance.address, *arguments)
        return [line.split() for line in printed.splitlines() if line.startswith(GROUP)]

    create_topic(appliance.port, "orders", partitions=4)
    with WireSocket(appliance.port) as connection:
        for partition in range(4):
            records = encode_batch([Record(b"%d" % number) for number in range(10)])
            produce(connection, "orders", records, partition=partition)
    first = ConsoleConsumer(appliance.address, "--topic", "orders")
    wait_until(lambda: len(first.lines) == 40, "everything is read", timeout_s=120)
    second = ConsoleConsumer(appliance.address, "--include", "ord.*")

    def shared() -> bool:
        members = told("--describe", "--group", GROUP, "--members")
        return [row[4] for row in members] == ["2", "2"]

    wait_until(shared, "both have two partitions", timeout_s=120)
    (state,) = told("--describe", "--group", GROUP, "--state")
    assert state[-3:] == ["uniform", "Stable", "2"]
    assert told("--list", "--type") == [[GROUP, "Consumer"]]
    first.stop()
    second.stop()
    offsets = told("--describe", "--group", GROUP)
    assert [row[2:6] for row in offsets] == [[str(partition), "10", "10", "0"] for partition in range(4)]
    printed = tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", appliance.address, "--delete", "--group", GROUP),
    )
    assert "was successful" in printed
