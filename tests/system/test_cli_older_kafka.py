"""The commands of our own codec against Apache Kafka 3.9, which knows older versions of these requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.cli.request import TooOld, request
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_cluster import DescribeClusterRequest
from tests.cli.command import appliance
from tests.support.kafka_3 import KafkaOnZooKeeper
from tests.support.zookeeper import ZooKeeper

pytestmark = pytest.mark.slow  # a JVM and ZooKeeper


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaOnZooKeeper]:
    directory = tmp_path_factory.mktemp("older")
    store = ZooKeeper(directory / "zookeeper")
    store.start()
    judge = KafkaOnZooKeeper(directory / "kafka", f"{store.address}/older")
    try:
        judge.start()
        appliance(
            "topics", "create", "orders", "-p", 2, more={"APPLIANCE_BOOTSTRAP": judge.address}
        ).succeeded()
        yield judge
    finally:
        judge.stop()
        store.kill()


def told(kafka: KafkaOnZooKeeper, *arguments: object) -> Any:
    more = {"APPLIANCE_BOOTSTRAP": kafka.address}
    return json.loads(appliance(*arguments, "--json", more=more).succeeded().output)


def test_cluster_is_described_without_the_newest_versions(kafka: KafkaOnZooKeeper) -> None:
    health = told(kafka, "cluster", "health")
    assert (health["healthy"], health["brokers"], health["partitions"]) == (True, 1, 2)
    assert {each["topic"] for each in told(kafka, "partitions", "list")} == {"orders"}
    (directory,) = told(kafka, "log-dirs", "describe")
    assert directory["total_bytes"] > 0
    assert [each["slot"] for each in told(kafka, "slots", "list")] == [0]
    assert told(kafka, "reassign", "status") == []
    (moved,) = told(kafka, "reassign", "move", "orders:0", "--to", "0")
    assert (moved["result"], moved["error"]) == ("moving", None)


def test_version_that_the_broker_lacks_is_named(kafka: KafkaOnZooKeeper) -> None:
    with pytest.raises(
        TooOld, match=r"knows DescribeCluster in versions 0 to 1; the command needs version 2"
    ):
        request(kafka.address, ApiKey.DESCRIBE_CLUSTER, 2, DescribeClusterRequest(False))
