"""librdkafka's own test-runner against the broker, in full mode; built by scripts/install-librdkafka.sh."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.broker import Appliance, Broker
from tests.support.judge import running_broker

REPOSITORY: Final = Path(__file__).resolve().parents[2]
INSTALL: Final = REPOSITORY / "scripts" / "install-librdkafka.sh"
READY: Final = REPOSITORY / ".cache" / "librdkafka" / "READY"

TESTS: Final = {
    "0001": "multi-object: producers and handles come and go",
    "0002": "unknown partition",
    "0003": "message larger than message.max.bytes",
    "0005": "produced order of a partition",
    "0007": "automatic topic creation",
    "0008": "acks by request",
    "0012": "produce and consume",
    "0013": "null messages",
    "0017": "compression by every codec",
    "0018": "members of a group come and go",
    "0019": "list groups",
    "0022": "consume a batch",
    "0026": "consume and pause",
    "0029": "assign with offsets",
    "0031": "positions by offset and by timestamp",
    "0033": "subscriptions by expression",
    "0036": "partial fetch: a message larger than the fetch size",
    "0040": "input and output events of a group",
    "0044": "partitions are added",
    "0050": "subscriptions of a growing topic",
    "0056": "balanced group by many threads",
    "0070": "a null message of an empty topic",
    "0073": "headers",
}

SETTINGS: Final = {
    "num.partitions": 4,
    "group.min.session.timeout.ms": 1_000,
    "group.initial.rebalance.delay.ms": 0,
}

CONSUMER_PROTOCOL: Final = ("0018", "0022", "0029", "0033", "0056")
"""Those that are run again as groups of KIP-848."""

THREE_BROKERS: Final = {
    "0103": "transactions: commit, abort, consume and produce, fencing, a new epoch after an error"
}
"""Its topics have three replicas. Of the other tests of transactions 0098 wants RapidJSON and a Java program, 0105 plays
on librdkafka's mock, and 0129 makes a topic with segments of 20,000 bytes, which Kafka 4 refuses as well."""


@pytest.fixture(scope="module")
def runner() -> dict[str, str]:
    """Paths of the built suite."""
    subprocess.run([str(INSTALL)], check=True)
    return dict(line.split("=", 1) for line in READY.read_text().splitlines())


@pytest.fixture(scope="module")
def suite_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with four partitions a topic, as the suite's own clusters have, and short sessions and rebalances."""
    with running_broker(tmp_path_factory.mktemp("suite") / "data", SETTINGS) as started:
        yield started


@pytest.fixture(scope="module")
def three_slots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Three brokers, as far as a client can tell."""
    broker = Appliance(tmp_path_factory.mktemp("three") / "data", slots=3, settings=SETTINGS)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "protocol"),
    [(number, "classic") for number in TESTS] + [(number, "consumer") for number in CONSUMER_PROTOCOL],
)
def test_librdkafkas_own_test_passes(
    number: str, protocol: str, *, runner: dict[str, str], suite_broker: Broker, tmp_path: Path
) -> None:
    run(number, protocol, runner, suite_broker, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", THREE_BROKERS)
def test_librdkafkas_own_test_of_three_brokers_passes(
    number: str, runner: dict[str, str], three_slots: Broker, tmp_path: Path
) -> None:
    run(number, "classic", runner, three_slots, tmp_path)


def run(number: str, protocol: str, runner: dict[str, str], broker: Broker, tmp_path: Path) -> None:
    configuration = tmp_path / "test.conf"
    configuration.write_text(
        f"bootstrap.servers={broker.address}\nbroker.address.family=v4\ntest.topic.random=true\n"
    )
    done = subprocess.run(
        [runner["test_runner"], "-p1"],
        cwd=tmp_path,
        env={
            **os.environ,
            "TESTS": number,
            "TEST_CONSUMER_GROUP_PROTOCOL": protocol,
            "RDKAFKA_TEST_CONF": str(configuration),
            "LD_LIBRARY_PATH": runner["library_path"],
            "TEST_KAFKA_VERSION": "4.0.0",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=590,
        check=False,
    )
    output = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    assert done.returncode == 0, output[-6000:]
    verdicts = re.findall(rf"\| {number}_\w+\s*\|\s*(\w+)", output)
    assert verdicts, output[-3000:]
    assert set(verdicts) == {"PASSED"}, output[-6000:]
