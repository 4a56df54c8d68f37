"""The tree in ZooKeeper, node by node beside the one that Apache Kafka 3.9 makes of the same requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kazoo.client import KazooClient

from tests.support.broker import Appliance, Broker
from tests.support.kafka_3 import KafkaOnZooKeeper, tool
from tests.support.zookeeper import ZooKeeper
from tests.system.raw import wait_until

pytestmark = pytest.mark.slow

WAIT_S: Final = 30.0
BROKER_SETTING: Final = "log.cleaner.delete.retention.ms"

OURS_ONLY: Final = ("/config/groups", "/writers")
KAFKAS_ONLY: Final = ("/config/changes/",)
"""Notes by which its brokers hear of settings; ours hear of them from the controller."""

VOLATILE: Final = frozenset({"id", "topic_id", "timestamp", "port", "endpoints"})
"""Fields that no two clusters share."""


@dataclass(frozen=True, slots=True)
class Znode:
    data: bytes
    version: int
    is_ephemeral: bool

    def record(self) -> object:
        """Its data; where it is a record, without the values that no two clusters share."""
        found = json.loads(self.data) if self.data else None
        if not isinstance(found, dict):
            return found
        return {name: None if name in VOLATILE else value for name, value in found.items()}


def tree(client: KazooClient, root: str) -> dict[str, Znode]:
    """Every node below `root`, by its path from there."""
    found: dict[str, Znode] = {}
    paths = [""]
    while paths:
        path = paths.pop()
        data, stat = client.get(root + path)
        found[path or "/"] = Znode(data or b"", stat.version, bool(stat.ephemeralOwner))
        paths += [f"{path}/{name}" for name in client.get_children(root + path)]
    return found


def alter(admin: AdminClient, kind: ResourceType, name: str, entries: Mapping[str, str]) -> None:
    changes = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in entries.items()
    ]
    resource: Any = ConfigResource(kind, name, incremental_configs=changes)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(WAIT_S)


def live_a_little(broker: Broker) -> None:
    """Topics made, grown and deleted, settings of a topic, a broker and all brokers, a producer's id."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    topics = [
        NewTopic("plain", 2, 1),
        NewTopic("squeezed", 1, 1, config={"cleanup.policy": "compact"}),
        NewTopic("gone", 1, 1),
    ]
    for made in admin.create_topics(topics).values():
        made.result(WAIT_S)
    for grown in admin.create_partitions([NewPartitions("plain", 3)]).values():
        grown.result(WAIT_S)
    for deleted in admin.delete_topics(["gone"]).values():
        deleted.result(WAIT_S)
    alter(admin, ResourceType.TOPIC, "plain", {"retention.ms": "99999"})
    alter(admin, ResourceType.BROKER, "0", {BROKER_SETTING: "200000"})
    for_all = ("--entity-type", "brokers", "--entity-default", "--alter")
    change = ("--add-config", f"{BROKER_SETTING}=300000")
    tool("kafka.admin.ConfigCommand", "--bootstrap-server", broker.address, *for_all, *change)
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True, "log_level": 0})
    producer.produce("plain", b"value")
    assert producer.flush(WAIT_S) == 0


def grown_tree(client: KazooClient, broker: Broker, root: str) -> dict[str, Znode]:
    broker.start()
    try:
        live_a_little(broker)
        wait_until(
            lambda: not client.exists(f"{root}/brokers/topics/gone"), "the deletion is done", timeout_s=60
        )
        wait_until(
            lambda: not client.get_children(f"{root}/admin/delete_topics"), "its mark is gone", timeout_s=60
        )
        return tree(client, root)
    finally:
        broker.stop()


def test_tree_is_kafkas_node_by_node(own_zookeeper: ZooKeeper, tmp_path: Path) -> None:
    client = KazooClient(own_zookeeper.address)
    client.start(timeout=WAIT_S)
    kafka = KafkaOnZooKeeper(tmp_path / "kafka", f"{own_zookeeper.address}/kafka")
    wanted = grown_tree(client, kafka, "/kafka")
    settings = {"metadata.store": "zookeeper", "zookeeper.connect": f"{own_zookeeper.address}/ours"}
    ours = grown_tree(client, Appliance(tmp_path / "ours", settings=settings), "/ours")
    client.stop()
    client.close()

    assert {path for path in ours if not path.startswith(OURS_ONLY)} == {
        path for path in wanted if not path.startswith(KAFKAS_ONLY)
    }
    for path in ours.keys() & wanted.keys():
        mine, its = ours[path], wanted[path]
        assert mine.record() == its.record(), path
        assert mine.is_ephemeral == its.is_ephemeral, path
        if path.startswith(("/brokers/topics", "/config", "/controller")):
            assert mine.version == its.version, path
